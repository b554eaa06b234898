"""Arguments of tool calls: from the raw text that models write to the input of a call."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import InvalidInput, ToolUseBlock
from metis.canonical.message import Message
from metis.canonical.schema.subset import describe

_read_any = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder(order="deterministic").encode
_CLOSER = {"{": "}", "[": "]"}
_BRACKET = re.compile(r"[][{}]")
_BORDER = re.compile(r"[][{},]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_HALF_ESCAPE = re.compile(r"((?<!\\)(?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")


def mark_invalid_calls(message: Message, arguments: Iterable[Sequence[str]]) -> Message:
    """The message with every call whose arguments were no JSON object marked as such (T32).

    `arguments` are the pieces that came for each of its blocks.
    """
    faults = [parse_arguments("".join(pieces))[1] for pieces in arguments]
    if not any(faults):
        return message
    content = tuple(
        replace(block, invalid=fault) if fault and isinstance(block, ToolUseBlock) else block
        for block, fault in zip(message.content, faults, strict=True)
    )
    return replace(message, content=content)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def parse_arguments(text: str) -> tuple[dict[str, Any], InvalidInput | None]:
    """The input of a call from the raw text of its arguments.

    No text at all is an empty input (T34), and so is an empty object that the real one was glued to
    (T35). What is no JSON object is never taken for one: the input stays empty, and the raw text
    and the fault are kept.
    """
    try:
        value = _read_any(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if not text.strip():
            return {}, None
        meant = [each for each in split_joined_objects(text) if each]
        if len(meant) == 1:
            return meant[0], None
        return {}, InvalidInput(raw=text, error=f"not JSON: {error}")
    if isinstance(value, dict):
        return value, None  # pyright: ignore[reportUnknownVariableType] - JSON has string keys, and a cast costs time
    return {}, InvalidInput(raw=text, error=f"not an object but {describe(value)}")


def parse_arguments_exactly(text: str) -> tuple[dict[str, Any], InvalidInput | None, bool]:
    """The same, and whether the text is just what we would write for that input."""
    try:
        data = text.encode()
        value = _read_any(data)
    except (ValueError, RecursionError):
        return *parse_arguments(text), False
    if type(value) is not dict:
        return *parse_arguments(text), False
    return cast("dict[str, Any]", value), None, _write(value) == data


def split_joined_objects(text: str) -> list[dict[str, Any]]:
    """The objects that were glued into one text; none if it is not made of several (T35)."""
    found: list[dict[str, Any]] = []
    rest = text.strip()
    while rest.startswith("{"):
        try:
            value, end = _decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        found.append(cast("dict[str, Any]", value))
        rest = rest[end:].lstrip()
    return found if len(found) > 1 and not rest else []


def partial_arguments(text: str) -> dict[str, Any]:
    """What arguments that are still coming say so far: a view for screens, never an input (T123).

    >>> partial_arguments('{"path": "notes.t')
    {'path': 'notes.t'}
    """
    bare = _STRING.sub(lambda found: "_" * len(found[0]), text)
    if '"' in bare:  # the last string goes on; half of an escape says nothing yet
        bare = bare[: bare.index('"')]
        text = _HALF_ESCAPE.sub(r"\1", text)
        whole = _object(text + '"' + _closing(bare))
    else:
        whole = _object(text + _closing(bare))
    if whole is not None:
        return whole
    # What stands behind the last whole value says nothing yet.
    ends = [found.start() + (found[0] != ",") for found in _BORDER.finditer(bare)]
    return _object(text[: ends[-1]] + _closing(bare[: ends[-1]])) or {} if ends else {}


def _closing(bare: str) -> str:
    """The brackets that close what is open in a text without strings."""
    closers: list[str] = []
    for found in _BRACKET.findall(bare):
        if found in _CLOSER:
            closers.append(_CLOSER[found])
        elif closers:
            closers.pop()
    return "".join(reversed(closers))


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = _read_any(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
