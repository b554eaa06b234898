"""Errors of threads and bookmarks."""

from metis.canonical.errors.base import MetisError


class ThreadError(MetisError):
    """A thread of messages that cannot be."""


class UnknownHeadError(ThreadError, LookupError):
    """A head that is neither the id of a message nor a bookmark."""

    def __init__(self, headish: str) -> None:
        self.headish = headish
        super().__init__(f"no message and no bookmark is named {headish!r}")


class CycleError(ThreadError):
    """A message that would follow itself."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(f"message {message_id} would follow itself")


class BookmarkError(ThreadError, ValueError):
    """A name that no bookmark may have."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{reason}: {name!r}")
