"""The stored turns of gpt2099: `gpt.turn` frames, one per line, with their content inlined."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
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
from metis.interchange.document import convert_to, first_object
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
"""The old and the new name of the options that apply from a turn on."""
_read = msgspec.json.Decoder().decode
_OPTIONAL_FIELDS = (
    ("meta", "content_type"),
    ("meta", "document_name"),
    ("meta", "file_size"),
)


class Gpt2099Frames(Format):
    """JSON lines of `gpt.turn` frames; `content` holds the bytes of the frame's hash."""

    name = "gpt2099"
    system = SYSTEM
    default_values = DEFAULT_VALUES

    def fits(self, data: bytes) -> bool:
        """Return whether the first line is a frame."""
        first = first_object(data)
        return first is not None and first.get("topic") == "gpt.turn"

    def prepare(self, entries: list[KnownEntry], conversion: ConversionContext) -> list[KnownEntry]:  # noqa: ARG002 - of the contract
        """Return the entries with each bookmark after its message, as part of the same frame."""
        bookmarks = {
            entry.message_id: entry
            for entry in entries
            if isinstance(entry, BookmarkEntry) and entry.message_id and not entry.external
        }
        moved = {entry.id for entry in bookmarks.values()}
        ordered: list[KnownEntry] = []
        for entry in entries:
            if entry.id in moved:
                continue
            ordered.append(entry)
            bookmark = bookmarks.get(entry.id)
            if bookmark is not None and isinstance(entry, MessageEntry):
                part = int(foreign_fields(entry.message, SYSTEM).get("part", 0)) + 1
                ordered.append(replace(bookmark, external={SYSTEM: {"part": part}}))
        return ordered

    def decode(self, record: Wire, conversion: ConversionContext) -> list[KnownEntry]:
        """Return the messages of a turn, and its bookmark."""
        frame = convert_to(types.Frame, record, "$")
        meta = frame.meta or types.Meta()
        parents, problem = _decode_parents(meta, conversion)
        options = {**(meta.options or {}), **(meta.inherited or {})}
        messages = decode_turn(
            Role(meta.role or "user"),
            _decode_content(frame, meta),
            conversion,
            created_at=turn_time(frame.id),
            foreign=_foreign(frame, meta, conversion),
            parents=parents,
            **({"options": options} if options else {}),
        )
        if meta.cache or meta.cache_control == "ephemeral":
            messages[-1] = with_cache_mark(messages[-1])
        if meta.type == "document":
            messages[0] = _with_document_name(messages[0], _document_name(meta))
            for key, reason in _document_faults(messages[0], meta):
                conversion.add_loss(messages[0], "document", f"$.meta.{key}", reason)
        if problem:
            conversion.add_loss(messages[0], "continues", "$.meta.continues", problem)
        return _entries(messages, frame.id, meta.head, conversion)

    def encode(self, entries: Sequence[KnownEntry], conversion: ConversionContext) -> Wire | None:
        """Return the frame of a turn."""
        messages = messages_of(entries)
        if not messages or not isinstance(entries[0], MessageEntry):
            return None
        first = messages[0]
        frame_id = turn_id_of(first)
        unmarked, is_cached = without_cache_mark(messages)
        content = encode_turn(unmarked, conversion)
        meta: Wire = {
            "role": role_of(messages),
            _options_name(first, conversion): first.metadata.options or {},
            "head": next((e.name for e in entries if isinstance(e, BookmarkEntry)), None),
            "continues": _encode_parents(first, conversion),
            "cache": is_cached,
        }
        if foreign_fields(first, SYSTEM).get("document") and content:
            document, body = _encode_document(first, content[0])
            meta |= document | _encode_registered(first, body, is_cached=is_cached)
        else:
            meta, body = meta | {"content_type": JSON}, content
        for message in messages:
            conversion.foreign_turns[message.id] = frame_id
        conversion.turns["last"] = frame_id
        meta = {key: value for key, value in meta.items() if value not in ({}, None)}
        return {"topic": "gpt.turn", "id": frame_id, "meta": meta, "content": body}

    def is_equivalent(self, difference: Difference) -> bool:
        """Return whether both values mean the same.

        Content may be text or blocks, options have two names, parents may be bookmarks.
        """
        if difference.key in CACHE_MARKS or difference.steps == ("meta", "continues"):
            return True
        if difference.steps == ("content",):
            return _blocks_of(difference.actual) == _blocks_of(difference.expected)
        if difference.steps in (("meta", _OLD), ("meta", _NEW)):
            return difference.expected is msgspec.UNSET or difference.actual is msgspec.UNSET
        if difference.steps in _OPTIONAL_FIELDS:
            return difference.actual is msgspec.UNSET
        if difference.steps == ("meta",):
            return difference.actual is None or difference.actual is msgspec.UNSET
        return super().is_equivalent(difference)


def _foreign(frame: types.Frame, meta: types.Meta, conversion: ConversionContext) -> Wire:
    foreign: Wire = {"id": frame.id}
    if meta.inherited is not None:
        foreign[_NEW] = True
    if meta.type == "document":
        foreign["document"] = True
    # Without this mark a writer could not tell a new thread from a continued one.
    if not meta.continues and "last message" in conversion.turns:
        foreign["root"] = True
    return foreign


def _options_name(message: Message, conversion: ConversionContext) -> str:
    """Return the key of the options: as it was read, else the new one.

    A thread that was read with the old key keeps it, because its writer reads no other.
    """
    foreign = foreign_fields(message, SYSTEM)
    if "id" in foreign:
        if foreign.get(_NEW):
            return _NEW
        if message.metadata.options:
            conversion.turns[_OLD] = _OLD
        return _OLD
    return conversion.turns.get(_OLD, _NEW)


def _decode_content(frame: types.Frame, meta: types.Meta) -> list[Wire]:
    if isinstance(frame.content, list):
        return frame.content
    if meta.type == "document":
        media = meta.content_type or "application/octet-stream"
        source = {"type": "base64", "media_type": media, "data": frame.content}
        return [{"type": "document", "source": source}]
    # gpt2099 stores what a person typed as plain text, and blocks as JSON.
    if meta.content_type != JSON:
        return [{"type": "text", "text": frame.content}]
    try:
        check_json(frame.content.encode())
        blocks = list_at(_read(frame.content), "$")
        return [object_at(item, f"$[{index}]") for index, item in enumerate(blocks)]
    except DecodeError as error:
        path = f"$.content{error.path.removeprefix('$')}"
        raise DecodeError(error.reason, path=path) from None


def _decode_parents(
    meta: types.Meta, conversion: ConversionContext
) -> tuple[tuple[str, ...], str | None]:
    """Return our ids of the messages that a turn continues, and what is wrong with them."""
    names = [meta.continues] if isinstance(meta.continues, str) else meta.continues or []
    ids = [conversion.turns.get(("id:" if is_turn_id(name) else "head:") + name) for name in names]
    parents = tuple(parent for parent in ids if parent is not None)
    missing = [name for name, parent in zip(names, ids, strict=True) if parent is None]
    last = conversion.turns.get("last message")
    if missing:
        return parents, f"it continues turns that are not in the file: {', '.join(missing)}"
    if not names and last is not None:
        return (), "it started a thread of its own; here it follows the message before it"
    # Our messages follow the one before them by default, so only other parents are stored.
    return (() if parents == (last,) else parents), None


def _encode_parents(message: Message, conversion: ConversionContext) -> str | list[str] | None:
    parents = message.metadata.parents
    if parents:
        ids = [conversion.foreign_turns.get(parent) for parent in parents]
        written = [parent for parent in ids if parent is not None]
        return written[0] if len(written) == 1 else written or None
    return None if foreign_fields(message, SYSTEM).get("root") else conversion.turns.get("last")


def _entries(
    messages: Sequence[Message], frame_id: str, head: str | None, conversion: ConversionContext
) -> list[KnownEntry]:
    """Return the entries of a turn, and note their ids for the turns that continue it."""
    last = messages[-1]
    conversion.turns[f"id:{frame_id}"] = last.id
    conversion.turns["last message"] = last.id
    entries = [entry_of(message) for message in messages]
    if head is not None:
        conversion.turns[f"head:{head}"] = last.id
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
    """Return the display name of a document, by default that of its file."""
    return meta.document_name or PurePath(meta.original_path or "").name or None


def _document_faults(message: Message, meta: types.Meta) -> Iterator[tuple[str, str]]:
    """Yield the fields of a frame that contradict its file, with a reason."""
    # gpt2099 stores absolute paths, so that a file is found from any directory.
    if meta.original_path is not None and not PurePath(meta.original_path).is_absolute():
        yield "original_path", f"{meta.original_path!r} is not an absolute path; stored unchanged"
    size = _size_of(message)
    if meta.file_size is not None and size is not None and meta.file_size != size:
        yield "file_size", f"the frame states {meta.file_size} bytes, the file has {size}"


def _size_of(message: Message) -> int | None:
    """Return the size of a turn's file in bytes."""
    block = message.content[0] if message.content else None
    if not isinstance(block, DocumentBlock) or block.source.kind != "base64":
        return None
    try:
        return len(b64decode(block.source.data, validate=True))
    except ValueError:
        return None


def _with_document_name(message: Message, name: str | None) -> Message:
    if name is None:
        return message
    content = tuple(
        replace(block, name=name) if isinstance(block, DocumentBlock) else block
        for block in message.content
    )
    return replace(message, content=content)


def _encode_document(message: Message, wire: Wire) -> tuple[Wire, Any]:
    """Return the metadata of an uploaded file's frame, and its bytes."""
    source = maybe_object(wire.get("source"))
    block = message.content[0]
    name = block.name if isinstance(block, DocumentBlock) else None
    meta: Wire = {
        "content_type": source.get("media_type"),
        "type": "document",
        "document_name": name,
        "file_size": _size_of(message),
    }
    return meta, source.get("data")


def _encode_registered(message: Message, data: Any, *, is_cached: bool) -> Wire:
    """Return more metadata of a file that was registered here, not imported."""
    foreign = foreign_fields(message, SYSTEM)
    # An imported frame has its own metadata in the residue.
    if "original_path" not in foreign:
        return {}
    meta: Wire = {
        "document_name": foreign.get("document_name"),
        "original_path": foreign["original_path"],
        "file_size": len(b64decode(data)),
    }
    return meta | ({"cache_control": "ephemeral"} if is_cached else {})


def _blocks_of(content: Any) -> list[Any]:
    """Return content as blocks without cache marks, whether it was blocks, JSON or text."""
    if isinstance(content, str):
        try:
            value = _read(content)
        except (ValueError, RecursionError):
            value = None
        text = {"type": "text", "text": content}
        blocks = maybe_list(value) if isinstance(value, list) else [text]
    else:
        blocks = maybe_list(content)
    return [
        {key: value for key, value in maybe_object(block).items() if value != EPHEMERAL}
        for block in blocks
    ]
