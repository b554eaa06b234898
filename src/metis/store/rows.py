"""Rows: a message as column values, and column values as a message."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from metis.canonical.blocks import ContentBlock
from metis.canonical.codec import Parts, decode_trusted, encode
from metis.canonical.message import NO_METADATA, SCHEMA_VERSION, Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import made

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S = 86_400
_MICRO = 1_000_000

_read_content = msgspec.json.Decoder(tuple[ContentBlock, ...]).decode
_read_metadata = msgspec.json.Decoder(MessageMetadata).decode
_ROLES = {role.value: role for role in Role}
_make_message: Callable[..., Message] = made(Message)
_write_json = msgspec.json.Encoder(order="sorted").encode


MessageRow = tuple[str, str, str, str, str, int, int]
"""The values of a row of `messages`, in the order of its columns."""


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970."""
    since = moment - EPOCH
    return (since.days * _DAY_S + since.seconds) * _MICRO + since.microseconds


def from_micros(micros: int) -> datetime:
    """The moment of that many microseconds since 1970."""
    return EPOCH + timedelta(microseconds=micros)


def to_row(message: Message, parts: Parts) -> MessageRow:
    """The column values of a message whose parts were written already."""
    return (
        message.id,
        message.session_id,
        message.role._value_,
        parts.content.decode(),
        parts.metadata.decode(),
        to_micros(message.created_at),
        message.schema_version,
    )


def whole_of(message: Message) -> str | None:
    """All of a message as JSON, if the columns cannot hold it."""
    is_plain = message.extra is UNSET and message.sealed is UNSET
    return None if is_plain else encode(message).decode()


def from_row(row: Sequence[Any], whole: str | bytes | None = None) -> Message:
    """The message of a row; unknown parts and other versions take the careful road."""
    (message_id, session_id, role, content, metadata, created_at, version) = row
    if whole is not None:
        return decode_trusted(whole if isinstance(whole, bytes) else whole.encode())
    if version == SCHEMA_VERSION:
        try:
            return _make_message(
                content=_read_content(content),
                created_at=EPOCH + timedelta(microseconds=created_at),
                id=message_id,
                metadata=NO_METADATA if metadata == "{}" else _read_metadata(metadata),
                role=_ROLES.get(role) or Role(role),
                session_id=session_id,
            )
        except (ValueError, RecursionError):
            pass
    return decode_trusted(_whole_json(row))


def _whole_json(row: Sequence[Any]) -> bytes:
    (message_id, session_id, role, content, metadata, created_at, version) = row
    return _write_json(
        {
            "content": Raw(content.encode()),
            "created_at": from_micros(created_at),
            "id": message_id,
            "metadata": Raw(metadata.encode()),
            "role": role,
            "schema_version": version,
            "session_id": session_id,
        }
    )
