"""Seed: ids that follow from a request, so that the same request always gets the same bytes."""

import hashlib

from metis.canonical.ids import int_to_ulid

_ID_BYTES = 16


class Seed:
    """Makes ids out of the bytes of a request."""

    def __init__(self, *parts: bytes) -> None:
        self._digest = hashlib.sha256(b"\0".join(parts)).digest()

    @property
    def key(self) -> bytes:
        """What two equal requests have in common."""
        return self._digest

    def ulid(self, label: str) -> str:
        """The id that goes by this label.

        >>> Seed(b"a").ulid("message") == Seed(b"a").ulid("message") != Seed(b"b").ulid("message")
        True
        """
        whole = hashlib.sha256(self._digest + label.encode()).digest()
        return int_to_ulid(int.from_bytes(whole[:_ID_BYTES], "big"))
