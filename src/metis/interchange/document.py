"""Documents of other systems: JSON and JSON lines, split into records with their positions."""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from metis.canonical.errors import DecodeError, ForeignDocumentError
from metis.canonical.json_value import join_path, line_of
from metis.canonical.reader import LIMITS, Limits, check_json, split_msgspec_error, to_bytes
from metis.wire.json_access import Wire, list_at, object_at

T = TypeVar("T")
_read = msgspec.json.Decoder().decode


class Record(NamedTuple):
    """One object of a document: a message, a turn or an event."""

    value: Wire
    path: str
    line: int = 1
    document: bytes | None = None
    """The document, if the line numbers inside the record are not known yet."""

    def line_of(self, path: str) -> int:
        """Return the line number of a path inside the record."""
        return self.line if self.document is None else line_of(self.document, path)


def read_json(data: bytes, format_name: str, limits: Limits = LIMITS) -> Any:
    """Return the JSON value of a document."""
    try:
        check_json(data, limits)
    except DecodeError as error:
        raise foreign_error(error, format_name, error.path, line_of(data, error.path)) from None
    return _read(data)


def object_record(data: bytes, format_name: str) -> Record:
    """Return the record of a document that is one object."""
    try:
        return Record(object_at(read_json(data, format_name), "$"), "$", document=data)
    except ForeignDocumentError:
        raise
    except DecodeError as error:
        raise foreign_error(error, format_name, error.path, 1) from None


def array_records(data: bytes, items: Any, path: str, format_name: str) -> Iterator[Record]:
    """Yield the records of an array at a path of a document."""
    try:
        array = list_at(items, path)
        objects = [object_at(item, join_path(path, index)) for index, item in enumerate(array)]
    except DecodeError as error:
        raise foreign_error(error, format_name, error.path, line_of(data, error.path)) from None
    for index, value in enumerate(objects):
        yield Record(value, join_path(path, index), document=data)


def line_records(data: bytes, format_name: str) -> Iterator[Record]:
    """Yield the records of a document with one object per line; empty lines are skipped."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            # Size and depth limits come first: the decoder itself has none.
            check_json(line)
            value = object_at(_read(line), "$")
        except DecodeError as error:
            raise foreign_error(error, format_name, error.path, number) from None
        yield Record(value, "$", number)


def first_object(data: bytes) -> Wire | None:
    """Return a whole document or its first line if that is an object, else None."""
    # A document may be one object over many lines, or an object per line.
    for text in (data, data.lstrip().partition(b"\n")[0]):
        try:
            value = _read(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return cast("Wire", value)
    return None


def first_item(data: bytes) -> Wire | None:
    """Return the first object of a document that is an array, else None."""
    try:
        value = _read(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list) or not value:
        return None
    first = cast("list[Any]", value)[0]
    return cast("Wire", first) if isinstance(first, dict) else None


def is_empty_array(data: bytes) -> bool:
    """Return whether a document is an empty array."""
    return b"".join(data.split()) == b"[]"


def as_bytes(data: bytes | str) -> bytes:
    """Return the bytes of a document without a byte order mark."""
    return to_bytes(data).removeprefix(b"\xef\xbb\xbf")


def convert_to(kind: type[T], value: Any, path: str) -> T:
    """Return a part of a record as a wire type; unknown keys are ignored.

    Raises:
        DecodeError: the value does not fit the type; `path` says where.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, inner = split_msgspec_error(error)
        raise DecodeError(reason, path=path + inner.removeprefix("$")) from None


def foreign_error(
    error: DecodeError, format_name: str, path: str, line: int
) -> ForeignDocumentError:
    """Return a decode error with its format and its line in the document."""
    return ForeignDocumentError(error.reason, format=format_name, path=path, line=line)
