"""`metis export` and `metis import`: sessions as files, for metis and for other programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from metis import interchange
from metis.canonical.errors import DecodeError, UnknownFormatError
from metis.cli.message_files import file_label
from metis.cli.output import echo, write_file
from metis.cli.render import loss_line, message_numbers
from metis.cli.stored_sessions import find_session, on_store
from metis.cli.text import count
from metis.interchange.export import Conversation, ExportedFile
from metis.interchange.writers import WRITERS
from metis.projection.loss import Loss
from metis.store import SessionRecord, Store
from metis.store.entries import AnyEntry, MessageEntry
from metis.store.threads import Threads
from metis.tools.builtin import BUILTINS

# The format of metis itself: it holds everything, and `metis import` reads it back.
JSONL = "jsonl"
EXPORT_FORMATS = (JSONL, *WRITERS, *interchange.formats())


@on_store(recover=False)
async def write_export(store: Store, session_name: str, form: str, target: IO[bytes]) -> int:
    """Write a session in a format; each loss is a line on standard error."""
    record = await find_session(store, session_name)
    exported = await export_session(store, record, form)
    write_file(target, exported.data)
    # The losses name messages by id; people count them.
    numbers = message_numbers(await store.messages(record.id))
    for loss in exported.losses:
        echo(loss_line(loss, numbers), err=True)
    return 0


async def export_session(store: Store, record: SessionRecord, form: str) -> ExportedFile:
    """Return a session in a format, with what the format cannot hold.

    Only the messages on the way to the newest one are written: what was rewound stays in the store.
    """
    if form == JSONL:
        return ExportedFile(b"".join(line + b"\n" for line in await store.export(record.id)))
    history = await store.history(record.id)
    messages = Threads(history).path()
    if form in WRITERS:
        tools = [tool().definition for tool in BUILTINS]
        return WRITERS[form](Conversation(record, messages, tools))
    # A rewind keeps the removed messages in the journal, and they are not part of the
    # conversation.
    active = {message.id for message in messages}
    document = interchange.dump(form, [entry for entry in history if _is_active(entry, active)])
    return ExportedFile(document.data, tuple(document.losses))


def _is_active(entry: AnyEntry, message_ids: set[str]) -> bool:
    return not isinstance(entry, MessageEntry) or entry.message.id in message_ids


@on_store(recover=True)
async def read_import(store: Store, source: IO[bytes], *, form: str | None, new_ids: bool) -> int:
    """Store the session of a file and print its id; losses go to standard error."""
    workspace = Path.cwd()
    data = source.read()
    losses: Sequence[Loss] = ()
    detected = form or _detect(data)
    if detected == JSONL:
        session = await _import_jsonl(store, data, new_ids=new_ids)
    else:
        document = interchange.load(detected, data)
        losses = document.losses
        session = await store.import_entries(document.entries, workspace_path=workspace)
    echo(session.id)
    messages = await store.messages(session.id)
    numbers = message_numbers(messages)
    for loss in losses:
        echo(loss_line(loss, numbers), err=True)
    imported = count(len(messages), "message")
    echo(f"{file_label(source)}: {imported} imported as {detected}", err=True)
    return 0


def _detect(data: bytes) -> str:
    """Return the format of a file; what no other format fits is read as an export of metis."""
    try:
        return interchange.detect(data)
    except UnknownFormatError:
        return JSONL


async def _import_jsonl(store: Store, data: bytes, *, new_ids: bool) -> SessionRecord:
    try:
        return await store.import_lines(data.splitlines(), new_ids=new_ids)
    except DecodeError as error:
        formats = ", ".join(interchange.formats())
        reason = f"{error.reason}. Not an export of metis; other formats: {formats}"
        raise DecodeError(reason, path=error.path) from None
