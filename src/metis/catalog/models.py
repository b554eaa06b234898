"""Catalog: known models, their capabilities and limits, and aliases.

A catalogue is read from the data of a TOML file::

    [providers]
    anthropic = { supports = ["streaming", "system_prompt"], accepted_image_media_types = [...] }

    [models]
    "anthropic:claude-haiku-4-5" = { max_context_tokens = 200000, max_output_tokens = 64000,
                                     supports = ["images", "tools"] }

    [aliases]
    haiku = "anthropic:claude-haiku-4-5"

The capabilities of a provider apply to all of its models; a model adds capabilities with `supports`
and removes them with `lacks`. An overlay does not inherit providers of the base: it must contain
its own, or all capabilities of its models.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import date
from enum import StrEnum
from typing import Any, Self, TypeVar, cast

import msgspec
from msgspec import Struct

from metis.canonical.errors import (
    AmbiguousModelError,
    CatalogDataError,
    InvalidValueError,
    Problem,
    UnknownModelError,
)

# Names of providers may contain "/" and ":", such as `openrouter:deepseek/deepseek-r1:free`.
_MODEL_ID = re.compile(r"([a-z0-9][a-z0-9_.-]*):([!-~]+)")


class ModelId(Struct, frozen=True, order=True):
    """The canonical id of a model: the provider, and the name of the model."""

    provider: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `<provider>:<model_name>`, split at the first colon."""
        match = _MODEL_ID.fullmatch(text)
        if match is None:
            raise InvalidValueError(
                f"{text!r} is not a model id; the form is <provider>:<model_name>, "
                "such as anthropic:claude-sonnet-4-6"
            )
        return cls(provider=match[1], name=match[2])

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"


def is_model_id(text: str) -> bool:
    """Return whether a text has the form of a canonical model id."""
    return _MODEL_ID.fullmatch(text) is not None


_Row = TypeVar("_Row", bound=Struct)
# `sonnet-4-6` is a suffix of `anthropic:claude-sonnet-4-6`, but `nnet-4-6` is not.
_SUFFIX_BOUNDARIES = (":", "/", "-")


class AdapterCapabilities(Struct, frozen=True, kw_only=True):
    """The capabilities and limits of a model; with a wrong `True` a model swap would fail."""

    supports_thinking: bool
    supports_images: bool
    supports_tools: bool
    supports_system_prompt: bool
    supports_structured_output: bool
    supports_streaming: bool
    supports_streaming_tool_calls: bool
    supports_parallel_tool_calls: bool
    supports_prompt_caching: bool
    supports_system_messages_in_list: bool
    max_context_tokens: int
    max_output_tokens: int
    accepted_image_media_types: tuple[str, ...]


class ModelInfo(Struct, frozen=True, kw_only=True):
    """One model: its canonical id, aliases and capabilities."""

    id: str
    aliases: tuple[str, ...] = ()
    capabilities: AdapterCapabilities
    supports_documents: bool = False
    supports_audio: bool = False
    supports_video: bool = False
    supports_embeddings: bool = False
    """Whether the model returns embeddings; metis does not request them."""
    deprecated_on: date | None = None
    """The day on which the provider stops serving the model, if it is known."""
    wire_name: str
    """The name of the model in requests; usually the part of the id after the colon."""

    @property
    def provider(self) -> str:
        """The part of the id before the first colon."""
        return self.id.partition(":")[0]


class Catalog(Struct, frozen=True, kw_only=True):
    """All known models by canonical id, and the aliases."""

    entries: Mapping[str, ModelInfo]
    aliases: Mapping[str, str]

    def model(self, name: str) -> ModelInfo:
        """Return the model of a canonical id, an alias or a unique suffix."""
        return self.entries[self.resolve(name)]

    def capabilities(self, name: str) -> AdapterCapabilities:
        """Return the capabilities of the model with this id, alias or suffix."""
        return self.model(name).capabilities

    def models(self, provider: str | None = None) -> tuple[ModelInfo, ...]:
        """Return all models, or those of one provider, sorted by id."""
        return tuple(
            entry
            for _, entry in sorted(self.entries.items())
            if provider is None or entry.provider == provider
        )

    def resolve(self, name: str) -> str:
        """Return the canonical id for an id, an alias or a suffix of exactly one model."""
        if name in self.entries:
            return name
        alias = self.aliases.get(name.lower())
        if alias is not None:
            return alias
        # Unlike ids and aliases, a suffix may fit several models.
        candidates = sorted(model for model in self.entries if _is_suffix(name, model))
        if len(candidates) > 1:
            raise AmbiguousModelError(name, candidates)
        if not candidates:
            raise UnknownModelError(name, self._hint(name))
        return candidates[0]

    def with_overlay(self, overlay: Mapping[str, object]) -> "Catalog":
        """Return this catalogue with the models and aliases of a user added or replaced."""
        return read_catalog(overlay, base=self)

    def _hint(self, name: str) -> str:
        """Return a suggestion for an unknown name: similar names, or how to add the model."""
        names = [*self.aliases, *self.entries]
        # A part of a name is a better match than another name of similar spelling.
        containing = (candidate for candidate in names if name.lower() in candidate.lower())
        matches = sorted(containing, key=len)[:3] if name else []
        matches = matches or difflib.get_close_matches(name, names, n=3)
        # For a likely misspelling, instructions for adding a model would be confusing.
        if matches:
            return f"did you mean {' or '.join(matches)}?"
        model = name if is_model_id(name) else f"<provider>:{name}"
        return (
            "add it to a TOML file and read that with catalog(overlay=path):\n"
            "  [models]\n"
            f'  "{model}" = {{ max_context_tokens = 128000, max_output_tokens = 8192, '
            'supports = ["streaming", "system_prompt", "tools"] }'
        )


class _ProviderRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The capabilities of all models of a provider."""

    supports: frozenset[str] = frozenset()
    accepted_image_media_types: tuple[str, ...] = ()


class _ModelRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the models table."""

    max_context_tokens: int
    max_output_tokens: int
    supports: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    accepted_image_media_types: tuple[str, ...] | None = None
    wire_name: str | None = None
    deprecated_on: date | None = None


_CAPABILITY_FLAGS = tuple(
    field.removeprefix("supports_")
    for field in AdapterCapabilities.__struct_fields__
    if field.startswith("supports_")
)
_OTHER_FLAGS = ("documents", "audio", "video", "embeddings")
_FLAGS = frozenset((*_CAPABILITY_FLAGS, *_OTHER_FLAGS))
_SECTIONS = frozenset(("version", "source", "providers", "models", "aliases"))


def read_catalog(data: Mapping[str, object], *, base: Catalog | None = None) -> Catalog:
    """Read a catalogue from the data of a TOML file, as an overlay of `base` if it is given.

    Raises CatalogDataError with all problems of the data.
    """
    problems = [
        Problem(f"$.{name}", "M-179", f"no section is called {name!r}")
        for name in data
        if name not in _SECTIONS
    ]
    providers = _read_providers(data, problems)
    # An overlay replaces models of the base, and never changes it.
    entries = dict(base.entries) if base else {}
    for model, row in _rows(data, "models", _ModelRow, problems):
        path = f'$.models."{model}"'
        provider = providers.get(model.partition(":")[0], _ProviderRow())
        row_problems = list(_model_problems(model, row, provider, path))
        problems += row_problems
        if not row_problems:
            entries[model] = _model_info(model, row, provider)
    aliases = {**(base.aliases if base else {}), **_read_aliases(data, entries, problems)}
    if problems:
        raise CatalogDataError("the model table cannot be used", problems)
    return Catalog(entries=_with_aliases(entries, aliases), aliases=aliases)


def _read_providers(data: Mapping[str, object], problems: list[Problem]) -> dict[str, _ProviderRow]:
    providers = dict(_rows(data, "providers", _ProviderRow, problems))
    for name, row in providers.items():
        problems += _flag_problems(row.supports, f"$.providers.{name}.supports")
    return providers


def _rows(
    data: Mapping[str, object], section: str, kind: type[_Row], problems: list[Problem]
) -> Iterator[tuple[str, _Row]]:
    """Yield the rows of a section as Structs; a row with other fields is a problem."""
    content = data.get(section, {})
    if not isinstance(content, dict):
        problems.append(Problem(f"$.{section}", "M-179", "must be a table of tables"))
        return
    for name, row in cast("dict[str, Any]", content).items():
        try:
            yield name, msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            problems.append(Problem(f'$.{section}."{name}"', "M-179", str(error)))


def _model_problems(
    model: str, row: _ModelRow, provider: _ProviderRow, path: str
) -> Iterator[Problem]:
    """Yield the problems of one row of the models table."""
    if not is_model_id(model):
        yield Problem(path, "M-174", "the key is not <provider>:<model_name>")
    yield from _flag_problems(row.supports | row.lacks, path)
    if min(row.max_context_tokens, row.max_output_tokens) < 1:
        yield Problem(path, "M-214", "limits must be token counts above zero")
    if row.supports & row.lacks:
        yield Problem(path, "M-203", "a capability is both in `supports` and in `lacks`")
    # Without media types every image would be rejected before it is sent.
    if "images" in row.supports and not _image_media_types(row, provider):
        yield Problem(
            path, "M-216", "a model with images must name the media types that it accepts"
        )


def _flag_problems(names: AbstractSet[str], path: str) -> Iterator[Problem]:
    for name in sorted(names - _FLAGS):
        text = f"{name!r} is not a capability; capabilities: {', '.join(sorted(_FLAGS))}"
        yield Problem(path, "M-203", text)


def _image_media_types(row: _ModelRow, provider: _ProviderRow) -> tuple[str, ...]:
    media_types = row.accepted_image_media_types
    return provider.accepted_image_media_types if media_types is None else media_types


def _model_info(model: str, row: _ModelRow, provider: _ProviderRow) -> ModelInfo:
    """Return the model of a row, with the capabilities of its provider."""
    # Rows contain only differences to their provider, so that the generated table is short.
    supports = (provider.supports | row.supports) - row.lacks
    flags = {f"supports_{flag}": flag in supports for flag in _CAPABILITY_FLAGS}
    has_images = "images" in supports
    return ModelInfo(
        id=model,
        capabilities=AdapterCapabilities(
            **flags,
            max_context_tokens=row.max_context_tokens,
            max_output_tokens=row.max_output_tokens,
            accepted_image_media_types=_image_media_types(row, provider) if has_images else (),
        ),
        supports_documents="documents" in supports,
        supports_audio="audio" in supports,
        supports_video="video" in supports,
        supports_embeddings="embeddings" in supports,
        deprecated_on=row.deprecated_on,
        wire_name=row.wire_name or ModelId.parse(model).name,
    )


def _read_aliases(
    data: Mapping[str, object], entries: Mapping[str, ModelInfo], problems: list[Problem]
) -> dict[str, str]:
    """Read the aliases, and report those that are invalid or have no model."""
    try:
        aliases = msgspec.convert(data.get("aliases", {}), dict[str, str])
    except msgspec.ValidationError as error:
        problems.append(Problem("$.aliases", "M-180", str(error)))
        return {}
    for alias, target in aliases.items():
        path = f'$.aliases."{alias}"'
        if alias in entries or is_model_id(alias):
            problems.append(Problem(path, "M-180", "a canonical id cannot be an alias"))
        # Look-ups convert names to lower case.
        if alias != alias.lower():
            problems.append(Problem(path, "M-180", "aliases must be in lower case"))
        if target not in entries:
            problems.append(Problem(path, "M-180", f"no model has the id {target!r}"))
    return aliases


def _with_aliases(
    entries: Mapping[str, ModelInfo], aliases: Mapping[str, str]
) -> dict[str, ModelInfo]:
    names: dict[str, list[str]] = {}
    for alias, target in sorted(aliases.items()):
        names.setdefault(target, []).append(alias)
    return {
        model: msgspec.structs.replace(entry, aliases=tuple(names.get(model, ())))
        for model, entry in entries.items()
    }


def _is_suffix(name: str, model: str) -> bool:
    return bool(name) and model.endswith(tuple(boundary + name for boundary in _SUFFIX_BOUNDARIES))


class Capability(StrEnum):
    """One capability of a model, by which models are searched."""

    AUDIO = "audio"
    CACHING = "caching"
    DOCUMENTS = "documents"
    EMBEDDINGS = "embeddings"
    JSON_MODE = "json_mode"
    PARALLEL_TOOLS = "parallel_tools"
    STREAMING = "streaming"
    THINKING = "thinking"
    TOOLS = "tools"
    VIDEO = "video"
    VISION = "vision"


_FLAG_NAMES: Mapping[Capability, str] = {
    Capability.CACHING: "prompt_caching",
    Capability.JSON_MODE: "structured_output",
    Capability.PARALLEL_TOOLS: "parallel_tool_calls",
    Capability.VISION: "images",
}
"""The flags whose name differs from that of their capability."""


def capability_set(
    capabilities: AdapterCapabilities, info: ModelInfo | None = None
) -> frozenset[Capability]:
    """Return the capabilities of a model; some are known only with `info` from a catalogue."""
    fields = {name: f"supports_{_FLAG_NAMES.get(name, name)}" for name in Capability}
    return frozenset(
        name
        for name, field in fields.items()
        if getattr(capabilities, field, False) or getattr(info, field, False)
    )
