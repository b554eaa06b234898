"""A klaude-code session on disk: a directory with `events.jsonl` and `meta.json`.

`events.jsonl` only grows. Its lines are on disk before `meta.json` mentions them, and that file is
replaced atomically. After a crash at any moment there is a readable history: at worst its last
line is torn, and a torn line is skipped and written again by the next save.
"""

import json
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from metis.canonical.blocks import TextBlock
from metis.canonical.errors import ForeignDocumentError
from metis.canonical.message import Message, Role
from metis.interchange.format import LoadedDocument, entry_of
from metis.interchange.klaude.history import KlaudeHistory
from metis.interchange.source import open_regular
from metis.projection.loss import Change, Loss
from metis.store.entries import AnyEntry, MessageEntry, UnknownEntry
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire, maybe_object

EVENTS, META = "events.jsonl", "meta.json"
"""The two files of a session."""

_FORMAT = KlaudeHistory()


def save_directory(
    directory: Path, entries: Iterable[AnyEntry | Message], *, work_dir: str = "", title: str = ""
) -> list[Loss]:
    """Write a session into a directory, or what is new of it, and return the losses.

    Raises:
        ForeignDocumentError: the directory holds another history.
    """
    items = list(entries)
    document = _FORMAT.dump(items)
    directory.mkdir(parents=True, exist_ok=True)
    stored, _ = _complete_lines(_read(directory / EVENTS))
    # Appending to another history would mix two conversations in one file.
    if not document.data.startswith(stored):
        line = _first_difference(stored, document.data)
        reason = f"{EVENTS} holds another history"
        raise ForeignDocumentError(reason, format=_FORMAT.name, line=line)
    _append(directory / EVENTS, len(stored), document.data[len(stored) :])
    meta = read_meta(directory) | _meta(_messages(items), work_dir, title)
    _replace(directory / META, json.dumps(meta, ensure_ascii=False, indent=2).encode())
    return document.losses


def load_directory(directory: Path, context: RequestContext | None = None) -> LoadedDocument:
    """Read the session of a directory; a last line that a crash tore is skipped, with a loss.

    Raises:
        ForeignDocumentError: the directory holds no history of klaude-code.
    """
    context = context or RequestContext()
    complete, torn = _complete_lines(_read(directory / EVENTS))
    loaded = _FORMAT.load(complete, context)
    if torn:
        loss = Loss(
            session_id=context.session_id,
            message_id="",
            block_type="line",
            adapter=_FORMAT.name,
            reason=f"the last line of {EVENTS} is incomplete",
            change=Change.DROPPED,
        )
        return loaded._replace(losses=[*loaded.losses, loss])
    return loaded


def read_meta(directory: Path) -> Wire:
    """Return `meta.json`; empty if it does not exist or cannot be read."""
    try:
        return maybe_object(msgspec.json.decode(_read(directory / META)))
    except msgspec.DecodeError:
        return {}


def _read(path: Path) -> bytes:
    with suppress(FileNotFoundError), open_regular(path) as file:
        return file.read()
    return b""


def _complete_lines(data: bytes) -> tuple[bytes, bytes]:
    """Return the complete lines, and the rest."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _first_difference(stored: bytes, data: bytes) -> int:
    lines = zip(stored.splitlines(), [*data.splitlines(), b""], strict=False)
    return next((number for number, (one, two) in enumerate(lines, 1) if one != two), 1)


def _messages(entries: Sequence[AnyEntry | Message]) -> list[Message]:
    known_entries = [entry_of(item) for item in entries if not isinstance(item, UnknownEntry)]
    return [entry.message for entry in known_entries if isinstance(entry, MessageEntry)]


def _meta(messages: Sequence[Message], work_dir: str, title: str) -> dict[str, Any]:
    """Return the fields that klaude-code's list of sessions shows."""
    user_messages = [message for message in messages if message.role is Role.USER]
    meta: dict[str, Any] = {
        "messages_count": len(messages),
        "user_messages": [_text(message) for message in user_messages],
    }
    # A session without messages has no times that `meta.json` could show.
    if messages:
        meta["id"] = messages[0].session_id
        meta["created_at"] = messages[0].created_at.timestamp()
        meta["updated_at"] = messages[-1].created_at.timestamp()
    models = [message.metadata.model for message in messages if message.metadata.model]
    if models:
        meta["model_name"] = models[-1].partition(":")[2]
    meta |= {"work_dir": work_dir} if work_dir else {}
    return meta | ({"title": title} if title else {})


def _text(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def _append(path: Path, end: int, lines: bytes) -> None:
    """Write after the complete lines of a file, over a torn one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        # A torn line from a crash would corrupt the line that follows it.
        file.truncate(end)
        file.seek(end)
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(path.parent)


def _replace(path: Path, data: bytes) -> None:
    """Replace a file atomically."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # The rename is atomic, so a reader sees the old or the new file, never a part.
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    # Without this the new names in the directory could be lost in a power failure.
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
