"""Errors of stores."""

from metis.canonical.errors.base import MetisError


class StoreError(MetisError):
    """A store that cannot do what was asked; `hint` says what to do about it."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        self.text = text
        self.hint = hint
        super().__init__(f"{text}: {hint}" if hint else text)


class StoreUnavailableError(StoreError):
    """A store that cannot be opened or reached."""


class StoreFullError(StoreError):
    """No room is left; what was to be written is not there, everything older is."""


class StoreReadOnlyError(StoreError):
    """A store that may be read and not written."""


class StoreLockedError(StoreError):
    """Somebody else holds the store for longer than we wait."""


class StoreCorruptError(StoreError):
    """What is on the disk is broken."""


class StoreVersionError(StoreError):
    """A store of a newer metis; an older one would not keep what it does not know."""


class ForeignStoreError(StoreError):
    """A file or database that belongs to another program; it was not touched."""


class StoreClosedError(StoreError):
    """A store that was closed."""


class UnknownSessionError(StoreError, LookupError):
    """A session that is not in the store."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"no session has the id {session_id!r}", hint="`metis sessions` lists all")


class UnknownMessageError(StoreError, LookupError):
    """A message that is not in the session."""

    def __init__(self, session_id: str, message_id: str) -> None:
        self.session_id = session_id
        self.message_id = message_id
        super().__init__(f"session {session_id!r} has no message {message_id!r}")


class DuplicateSessionError(StoreError):
    """A session of that id is in the store already."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        hint = "delete it first, or import under new ids"
        super().__init__(f"session {session_id!r} is there already", hint=hint)
