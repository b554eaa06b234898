"""EntryList: the entries of a session, in memory or, if there are many, in an unnamed file."""

import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, overload

from metis.store.entries import (
    KnownEntry,
    decode_trusted_entry,
    encode_entry,
)

# A session of this size is in memory; a longer one is in a file that has no name.
_MEMORY_BYTES = 16 * 1024 * 1024


class EntryList(Sequence[KnownEntry]):
    """Entries as JSON, decoded when they are used; those of a long session are in a file.

    As Python objects, a session would take five times the size of its file.
    """

    def __init__(self, entries: Iterable[KnownEntry] = ()) -> None:
        self._newest: list[bytes] = []
        self._newest_bytes = 0
        self._file: IO[bytes] | None = None
        # Where the entries in the file end.
        self._ends = array("q", [0])
        self.extend(map(encode_entry, entries))

    def extend(self, encoded: Iterable[bytes]) -> None:
        """Add entries that `encode_entry` has written."""
        for data in encoded:
            self._newest.append(data)
            self._newest_bytes += len(data)
            if self._newest_bytes > _MEMORY_BYTES:
                self._move_to_file()

    def _move_to_file(self) -> None:
        if self._file is None:
            # It has no name, so that nobody can open it and nothing is left after a crash.
            self._file = tempfile.TemporaryFile(prefix="metis-")  # noqa: SIM115 - closed below
            weakref.finalize(self, self._file.close)
        self._file.seek(self._ends[-1])
        for data in self._newest:
            self._file.write(data)
            self._ends.append(self._ends[-1] + len(data))
        self._newest, self._newest_bytes = [], 0

    def _encoded(self, index: int) -> bytes:
        file_count = len(self._ends) - 1
        if index >= file_count or self._file is None:
            return self._newest[index - file_count]
        self._file.seek(self._ends[index])
        return self._file.read(self._ends[index + 1] - self._ends[index])

    def _all_encoded(self) -> Iterator[bytes]:
        return map(self._encoded, range(len(self)))

    def __len__(self) -> int:
        return len(self._ends) - 1 + len(self._newest)

    @overload
    def __getitem__(self, index: int) -> KnownEntry: ...
    @overload
    def __getitem__(self, index: slice) -> "EntryList": ...
    def __getitem__(self, index: int | slice) -> "KnownEntry | EntryList":
        positions = range(len(self))[index]
        if isinstance(positions, int):
            return decode_trusted_entry(self._encoded(positions))
        part = EntryList()
        part.extend(map(self._encoded, positions))
        return part

    def __iter__(self) -> Iterator[KnownEntry]:
        return map(decode_trusted_entry, self._all_encoded())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EntryList) or len(self) != len(other):
            return False
        pairs = zip(self._all_encoded(), other._all_encoded(), strict=True)
        return all(first == second for first, second in pairs)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - the list is mutable
