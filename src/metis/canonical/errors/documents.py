"""Errors of reading and writing the canonical form, and files of other systems."""

from collections.abc import Sequence

from metis.canonical.errors.base import MetisError, ProblemsError


class DecodeError(MetisError, ValueError):
    """Bytes that are not the canonical form: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class LimitError(DecodeError):
    """Input that is larger or nested deeper than the limits allow."""


class MigrationError(DecodeError):
    """A message of an old version that could not be brought up to date."""


class ForeignDocumentError(DecodeError):
    """A file of another system that cannot be read: format, line and path name the place."""

    def __init__(self, reason: str, *, format: str, path: str = "$", line: int = 1) -> None:  # noqa: A002 - the word that callers use
        self.format = format
        self.line = line
        super().__init__(f"{reason} ({format}, line {line})", path=path)


class EncodeError(MetisError, ValueError):
    """A value that cannot be written: `path` names the place, `reason` the fault."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"{path}: {reason}")


class NewerVersionError(EncodeError):
    """A message of a version that we do not know was changed; writing it would lose data."""


class InvalidMessageError(ProblemsError):
    """A message that breaks rules of the canonical form."""


class UnknownFormatError(MetisError, LookupError):
    """A name that no format has, or data that no format fits."""

    def __init__(self, name: str | None, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        what = "this is no document of a known format" if name is None else f"no format {name!r}"
        super().__init__(f"{what}; there are {', '.join(self.known)}")
