"""Arguments of tool calls: from the raw text that models write to the input of a call."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import InvalidInput, ToolUseBlock
from metis.canonical.message import Message
from metis.canonical.schema.subset import describe

_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="deterministic").encode
MAX_JOINED_OBJECTS: Final = 64
"""How many objects in one text are read as calls."""

_NOT_SPACE = re.compile(r"\S")
_CLOSING = {"{": "}", "[": "]"}
_BRACKET = re.compile(r"[][{}]")
# Possessive, and an end mark that may be missing: a string that is never closed would be scanned
# again from each of the quotation marks in it.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
# A backslash that is not escaped itself, with the beginning of its escape sequence.
_HALF_ESCAPE = re.compile(r"((?<!\\)(?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")


def mark_invalid_calls(message: Message, arguments: Iterable[Sequence[str]]) -> Message:
    """Mark every call of a message whose arguments are not a JSON object as invalid (T32).

    `arguments` are the pieces that arrived for each of its blocks.
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
    """Parse the raw text of arguments to the input of a call.

    No text is an empty input: models omit the arguments of tools without parameters (T34). Some
    models write `{}` and append the real object (T35). Text that is not a JSON object gives an
    empty input with the raw text and the fault, so that no call runs with wrong arguments.
    """
    try:
        value = _decode_any(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if not text.strip():
            return {}, None
        non_empty = [joined for joined in split_joined_objects(text) if joined]
        if len(non_empty) == 1:
            return non_empty[0], None
        return {}, InvalidInput(raw=text, error=f"not JSON: {error}")
    if isinstance(value, dict):
        return value, None  # pyright: ignore[reportUnknownVariableType] - JSON has string keys, and a cast costs time
    return {}, InvalidInput(raw=text, error=f"not an object but {describe(value)}")


def parse_arguments_exactly(text: str) -> tuple[dict[str, Any], InvalidInput | None, bool]:
    """Parse arguments, and return whether the text is exactly what we would write for the input."""
    try:
        data = text.encode()
        value = _decode_any(data)
    except (ValueError, RecursionError):
        return *parse_arguments(text), False
    # Rare enough to parse twice.
    if type(value) is not dict:
        return *parse_arguments(text), False
    return cast("dict[str, Any]", value), None, _encode(value) == data


def split_joined_objects(text: str) -> list[dict[str, Any]]:
    """Split objects that were joined into one text (T35); return none if there are not several.

    More than `MAX_JOINED_OBJECTS`, or empty ones alone, are not parallel calls: a model repeats
    itself, or an attacker wants us to run 50,000 of them. They stay one text.
    """
    objects: list[dict[str, Any]] = []
    text = text.strip()
    start = 0
    while text.startswith("{", start):
        try:
            # An offset instead of the rest: copies would cost the square of the length.
            _, end = _decoder.raw_decode(text, start)
            # The parser of the standard library accepts what no message can hold: half a surrogate
            # pair, and integers of any length.
            value = _decode_any(text[start:end].encode())
        except (ValueError, RecursionError):
            return []
        objects.append(cast("dict[str, Any]", value))
        if len(objects) > MAX_JOINED_OBJECTS:
            return []
        rest = _NOT_SPACE.search(text, end)
        start = rest.start() if rest else len(text)
    return objects if len(objects) > 1 and start == len(text) and any(objects) else []


def partial_arguments(text: str) -> dict[str, Any]:
    """Parse arguments that are still arriving, for display only and never as an input (T123).

    >>> partial_arguments('{"path": "notes.t')
    {'path': 'notes.t'}
    """
    # Strings are masked by as many underscores, so that brackets in them do not count and offsets
    # stay valid.
    outside_strings = _STRING.sub(lambda string: "_" * len(string[0]) if string[1] else '"', text)
    end = outside_strings.find('"')
    if end >= 0:  # the last string is incomplete; half of an escape is dropped
        outside_strings = outside_strings[:end]
        text = _HALF_ESCAPE.sub(r"\1", text)
        closed = _decode_object(text + '"' + _closing_brackets(outside_strings))
    else:
        closed = _decode_object(text + _closing_brackets(outside_strings))
    if closed is not None:
        return closed
    # What follows the last complete value is dropped.
    end = max(outside_strings.rfind(mark) + (mark != ",") for mark in "{}[],")
    if end <= 0:
        return {}
    return _decode_object(text[:end] + _closing_brackets(outside_strings[:end])) or {}


def _closing_brackets(outside_strings: str) -> str:
    """Return the brackets that close what is open in a text without strings."""
    closers: list[str] = []
    for bracket in _BRACKET.findall(outside_strings):
        if bracket in _CLOSING:
            closers.append(_CLOSING[bracket])
        elif closers:
            closers.pop()
    return "".join(reversed(closers))


def _decode_object(text: str) -> dict[str, Any] | None:
    try:
        value = _decode_any(text.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
