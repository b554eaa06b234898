"""The codec: one representation of a message, in memory, on disk and in tests.

`encode` gives the same bytes for the same message in every process. `decode` takes two roads:

- The fast one: msgspec decodes straight into the frozen types and the result is written again. If
  the bytes are the same, they were canonical: nothing unknown, nothing doubled, nothing lost.
- The careful one, for everything else: limits, duplicate keys, older and newer versions, unknown
  parts. It either keeps what it finds byte for byte or raises an error that names the place.
"""

import logging
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock
from metis.canonical.document import LIMITS, Limits, check_json, to_bytes
from metis.canonical.errors import DecodeError, EncodeError, MigrationError, NewerVersionError
from metis.canonical.message import SCHEMA_VERSION, Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.migrations import MIGRATIONS, Migrations
from metis.canonical.plain_shape import is_plain_text
from metis.canonical.reader import read_fields, split_reason
from metis.canonical.value import Sealed, write, write_fast

log = logging.getLogger("metis.canonical")


_read_fast = msgspec.json.Decoder(Message).decode
_read_content = msgspec.json.Decoder(tuple[ContentBlock, ...]).decode
_read_metadata = msgspec.json.Decoder(MessageMetadata).decode
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode


class Parts(Struct, frozen=True, gc=False):
    """The canonical bytes of what a message says and of what is known about it."""

    content: bytes
    metadata: bytes


def encode(message: Message, *, migrations: Migrations = MIGRATIONS) -> bytes:
    """The canonical JSON of a message: sorted keys, no blanks, always the same bytes.

    Raises:
        EncodeError: the message holds something that JSON has no place for.
        NewerVersionError: the message is of a version that we do not know and was changed.
    """
    if message.schema_version != migrations.current and message.sealed is UNSET:
        raise NewerVersionError(
            f"version {message.schema_version} cannot be written; "
            f"this metis writes version {migrations.current}",
            path="$.schema_version",
        )
    if message.created_at.tzinfo is not UTC:
        raise EncodeError("a time that is not in UTC", path="$.created_at")
    return write(message)


def decode(
    data: bytes | str, *, limits: Limits = LIMITS, migrations: Migrations = MIGRATIONS
) -> Message:
    """A message from its JSON; unknown parts are kept, and an unknown newer version stays exact.

    Raises:
        DecodeError: the bytes are no message; `path` names the place.
        LimitError: the bytes are too many or nested too deeply.
        MigrationError: an older version could not be brought up to date.
    """
    if type(data) is not bytes:
        data = to_bytes(data)
    try:
        message = _read_fast(data)
        if (
            write_fast(message) == data
            and message.schema_version == migrations.current
            and message.created_at.tzinfo is UTC
            and len(data) <= limits.max_bytes
        ):
            return message
    except (ValueError, RecursionError):
        pass
    return _decode_carefully(data, limits, migrations)


def decode_trusted(data: bytes, *, migrations: Migrations = MIGRATIONS) -> Message:
    """The same for bytes that `encode` wrote, such as the rows of a store; a good deal faster.

    What it leaves out is the proof that no key stands twice and that the limits hold. Versions and
    unknown parts are handled as by `decode`.
    """
    try:
        message = _read_fast(data)
        if message.schema_version == migrations.current and message.created_at.tzinfo is UTC:
            return message
    except (ValueError, RecursionError):
        pass
    return _decode_carefully(data, LIMITS, migrations)


def is_what_it_says(message: Message) -> bool:
    """Whether a reader of this message would see the same message.

    Equality goes by bytes, so bytes that come back the same need no second look.
    """
    data = write(message)
    try:
        again = _read_fast(data)
        if write_fast(again) == data and again.created_at.tzinfo is UTC:
            return True
    except (ValueError, RecursionError):
        pass
    return _read_carefully(data, LIMITS, MIGRATIONS)[0] == message


def proven_parts(message: Message) -> Parts | None:
    """The same question for those who keep the parts apart, with their bytes as the answer.

    None says no more than that a look at the whole message is needed.
    """
    if not (
        message.schema_version == SCHEMA_VERSION
        and message.extra is UNSET
        and message.sealed is UNSET
        and type(message.role) is Role
        and type(message.created_at) is datetime
        and message.created_at.tzinfo is UTC
        and type(message.id) is str
        and type(message.session_id) is str
        and message.id.isascii()
        and message.session_id.isascii()
    ):
        return None
    try:
        content, metadata = write_fast(message.content), write_fast(message.metadata)
        if (is_plain_text(message.content) or write_fast(_read_content(content)) == content) and (
            metadata == b"{}" or write_fast(_read_metadata(metadata)) == metadata
        ):
            return Parts(content, metadata)
    except Exception:  # noqa: BLE001 - the look at the whole message says what is wrong
        return None
    return None


def _read_carefully(
    data: bytes, limits: Limits, migrations: Migrations
) -> tuple[Message, list[str]]:
    """A message and the paths of its unknown parts, without a word to the log."""
    check_json(data, limits)
    try:
        row = _split_object(data)
    except msgspec.ValidationError:
        raise DecodeError("a message is a JSON object") from None
    version = _version(row)
    if version < migrations.current:
        row = _upgraded(row, version, migrations)
    unknown: list[str] = []
    try:
        message: Message = read_fields(Message, row, "$", unknown)
    except DecodeError as error:
        if version <= migrations.current:
            raise
        known = f"written by version {version}, this metis knows {migrations.current}"
        raise DecodeError(f"{error.reason} ({known})", path=error.path) from None
    if version > migrations.current:
        message = replace(message, sealed=Sealed(data, write(message)))
    return message, unknown


def _upgraded(row: dict[str, Raw], version: int, migrations: Migrations) -> dict[str, Raw]:
    row = migrations.upgrade(row, version)
    try:
        check_json(msgspec.json.encode(row))
    except (DecodeError, TypeError) as error:
        raise MigrationError(f"a migration from version {version} wrote no JSON: {error}") from None
    return row


def _decode_carefully(data: bytes, limits: Limits, migrations: Migrations) -> Message:
    message, unknown = _read_carefully(data, limits, migrations)
    facts = {"session_id": message.session_id, "message_id": message.id, "paths": unknown}
    if unknown:
        log.warning(
            "message %s: unknown parts are kept: %s", message.id, ", ".join(unknown), extra=facts
        )
    if message.sealed is not UNSET:
        log.warning(
            "message %s is of version %d; this metis knows %d",
            message.id,
            message.schema_version,
            migrations.current,
            extra=facts,
        )
    return message


def _version(row: dict[str, Raw]) -> int:
    raw = row.get("schema_version")
    if raw is None:
        return 1
    try:
        version = msgspec.json.decode(raw, type=int)
    except msgspec.ValidationError as error:
        raise DecodeError(split_reason(error)[0], path="$.schema_version") from None
    if version < 1:
        raise DecodeError(f"there is no version {version}", path="$.schema_version")
    return version
