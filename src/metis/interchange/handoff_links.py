"""Links: from a session file that was written for another program to the session in the store.

What the program adds to its file later is added to that session. The session itself is complete;
the file may have been written with losses.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from metis.interchange.programs import write_new_file


class HandoffLink(Struct, frozen=True, kw_only=True):
    """A session that was written for another program."""

    session_id: str
    """Our session."""
    system: str
    foreign_id: str
    keys: dict[str, str]
    """The ids of our entries by their keys in the file."""
    record_count: int
    """How many records the file had when it was written."""


class HandoffLinks:
    """The links of this user, a file each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, link: HandoffLink) -> None:
        """Store a link."""
        write_new_file(self._path(link.system, link.foreign_id), msgspec.json.encode(link))

    def find(self, system: str, foreign_id: str) -> HandoffLink | None:
        """Return the link of another program's session; None if it began there."""
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            data = self._path(system, foreign_id).read_bytes()
            return msgspec.json.decode(data, type=HandoffLink)
        return None

    def _path(self, system: str, foreign_id: str) -> Path:
        name = hashlib.sha256(f"{system}\0{foreign_id}".encode()).hexdigest()[:32]
        return self._directory / f"{name}.json"
