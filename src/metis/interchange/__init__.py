"""Conversation files of other systems, read into entries and written from them.

`load` returns the entries of a document and what has no place in the canonical form; `dump` returns
a document and what it could not hold. Both lists are complete: each direction checks itself against
the other.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from metis.canonical.errors import UnknownFormatError
from metis.canonical.message import Message
from metis.deprecation import renamed_names
from metis.interchange.attocode.messages import AttocodeMessages
from metis.interchange.attocode.responses import AttocodeResponse
from metis.interchange.document import as_bytes
from metis.interchange.format import Format, LoadedDocument, WrittenDocument
from metis.interchange.gpt2099.frames import Gpt2099Frames
from metis.interchange.gpt2099.windows import Gpt2099Context, Gpt2099Thread
from metis.interchange.klaude.history import KlaudeHistory
from metis.interchange.message_list import ForeignConversation, ForeignMessage, MessageListFormat
from metis.interchange.session_format import SessionFormat
from metis.interchange.source import Source
from metis.store.entries import AnyEntry
from metis.wire.call import RequestContext

__all__ = [
    "ForeignConversation",
    "ForeignMessage",
    "Format",
    "LoadedDocument",
    "MessageListFormat",
    "SessionFormat",
    "Source",
    "WrittenDocument",
    "detect",
    "dump",
    "formats",
    "load",
]

if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"Dumped": "WrittenDocument", "Loaded": "LoadedDocument"})

# `detect` asks in this order: the formats with the most specific marks come first.
_FORMATS: dict[str, Format] = {
    handler.name: handler
    for handler in (
        KlaudeHistory(),
        Gpt2099Frames(),
        Gpt2099Context(),
        Gpt2099Thread(),
        AttocodeMessages(),
        AttocodeResponse(),
    )
}


def formats() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(_FORMATS)


def detect(data: bytes | str) -> str:
    """Return the name of the format that a document looks like.

    Raises:
        UnknownFormatError: it looks like none of them.
    """
    text = as_bytes(data)
    for name, handler in _FORMATS.items():
        if handler.fits(text):
            return name
    raise UnknownFormatError(None, formats())


def load(name: str, data: bytes | str, context: RequestContext | None = None) -> LoadedDocument:
    """Read a document of a format; `context` gives the session and the time of the import."""
    return _format(name).load(data, context)


def dump(name: str, entries: Iterable[AnyEntry | Message]) -> WrittenDocument:
    """Write entries, or plain messages, as a document of a format."""
    return _format(name).dump(entries)


def _format(name: str) -> Format:
    if name not in _FORMATS:
        raise UnknownFormatError(name, formats())
    return _FORMATS[name]
