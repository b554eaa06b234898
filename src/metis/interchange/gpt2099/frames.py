"""The stored turns of gpt2099: `gpt.turn` frames, one on each line, with their content inlined."""

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import DocumentBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.reader import check_json
from metis.interchange.conversion import ConversionContext, foreign_fields
from metis.interchange.document import Record, convert_to, first_object, line_records
from metis.interchange.format import Format, entry_of
from metis.interchange.gpt2099 import types
from metis.interchange.gpt2099.turns import (
    CACHE_MARKS,
    DEFAULT_VALUES,
    EPHEMERAL,
    SYSTEM,
    decode_turn,
    encode_turn,
    is_turn_id,
    messages_of,
    role_of,
    turn_id_of,
    turn_time,
    with_cache_mark,
    without_cache_mark,
)
from metis.interchange.residue import Difference
from metis.store.entries import BookmarkEntry, KnownEntry, MessageEntry
from metis.wire.json_access import Wire, list_at, maybe_list, maybe_object, object_at

JSON = "application/json"
_OLD, _NEW = "options", "inherited"
"""The two names of what holds from a turn on."""
_read = msgspec.json.Decoder().decode
_MAY_BE_LEFT_OUT = (
    ("meta", "content_type"),
    ("meta", "document_name"),
    ("meta", "file_size"),
)


class Gpt2099Frames(Format):
    """JSON lines of `gpt.turn` frames; `content` holds what the frame's hash stands for."""

    name = "gpt2099"
    system = SYSTEM
    default_values = DEFAULT_VALUES

    def fits(self, data: bytes) -> bool:
        """Whether the first line is a frame."""
        first = first_object(data)
        return first is not None and first.get("topic") == "gpt.turn"

    def split(self, data: bytes) -> Iterable[Record]:
        """The frames."""
        return line_records(data, self.name)

    def join(self, records: list[Wire], entries: Sequence[KnownEntry]) -> bytes:  # noqa: ARG002 - every format has it
        """One frame on each line."""
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        return "".join(lines).encode()

    def prepare(self, entries: list[KnownEntry], desk: ConversionContext) -> list[KnownEntry]:  # noqa: ARG002 - of the contract
        """Bookmarks stand behind the message that they name, as part of its frame."""
        named = {
            entry.message_id: entry
            for entry in entries
            if isinstance(entry, BookmarkEntry) and entry.message_id and not entry.external
        }
        moved = {entry.id for entry in named.values()}
        placed: list[KnownEntry] = []
        for entry in entries:
            if entry.id in moved:
                continue
            placed.append(entry)
            bookmark = named.get(entry.id)
            if bookmark is not None and isinstance(entry, MessageEntry):
                part = int(foreign_fields(entry.message, SYSTEM).get("part", 0)) + 1
                placed.append(replace(bookmark, external={SYSTEM: {"part": part}}))
        return placed

    def decode(self, record: Wire, desk: ConversionContext) -> list[KnownEntry]:
        """The messages of a turn, and the bookmark that it bears."""
        frame = convert_to(types.Frame, record, "$")
        meta = frame.meta or types.Meta()
        parents, lost = _decode_parents(meta, desk)
        facts: dict[str, Any] = {"foreign": _foreign(frame, meta, desk), "parents": parents}
        options = {**(meta.options or {}), **(meta.inherited or {})}
        if options:
            facts["options"] = options
        role = Role(meta.role or "user")
        content = _decode_content(frame, meta)
        messages = decode_turn(role, content, desk, created_at=turn_time(frame.id), **facts)
        if meta.cache or meta.cache_control == "ephemeral":
            messages[-1] = with_cache_mark(messages[-1])
        if meta.type == "document":
            messages[0] = _named(messages[0], _document_name(meta))
            for key, reason in _document_faults(messages[0], meta):
                desk.add_loss(messages[0], "document", f"$.meta.{key}", reason)
        if lost:
            desk.add_loss(messages[0], "continues", "$.meta.continues", lost)
        return _remembered(messages, frame.id, meta.head, desk)

    def encode(self, entries: Sequence[KnownEntry], desk: ConversionContext) -> Wire | None:
        """The frame of a turn."""
        messages = messages_of(entries)
        if not messages or not isinstance(entries[0], MessageEntry):
            return None
        first = messages[0]
        own = turn_id_of(first)
        bare, is_cached = without_cache_mark(messages)
        content = encode_turn(bare, desk)
        meta: Wire = {
            "role": role_of(messages),
            _options_name(first, desk): first.metadata.options or {},
            "head": next((e.name for e in entries if isinstance(e, BookmarkEntry)), None),
            "continues": _encode_parents(first, desk),
            "cache": is_cached,
        }
        if foreign_fields(first, SYSTEM).get("document") and content:
            about, said = _encode_document(first, content[0])
            about |= _encode_registered(first, said, is_cached=is_cached)
        else:
            about, said = {"content_type": JSON}, content
        for message in messages:
            desk.foreign_turns[message.id] = own
        desk.turns["last"] = own
        stated = {key: value for key, value in (meta | about).items() if value not in ({}, None)}
        return {"topic": "gpt.turn", "id": own, "meta": stated, "content": said}

    def is_equivalent(self, difference: Difference) -> bool:
        """Content may be text or blocks, options have two names, and parents may go by bookmark."""
        key = str(difference.steps[-1]) if difference.steps else ""
        if key in CACHE_MARKS or difference.steps == ("meta", "continues"):
            return True
        if difference.steps == ("content",):
            return _blocks_of(difference.actual) == _blocks_of(difference.plain)
        if difference.steps in (("meta", _OLD), ("meta", _NEW)):
            return difference.plain is msgspec.UNSET or difference.actual is msgspec.UNSET
        if difference.steps in _MAY_BE_LEFT_OUT:
            return difference.actual is msgspec.UNSET
        if difference.steps == ("meta",):
            return difference.actual is None or difference.actual is msgspec.UNSET
        return super().is_equivalent(difference)


def _foreign(frame: types.Frame, meta: types.Meta, desk: ConversionContext) -> Wire:
    foreign: Wire = {"id": frame.id}
    if meta.inherited is not None:
        foreign[_NEW] = True
    if meta.type == "document":
        foreign["document"] = True
    if not meta.continues and "last message" in desk.turns:
        foreign["root"] = True
    return foreign


def _options_name(message: Message, desk: ConversionContext) -> str:
    """The name of the options: as it stood there, else the new one.

    A thread that came with the old name goes on with it, for whoever wrote it reads no other.
    """
    foreign = foreign_fields(message, SYSTEM)
    if "id" in foreign:
        if foreign.get(_NEW):
            return _NEW
        if message.metadata.options:
            desk.turns[_OLD] = _OLD
        return _OLD
    return desk.turns.get(_OLD, _NEW)


def _decode_content(frame: types.Frame, meta: types.Meta) -> list[Wire]:
    if isinstance(frame.content, list):
        return frame.content
    if meta.type == "document":
        media = meta.content_type or "application/octet-stream"
        source = {"type": "base64", "media_type": media, "data": frame.content}
        return [{"type": "document", "source": source}]
    if meta.content_type != JSON:
        return [{"type": "text", "text": frame.content}]
    try:
        check_json(frame.content.encode())
        found = list_at(_read(frame.content), "$")
        return [object_at(item, f"$[{index}]") for index, item in enumerate(found)]
    except DecodeError as error:
        path = f"$.content{error.path.removeprefix('$')}"
        raise DecodeError(error.reason, path=path) from None


def _decode_parents(
    meta: types.Meta, desk: ConversionContext
) -> tuple[tuple[str, ...], str | None]:
    """Our ids of the messages that a turn continues, and what is wrong with them."""
    named = [meta.continues] if isinstance(meta.continues, str) else meta.continues or []
    found = [desk.turns.get(("id:" if is_turn_id(name) else "head:") + name) for name in named]
    parents = tuple(parent for parent in found if parent is not None)
    missing = [name for name, parent in zip(named, found, strict=True) if parent is None]
    last = desk.turns.get("last message")
    if missing:
        return parents, f"it continues what is not in the file: {', '.join(missing)}"
    if not named and last is not None:
        return (), "it began a thread of its own; here it follows the message before it"
    return (() if parents == (last,) else parents), None


def _encode_parents(message: Message, desk: ConversionContext) -> str | list[str] | None:
    parents = message.metadata.parents
    if parents:
        found = [desk.foreign_turns.get(parent) for parent in parents]
        named = [parent for parent in found if parent is not None]
        return named[0] if len(named) == 1 else named or None
    return None if foreign_fields(message, SYSTEM).get("root") else desk.turns.get("last")


def _remembered(
    messages: Sequence[Message], own: str, head: str | None, desk: ConversionContext
) -> list[KnownEntry]:
    """The entries of a turn, and their ids for the turns that continue it."""
    last = messages[-1]
    desk.turns[f"id:{own}"] = last.id
    desk.turns["last message"] = last.id
    entries = [entry_of(message) for message in messages]
    if head is not None:
        desk.turns[f"head:{head}"] = last.id
        bookmark = BookmarkEntry(
            id=new_ulid(),
            session_id=last.session_id,
            created_at=last.created_at,
            message_id=last.id,
            name=head,
            external={SYSTEM: {"part": len(entries)}},
        )
        entries.append(bookmark)
    return entries


def _document_name(meta: types.Meta) -> str | None:
    """The name that is shown, by default that of the file."""
    return meta.document_name or PurePath(meta.original_path or "").name or None


def _document_faults(message: Message, meta: types.Meta) -> Iterator[tuple[str, str]]:
    """What a frame says of its file that is not so."""
    if meta.original_path is not None and not PurePath(meta.original_path).is_absolute():
        yield "original_path", f"{meta.original_path!r} is no full path; kept for the way back"
    size = _size_of(message)
    if meta.file_size is not None and size is not None and meta.file_size != size:
        yield "file_size", f"it says {meta.file_size} bytes, the file has {size}"


def _size_of(message: Message) -> int | None:
    """How many bytes the file of a turn has."""
    block = message.content[0] if message.content else None
    if not isinstance(block, DocumentBlock) or block.source.kind != "base64":
        return None
    try:
        return len(b64decode(block.source.data, validate=True))
    except ValueError:
        return None


def _named(message: Message, name: str | None) -> Message:
    if name is None:
        return message
    content = tuple(
        replace(block, name=name) if isinstance(block, DocumentBlock) else block
        for block in message.content
    )
    return replace(message, content=content)


def _encode_document(message: Message, wire: Wire) -> tuple[Wire, Any]:
    """What the frame of an uploaded file says, and its bytes."""
    source = maybe_object(wire.get("source"))
    block = message.content[0]
    name = block.name if isinstance(block, DocumentBlock) else None
    about: Wire = {
        "content_type": source.get("media_type"),
        "type": "document",
        "document_name": name,
        "file_size": _size_of(message),
    }
    return about, source.get("data")


def _encode_registered(message: Message, data: Any, *, is_cached: bool) -> Wire:
    """What the frame says more of a file that was registered here."""
    foreign = foreign_fields(message, SYSTEM)
    if "original_path" not in foreign:
        return {}
    about: Wire = {
        "document_name": foreign.get("document_name"),
        "original_path": foreign["original_path"],
        "file_size": len(b64decode(data)),
    }
    return about | ({"cache_control": "ephemeral"} if is_cached else {})


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def _blocks_of(content: Any) -> list[Any]:
    """Content as blocks without cache marks, whether it stood there as text or as JSON in text."""
    if isinstance(content, str):
        try:
            found = _read(content)
        except (ValueError, RecursionError):
            found = None
        blocks = maybe_list(found) if isinstance(found, list) else [_text(content)]
    else:
        blocks = maybe_list(content)
    return [
        {key: value for key, value in maybe_object(block).items() if value != EPHEMERAL}
        for block in blocks
    ]
