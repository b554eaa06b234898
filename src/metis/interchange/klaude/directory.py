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
from metis.projection.loss import Change, Loss
from metis.store.entries import AnyEntry, MessageEntry, UnknownEntry
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire, maybe_object

EVENTS, META = "events.jsonl", "meta.json"
"""The two files of a session."""

_FORMAT = KlaudeHistory()


def save_directory(
    folder: Path, entries: Iterable[AnyEntry | Message], *, work_dir: str = "", title: str = ""
) -> list[Loss]:
    """Write a session into a folder, or what is new of it; gives what the files cannot hold.

    Raises:
        ForeignDocumentError: the folder holds another history.
    """
    given = list(entries)
    dumped = _FORMAT.dump(given)
    folder.mkdir(parents=True, exist_ok=True)
    known, _ = _whole_lines(_read(folder / EVENTS))
    if not dumped.data.startswith(known):
        line = _first_difference(known, dumped.data)
        reason = f"{EVENTS} holds another history"
        raise ForeignDocumentError(reason, format=_FORMAT.name, line=line)
    _append(folder / EVENTS, len(known), dumped.data[len(known) :])
    about = read_meta(folder) | _meta(_messages(given), work_dir, title)
    _replace(folder / META, json.dumps(about, ensure_ascii=False, indent=2).encode())
    return dumped.losses


def load_directory(folder: Path, context: RequestContext | None = None) -> LoadedDocument:
    """Read the session of a folder; a last line that was torn by a crash is left out, and told.

    Raises:
        ForeignDocumentError: the folder holds no history of klaude-code.
    """
    context = context or RequestContext()
    whole, torn = _whole_lines(_read(folder / EVENTS))
    loaded = _FORMAT.load(whole, context)
    if torn:
        loss = Loss(
            session_id=context.session_id,
            message_id="",
            block_type="line",
            adapter=_FORMAT.name,
            reason=f"the last line of {EVENTS} was not written to its end",
            change=Change.DROPPED,
        )
        return loaded._replace(losses=[*loaded.losses, loss])
    return loaded


def read_meta(folder: Path) -> Wire:
    """What `meta.json` says of a session; nothing if there is none that can be read."""
    try:
        return maybe_object(msgspec.json.decode(_read(folder / META)))
    except msgspec.DecodeError:
        return {}


def _read(path: Path) -> bytes:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """The lines that were written to their end, and the rest."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]


def _first_difference(known: bytes, data: bytes) -> int:
    lines = zip(known.splitlines(), [*data.splitlines(), b""], strict=False)
    return next((number for number, (one, two) in enumerate(lines, 1) if one != two), 1)


def _messages(entries: Sequence[AnyEntry | Message]) -> list[Message]:
    known = [entry_of(entry) for entry in entries if not isinstance(entry, UnknownEntry)]
    return [entry.message for entry in known if isinstance(entry, MessageEntry)]


def _meta(messages: Sequence[Message], work_dir: str, title: str) -> dict[str, Any]:
    """What a list of sessions shows of one."""
    about: dict[str, Any] = {
        "messages_count": len(messages),
        "user_messages": [_words(each) for each in messages if each.role is Role.USER],
    }
    if messages:
        about["id"] = messages[0].session_id
        about["created_at"] = messages[0].created_at.timestamp()
        about["updated_at"] = messages[-1].created_at.timestamp()
    models = [each.metadata.model for each in messages if each.metadata.model]
    if models:
        about["model_name"] = models[-1].partition(":")[2]
    about |= {"work_dir": work_dir} if work_dir else {}
    return about | ({"title": title} if title else {})


def _words(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def _append(path: Path, end: int, lines: bytes) -> None:
    """Write behind the whole lines of a file; what was torn gives way."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.truncate(end)
        file.seek(end)
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    _settle(path.parent)


def _replace(path: Path, data: bytes) -> None:
    """Put a new file into the place of another, at once."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _settle(path.parent)


def _settle(folder: Path) -> None:
    """See to it that the names in a folder outlive a crash, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
