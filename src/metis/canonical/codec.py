"""The codec: one representation of a message, in memory, on disk and in tests.

`encode` gives the same bytes for the same message in every process. `decode` takes two roads:

- The fast one: msgspec decodes straight into the frozen types and the result is written again. If
  the bytes are the same, they were canonical: nothing unknown, nothing doubled, nothing lost.
- The careful one, for everything else: limits, duplicate keys, older and newer versions, unknown
  parts. It either keeps what it finds byte for byte or raises an error that names the place.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock
from metis.canonical.errors import DecodeError, EncodeError, MigrationError, NewerVersionError
from metis.canonical.fast import is_text_only
from metis.canonical.message import SCHEMA_VERSION, Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.reader import (
    LIMITS,
    Limits,
    check_json,
    read_fields,
    split_msgspec_error,
    to_bytes,
)
from metis.canonical.value import Extra, Sealed, canonical_bytes, encode_fast

RawFields = dict[str, Raw]
"""The fields of a stored message, each as raw JSON."""

MigrationStep = Callable[[RawFields], RawFields]
"""Turns a row of version n into a row of version n + 1."""


class Migrations:
    """The chain of steps from every older version to the current one."""

    def __init__(self, *, current: int, steps: Mapping[int, MigrationStep]) -> None:
        beyond = sorted(version for version in steps if not 1 <= version < current)
        if beyond:
            raise ValueError(f"steps from {beyond} lead nowhere: the current version is {current}")
        self.current = current
        self._steps = dict(steps)

    def upgrade(self, row: RawFields, version: int) -> RawFields:
        """Run every step from `version` to the current one."""
        for number in range(version, self.current):
            step = self._steps.get(number)
            if step is None:
                reason = f"no migration leads from version {number} to {number + 1}"
                raise MigrationError(reason, path="$.schema_version")
            try:
                row = dict(step(dict(row)))
            except Exception as error:
                reason = f"the migration from version {number} to {number + 1} failed: {error}"
                raise MigrationError(reason) from error
            row["schema_version"] = Raw(msgspec.json.encode(number + 1))
        return row


MIGRATIONS = Migrations(current=SCHEMA_VERSION, steps={})
"""The steps of this package; version 1 is the first, so there are none yet."""


log = logging.getLogger("metis.canonical")


_read_fast = msgspec.json.Decoder(Message).decode
_read_content = msgspec.json.Decoder(tuple[ContentBlock, ...]).decode
_read_metadata = msgspec.json.Decoder(MessageMetadata).decode
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode


class EncodedParts(Struct, frozen=True, gc=False):
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
    return canonical_bytes(message)


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
            encode_fast(message) == data
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


def survives_round_trip(message: Message) -> bool:
    """Whether a reader of this message would see the same message.

    Equality goes by bytes, so bytes that come back the same need no second look.
    """
    data = canonical_bytes(message)
    try:
        again = _read_fast(data)
        if encode_fast(again) == data and again.created_at.tzinfo is UTC:
            return True
    except (ValueError, RecursionError):
        pass
    return _read_carefully(data, LIMITS, MIGRATIONS)[0] == message


def verified_parts(message: Message) -> EncodedParts | None:
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
        content, metadata = encode_fast(message.content), encode_fast(message.metadata)
        if (is_text_only(message.content) or encode_fast(_read_content(content)) == content) and (
            metadata == b"{}" or encode_fast(_read_metadata(metadata)) == metadata
        ):
            return EncodedParts(content, metadata)
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
        message = replace(message, sealed=Sealed(data, canonical_bytes(message)))
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
        raise DecodeError(split_msgspec_error(error)[0], path="$.schema_version") from None
    if version < 1:
        raise DecodeError(f"there is no version {version}", path="$.schema_version")
    return version


_NAMELESS = ("extra", "sealed")


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a message.

    Objects may hold more than is listed: readers keep what they do not know.
    """
    schema = msgspec.json.schema(Message, schema_hook=_foreign)
    for definition in schema["$defs"].values():
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
        definition.pop("additionalProperties", None)
        for name in _NAMELESS:
            definition.get("properties", {}).pop(name, None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"metis canonical message, version {SCHEMA_VERSION}",
        **schema,
    }


def _foreign(kind: type) -> dict[str, Any]:
    if kind in (Extra, Sealed):
        return {"description": "has no name in JSON"}
    raise NotImplementedError(kind)
