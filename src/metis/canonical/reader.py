"""The careful reader: JSON into values, with every unknown part kept and every path named.

The fast decoder of the codec handles what this version wrote itself. Whatever it refuses comes
here and is taken apart level by level.
"""

import re
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Raw

from metis.canonical.blocks import BLOCK_TYPES
from metis.canonical.errors import DecodeError, InvalidValueError
from metis.canonical.place import join
from metis.canonical.unknown import Extra, UnknownBlock
from metis.canonical.value import Value, fields_of

Reader = Callable[[Raw, str, list[str]], Any]
"""Reads one JSON value at a path; adds the paths of unknown parts to the list."""

_BLOCKS = frozenset(BLOCK_TYPES.values())
_TOO_FINE = re.compile(rb"\.\d{6}0*[1-9]")
_MSGSPEC_PATH = re.compile(r"^(?P<reason>.*?) - at `(?P<path>.*)`$", re.DOTALL)
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_split_array = msgspec.json.Decoder(list[Raw]).decode


def read_value(kind: type[Value], raw: Raw, path: str, unknown: list[str]) -> Any:
    """A canonical value from JSON that may hold more than we know."""
    return read_fields(kind, _object(raw, path), path, unknown)


def read_fields(kind: type[Value], found: dict[str, Raw], path: str, unknown: list[str]) -> Any:
    """The same from an object that was split already."""
    rest = dict(found)
    values: dict[str, Any] = {}
    if kind.__struct_config__.tag_field is not None:
        rest.pop(kind.__struct_config__.tag_field, None)
    for field in fields_of(kind):
        raw = rest.pop(field.encode_name, None)
        if raw is not None:
            read = _reader(field.type)
            values[field.name] = read(raw, join(path, field.encode_name), unknown)
        elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
            raise DecodeError("a required field is missing", path=join(path, field.encode_name))
    if rest:
        unknown.extend(join(path, name) for name in rest)
        values["extra"] = Extra(rest)
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
    """The reader for a type annotation; types without canonical parts go straight to msgspec."""
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
    return _read_moment if inner is datetime else _plain_reader(annotation)


def _union_reader(annotation: Any, members: tuple[Any, ...]) -> Reader:
    if _BLOCKS.issubset(members):
        return _read_block
    rest = [member for member in members if member is not types.NoneType]
    if len(rest) == 1:
        return _optional_reader(_reader(rest[0]))
    return _plain_reader(annotation)


def _value_reader(kind: type[Value]) -> Reader:
    return lambda raw, path, unknown: read_value(kind, raw, path, unknown)


def _tuple_reader(read_item: Reader) -> Reader:
    def read(raw: Raw, path: str, unknown: list[str]) -> tuple[Any, ...]:
        try:
            items = _split_array(raw)
        except msgspec.ValidationError:
            raise DecodeError(f"expected an array, got {_kind_of(raw)}", path=path) from None
        return tuple(read_item(item, join(path, i), unknown) for i, item in enumerate(items))

    return read


def _mapping_reader(read_item: Reader) -> Reader:
    def read(raw: Raw, path: str, unknown: list[str]) -> dict[str, Any]:
        entries = _object(raw, path).items()
        return {key: read_item(item, join(path, key), unknown) for key, item in entries}

    return read


def _optional_reader(read_present: Reader) -> Reader:
    def read(raw: Raw, path: str, unknown: list[str]) -> Any:
        return None if bytes(raw) == b"null" else read_present(raw, path, unknown)

    return read


def _read_block(raw: Raw, path: str, unknown: list[str]) -> Any:
    found = _object(raw, path)
    tag = found.get("type")
    if tag is None:
        raise DecodeError("a block has no `type`", path=join(path, "type"))
    name = _plain_reader(str)(tag, join(path, "type"), unknown)
    kind = BLOCK_TYPES.get(name)
    if kind is None:
        unknown.append(path)
        return UnknownBlock(raw)
    return read_fields(kind, found, path, unknown)


def _read_moment(raw: Raw, path: str, unknown: list[str]) -> datetime:
    if _TOO_FINE.search(bytes(raw)):
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
            reason, inner = split_reason(error)
            raise DecodeError(reason, path=path + inner.removeprefix("$")) from None

    return read


def split_reason(error: Exception) -> tuple[str, str]:
    """The reason and the path in a text of msgspec."""
    match = _MSGSPEC_PATH.match(str(error))
    reason, path = (match["reason"], match["path"]) if match else (str(error), "$")
    return reason[:1].lower() + reason[1:], path


def _kind_of(raw: Raw) -> str:
    kinds = {b"{": "an object", b"[": "an array", b'"': "a string", b"n": "null"}
    kinds |= {b"t": "true", b"f": "false"}
    return kinds.get(bytes(raw)[:1], "a number")
