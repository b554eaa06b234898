"""Profile: what differs between providers that speak one protocol, as data."""

import re
from collections.abc import Mapping
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import InvalidValueError
from metis.catalog.models import AdapterCapabilities
from metis.projection.target import Target

_PLACE = re.compile(r"projects/[a-z0-9.:-]{1,64}/locations/(?P<region>[a-z0-9-]{1,32})")
_MEDIA = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})


class Profile(Struct, frozen=True, kw_only=True):
    """One provider: where it is, how it is called, and what it takes."""

    name: str
    protocol: str
    base_url: str
    path: str
    """Where requests go; `{model}` and `{place}` stand for what differs from call to call."""
    stream_path: str = ""
    """Where requests for a stream go, if it is another path."""
    place: str = ""
    """What the path names before the model, such as a project and its location."""
    headers: Mapping[str, str] = {}
    default_model: str
    defaults: AdapterCapabilities
    """What is assumed of a model that the catalogue does not know."""
    issuers: frozenset[str] = frozenset()
    """Other names under which its sealed parts are known."""
    refused_options: frozenset[str] = frozenset()
    """Shared options that the provider's API does not take any more; a client's own go through."""
    documents: bool = False
    audio_media_types: frozenset[str] = frozenset()
    url_blocks: frozenset[str] = frozenset()
    citation_kinds: frozenset[str] = frozenset()
    result_blocks: frozenset[str] = frozenset({"text"})
    takes_thinking: bool = False
    needs_signatures: bool = True
    developer_role: bool = False
    takes_blank_text: bool = True
    video: bool = False
    artifacts: bool = False
    call_signature: str = ""
    """What the provider takes for the signature of a call that another model made."""
    older_models: tuple[str, ...] = ()
    """How models begin that need no such signature, and take only text in results."""

    def at_place(self, place: str) -> "Profile":
        """The same provider at a place; a region has a host of its own."""
        if "{place}" not in self.path:
            raise InvalidValueError(f"{self.name} has no places", path="$.place")
        found = _PLACE.fullmatch(place)
        if found is None:
            raise InvalidValueError("a place is projects/<id>/locations/<id>", path="$.place")
        region = found["region"]
        host = self.base_url.removeprefix("https://")
        base_url = self.base_url if region == "global" else f"https://{region}-{host}"
        return replace(self, place=f"{place}/", base_url=base_url)

    def path_to(self, model: str, *, is_stream: bool = False) -> str:
        """The path of a request; the name of a model is a name and leads nowhere else."""
        path = (is_stream and self.stream_path) or self.path
        if "{model}" not in path:
            return path
        if not model or not all(model.split("/")) or {".", ".."} & set(model.split("/")):
            raise InvalidValueError(f"{model!r} is no name of a model", path="$.model")
        named = model if "/" in model else f"models/{model}"
        return path.replace("{place}", self.place).replace("{model}", quote(named, safe="/@"))

    def target(self, capabilities: AdapterCapabilities, model: str = "") -> Target:
        """What a model of this provider can carry."""
        taken = {"text"}
        if capabilities.supports_images:
            taken.add("image")
        if self.documents:
            taken.add("document")
        if self.audio_media_types:
            taken.add("audio")
        if self.video:
            taken.add("video")
        is_older = model.removeprefix("models/").startswith(self.older_models)
        takes_media = capabilities.supports_images and not is_older
        results = self.result_blocks if takes_media else frozenset({"text"})
        return Target(
            adapter=self.name,
            issuers=frozenset({self.name, *self.issuers}),
            user_blocks=frozenset(taken),
            result_blocks=results,
            image_media_types=frozenset(capabilities.accepted_image_media_types),
            audio_media_types=self.audio_media_types,
            url_blocks=self.url_blocks,
            citation_kinds=self.citation_kinds,
            takes_tools=capabilities.supports_tools,
            takes_thinking=self.takes_thinking,
            needs_signatures=self.needs_signatures,
            developer_role=self.developer_role,
            system="anywhere" if capabilities.supports_system_messages_in_list else "first",
            takes_blank_text=self.takes_blank_text,
            takes_artifacts=self.artifacts,
            call_signature="" if is_older else self.call_signature,
        )


def assumed(
    *, context_tokens: int, output_tokens: int, thinking: bool, images: bool, system_in_list: bool
) -> AdapterCapabilities:
    """Capabilities to assume of a provider's models, where nothing better is known."""
    return AdapterCapabilities(
        supports_thinking=thinking,
        supports_images=images,
        supports_tools=True,
        supports_system_prompt=True,
        supports_structured_output=False,
        supports_streaming=True,
        supports_streaming_tool_calls=True,
        supports_parallel_tool_calls=True,
        supports_prompt_caching=False,
        supports_system_messages_in_list=system_in_list,
        max_context_tokens=context_tokens,
        max_output_tokens=output_tokens,
        accepted_image_media_types=tuple(sorted(_MEDIA)) if images else (),
    )
