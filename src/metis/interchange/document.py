"""Documents of other systems: JSON and JSON lines, taken apart into records with their places."""

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
    """One object of a document that stands for a message or an event."""

    value: Wire
    path: str
    line: int = 1
    document: bytes | None = None
    """The document, where the lines of its parts are still to be found."""

    def line_of(self, path: str) -> int:
        """The line of a path that leads into the record."""
        return self.line if self.document is None else line_of(self.document, path)


def read_json(data: bytes, format_name: str, limits: Limits = LIMITS) -> Any:
    """The one JSON value that a document is."""
    try:
        check_json(data, limits)
    except DecodeError as error:
        raise foreign_error(error, format_name, error.path, line_of(data, error.path)) from None
    return _read(data)


def object_record(data: bytes, format_name: str) -> Record:
    """The one object that a document is."""
    try:
        return Record(object_at(read_json(data, format_name), "$"), "$", document=data)
    except ForeignDocumentError:
        raise
    except DecodeError as error:
        raise foreign_error(error, format_name, error.path, 1) from None


def array_records(data: bytes, items: Any, path: str, format_name: str) -> Iterator[Record]:
    """The objects of an array that stands at a path of a document."""
    try:
        found = list_at(items, path)
        objects = [object_at(item, join_path(path, index)) for index, item in enumerate(found)]
    except DecodeError as error:
        raise foreign_error(error, format_name, error.path, line_of(data, error.path)) from None
    for index, value in enumerate(objects):
        place = join_path(path, index)
        yield Record(value, place, document=data)


def line_records(data: bytes, format_name: str) -> Iterator[Record]:
    """The objects of a document with one on each line; blank lines are skipped."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            check_json(line)
            value = object_at(_read(line), "$")
        except DecodeError as error:
            raise foreign_error(error, format_name, error.path, number) from None
        yield Record(value, "$", number)


def first_object(data: bytes) -> Wire | None:
    """The first line of a document, or all of it, as an object; None if that is none."""
    for text in (data, data.lstrip().partition(b"\n")[0]):
        try:
            value = _read(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return cast("Wire", value)
    return None


def first_item(data: bytes) -> Wire | None:
    """The first object of a document that is an array; None if it is none."""
    try:
        value = _read(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list) or not value:
        return None
    first = cast("list[Any]", value)[0]
    return cast("Wire", first) if isinstance(first, dict) else None


def is_empty_array(data: bytes) -> bool:
    """Whether a document is an array with nothing in it."""
    return b"".join(data.split()) == b"[]"


def as_bytes(data: bytes | str) -> bytes:
    """The bytes of a document that may have come as text, without a byte order mark."""
    return to_bytes(data).removeprefix(b"\xef\xbb\xbf")


def convert_to(kind: type[T], value: Any, path: str) -> T:
    """A part of a record as the type that its format gives it; other keys are left alone."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, inner = split_msgspec_error(error)
        raise DecodeError(reason, path=path + inner.removeprefix("$")) from None


def foreign_error(
    error: DecodeError, format_name: str, path: str, line: int
) -> ForeignDocumentError:
    """The same fault, with its place in the document."""
    return ForeignDocumentError(error.reason, format=format_name, path=path, line=line)
