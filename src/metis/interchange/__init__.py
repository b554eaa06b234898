"""Other systems' conversation files, read into entries and written from them.

`load` gives what a document holds and what of it has no place in the canonical form; `dump` gives a
document and what it could not hold. Both lists are complete: each direction checks itself against
the other.
"""

from collections.abc import Iterable

from metis.canonical.errors import UnknownFormatError
from metis.canonical.message import Message
from metis.interchange.attocode.messages import AttocodeMessages, AttocodeResponse
from metis.interchange.document import as_bytes
from metis.interchange.format import Format, LoadedDocument, WrittenDocument
from metis.interchange.gpt2099.frames import Gpt2099Frames
from metis.interchange.gpt2099.windows import Gpt2099Context, Gpt2099Thread
from metis.interchange.klaude.history import KlaudeHistory
from metis.store.entries import AnyEntry
from metis.wire.call import RequestContext

__all__ = ["Format", "LoadedDocument", "WrittenDocument", "detect", "dump", "formats", "load"]

_FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        KlaudeHistory(),
        Gpt2099Frames(),
        Gpt2099Context(),
        Gpt2099Thread(),
        AttocodeMessages(),
        AttocodeResponse(),
    )
}


def formats() -> tuple[str, ...]:
    """The names of all formats."""
    return tuple(_FORMATS)


def detect(data: bytes | str) -> str:
    """The name of the format that a document looks like."""
    text = as_bytes(data)
    found = next((name for name, each in _FORMATS.items() if each.fits(text)), None)
    if found is None:
        raise UnknownFormatError(None, formats())
    return found


def load(name: str, data: bytes | str, context: RequestContext | None = None) -> LoadedDocument:
    """Read a document of a format; `context` gives the session and the time of the import."""
    return _format(name).load(data, context)


def dump(name: str, entries: Iterable[AnyEntry | Message]) -> WrittenDocument:
    """Write entries, or plain messages, as a document of a format."""
    return _format(name).dump(entries)


def _format(name: str) -> Format:
    found = _FORMATS.get(name)
    if found is None:
        raise UnknownFormatError(name, formats())
    return found
