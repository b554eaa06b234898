"""The general decoder: JSON into values, with unknown parts preserved and faults with paths.

The fast path of the codec decodes documents that this version wrote; all others are decoded here.
They are first checked as JSON: msgspec accepts duplicate keys and any nesting up to the stack of
the interpreter, which are errors with a path here. Then they are decoded level by level.
"""

import json
import re
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Raw, Struct

from metis.canonical.blocks import BLOCK_TYPES
from metis.canonical.errors import DecodeError, InvalidValueError, LimitError
from metis.canonical.json_value import (
    join_path,
    json_text_fault_at,
    parse_strictly,
    path_at,
    path_deeper_than,
)
from metis.canonical.value import Extra, UnknownBlock, Value, fields_of

# A path into deeply nested JSON may be as long as the document itself.
_MAX_PATH_TEXT = 80
# Below the recursion limit of the interpreter, because the callers of json.loads need stack, too.
_MAX_PYTHON_DEPTH = 900
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_decode_any = msgspec.json.Decoder().decode


class Limits(Struct, frozen=True):
    """The limits on size and nesting of a document.

    `max_depth` does not apply to canonical bytes, whose depth is limited only by the interpreter
    (about a thousand levels).
    """

    max_bytes: int = 64 * 1024 * 1024
    max_depth: int = 100


LIMITS = Limits()
"""The default limits."""


def to_bytes(data: bytes | bytearray | memoryview | str) -> bytes:
    """Return a document as bytes; raise DecodeError for a text with lone surrogates."""
    try:
        return data.encode() if isinstance(data, str) else bytes(data)
    except UnicodeEncodeError as error:
        raise DecodeError(f"lone surrogate at character {error.start}") from None


def check_json(data: bytes, limits: Limits = LIMITS) -> None:
    """Raise an error for bytes that are not JSON, exceed the limits, or have duplicate keys."""
    if len(data) > limits.max_bytes:
        raise LimitError(f"{len(data)} bytes; the limit is {limits.max_bytes}")
    # Counting brackets is fast; only documents with many are scanned token by token.
    if data.count(b"{") + data.count(b"[") > limits.max_depth:
        _check_depth(data, limits)
    has_fault = _parse(data, limits)
    # The slow search for the path is only done for documents that may have a fault.
    if has_fault or _SURROGATE.search(data):
        fault = json_text_fault_at(data)
        if fault:
            raise DecodeError(fault[1], path=fault[0])
    try:
        # json.loads is more lenient than msgspec in places; the document has to pass both.
        _decode_any(data)
    except msgspec.DecodeError as error:
        reason, path = split_msgspec_error(error)
        raise DecodeError(reason, path=path) from None


def _check_depth(data: bytes, limits: Limits) -> None:
    path = path_deeper_than(data, limits.max_depth)
    if path is not None:
        shown = path if len(path) <= _MAX_PATH_TEXT else f"{path[:_MAX_PATH_TEXT]}..."
        raise LimitError(f"nested deeper than {limits.max_depth} levels", path=shown)


def _parse(data: bytes, limits: Limits) -> bool:
    """Return whether JSON text contains a fault beyond syntax; raise an error for bad syntax."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start}"
        raise DecodeError(reason, path=path_at(data, error.start)) from None
    try:
        parse_strictly(text)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        reason = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at byte {offset}"
        raise DecodeError(reason, path=path_at(data, offset)) from None
    except RecursionError:
        _check_depth(data, Limits(max_depth=_MAX_PYTHON_DEPTH))
        raise LimitError(f"nested deeper than {limits.max_depth} levels") from None
    except ValueError:
        return True
    return False


Reader = Callable[[Raw, str, list[str]], Any]
"""Decodes one JSON value at a path, and adds the paths of unknown parts to the list."""

_BLOCKS = frozenset(BLOCK_TYPES.values())
_FINER_THAN_MICROSECONDS = re.compile(rb"\.\d{6}0*[1-9]")
_MSGSPEC_PATH = re.compile(r"^(?P<reason>.*?) - at `(?P<path>.*)`$", re.DOTALL)
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_split_array = msgspec.json.Decoder(list[Raw]).decode


def read_fields(
    kind: type[Value], raw_fields: dict[str, Raw], path: str, unknown: list[str]
) -> Any:
    """Decode a canonical value from the raw fields of a JSON object.

    Unknown fields are stored in `extra`, and their paths are added to `unknown`.
    """
    remaining = dict(raw_fields)
    values: dict[str, Any] = {}
    if kind.__struct_config__.tag_field is not None:
        remaining.pop(kind.__struct_config__.tag_field, None)
    for field in fields_of(kind):
        raw = remaining.pop(field.encode_name, None)
        if raw is not None:
            read = _reader(field.type)
            values[field.name] = read(raw, join_path(path, field.encode_name), unknown)
        elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
            raise DecodeError(
                "a required field is missing", path=join_path(path, field.encode_name)
            )
    # Fields of a newer version are preserved byte for byte.
    if remaining:
        unknown.extend(join_path(path, name) for name in remaining)
        values["extra"] = Extra(remaining)
    try:
        return kind(**values)
    except InvalidValueError as error:
        raise DecodeError(error.reason, path=path + error.path.removeprefix("$")) from None


def _object(raw: Raw, path: str) -> dict[str, Raw]:
    try:
        return _split_object(raw)
    except msgspec.ValidationError:
        raise DecodeError(f"expected an object, got {_kind_of(raw)}", path=path) from None


@cache
def _reader(annotation: Any) -> Reader:
    """Return the reader for a type annotation; msgspec decodes types without canonical parts."""
    inner = annotation
    while get_origin(inner) is Annotated:
        inner = get_args(inner)[0]
    members = get_args(inner)
    if isinstance(inner, type) and issubclass(inner, Value):
        return _value_reader(inner)
    if get_origin(inner) is tuple:
        return _tuple_reader(_reader(members[0]))
    if get_origin(inner) is Mapping and members[1] is not Any:
        return _mapping_reader(_reader(members[1]))
    if get_origin(inner) in (Union, types.UnionType):
        return _union_reader(annotation, members)
    return _read_datetime if inner is datetime else _plain_reader(annotation)


def _union_reader(annotation: Any, members: tuple[Any, ...]) -> Reader:
    if _BLOCKS.issubset(members):
        return _read_block
    others = [member for member in members if member is not types.NoneType]
    if len(others) == 1:
        return _optional_reader(_reader(others[0]))
    return _plain_reader(annotation)


def _value_reader(kind: type[Value]) -> Reader:
    return lambda raw, path, unknown: read_fields(kind, _object(raw, path), path, unknown)


def _tuple_reader(read_item: Reader) -> Reader:
    def read(raw: Raw, path: str, unknown: list[str]) -> tuple[Any, ...]:
        try:
            items = _split_array(raw)
        except msgspec.ValidationError:
            raise DecodeError(f"expected an array, got {_kind_of(raw)}", path=path) from None
        return tuple(read_item(item, join_path(path, i), unknown) for i, item in enumerate(items))

    return read


def _mapping_reader(read_item: Reader) -> Reader:
    def read(raw: Raw, path: str, unknown: list[str]) -> dict[str, Any]:
        entries = _object(raw, path).items()
        return {key: read_item(item, join_path(path, key), unknown) for key, item in entries}

    return read


def _optional_reader(read_present: Reader) -> Reader:
    def read(raw: Raw, path: str, unknown: list[str]) -> Any:
        return None if bytes(raw) == b"null" else read_present(raw, path, unknown)

    return read


def _read_block(raw: Raw, path: str, unknown: list[str]) -> Any:
    raw_fields = _object(raw, path)
    tag = raw_fields.get("type")
    if tag is None:
        raise DecodeError("a block has no `type`", path=join_path(path, "type"))
    name = _plain_reader(str)(tag, join_path(path, "type"), unknown)
    kind = BLOCK_TYPES.get(name)
    if kind is None:
        unknown.append(path)
        return UnknownBlock(raw)
    return read_fields(kind, raw_fields, path, unknown)


def _read_datetime(raw: Raw, path: str, unknown: list[str]) -> datetime:
    # datetime would silently drop the digits, and the bytes would not be preserved.
    if _FINER_THAN_MICROSECONDS.search(bytes(raw)):
        raise DecodeError("a time finer than a microsecond", path=path)
    moment = cast("datetime", _plain_reader(datetime)(raw, path, unknown))
    if moment.tzinfo is None:
        raise DecodeError("a time without a zone; give UTC", path=path)
    return moment


def _plain_reader(annotation: Any) -> Reader:
    decode = msgspec.json.Decoder(annotation).decode

    def read(raw: Raw, path: str, unknown: list[str]) -> Any:  # noqa: ARG001 - every reader has it
        try:
            return decode(raw)
        except msgspec.ValidationError as error:
            reason, inner = split_msgspec_error(error)
            raise DecodeError(reason, path=path + inner.removeprefix("$")) from None

    return read


def split_msgspec_error(error: Exception) -> tuple[str, str]:
    """Split the text of a msgspec error into its reason and its path."""
    match = _MSGSPEC_PATH.match(str(error))
    reason, path = (match["reason"], match["path"]) if match else (str(error), "$")
    return reason[:1].lower() + reason[1:], path


def _kind_of(raw: Raw) -> str:
    kinds = {b"{": "an object", b"[": "an array", b'"': "a string", b"n": "null"}
    kinds |= {b"t": "true", b"f": "false"}
    return kinds.get(bytes(raw)[:1], "a number")
