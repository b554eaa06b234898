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

# Restricted, because a place becomes part of the host name and the path.
_PLACE = re.compile(r"projects/[a-z0-9.:-]{1,64}/locations/(?P<region>[a-z0-9-]{1,32})")
_RULES = MessageRules.__struct_fields__
_get_rules = attrgetter(*_RULES)
IMAGE_TYPES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})


class Auth(Struct, frozen=True, kw_only=True):
    """How a request carries a key, and where keys usually are."""

    header: str = "authorization"
    scheme: str = "Bearer"
    """The word before the key; empty if the header has only the key."""
    variable: str | None = None
    """The environment variable that usually has the key; None if no key is needed."""
    aws_service: str | None = None
    """The AWS service for which requests are signed if the key is an id with its secret."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the header with a key."""
        return {self.header: f"{self.scheme} {key}" if self.scheme else key}


class Profile(MessageRules, frozen=True, kw_only=True):
    """One provider: its address, its authentication, and what its API accepts.

    `issuers` has the other issuers whose sealed parts it can read.
    """

    name: str
    protocol: str
    base_url: str
    path: str
    """The path of requests; `{model}` and `{place}` are filled in for each call."""
    stream_path: str = ""
    """The path of requests for a stream, if it differs from `path`."""
    place: str = ""
    """The part of the path before the model, such as a project and its location."""
    auth: Auth = Auth()
    headers: Mapping[str, str] = {}
    default_model: str
    defaults: AdapterCapabilities
    """The capabilities of a model that the catalogue does not list."""
    path_options: frozenset[str] = frozenset()
    """Options that the path states instead of the body: `model`, `stream`."""
    body_keys: Mapping[str, Any] = {}
    """Keys that every request body to this provider has."""
    aws_framed: bool = False
    """Whether a stream comes in AWS frames instead of lines."""
    model_pattern: str = ""
    """A pattern for the provider's model names; its groups, joined with hyphens, give the
    catalogue's name of the model."""
    catalog_provider: str | None = None
    """The provider under which the catalogue lists its models, if not its own name."""
    has_unlisted_models: bool = False
    """Whether it also serves models that `model_pattern` does not match."""
    any_model_name: bool = False
    """Whether its operator names the models, so that any name may be valid."""
    issuer_scope: str = ""
    """The host or account that can read its sealed parts; empty if every host of its name can."""
    usual_host: str = ""
    """The provider's own host, if `base_url` may be another one."""

    # Options.
    refused_options: frozenset[str] = frozenset()
    """Shared options that the provider's API does not accept."""
    unsupported_keys: frozenset[str] = frozenset()
    """Native keys that other hosts of the protocol accept, but this one does not."""
    renamed_keys: Mapping[str, str] = {}
    """Native keys of the protocol, with the names that this provider gives them."""
    max_tokens_key: str | None = None
    """The key for the limit of a response, where the protocol has two (T182)."""
    needs_output_limit: bool = False
    """Whether a request must have an output limit; if the caller states none, the model's maximum
    is sent (T181)."""
    cache_name_key: str | None = None
    """The key that names a cached prefix, which contains instructions and tools (T178)."""
    cache_key_option: str | None = None
    """The native option for a key that routes requests to a server that cached their prefix
    (T177)."""
    beta_place: Literal["", "header", "body"] = ""
    """Where a request names beta features of Anthropic; empty if the host has none."""
    betas: Mapping[str, str] = {}
    """The beta features that the host has, by their names at Anthropic (T220)."""
    marked_model_pattern: str | None = None
    """A pattern of the models that cache only marked prefixes; None if marks are optional."""
    cache_on_request: bool = False
    """Whether the provider, at its usual host, caches a request only if a key requests it."""
    required_choice: str | None = None
    """The tool choice that forces a call, if it differs from the protocol's (T113)."""
    can_name_tool: bool = True
    """Whether a request can name the tool to call."""
    can_forbid_calls: bool = True
    """Whether a request can define tools and forbid calls of them."""
    tool_types: frozenset[str] | None = None
    """The only types of tools that its API accepts; None if there is no such list."""
    tool_kinds: frozenset[str] = frozenset()
    """The kinds of client tools beside functions that it accepts as a client declares them."""
    search: Mapping[str, Any] | None = None
    """The native keys for the provider's own web search; None if it has none."""
    search_beside_tools: Mapping[str, Any] = {}
    """Additional native keys for a search if the caller also has tools."""
    strict_tools: bool = False
    """Whether a tool definition may require arguments that match the schema."""
    tool_schemas: ToolSchemaRule = ToolSchemaRule()
    """The part of JSON Schema that it accepts in a tool definition."""
    output_schemas: OutputSchemaRule = ANY_OUTPUT
    """The part of JSON Schema that it accepts for the output."""
    strict_output_schemas: OutputSchemaRule | None = None
    """The part that it accepts for output that must match, where a flag requires that."""
    needs_descriptions: bool = False
    """Whether a tool without a description may be refused (T112)."""
    needs_tool_definitions: bool = False
    """Whether a history with calls is refused if no tool is defined (T36)."""
    cost_path: str = ""
    """The path of the look-up of a response's cost, without the id of the response."""
    requests_usage: bool = False
    """Whether a stream states its usage only if `stream_options` requests it."""

    # Messages.
    redact_ids: bool = False
    """Whether requests have hashes in place of our call ids; the provider's ids are not changed."""
    id_rule: IdRule | None = None
    """The form of call ids that it accepts; None if it accepts any."""
    accepts_documents: bool = False
    audio_model_pattern: str = ""
    """A pattern of the models that accept audio, where not all do."""
    accepts_video: bool = False
    video_model_pattern: str = ""
    """A pattern of the models that accept video, where not all do."""
    media_result_model_pattern: str = ""
    """A pattern of the models that accept media in tool results, where not all do."""
    unsigned_model_pattern: str = ""
    """A pattern of the models that accept thinking without a signature, where others do not."""
    thinking_key: str | None = None
    """The key under which thinking is sent back."""
    needs_thinking_key: bool = False
    """Whether every assistant message of a history needs that key, even if empty (T49, T50)."""
    tags_thinking: bool = False
    """Whether the text of its responses may have thinking between tags (T70)."""
    stores_responses: bool = False
    """Whether it stores its responses, so that later requests can refer to their ids."""
    system_first: bool = False
    prefill_key: str | None = None
    """The key that marks a response which the model should continue (T81)."""
    many_images_limit: tuple[int, int] | None = None
    """The number of images above which a smaller `max_image_side` applies, and that side (T90)."""
    older_model_prefixes: tuple[str, ...] = ()
    """Prefixes of models that need no placeholder signature and accept only text in results."""
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
        """Whether requests go to the provider itself, not to another server of its protocol."""
        return self.usual_host in ("", urlsplit(self.base_url).hostname)

    def with_address(self, base_url: str | None, account: str | None = None) -> "Profile":
        """Return the provider at another address, or for a named account (T203).

        The port is not part of the issuer, because a local server may change it at every start.

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
        """Return the path of a request.

        The model name is quoted, so that a name from a client cannot change the rest of the path.

        Raises:
            InvalidValueError: the name cannot be a part of the path.
        """
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
        """Return the model that a path names, and whether it requests a stream.

        None if the path is not one of this provider's.
        """
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
        """Return the target of a projection: what a model of this provider accepts."""
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
    """Whether a pattern occurs in the name of a model; an empty pattern matches all models."""
    return not pattern or re.search(pattern, model) is not None


def assumed_capabilities(
    context_tokens: int,
    output_tokens: int,
    *,
    thinking: bool = True,
    images: bool = True,
    system_in_list: bool = False,
) -> AdapterCapabilities:
    """Return the capabilities that models have if the catalogue does not list them."""
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
