"""The documents of klaude-code, attocode and gpt2099 as sessions of the common contract."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from msgspec.structs import replace

from metis.interchange.attocode.messages import AttocodeMessages
from metis.interchange.format import Format
from metis.interchange.gpt2099.frames import Gpt2099Frames
from metis.interchange.gpt2099.windows import Gpt2099Context, Gpt2099Thread
from metis.interchange.klaude.history import KlaudeHistory
from metis.interchange.session_draft import (
    ForeignSession,
    SessionDraft,
    foreign_data,
    with_foreign_data,
)
from metis.interchange.session_format import SessionFormat, WriteOptions, WrittenSession
from metis.interchange.source import Source, parse_record
from metis.store.entries import AnyEntry, KnownEntry
from metis.store.transfer import IdMapping
from metis.wire.call import RequestContext


class DocumentSession(SessionFormat):
    """A session that is one document of an `interchange.Format`."""

    handlers: ClassVar[tuple[Format, ...]]
    is_writable = True

    def fits(self, source: Source) -> bool:
        """Return whether one of the handlers recognises the file."""
        return self._handler(source) is not None

    def _handler(self, source: Source) -> Format | None:
        sample = source.sample()
        return next((handler for handler in self.handlers if handler.fits(sample)), None)

    def read(self, source: Source) -> Iterator[ForeignSession]:
        """Yield the session of a document; a torn last line is reported and left out."""
        draft = SessionDraft(self, source.identity or RequestContext().session_id)
        handler = self._handler(source) or self.handlers[0]
        data = source.read()
        complete, _, last = data.rstrip().rpartition(b"\n")
        is_torn = not data.endswith(b"\n") and complete and not data.lstrip().startswith(b"[")
        if is_torn and parse_record(0, last).value is None:
            data = complete
            number = complete.count(b"\n") + 2
            draft.add_loss("line", "incomplete; the program may still be writing it", at=number)
        loaded = handler.load(data, RequestContext(session_id=draft.session_id))
        for entry in loaded.entries[:1]:
            draft.time(entry.created_at)
        new_ids = {entry.id: draft.next_id() for entry in loaded.entries}
        draft.losses += [
            replace(loss, message_id=new_ids.get(loss.message_id, loss.message_id))
            for loss in loaded.losses
        ]
        mapping = IdMapping(draft.session_id, new_ids, {}, new_ids)
        for index, entry in enumerate(loaded.entries):
            mapped = mapping.map_entry(entry, 0)
            draft.add_stored(self._with_key(mapped, index))  # pyright: ignore[reportArgumentType] - loaded entries are known ones
        yield draft.session()

    def _with_key(self, entry: KnownEntry, index: int) -> KnownEntry:
        data = foreign_data(entry, self.system)
        return with_foreign_data(entry, self.system, {**data, "key": f"entry {index}"})

    def write(self, entries: Sequence[AnyEntry], options: WriteOptions) -> WrittenSession:
        """Write the entries with the first handler."""
        _ = options
        document = self.handlers[0].dump(entries)
        return WrittenSession(document.data, document.losses, "", {})


class Klaude(DocumentSession):
    """`events.jsonl` of klaude-code."""

    name = "klaude"
    system = KlaudeHistory.system
    handlers = (KlaudeHistory(),)


class Attocode(DocumentSession):
    """The messages of attocode."""

    name = "attocode"
    system = AttocodeMessages.system
    handlers = (AttocodeMessages(),)


class Gpt2099(DocumentSession):
    """The frames, contexts and threads of gpt2099."""

    name = "gpt2099"
    system = Gpt2099Frames.system
    handlers = (Gpt2099Frames(), Gpt2099Context(), Gpt2099Thread())
