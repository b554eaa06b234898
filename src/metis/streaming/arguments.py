"""Arguments of tool calls: parsing of the raw text that a model wrote into the input of a call."""

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
"""How many joined objects in one text are split into calls."""

_NOT_SPACE = re.compile(r"\S")
_CLOSING = {"{": "}", "[": "]"}
_BRACKET = re.compile(r"[][{}]")
# Possessive, and with an optional closing quote: otherwise an unclosed string would be scanned
# again from each quotation mark in it, in quadratic time.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
# An unescaped backslash at the end, with the incomplete escape sequence that it starts.
_HALF_ESCAPE = re.compile(r"((?<!\\)(?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")


def mark_invalid_calls(message: Message, arguments: Iterable[Sequence[str]]) -> Message:
    """Return a message in which calls are invalid if their arguments are not a JSON object (T32).

    `arguments` are the received pieces of arguments of each block.
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
    """Parse the raw text of arguments into the input of a call.

    An empty text is an empty input: models omit the arguments of tools without parameters (T34).
    Some models write `{}` before the real object (T35). For text that is not a JSON object, returns
    an empty input and an InvalidInput with text and fault, so that the call is not run.
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
    """Parse arguments, and return whether encoding the input would give exactly the same text."""
    try:
        data = text.encode()
        value = _decode_any(data)
    except (ValueError, RecursionError):
        return *parse_arguments(text), False
    # Parsed twice, but this case is rare.
    if type(value) is not dict:
        return *parse_arguments(text), False
    return cast("dict[str, Any]", value), None, _encode(value) == data


def split_joined_objects(text: str) -> list[dict[str, Any]]:
    """Split objects that a model joined into one text (T35); empty unless there are several.

    More than `MAX_JOINED_OBJECTS` objects, or only empty ones, are not split: they are repetitions
    of a model, or an attack that would run thousands of calls.
    """
    objects: list[dict[str, Any]] = []
    text = text.strip()
    start = 0
    while text.startswith("{", start):
        try:
            # Decoded at an offset: copies of the remaining text would take quadratic time.
            _, end = _decoder.raw_decode(text, start)
            # The standard library accepts lone surrogates and integers of any length, which a
            # message cannot contain; msgspec rejects both.
            value = _decode_any(text[start:end].encode())
        except (ValueError, RecursionError):
            return []
        objects.append(cast("dict[str, Any]", value))
        if len(objects) > MAX_JOINED_OBJECTS:
            return []
        following = _NOT_SPACE.search(text, end)
        start = following.start() if following else len(text)
    return objects if len(objects) > 1 and start == len(text) and any(objects) else []


def partial_arguments(text: str) -> dict[str, Any]:
    """Parse incomplete arguments, for display only and never as the input of a call (T123).

    >>> partial_arguments('{"path": "notes.t')
    {'path': 'notes.t'}
    """
    # Strings are replaced by underscores of the same length, so that brackets in them are ignored
    # and offsets remain valid.
    outside_strings = _STRING.sub(lambda string: "_" * len(string[0]) if string[1] else '"', text)
    end = outside_strings.find('"')
    if end >= 0:  # the last string is incomplete; an incomplete escape sequence is dropped
        outside_strings = outside_strings[:end]
        text = _HALF_ESCAPE.sub(r"\1", text)
        closed = _decode_object(text + '"' + _closing_brackets(outside_strings))
    else:
        closed = _decode_object(text + _closing_brackets(outside_strings))
    if closed is not None:
        return closed
    # The text after the last complete value is dropped.
    end = max(outside_strings.rfind(mark) + (mark != ",") for mark in "{}[],")
    if end <= 0:
        return {}
    return _decode_object(text[:end] + _closing_brackets(outside_strings[:end])) or {}


def _closing_brackets(outside_strings: str) -> str:
    """Return the closing brackets for the open ones in a text without strings."""
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
