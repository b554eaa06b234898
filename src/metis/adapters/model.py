"""Models of a provider: their wire names, the facts that a request needs, and token estimates."""

import base64
import binascii
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.profile import IMAGE_TYPES, Profile
from metis.canonical.blocks import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.errors import InvalidValueError, WrongProviderError
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.catalog.limits import LimitRule
from metis.catalog.model_rules import ALL_OUTPUTS, OBJECT_OUTPUTS, OutputRule, ReasoningRule
from metis.catalog.models import AdapterCapabilities, Capability, ModelInfo, capability_set
from metis.catalog.tables import (
    catalog,
    limit_table,
    option_rules,
    output_rules,
    reasoning_rules,
    token_table,
)
from metis.catalog.tokens import DEFAULT_IMAGE_SIZE, TokenRates
from metis.projection import Target, image_size

_catalog = cache(catalog)
_encode = msgspec.json.Encoder().encode
_find_pages = re.compile(rb"/Type\s*/Page(?![a-zA-Z])").findall
# Averages for media whose pages or duration are not read from the file.
_PAGE_BYTES = 50_000
_AUDIO_BYTES_PER_SECOND = 16_000
_VIDEO_BYTES_PER_SECOND = 250_000


def wire_model_name(name: str | None, profile: Profile) -> str:
    """Return the provider's name of a model that is given by id, alias or that name.

    Raises:
        WrongProviderError: the model belongs to another provider.
    """
    if name is None:
        return profile.default_model
    if not _is_text(name):
        raise InvalidValueError(f"a model name must be a string, got {name!r}", path="$.model")
    models, providers = _catalog(), _catalog_providers(profile)
    for provider in providers:
        entry = models.entries.get(
            name if name.startswith(f"{provider}:") else f"{provider}:{name}"
        )
        if entry is not None:
            return entry.wire_name
    prefix, _, rest = name.partition(":")
    if rest and prefix in providers:
        return rest
    other = prefix if name in models.entries or _names_provider(prefix, rest, profile) else None
    alias = models.aliases.get(name.lower()) if other is None else None
    if alias is not None:
        provider = models.entries[alias].provider
        if provider in providers:
            return models.entries[alias].wire_name
        other = provider if providers & _listed_providers() and not profile.any_model_name else None
    if other is not None:
        raise WrongProviderError(alias or name, adapter=profile.name, provider=other)
    return name


def _is_text(name: object) -> bool:
    # The name may come from the JSON of a client, so its type is not guaranteed.
    return isinstance(name, str)


def _catalog_providers(profile: Profile) -> set[str]:
    """Return the providers under which the catalogue lists models of a profile by their names."""
    if profile.model_pattern:
        return {profile.name}  # a cloud has its own names for the models of others
    return {profile.name, profile.catalog_provider or profile.name}


def _names_provider(prefix: str, rest: str, profile: Profile) -> bool:
    # At a self-hosted server a prefix may be a tag, as in `qwen3:8b`.
    return bool(rest) and not profile.any_model_name and prefix in _listed_providers()


@cache
def _listed_providers() -> frozenset[str]:
    return frozenset(entry.provider for entry in _catalog().entries.values())


class ModelFacts(Struct, frozen=True, kw_only=True):
    """One model behind one adapter, with everything that a request to it depends on."""

    name: str
    """The provider's name of the model."""
    capabilities: AdapterCapabilities
    capability_set: frozenset[Capability]
    target: Target
    is_listed: bool
    """Whether its limits are facts of the catalogue, not assumptions."""
    refused_options: frozenset[str]
    exclusive_options: tuple[tuple[str, ...], ...]
    """Groups of options; the model accepts one option of each group."""
    thinking: ReasoningRule | None
    """How thinking is controlled; None for a model that does not think."""
    output: OutputRule
    """Which output formats the model supports."""
    limits: Mapping[str, LimitRule]
    """The ranges and limits of options at this host, by option."""
    counts_output: bool
    """Whether prompt and output limit have to fit into the context window together."""
    token_rates: TokenRates


class _CatalogFacts(NamedTuple):
    """The facts that the catalogue has about a model."""

    entry: ModelInfo | None
    capability_set: frozenset[Capability] | None
    refused_options: frozenset[str]
    exclusive_options: tuple[tuple[str, ...], ...]
    min_cached_tokens: int
    thinking: ReasoningRule | None
    output: OutputRule
    token_rates: TokenRates
    limits: Mapping[str, LimitRule]
    counts_output: bool


@lru_cache(maxsize=1000)
def _catalog_facts(model: str, hosted: str) -> _CatalogFacts:
    # Cached, because the catalogue tries its patterns one after the other.
    options, entry = option_rules(), _catalog().entries.get(model)
    has_schemas = entry is None or entry.capabilities.supports_structured_output
    default_output = ALL_OUTPUTS if has_schemas else OBJECT_OUTPUTS
    return _CatalogFacts(
        entry,
        None if entry is None else capability_set(entry.capabilities, entry),
        options.refused_options(model),
        options.exclusive_options(model),
        options.min_cached_tokens(model),
        reasoning_rules().rule_for(model),
        output_rules().rule_for(hosted) or output_rules().rule_for(model) or default_output,
        token_table().rates(model),
        limit_table().limits_for(hosted.partition(":")[0], model),
        limit_table().counts_output(model),
    )


class ModelFeatures(Struct, frozen=True, kw_only=True):
    """What a server or a user states about a model; None leaves it to the catalogue."""

    tools: bool | None = None
    images: bool | None = None

    def applied(self, capabilities: AdapterCapabilities) -> AdapterCapabilities:
        """Return capabilities with the stated features in place of the catalogue's."""
        changes: dict[str, Any] = {}
        if self.tools is not None:
            changes["supports_tools"] = self.tools
        if self.images is not None:
            # A model that the catalogue lists without images accepts what its host does.
            types = capabilities.accepted_image_media_types or tuple(sorted(IMAGE_TYPES))
            changes["supports_images"] = self.images
            changes["accepted_image_media_types"] = types if self.images else ()
        return replace(capabilities, **changes)


def model_facts(profile: Profile, name: str, features: ModelFeatures | None = None) -> ModelFacts:
    """Return the facts about a model of a provider, with assumptions where facts are missing."""
    # The same model supports other output formats at other hosts (T117).
    catalog_id = profile.catalog_id(name)
    facts = _catalog_facts(catalog_id, f"{profile.name}:{name}")
    entry = facts.entry
    capabilities = profile.defaults if entry is None else entry.capabilities
    listed_set = facts.capability_set
    if features is not None:
        capabilities, listed_set = features.applied(capabilities), None
    cannot_think = entry is not None and not capabilities.supports_thinking
    target = profile.target(
        capabilities, name, facts.refused_options, min_cached_tokens=facts.min_cached_tokens
    )
    return ModelFacts(
        name=name,
        capabilities=capabilities,
        capability_set=listed_set or capability_set(capabilities),
        target=target,
        is_listed=entry is not None,
        refused_options=facts.refused_options,
        exclusive_options=facts.exclusive_options,
        thinking=None if cannot_think else facts.thinking,
        output=facts.output,
        limits=facts.limits,
        counts_output=facts.counts_output,
        token_rates=facts.token_rates,
    )


class TokenEstimate:
    """Adds up the tokens of a request for one family of models, without a network call."""

    def __init__(self, rates: TokenRates, target: Target) -> None:
        self._rates = rates
        self._target = target
        self._texts: list[str] = []
        self._tokens = 0.0

    def request_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> int:
        """Return the estimated tokens of a request, rounded up."""
        rates = self._rates
        for message in messages:
            self._add_blocks(message.content)
        total = rates.request + rates.message * len(messages) + self._tokens
        total += rates.text_tokens("\n".join(self._texts))
        if tools:
            schemas = "\n".join(map(_definition_text, tools))
            total += rates.tools + rates.tool * len(tools)
            total += rates.schema * rates.text_tokens(schemas)
        return math.ceil(total)

    def _add_blocks(self, content: Sequence[ContentBlock]) -> None:
        for block in content:
            match block:
                case TextBlock():
                    self._texts.append(block.text)
                case ToolUseBlock():
                    self._tokens += self._rates.call
                    self._texts.append(f"{block.name} {_encode(block.input).decode()}")
                case ToolResultBlock():
                    self._tokens += self._rates.call
                    self._add_blocks(block.content)
                case ThinkingBlock() | RedactedThinkingBlock() | OpaqueBlock():
                    self._add_sealed(block)
                case _:
                    self._add_media(block)

    def _add_sealed(self, block: ThinkingBlock | RedactedThinkingBlock | OpaqueBlock) -> None:
        if block.issuer not in self._target.issuers:
            return
        if isinstance(block, OpaqueBlock):
            self._texts.append(bytes(block.raw).decode())
        elif self._target.accepts_thinking:
            self._texts.append(block.text if isinstance(block, ThinkingBlock) else block.data)

    def _add_media(self, block: ContentBlock) -> None:
        accepted, rates = self._target.user_blocks, self._rates
        match block:
            case ImageBlock() if "image" in accepted:
                source = block.source
                size = image_size(source.data) if source.kind == "base64" else None
                self._tokens += rates.image.tokens(*(size or DEFAULT_IMAGE_SIZE))
            case DocumentBlock() if block.source.kind == "text":
                self._texts.append(block.source.data)
            case DocumentBlock() if "document" in accepted:
                self._tokens += rates.page * _page_count(block.source)
            case AudioBlock() if "audio" in accepted:
                self._tokens += (
                    rates.audio_second * _size_bytes(block.source) / _AUDIO_BYTES_PER_SECOND
                )
            case VideoBlock() if "video" in accepted:
                self._tokens += (
                    rates.video_second * _size_bytes(block.source) / _VIDEO_BYTES_PER_SECOND
                )
            case _:
                pass  # artifacts and unknown blocks are not sent


def _definition_text(tool: ToolDefinition) -> str:
    return f"{tool.name} {tool.description} {_encode(tool.input_schema).decode()}"


def _page_count(source: MediaSource) -> int:
    # A PDF with compressed objects does not name its pages; they are then estimated by its size.
    if source.kind != "base64":
        return 1
    try:
        count = len(_find_pages(base64.b64decode(source.data)))
    except (binascii.Error, ValueError):
        count = 0
    return count or math.ceil(_size_bytes(source) / _PAGE_BYTES)


def _size_bytes(source: MediaSource | ImageSource) -> int:
    # The size of media behind a URL or an id is unknown; it counts as one page.
    return len(source.data) * 3 // 4 if source.kind == "base64" else _PAGE_BYTES
