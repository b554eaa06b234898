"""Salvage: reads the rows of a damaged SQLite file from its pages, without SQLite.

SQLite stops at the first page that contradicts another. Here every page with rows is read
independently, so that a damaged page loses only its own rows. Pages on the free list have deleted
rows and are skipped. The file format has been fixed since 2004 and is documented by SQLite
(https://www.sqlite.org/fileformat2.html).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

Value = int | float | bytes | None
"""A column; texts are bytes, since damaged ones may not be UTF-8."""

_HEADER_SIZE = 100
_MAGIC = b"SQLite format 3\x00"
# The types of pages with rows: tables without row ids are stored as indexes.
_INDEX_INTERIOR, _INDEX_LEAF, _TABLE_LEAF = 0x02, 0x0A, 0x0D
_TRUNK_FIXED = 8
_MIN_PAGE, _MAX_PAGE, _USUAL_PAGE = 512, 65_536, 4096
# Serial types of columns: 0 is null, 1 to 6 are integers of these sizes, 7 is a float, 8 and 9 are
# the constants 0 and 1, and from 12 on blobs and texts.
_INTEGER_SIZES = (0, 1, 2, 3, 4, 6, 8)
_FLOAT, _ZERO, _ONE, _FIRST_BLOB = 7, 8, 9, 12
# Our tables have fewer columns, and a damaged header may state any number.
_MAX_COLUMNS = 32


class Row(NamedTuple):
    """A row that could be read."""

    page: int
    values: tuple[Value, ...]


class Damage(NamedTuple):
    """A part of a page that could not be read, and why."""

    page: int
    text: str


class _BadCellError(Exception):
    """A cell that contradicts the format of the file."""


class DamagedFile:
    """The bytes of a SQLite file of which any part may be wrong."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size = self._page_size()
        reserved = data[20] if data.startswith(_MAGIC) and len(data) > _HEADER_SIZE else 0
        # A damaged byte must not make every page unreadable; extensions reserve at most 64 bytes.
        self._usable = self._size - (reserved if reserved <= 64 else 0)  # noqa: PLR2004 - see above
        self.damages: list[Damage] = []

    def _page_size(self) -> int:
        size = int.from_bytes(self._data[16:18], "big")
        size = _MAX_PAGE if size == 1 else size
        is_valid = _MIN_PAGE <= size <= _MAX_PAGE and size & (size - 1) == 0
        return size if is_valid and len(self._data) % size == 0 else _USUAL_PAGE

    @property
    def page_count(self) -> int:
        """How many pages the file has."""
        return -(-len(self._data) // self._size)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all pages; unreadable parts are added to `damages`."""
        free = self._free_pages()
        for number in range(1, self.page_count + 1):
            if number not in free:
                yield from self._rows_of_page(number)

    def _page(self, number: int) -> bytes:
        return self._data[(number - 1) * self._size : number * self._size]

    def _free_pages(self) -> set[int]:
        """Return the pages on the free list, which have deleted rows."""
        free: set[int] = set()
        trunk = int.from_bytes(self._data[32:36], "big")
        # A damaged list may contain a cycle or pages outside of the file.
        while 0 < trunk <= self.page_count and trunk not in free:
            free.add(trunk)
            page = self._page(trunk)
            count = int.from_bytes(page[4:8], "big")
            if count > (self._size - _TRUNK_FIXED) // 4:
                self.damages.append(Damage(trunk, "the free list is damaged"))
                break
            for index in range(count):
                start = _TRUNK_FIXED + 4 * index
                free.add(int.from_bytes(page[start : start + 4], "big"))
            trunk = int.from_bytes(page[:4], "big")
        return free

    def _rows_of_page(self, number: int) -> Iterator[Row]:
        page = self._page(number)
        start = _HEADER_SIZE if number == 1 else 0
        kind = page[start] if start < len(page) else 0
        if kind not in (_INDEX_INTERIOR, _INDEX_LEAF, _TABLE_LEAF):
            return
        header = start + (12 if kind == _INDEX_INTERIOR else 8)
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        if header + 2 * count > len(page):
            self.damages.append(Damage(number, f"its header counts {count} cells"))
            return
        for index in range(count):
            pointer = header + 2 * index
            offset = int.from_bytes(page[pointer : pointer + 2], "big")
            try:
                yield Row(number, self._cell(page, offset, kind))
            except (_BadCellError, IndexError, ValueError) as error:
                text = str(error) or "it ends too early"
                self.damages.append(Damage(number, f"cell {index} at byte {offset}: {text}"))

    def _cell(self, page: bytes, offset: int, kind: int) -> tuple[Value, ...]:
        if not _TRUNK_FIXED <= offset < len(page):
            raise _BadCellError("it is outside of the page")
        if kind == _INDEX_INTERIOR:
            offset += 4  # the page with smaller keys
        size, offset = _variable_integer(page, offset)
        if kind == _TABLE_LEAF:
            _, offset = _variable_integer(page, offset)  # the row id
        if size > len(self._data):
            raise _BadCellError(f"it claims {size} bytes")
        local = self._local_size(size, is_table=kind == _TABLE_LEAF)
        payload = page[offset : offset + local]
        if local < size:
            start = offset + local
            first = int.from_bytes(page[start : start + 4], "big")
            payload += self._overflow(first, size - local)
        return _record(payload)

    def _local_size(self, size: int, *, is_table: bool) -> int:
        """Return how many bytes of a row are in its page; others are in overflow pages."""
        # The constants are those of "B-tree Cell Format" in the documentation of SQLite.
        usable = self._usable
        max_local = usable - 35 if is_table else (usable - 12) * 64 // 255 - 23
        if size <= max_local:
            return size
        min_local = (usable - 12) * 32 // 255 - 23
        local = min_local + (size - min_local) % (usable - 4)
        return local if local <= max_local else min_local

    def _overflow(self, number: int, size: int) -> bytes:
        parts: list[bytes] = []
        visited: set[int] = set()
        while size > 0:
            # A damaged chain may contain a cycle.
            if not 0 < number <= self.page_count or number in visited:
                raise _BadCellError(f"its overflow page {number} does not exist")
            visited.add(number)
            page = self._page(number)
            part = page[4 : min(self._usable, 4 + size)]
            parts.append(part)
            size -= len(part)
            number = int.from_bytes(page[:4], "big")
        return b"".join(parts)


def _variable_integer(data: bytes, offset: int) -> tuple[int, int]:
    """Return a variable-length integer of one to nine bytes, and the offset after it."""
    value = 0
    for index in range(8):
        byte = data[offset + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004 - the last byte has no high bit
            return value, offset + index + 1
    return value << 8 | data[offset + 8], offset + 9


def _record(payload: bytes) -> tuple[Value, ...]:
    """Return the columns of a row: a header with their types, then their bytes."""
    header_size, offset = _variable_integer(payload, 0)
    if header_size > len(payload):
        raise _BadCellError("its columns are not described")
    kinds: list[int] = []
    while offset < header_size and len(kinds) <= _MAX_COLUMNS:
        kind, offset = _variable_integer(payload, offset)
        kinds.append(kind)
    if offset != header_size:
        raise _BadCellError("its columns are not described")
    values: list[Any] = []
    for kind in kinds:
        size = _column_size(kind)
        part = payload[offset : offset + size]
        if len(part) != size:
            raise _BadCellError("a column ends too early")
        offset += size
        values.append(_column(kind, part))
    return tuple(values)


def _column_size(kind: int) -> int:
    if kind < len(_INTEGER_SIZES):
        return _INTEGER_SIZES[kind]
    if kind == _FLOAT:
        return 8
    if kind in (_ZERO, _ONE):
        return 0
    if kind < _FIRST_BLOB:
        raise _BadCellError(f"a column has the unused type {kind}")
    return (kind - _FIRST_BLOB) // 2


def _column(kind: int, part: bytes) -> Value:
    if kind == 0:
        return None
    if kind in (_ZERO, _ONE):
        return kind - _ZERO
    if kind < _FLOAT:
        return int.from_bytes(part, "big", signed=True)
    return part  # a float stays bytes, which no column accepts: our tables have no floats
