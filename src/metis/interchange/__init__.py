"""Conversation files of other systems, read into entries and written from them.

`load` returns the entries of a document and what the canonical form cannot represent; `dump`
returns a document and what the document could not represent. Both lists are complete: each
direction checks itself against the other.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from metis.canonical.errors import UnknownFormatError
from metis.deprecation import renamed_names

if TYPE_CHECKING:
    from metis.canonical.message import Message
    from metis.interchange.format import Format, LoadedDocument, WrittenDocument
    from metis.interchange.message_list import (
        ForeignConversation,
        ForeignMessage,
        MessageListFormat,
    )
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

# Imported on first use: a question imports this package to describe blocks, and needs no format.
_MODULES: Mapping[str, str] = {
    **dict.fromkeys(("Format", "LoadedDocument", "WrittenDocument"), "format"),
    **dict.fromkeys(("ForeignConversation", "ForeignMessage", "MessageListFormat"), "message_list"),
    "SessionFormat": "session_format",
    "Source": "source",
}
# `detect` asks in this order: the formats with the most specific marks come first.
_HANDLERS = (
    "klaude.history:KlaudeHistory",
    "gpt2099.frames:Gpt2099Frames",
    "gpt2099.windows:Gpt2099Context",
    "gpt2099.windows:Gpt2099Thread",
    "attocode.messages:AttocodeMessages",
    "attocode.responses:AttocodeResponse",
)

if not TYPE_CHECKING:
    _renamed = renamed_names(__name__, {"Dumped": "WrittenDocument", "Loaded": "LoadedDocument"})

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            return _renamed(name)
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


@cache
def _formats() -> "Mapping[str, Format]":
    handlers: dict[str, Format] = {}
    for location in _HANDLERS:
        module, _, class_name = location.partition(":")
        handler: Format = getattr(import_module(f"{__name__}.{module}"), class_name)()
        handlers[handler.name] = handler
    return handlers


def formats() -> tuple[str, ...]:
    """Return the names of all formats."""
    return tuple(_formats())


def detect(data: bytes | str) -> str:
    """Return the name of the format that a document looks like.

    Raises:
        UnknownFormatError: it looks like none of them.
    """
    from metis.interchange.document import as_bytes  # noqa: PLC0415 - as the formats

    text = as_bytes(data)
    for name, handler in _formats().items():
        if handler.fits(text):
            return name
    raise UnknownFormatError(None, formats())


def load(name: str, data: bytes | str, context: "RequestContext | None" = None) -> "LoadedDocument":
    """Read a document of a format; `context` gives the session and the time of the import."""
    return _format(name).load(data, context)


def dump(name: str, entries: "Iterable[AnyEntry | Message]") -> "WrittenDocument":
    """Write entries, or plain messages, as a document of a format."""
    return _format(name).dump(entries)


def _format(name: str) -> "Format":
    if name not in _formats():
        raise UnknownFormatError(name, formats())
    return _formats()[name]
