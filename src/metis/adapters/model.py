"""Models of a provider.

their wire names, the facts that a request depends on, and token estimates.
"""

import base64
import binascii
import math
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.profile import Profile
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
from metis.catalog.model_rules import ALL_OUTPUTS, OBJECT_OUTPUTS, OutputRule, ReasoningRule
from metis.catalog.models import AdapterCapabilities, Capability, ModelInfo, capability_set
from metis.catalog.tables import catalog, option_rules, output_rules, reasoning_rules, token_table
from metis.catalog.tokens import DEFAULT_IMAGE_SIZE, TokenRates
from metis.projection.images import image_size
from metis.projection.target import Target


def wire_model_name(name: str | None, profile: Profile) -> str:
    """The provider's own name of a model that is given by its id, an alias or that name itself.

    Raises:
        WrongProviderError: the model is one of another provider.
    """
    if name is None:
        return profile.default_model
    if not _is_text(name):
        raise InvalidValueError(f"a model is named by a string, not {name!r}", path="$.model")
    known, homes = catalog(), _homes(profile)
    for home in homes:
        entry = known.entries.get(name if name.startswith(f"{home}:") else f"{home}:{name}")
        if entry is not None:
            return entry.wire_name
    prefix, _, rest = name.partition(":")
    if rest and prefix in homes:
        return rest
    stranger = prefix if name in known.entries or _names_provider(prefix, rest, profile) else None
    alias = known.aliases.get(name.lower()) if stranger is None else None
    if alias is not None:
        provider = known.entries[alias].provider
        if provider in homes:
            return known.entries[alias].wire_name
        stranger = provider if homes & _listed() and not profile.any_model_name else None
    if stranger is not None:
        raise WrongProviderError(alias or name, adapter=profile.name, provider=stranger)
    return name


def _is_text(name: object) -> bool:
    """Whether a name is a string; what clients send may be anything."""
    return isinstance(name, str)


def _homes(profile: Profile) -> set[str]:
    if profile.model_pattern:
        return {profile.name}  # what a model is called at home says nothing here
    return {profile.name, profile.catalog_provider or profile.name}


def _names_provider(prefix: str, rest: str, profile: Profile) -> bool:
    """Whether a name begins with a provider; on a server of one's own it may be a tag."""
    return bool(rest) and not profile.any_model_name and prefix in _listed()


@cache
def _listed() -> frozenset[str]:
    """The providers whose models the catalogue lists."""
    return frozenset(entry.provider for entry in catalog().entries.values())


class ModelFacts(Struct, frozen=True, kw_only=True):
    """One model behind one adapter."""

    name: str
    """What the provider calls it."""
    capabilities: AdapterCapabilities
    capability_set: frozenset[Capability]
    """What it can do, in a word each."""
    target: Target
    is_listed: bool
    """Whether its limits are facts of the catalogue, not assumptions."""
    refused_options: frozenset[str]
    """Options that it does not take."""
    exclusive_options: tuple[tuple[str, ...], ...]
    """Options of which it takes one only."""
    thinking: ReasoningRule | None
    """How it can be told how much to think; None for a model that does not."""
    output: OutputRule
    """What it can be told of its answer."""
    token_rates: TokenRates
    """What costs how many tokens."""


class _Facts(NamedTuple):
    """What the catalogue says of a model."""

    entry: ModelInfo | None
    refused: frozenset[str]
    conflicts: tuple[tuple[str, ...], ...]
    least_cached_tokens: int
    thinking: ReasoningRule | None
    output: OutputRule
    rates: TokenRates


@lru_cache(maxsize=1000)
def _facts(model: str, hosted: str) -> _Facts:
    """The catalogue, asked once for each model: it goes through its rules by name."""
    known, entry = option_rules(), catalog().entries.get(model)
    takes_schemas = entry is None or entry.capabilities.supports_structured_output
    return _Facts(
        entry,
        known.refused_options(model),
        known.exclusive_options(model),
        known.min_cached_tokens(model),
        reasoning_rules().rule_for(model),
        output_rules().rule_for(hosted)
        or output_rules().rule_for(model)
        or (ALL_OUTPUTS if takes_schemas else OBJECT_OUTPUTS),
        token_table().rates(model),
    )


def model_facts(profile: Profile, name: str) -> ModelFacts:
    """What is known of a model of a provider, and what is assumed where nothing is."""
    # What an answer may be is a fact of a model at a host (T117).
    facts = _facts(profile.catalog_id(name), f"{profile.name}:{name}")
    entry, refused = facts.entry, facts.refused
    capabilities = profile.defaults if entry is None else entry.capabilities
    is_known_not_to = entry is not None and not capabilities.supports_thinking
    return ModelFacts(
        name=name,
        capabilities=capabilities,
        capability_set=capability_set(capabilities, entry),
        target=replace(
            profile.target(capabilities, name, refused),
            min_cached_tokens=facts.least_cached_tokens,
        ),
        is_listed=entry is not None,
        refused_options=refused,
        exclusive_options=facts.conflicts,
        thinking=None if is_known_not_to else facts.thinking,
        output=facts.output,
        token_rates=facts.rates,
    )


_write = msgspec.json.Encoder().encode
_pages = re.compile(rb"/Type\s*/Page(?![a-zA-Z])").findall
_PAGE_BYTES = 50_000
_SOUND_BYTES = 16_000
_FILM_BYTES = 250_000


class TokenEstimate:
    """Adds up what a conversation and its tools come to for one family of models."""

    def __init__(self, rates: TokenRates, target: Target) -> None:
        self._rates = rates
        self._target = target
        self._texts: list[str] = []
        self._sum = 0.0

    def request_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> int:
        """The tokens of a whole request."""
        rates = self._rates
        for message in messages:
            self._add_all(message.content)
        total = rates.request + rates.message * len(messages) + self._sum
        total += rates.text_tokens("\n".join(self._texts))
        if tools:
            schemas = "\n".join(_schema(tool) for tool in tools)
            total += (
                rates.tools + rates.tool * len(tools) + rates.schema * rates.text_tokens(schemas)
            )
        return math.ceil(total)

    def _add_all(self, content: Sequence[ContentBlock]) -> None:
        for block in content:
            match block:
                case TextBlock():
                    self._texts.append(block.text)
                case ToolUseBlock():
                    self._sum += self._rates.call
                    self._texts.append(f"{block.name} {_write(block.input).decode()}")
                case ToolResultBlock():
                    self._sum += self._rates.call
                    self._add_all(block.content)
                case ThinkingBlock() | RedactedThinkingBlock() | OpaqueBlock():
                    self._add_sealed(block)
                case _:
                    self._add_media(block)

    def _add_sealed(self, block: ThinkingBlock | RedactedThinkingBlock | OpaqueBlock) -> None:
        """What only its issuer is sent."""
        if block.issuer not in self._target.issuers:
            return
        if isinstance(block, OpaqueBlock):
            self._texts.append(bytes(block.raw).decode())
        elif self._target.accepts_thinking:
            is_clear = isinstance(block, ThinkingBlock)
            self._texts.append(block.text if is_clear else block.data)

    def _add_media(self, block: ContentBlock) -> None:
        match block:
            case ImageBlock():
                self._add_image(block)
            case DocumentBlock():
                self._add_document(block)
            case AudioBlock() if "audio" in self._target.user_blocks:
                self._sum += self._rates.audio_second * _size(block.source) / _SOUND_BYTES
            case VideoBlock() if "video" in self._target.user_blocks:
                self._sum += self._rates.video_second * _size(block.source) / _FILM_BYTES
            case _:
                pass  # artifacts and what this version does not know are not sent

    def _add_image(self, block: ImageBlock) -> None:
        if "image" in self._target.user_blocks:
            source = block.source
            size = image_size(source.data) if source.kind == "base64" else None
            self._sum += self._rates.image.tokens(*(size or DEFAULT_IMAGE_SIZE))

    def _add_document(self, block: DocumentBlock) -> None:
        if block.source.kind == "text":
            self._texts.append(block.source.data)
        elif "document" in self._target.user_blocks:
            self._sum += self._rates.page * _page_count(block.source)


def _schema(tool: ToolDefinition) -> str:
    return f"{tool.name} {tool.description} {_write(tool.input_schema).decode()}"


def _page_count(source: MediaSource) -> int:
    """The pages that a document tells of; by its size if they are packed away."""
    if source.kind != "base64":
        return 1
    try:
        found = len(_pages(base64.b64decode(source.data)))
    except (binascii.Error, ValueError):
        found = 0
    return found or math.ceil(_size(source) / _PAGE_BYTES)


def _size(source: MediaSource | ImageSource) -> int:
    """How many bytes there are; of what lies elsewhere nobody knows, and one page is taken."""
    return len(source.data) * 3 // 4 if source.kind == "base64" else _PAGE_BYTES
