"""Profile: what differs between providers that speak one protocol, as data."""

from collections.abc import Mapping

from msgspec import Struct

from metis.catalog.models import AdapterCapabilities
from metis.projection.target import Target

_MEDIA = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})


class Profile(Struct, frozen=True, kw_only=True):
    """One provider: where it is, how it is called, and what it takes."""

    name: str
    protocol: str
    base_url: str
    path: str
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

    catalogued_as: str | None = None
    """The provider under which the catalogue knows the models, if it is not the name."""
    leading_system: bool = False
    """Whether instructions must come first, whatever the model takes."""

    @property
    def vendor(self) -> str:
        """The provider under which the catalogue knows the models."""
        return self.catalogued_as or self.name

    def target(self, capabilities: AdapterCapabilities) -> Target:
        """What a model of this provider can carry."""
        taken = {"text"}
        if capabilities.supports_images:
            taken.add("image")
        if self.documents:
            taken.add("document")
        if self.audio_media_types:
            taken.add("audio")
        results = self.result_blocks if capabilities.supports_images else frozenset({"text"})
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
            system="anywhere" if self._takes_late_system(capabilities) else "first",
            takes_blank_text=self.takes_blank_text,
        )

    def _takes_late_system(self, capabilities: AdapterCapabilities) -> bool:
        return capabilities.supports_system_messages_in_list and not self.leading_system


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
