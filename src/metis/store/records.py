"""Records: the conversion of messages, sessions, calls and events to column values, and digests.

Digests are checksums of stored rows, by which damage on the disk is detected. The fixed tables have
no column for them, and another row with every append would add more than a tenth to its time. So
the checksums of a session are computed when a message is stored, collected in memory and written
together: after 64 messages, after two seconds, and when the store is closed. A crash may leave the
last messages without one; `Store.check` adds the missing ones.

CRC-32 detects every run of up to 32 damaged bits, and misses other damage once in four billion
cases. A cryptographic hash takes five times as long and adds no protection: an attacker who can
write the messages can write the digests, too.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import add
from typing import Any
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, Struct

from metis.canonical.blocks import ContentBlock
from metis.canonical.codec import EncodedParts, decode_trusted, encode
from metis.canonical.errors import StoreCorruptError
from metis.canonical.message import NO_METADATA, SCHEMA_VERSION, Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import raw_constructor
from metis.store.database import Rows, Transaction

SESSION_COLUMNS = (
    "id, workspace_path, active_model, routing_policy_json, schema_version, created_at, updated_at"
)
CALL_COLUMNS = (
    "id, session_id, message_id, result_message_id, name, status, provider_id, provider, "
    "created_at, completed_at"
)
EVENT_COLUMNS = (
    "id, timestamp_us, session_id, turn_id, parent_event_id, type, actor, sensitivity, payload_json"
)
MessageRow = tuple[str, str, str, str, str, int, int]
"""The values of a row of `messages`, in the order of its columns."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S = 86_400
_MICROSECONDS = 1_000_000
_EMPTY_SIZE = len("{}")
_ROLES = {role.value: role for role in Role}
_read_content = msgspec.json.Decoder(tuple[ContentBlock, ...]).decode
_read_metadata = msgspec.json.Decoder(MessageMetadata).decode
_make_message: Callable[..., Message] = raw_constructor(Message)
_write_json = msgspec.json.Encoder(order="sorted").encode

BLOCK = 64
"""How many digests are written together."""

REWRITES = 1 << 40
"""The first number of rows about rewritten messages; later rows replace earlier ones.

Another process may still write the digest of the message before it was rewritten, which must not
replace the newer one.
"""
_HINT = "`metis store check` lists all damage, `metis store repair` saves the rest into a new file"
_ROLE_DIGESTS = {role.value: crc32(role.value.encode()) for role in Role}
_SELECT = "SELECT digests_json FROM digests WHERE session_id = ? ORDER BY number"
_SELECT_NEWEST = (
    "SELECT digests_json FROM digests WHERE session_id = ? ORDER BY number DESC LIMIT ?"
)
INSERT_DIGESTS = (
    "INSERT INTO digests (session_id, number, digests_json) "
    "SELECT id, (SELECT coalesce(max(number), ?) + 1 FROM digests "
    "WHERE session_id = ? AND number >= ? AND number < ?), ? FROM sessions WHERE id = ?"
)
"""Adds a row for a session, unless another process has deleted the session."""
_read_digests = msgspec.json.Decoder(dict[str, int]).decode
_write_digests = msgspec.json.Encoder().encode


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session: its workspace, its active model and its times."""

    id: str
    workspace_path: str
    active_model: str | None = None
    routing_policy: Any = None
    """A snapshot of the routing policy."""
    schema_version: int
    created_at: datetime
    updated_at: datetime


class ToolCallRecord(Struct, frozen=True, kw_only=True):
    """A tool call with its message, its result and its status."""

    id: str
    session_id: str
    message_id: str
    result_message_id: str | None
    name: str
    status: str
    provider_id: str | None
    provider: str | None
    created_at: datetime
    completed_at: datetime | None


class Match(Struct, frozen=True, kw_only=True):
    """A message that a search matched, with the text around the match."""

    session_id: str
    message_id: str
    snippet: str


class EventRecord(Struct, frozen=True, kw_only=True):
    """A row of the `events` table."""

    id: str
    timestamp_us: int
    session_id: str | None = None
    turn_id: str | None = None
    parent_event_id: str | None = None
    type: str
    actor: str
    sensitivity: str
    payload_json: str


def to_microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970."""
    # Computed with integers, because the float of `timestamp()` can be off by a microsecond.
    since = moment - EPOCH
    return (since.days * _DAY_S + since.seconds) * _MICROSECONDS + since.microseconds


def from_microseconds(microseconds: int) -> datetime:
    """Return the time of that many microseconds since 1970."""
    return EPOCH + timedelta(microseconds=microseconds)


def to_row(message: Message, parts: EncodedParts) -> MessageRow:
    """Return the column values of a message whose content and metadata are encoded."""
    return (
        message.id,
        message.session_id,
        # `_value_` skips the property of the enum; this runs for every append.
        message.role._value_,
        parts.content.decode(),
        parts.metadata.decode(),
        to_microseconds(message.created_at),
        message.schema_version,
    )


def full_json_of(message: Message) -> str | None:
    """Return the whole message as JSON if it has unknown fields, for which there is no column.

    None for every other message.
    """
    is_plain = message.extra is UNSET and message.sealed is UNSET
    return None if is_plain else encode(message).decode()


def from_row(row: Sequence[Any], full_json: str | bytes | None = None) -> Message:
    """Return the message of a row; rows of other versions or with unknown parts are migrated."""
    (message_id, session_id, role, content, metadata, created_at, version) = row
    if full_json is not None:
        return decode_trusted(full_json if isinstance(full_json, bytes) else full_json.encode())
    if version == SCHEMA_VERSION:
        try:
            return _make_message(
                content=_read_content(content),
                created_at=EPOCH + timedelta(microseconds=created_at),
                id=message_id,
                metadata=NO_METADATA if len(metadata) == _EMPTY_SIZE else _read_metadata(metadata),
                role=_ROLES.get(role) or Role(role),
                session_id=session_id,
            )
        except (ValueError, RecursionError):
            pass  # unknown parts: the complete decoder below preserves them
    return decode_trusted(
        _write_json(
            {
                "content": Raw(_as_bytes(content)),
                "created_at": from_microseconds(created_at),
                "id": message_id,
                "metadata": Raw(_as_bytes(metadata)),
                "role": role,
                "schema_version": version,
                "session_id": session_id,
            }
        )
    )


def _as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def session_row(record: SessionRecord) -> tuple[Any, ...]:
    """Return the column values of a session."""
    policy = record.routing_policy
    return (
        record.id,
        record.workspace_path,
        record.active_model,
        None if policy is None else _write_json(policy).decode(),
        record.schema_version,
        to_microseconds(record.created_at),
        to_microseconds(record.updated_at),
    )


def session_record(row: tuple[Any, ...]) -> SessionRecord:
    """Return the session of a row."""
    return SessionRecord(
        id=row[0],
        workspace_path=row[1],
        active_model=row[2],
        routing_policy=None if row[3] is None else msgspec.json.decode(row[3]),
        schema_version=row[4],
        created_at=from_microseconds(row[5]),
        updated_at=from_microseconds(row[6]),
    )


def call_record(row: tuple[Any, ...]) -> ToolCallRecord:
    """Return the tool call of a row."""
    fields = dict(zip(ToolCallRecord.__struct_fields__, row, strict=True))
    fields["created_at"] = from_microseconds(row[8])
    fields["completed_at"] = None if row[9] is None else from_microseconds(row[9])
    return ToolCallRecord(**fields)


def message_digest(
    role: str, content: bytes, metadata: bytes, created_at: int, full_json: bytes | None = None
) -> int:
    """Return the checksum of a row of `messages`, with its full JSON if the journal has one."""
    digest = crc32(metadata, crc32(content)) + created_at + _role_digest(role)
    return digest if full_json is None else digest + crc32(full_json)


def _role_digest(role: str) -> int:
    return _ROLE_DIGESTS.get(role) or crc32(role.encode())


def digests_of_rows(rows: Sequence[Sequence[Any]], full_texts: Mapping[str, str]) -> list[int]:
    """Return the checksums of rows of `messages`, as `message_digest` computes them."""
    if not rows:
        return []
    # Works on columns: this runs for every message that is read, and `map` with built-in functions
    # takes half the time of a loop over rows.
    ids, _, roles, contents, metadatas, times, _ = zip(*rows, strict=True)
    if isinstance(contents[0], str):  # PostgreSQL returns text, SQLite bytes
        contents, metadatas = map(str.encode, contents), map(str.encode, metadatas)
    sums = map(crc32, metadatas, map(crc32, contents))
    try:
        role_sums = list(map(_ROLE_DIGESTS.__getitem__, roles))
    except KeyError:  # roles of a newer version
        role_sums = list(map(_role_digest, roles))
    digests = list(map(add, map(add, sums, times), role_sums))
    if full_texts:
        for index, message_id in enumerate(ids):
            if message_id in full_texts:
                digests[index] += crc32(full_texts[message_id].encode())
    return digests


def entry_key(seq: int) -> str:
    """Return the key of the digest of a journal entry."""
    return f"#{seq}"


def insert_values(
    session_id: str, digests: Mapping[str, int], *, is_rewrite: bool = False
) -> tuple[Any, ...]:
    """Return the values of `INSERT_DIGESTS` for some digests of one session."""
    start, end = (REWRITES, 2 * REWRITES) if is_rewrite else (0, REWRITES)
    text = _write_digests(digests).decode()
    return (start, session_id, start, end, text, session_id)


def read_digests(
    transaction: Transaction, session_id: str, newest: int | None = None
) -> dict[str, int]:
    """Return the digests of a session by message id or entry key; all, or about the newest."""
    if newest is None:
        rows: Rows = transaction.run(_SELECT, (session_id,))
    else:
        # Blocks of several writers may overlap, so some of the newest digests may be missing here;
        # a complete read checks them.
        limit = newest // (BLOCK // 4) + 8
        rows = transaction.run(_SELECT_NEWEST, (session_id, limit))[::-1]
    digests: dict[str, int] = {}
    for (text,) in rows:
        try:
            digests.update(_read_digests(text))
        except msgspec.DecodeError as error:
            raise damaged(session_id, f"its digests cannot be read ({error})") from None
    return digests


def damaged(session_id: str, text: str) -> StoreCorruptError:
    """Return the error for damage in a session."""
    return StoreCorruptError(f"session {session_id} is damaged: {text}", hint=_HINT)


def damage_of_bytes(name: str, data: bytes) -> str | None:
    """Return the place and kind of the first fault in JSON bytes; None if they are valid."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"{name}: byte {error.start} of {len(data)} is not UTF-8 (0x{data[error.start]:02x})"
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"{name}: {error}, of {len(data)} bytes"
    return None
