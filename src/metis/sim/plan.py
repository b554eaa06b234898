"""Plan: the tool calls that a request in plain words asks for."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from metis.canonical.tools import ToolDefinition
from metis.sim.filling import Filling
from metis.sim.hints import Hints
from metis.wire.shape import maybe_object


class Deed(Struct, frozen=True):
    """A call that is to be made."""

    tool: str
    input: dict[str, Any]


class _Kind(Struct, frozen=True):
    """A kind of request: the words that ask for it, and the tools that do it."""

    asks: re.Pattern[str]
    does: re.Pattern[str]
    needs: str | None = None
    """What the words must name."""


def _kind(asks: str, does: str, needs: str | None = None) -> _Kind:
    return _Kind(re.compile(asks, re.IGNORECASE), re.compile(does, re.IGNORECASE), needs)


_KINDS = (
    _kind(r"\b(?:write|create|save|put)\b", r"write|create|save", "paths"),
    _kind(r"\b(?:grep|search|find|look for)\b", r"grep|search|find"),
    _kind(
        r"\b(?:read|open|show|cat|view|look at|summari[sz]e|what(?:'s| is) in|contents? of)\b",
        r"read|cat|view|open|show",
        "paths",
    ),
    _kind(r"\b(?:list|ls|(?:which|what) files)\b", r"list|ls|glob|dir"),
    _kind(r"\b(?:run|execute)\b", r"run|exec|bash|shell|command", "quoted"),
    _kind(r"https?://", r"fetch|url|http|browse", "urls"),
)
_DULL = frozenset(
    {"get", "set", "the", "tool", "file", "files", "make", "call", "use", "for", "run"}
)
_WORD = re.compile(r"[a-z]{3,}")
_PATH_NAME = re.compile(r"path|file", re.IGNORECASE)
_PLACE_NAME = re.compile(r"city|place|location|town", re.IGNORECASE)


def plan(text: str, tools: Sequence[ToolDefinition]) -> list[Deed]:
    """The calls that a text asks for, in order; none if no tool fits."""
    hints = Hints(text)
    tool = _tool_for(hints, tools)
    return [] if tool is None else list(deeds(tool, hints))


def deeds(tool: ToolDefinition, hints: Hints) -> Iterator[Deed]:
    """The calls of a tool that some words ask for: one for each file or place they name."""
    schema = tool.input_schema
    names = list(maybe_object(schema.get("properties")))
    whole: dict[str, Any] = maybe_object(Filling(schema, hints).value())
    name, values = _repeated(names, hints)
    if name is None or name not in whole:
        yield Deed(tool.name, whole)
        return
    for value in values:
        yield Deed(tool.name, {**whole, name: value})


def _repeated(names: list[str], hints: Hints) -> tuple[str | None, list[str]]:
    """The argument of which the words name several, and what they name."""
    for pattern, values in ((_PATH_NAME, hints.paths), (_PLACE_NAME, hints.places)):
        name = next((one for one in names if pattern.search(one)), None)
        if name is not None and len(values) > 1:
            return name, values
    return None, []


def _tool_for(hints: Hints, tools: Sequence[ToolDefinition]) -> ToolDefinition | None:
    text = hints.text
    for tool in tools:
        if re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", text):
            return tool
    for kind in _KINDS:
        if kind.asks.search(text) and (kind.needs is None or getattr(hints, kind.needs)):
            for tool in tools:
                if kind.does.search(tool.name):
                    return tool
    words = set(_WORD.findall(text.lower()))
    return next((tool for tool in tools if _own_words(tool) & words), None)


def _own_words(tool: ToolDefinition) -> set[str]:
    """The words of a tool's name that say what it is about."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name).lower()
    return set(_WORD.findall(spaced)) - _DULL
