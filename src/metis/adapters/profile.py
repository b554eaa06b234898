"""Profiles: what differs between providers that speak one protocol, as data."""

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import InvalidValueError
from metis.canonical.schema.fit import ToolSchemaRule
from metis.canonical.schema.fit_output import ANY_OUTPUT, OutputSchemaRule
from metis.canonical.urls import check_base_url
from metis.catalog.models import AdapterCapabilities
from metis.projection import MessageRules, Target
from metis.wire.tool_ids import IdRule

_PLACE = re.compile(r"projects/[a-z0-9.:-]{1,64}/locations/(?P<region>[a-z0-9-]{1,32})")
_RULES = MessageRules.__struct_fields__
_get_rules = attrgetter(*_RULES)
IMAGE_TYPES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})


class Auth(Struct, frozen=True, kw_only=True):
    """How a request carries a key, and where keys usually are."""

    header: str = "authorization"
    scheme: str = "Bearer"
    """The word before the key; empty if the key stands alone."""
    variable: str | None = None
    """The environment variable that usually holds the key; None if no key is needed."""
    aws_service: str | None = None
    """The AWS service for which requests are signed if the key is an id with its secret."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the header with a key."""
        return {self.header: f"{self.scheme} {key}" if self.scheme else key}


class Profile(MessageRules, frozen=True, kw_only=True):
    """One provider: its address, its authentication, and what its API accepts.

    `issuers` are here the other issuers whose sealed parts it can read.
    """

    name: str
    protocol: str
    base_url: str
    path: str
    """Where requests go; `{model}` and `{place}` stand for what differs between calls."""
    stream_path: str = ""
    """Where requests for a stream go, if that is another path."""
    place: str = ""
    """What the path names before the model, such as a project and its location."""
    auth: Auth = Auth()
    headers: Mapping[str, str] = {}
    default_model: str
    defaults: AdapterCapabilities
    """The capabilities of a model that the catalogue does not list."""
    path_options: frozenset[str] = frozenset()
    """Options that the path states instead of the body: `model`, `stream`."""
    body_keys: Mapping[str, Any] = {}
    """Keys that every request body has here."""
    aws_framed: bool = False
    """Whether a stream comes in AWS frames instead of lines."""
    model_pattern: str = ""
    """A pattern that finds the catalogue's name of a model in the provider's name of it.

    Its groups are joined with hyphens.
    """
    catalog_provider: str | None = None
    """The provider under which the catalogue lists its models, if not its own name."""
    has_unlisted_models: bool = False
    """Whether it also serves models that `model_pattern` does not match."""
    any_model_name: bool = False
    """Whether its operator names the models, so that any name may be right."""
    issuer_scope: str = ""
    """The host or account to which its sealed parts belong, if not to every host of its name."""
    usual_host: str = ""
    """The provider's own host, if `base_url` may be another one."""

    # Options.
    refused_options: frozenset[str] = frozenset()
    """Shared options that the provider's API does not accept."""
    unsupported_keys: frozenset[str] = frozenset()
    """Native keys that other hosts of the protocol accept, and this one does not."""
    renamed_keys: Mapping[str, str] = {}
    """Native keys of the protocol that have another name here."""
    max_tokens_key: str | None = None
    """The key for the limit of a response, where the protocol has two (T182)."""
    needs_output_limit: bool = False
    """Whether a request has to state a limit; without one of the caller, the model's maximum is
    sent (T181)."""
    cache_name_key: str | None = None
    """The key that names a cached prefix, which contains instructions and tools (T178)."""
    cache_key_option: str | None = None
    """The native option for a key that brings requests to where their prefix is cached (T177)."""
    beta_place: Literal["", "header", "body"] = ""
    """Where a request names beta features of Anthropic; empty if the host has none."""
    betas: Mapping[str, str] = {}
    """The beta features that it has, by their names at Anthropic (T220)."""
    marked_model_pattern: str | None = None
    """A pattern of the models that cache only marked prefixes; None if marks are optional."""
    cache_on_request: bool = False
    """Whether the provider, at its usual host, caches a request only if it asks for that."""
    required_choice: str | None = None
    """The tool choice that forces a call, if it is not the protocol's (T113)."""
    can_name_tool: bool = True
    """Whether a request can name the tool to call."""
    can_forbid_calls: bool = True
    """Whether a request can define tools and forbid to call them."""
    tool_types: frozenset[str] | None = None
    """The types of tools that its API accepts; None if it accepts others, too."""
    tool_kinds: frozenset[str] = frozenset()
    """The kinds of client tools beside functions that it accepts as a client declares them."""
    search: Mapping[str, Any] | None = None
    """The native keys for the provider's own web search; None if it has none."""
    search_beside_tools: Mapping[str, Any] = {}
    """More native keys for a search if the caller has tools, too."""
    strict_tools: bool = False
    """Whether the definition of a tool may ask for arguments that match the schema."""
    tool_schemas: ToolSchemaRule = ToolSchemaRule()
    """What of JSON Schema it accepts in a tool definition."""
    output_schemas: OutputSchemaRule = ANY_OUTPUT
    """What of JSON Schema it accepts for the output."""
    strict_output_schemas: OutputSchemaRule | None = None
    """What it accepts for output that must match the schema, where a flag asks for that."""
    needs_descriptions: bool = False
    """Whether a tool without a description may be refused (T112)."""
    needs_tool_definitions: bool = False
    """Whether a history with calls is refused if no tool is defined (T36)."""
    cost_path: str = ""
    """The path that states what a response cost, up to the id of the response."""
    requests_usage: bool = False
    """Whether a stream has its usage only if `stream_options` asks for it."""

    # Messages.
    redact_ids: bool = False
    """Whether models see hashes instead of our call ids; ids of the provider are not changed."""
    id_rule: IdRule | None = None
    """The call ids that it accepts."""
    accepts_documents: bool = False
    audio_model_pattern: str = ""
    """A pattern of the models that accept audio, where not all do."""
    accepts_video: bool = False
    video_model_pattern: str = ""
    """A pattern of the models that accept video, where not all do."""
    media_result_model_pattern: str = ""
    """A pattern of the models that accept more than text in results, where not all do."""
    unsigned_model_pattern: str = ""
    """A pattern of the models that accept thinking without a signature, where others do not."""
    thinking_key: str | None = None
    """The key under which thinking is sent back to it."""
    needs_thinking_key: bool = False
    """Whether every response has to come back with that key, even if it is empty (T49, T50)."""
    tags_thinking: bool = False
    """Whether thinking may stand in the text of its responses, between tags (T70)."""
    stores_responses: bool = False
    """Whether it stores its responses, so that ids in them can be used later."""
    system_first: bool = False
    prefill_key: str | None = None
    """The key that marks a response which the model should continue (T81)."""
    many_images_limit: tuple[int, int] | None = None
    """From how many images on a smaller `max_image_side` holds, and which one (T90)."""
    older_model_prefixes: tuple[str, ...] = ()
    """Models that need no such signature, and accept only text in results."""
    one_call_per_message: bool = False
    """Whether each call needs its own message, followed by its result (T18)."""

    def at_location(self, place: str) -> "Profile":
        """Return the provider at a place of the form `projects/<id>/locations/<id>`.

        Each region of Google Cloud has its own host, and its own sealed parts.
        """
        if "{place}" not in self.path:
            raise InvalidValueError(f"{self.name} has no places", path="$.place")
        match = _PLACE.fullmatch(place)
        if match is None:
            raise InvalidValueError("a place must be projects/<id>/locations/<id>", path="$.place")
        region = match["region"]
        host = self.base_url.removeprefix("https://")
        base_url = self.base_url if region == "global" else f"https://{region}-{host}"
        return replace(self, place=f"{place}/", base_url=base_url, issuer_scope=place)

    @property
    def issuer(self) -> str:
        """The name under which its sealed parts are stored."""
        return f"{self.name}@{self.issuer_scope}" if self.issuer_scope else self.name

    @property
    def has_betas(self) -> bool:
        """Whether a request can name beta features."""
        return bool(self.beta_place)

    @property
    def is_usual_host(self) -> bool:
        """Whether requests go to the provider itself, not to a server that speaks its protocol."""
        return self.usual_host in ("", urlsplit(self.base_url).hostname)

    def with_address(self, base_url: str | None, account: str | None = None) -> "Profile":
        """Return the provider at another address, or for a named account (T203).

        The port does not count: a local server may use another one tomorrow.

        Raises:
            InvalidValueError: `base_url` is not the address of a server.
        """
        if base_url is not None:
            check_base_url(base_url)
        usual = urlsplit(self.base_url).hostname or ""
        host = usual if base_url is None else urlsplit(base_url).hostname or ""
        parts = (self.issuer_scope, "" if host == usual else host, account)
        return replace(
            self,
            base_url=self.base_url if base_url is None else base_url,
            issuer_scope="/".join(filter(None, parts)),
            usual_host=usual,
        )

    def request_path(self, model: str, *, is_stream: bool = False) -> str:
        """Return the path of a request; a model name is quoted and cannot lead elsewhere."""
        path = (is_stream and self.stream_path) or self.path
        if "{model}" not in path:
            return path
        if not model or not all(model.split("/")) or {".", ".."} & set(model.split("/")):
            raise InvalidValueError(f"{model!r} is not a model name", path="$.model")
        if self.model_pattern:
            quoted = quote(model, safe=":@")
        else:
            quoted = quote(model if "/" in model else f"models/{model}", safe="/@")
        return path.replace("{place}", self.place).replace("{model}", quoted)

    def parse_path(self, path: str) -> tuple[str, bool] | None:
        """Return the model that a path names, and whether it asks for a stream; None for others."""
        for template, is_stream in ((self.stream_path, True), (self.path, False)):
            head, mark, tail = template.partition("{model}")
            before, _, after = head.rpartition("{place}")
            pattern = (
                f"{re.escape(before)}(?:.*/)?{re.escape(after)}(?P<model>[^/]+){re.escape(tail)}"
            )
            match = re.fullmatch(pattern, path) if mark else None
            if match is not None:
                return unquote(match["model"]), is_stream
        return None

    def catalog_id(self, model: str) -> str:
        """Return the canonical id under which the catalogue lists a model, or would list it."""
        match = re.fullmatch(self.model_pattern, model) if self.model_pattern else None
        if match is None and self.has_unlisted_models:
            return f"{self.name}:{model}"
        name = model if match is None else "-".join(part for part in match.groups() if part)
        return f"{self.catalog_provider or self.name}:{name}"

    def target(
        self,
        capabilities: AdapterCapabilities,
        model: str,
        refused: frozenset[str] = frozenset(),
        *,
        min_cached_tokens: int = 0,
    ) -> Target:
        """Return what a model of this provider can carry."""
        user_blocks = self._user_blocks(capabilities, model)
        is_older = model.removeprefix("models/").startswith(self.older_model_prefixes)
        accepts_media = capabilities.supports_images and not is_older
        if not accepts_media or not matches_model(self.media_result_model_pattern, model):
            result_blocks = frozenset({"text"})
        else:
            result_blocks = self.result_blocks & user_blocks
        in_list = capabilities.supports_system_messages_in_list and not self.system_first
        limit = self.many_images_limit
        rules: dict[str, Any] = dict(zip(_RULES, _get_rules(self), strict=True))
        rules |= {
            "issuers": frozenset({self.name, *self.issuers}),
            "result_blocks": result_blocks,
            "accepts_thinking": self.accepts_thinking and capabilities.supports_thinking,
            "needs_signatures": self._needs_signatures(model),
            "prefill": "none" if "prefill" in refused else self.prefill,
            "placeholder_signature": "" if is_older else self.placeholder_signature,
            "cache_marks": self.cache_marks if capabilities.supports_prompt_caching else 0,
        }
        return Target(
            **rules,
            adapter=self.name,
            model=model,
            user_blocks=user_blocks,
            image_media_types=frozenset(capabilities.accepted_image_media_types),
            large_image_side=None if limit is None else limit[1],
            accepts_tools=capabilities.supports_tools,
            accepts_thinking_ids=self.stores_responses,
            system="anywhere" if in_list else "first",
            min_cached_tokens=min_cached_tokens,
        )

    def _needs_signatures(self, model: str) -> bool:
        is_exempt = bool(self.unsigned_model_pattern) and matches_model(
            self.unsigned_model_pattern, model
        )
        return self.needs_signatures and not is_exempt

    def _user_blocks(self, capabilities: AdapterCapabilities, model: str) -> frozenset[str]:
        has_audio = bool(self.audio_media_types) and matches_model(self.audio_model_pattern, model)
        accepted = {
            "text": True,
            "image": capabilities.supports_images,
            "document": self.accepts_documents,
            "audio": has_audio,
            "video": self.accepts_video and matches_model(self.video_model_pattern, model),
        }
        return frozenset(block_type for block_type, is_accepted in accepted.items() if is_accepted)


def matches_model(pattern: str, model: str) -> bool:
    """Whether a pattern finds a model by its name; an empty one matches all models."""
    return not pattern or re.search(pattern, model) is not None


def assumed_capabilities(
    context_tokens: int,
    output_tokens: int,
    *,
    thinking: bool = True,
    images: bool = True,
    system_in_list: bool = False,
) -> AdapterCapabilities:
    """Return capabilities to assume of models that the catalogue does not list."""
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
        accepted_image_media_types=tuple(sorted(IMAGE_TYPES)) if images else (),
    )
