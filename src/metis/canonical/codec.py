"""The codec: canonical JSON bytes of messages, and decoding with migrations.

`encode` gives the same bytes for the same message in every process. `decode` has two paths:

- The fast path: msgspec decodes directly into the frozen types, and the result is encoded again. If
  the bytes are equal, they were canonical: no unknown, duplicate or lost part.
- The general path, for all other documents: limits, duplicate keys, older and newer versions,
  unknown parts. It either preserves a part byte for byte or raises an error with its path.

A message of an older version is upgraded when it is decoded; the stored bytes change only when the
message is saved.
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
"""The fields of a stored message as raw JSON: a migration leaves all other bytes unchanged."""

MigrationStep = Callable[[RawFields], RawFields]
"""Converts the fields of version n to version n + 1."""


class Migrations:
    """The chain of steps from every older version to the current one."""

    def __init__(self, *, current: int, steps: Mapping[int, MigrationStep]) -> None:
        unused = sorted(version for version in steps if not 1 <= version < current)
        if unused:
            raise ValueError(f"steps from {unused} are unused: the current version is {current}")
        self.current = current
        self._steps = dict(steps)

    def upgrade(self, raw_fields: RawFields, version: int) -> RawFields:
        """Run every step from `version` to the current one."""
        for number in range(version, self.current):
            step = self._steps.get(number)
            if step is None:
                reason = f"no migration from version {number} to {number + 1}"
                raise MigrationError(reason, path="$.schema_version")
            try:
                raw_fields = dict(step(dict(raw_fields)))
            except Exception as error:
                reason = f"the migration from version {number} to {number + 1} failed: {error}"
                raise MigrationError(reason) from error
            raw_fields["schema_version"] = Raw(msgspec.json.encode(number + 1))
        return raw_fields


MIGRATIONS = Migrations(current=SCHEMA_VERSION, steps={})
"""The migrations of this package; there are no steps, because version 1 is the first."""


log = logging.getLogger("metis.canonical")


_decode_message = msgspec.json.Decoder(Message).decode
_decode_content = msgspec.json.Decoder(tuple[ContentBlock, ...]).decode
_decode_metadata = msgspec.json.Decoder(MessageMetadata).decode
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode


class EncodedParts(Struct, frozen=True, gc=False):
    """The canonical bytes of the content and of the metadata of a message."""

    content: bytes
    metadata: bytes


def encode(message: Message, *, migrations: Migrations = MIGRATIONS) -> bytes:
    """Encode a message as canonical JSON: sorted keys, no white space, always the same bytes.

    Raises:
        EncodeError: the message contains a value that JSON does not have.
        NewerVersionError: the message is of an unknown newer version and was changed.
    """
    if message.schema_version != migrations.current and message.sealed is UNSET:
        # A message of another version without its exact bytes did not come from `decode`.
        raise NewerVersionError(
            f"version {message.schema_version} cannot be written; "
            f"this metis writes version {migrations.current}",
            path="$.schema_version",
        )
    # `structs.replace` and decoders skip `normalise`, so that the zone may not be UTC.
    if message.created_at.tzinfo is not UTC:
        raise EncodeError("a time that is not in UTC", path="$.created_at")
    return canonical_bytes(message)


def decode(
    data: bytes | str, *, limits: Limits = LIMITS, migrations: Migrations = MIGRATIONS
) -> Message:
    """Decode a message; unknown parts and messages of a newer version are preserved exactly.

    Raises:
        DecodeError: the bytes are not a message; `path` names the place.
        LimitError: the document is too large or nested too deeply.
        MigrationError: an older version could not be upgraded.
    """
    if type(data) is not bytes:
        data = to_bytes(data)
    try:
        # Encoding again and comparing is fast C code, and proves that no part was unknown,
        # duplicate or lost.
        message = _decode_message(data)
        if (
            encode_fast(message) == data
            and message.schema_version == migrations.current
            and message.created_at.tzinfo is UTC
            # Checked last, because nearly all documents are small; the general path checks again.
            and len(data) <= limits.max_bytes
        ):
            return message
    except (ValueError, RecursionError):
        pass
    # The general path also reports errors with the path of the fault.
    return _decode_generally(data, limits, migrations)


def decode_trusted(data: bytes, *, migrations: Migrations = MIGRATIONS) -> Message:
    """Decode bytes that `encode` wrote, such as the rows of a store; faster than `decode`.

    Unlike `decode`, it does not check duplicate keys and limits.
    """
    try:
        message = _decode_message(data)
        if message.schema_version == migrations.current and message.created_at.tzinfo is UTC:
            return message
    except (ValueError, RecursionError):
        pass
    return _decode_generally(data, LIMITS, migrations)


def survives_round_trip(message: Message) -> bool:
    """Return whether decoding the bytes of a message gives the same message.

    Equality compares bytes, so that equal bytes need no further check.
    """
    data = canonical_bytes(message)
    try:
        decoded = _decode_message(data)
        if encode_fast(decoded) == data and decoded.created_at.tzinfo is UTC:
            return True
    except (ValueError, RecursionError):
        pass
    return _read_generally(data, LIMITS, MIGRATIONS)[0] == message


def verified_parts(message: Message) -> EncodedParts | None:
    """Return the bytes of content and metadata of a message that survives a round trip.

    A fast path for stores, which write both separately. None means that `survives_round_trip` has
    to check the message; `tests/canonical/test_codec_parts.py` compares both functions.
    """
    if not (
        message.schema_version == SCHEMA_VERSION
        and message.extra is UNSET
        and message.sealed is UNSET
        # Exact types only: an instance of a subclass could decode to another value.
        and type(message.role) is Role
        and type(message.created_at) is datetime
        and message.created_at.tzinfo is UTC
        and type(message.id) is str
        and type(message.session_id) is str
        # Other characters may be lone surrogates, which cannot be encoded.
        and message.id.isascii()
        and message.session_id.isascii()
    ):
        return None
    try:
        content, metadata = encode_fast(message.content), encode_fast(message.metadata)
        if (is_text_only(message.content) or encode_fast(_decode_content(content)) == content) and (
            metadata == b"{}" or encode_fast(_decode_metadata(metadata)) == metadata
        ):
            return EncodedParts(content, metadata)
    except Exception:  # noqa: BLE001 - the check of the whole message reports the fault
        return None
    return None


def _read_generally(
    data: bytes, limits: Limits, migrations: Migrations
) -> tuple[Message, list[str]]:
    """Decode a message and collect the paths of its unknown parts, without logging them."""
    check_json(data, limits)
    try:
        raw_fields = _split_object(data)
    except msgspec.ValidationError:
        raise DecodeError("a message is a JSON object") from None
    version = _version(raw_fields)
    if version < migrations.current:
        raw_fields = _upgrade(raw_fields, version, migrations)
    unknown: list[str] = []
    try:
        message: Message = read_fields(Message, raw_fields, "$", unknown)
    except DecodeError as error:
        # A fault in a message of a newer version may be a change that this version cannot decode.
        if version <= migrations.current:
            raise
        versions = f"written by version {version}, this metis supports {migrations.current}"
        raise DecodeError(f"{error.reason} ({versions})", path=error.path) from None
    # The exact bytes are preserved, because a newer version may give known fields new meanings.
    if version > migrations.current:
        message = replace(message, sealed=Sealed(data, canonical_bytes(message)))
    return message, unknown


def _upgrade(raw_fields: RawFields, version: int, migrations: Migrations) -> RawFields:
    upgraded = migrations.upgrade(raw_fields, version)
    try:
        # The result of a faulty migration must not be stored with the next save.
        check_json(msgspec.json.encode(upgraded))
    except (DecodeError, TypeError) as error:
        reason = f"a migration from version {version} wrote invalid JSON: {error}"
        raise MigrationError(reason) from None
    return upgraded


def _decode_generally(data: bytes, limits: Limits, migrations: Migrations) -> Message:
    """Decode a message by the general path, and log its unknown parts and newer version."""
    message, unknown = _read_generally(data, limits, migrations)
    log_fields = {"session_id": message.session_id, "message_id": message.id, "paths": unknown}
    if unknown:
        log.warning(
            "message %s: unknown parts are preserved: %s",
            message.id,
            ", ".join(unknown),
            extra=log_fields,
        )
    if message.sealed is not UNSET:
        log.warning(
            "message %s is of version %d; this metis supports %d",
            message.id,
            message.schema_version,
            migrations.current,
            extra=log_fields,
        )
    return message


def _version(raw_fields: RawFields) -> int:
    raw = raw_fields.get("schema_version")
    if raw is None:
        return 1
    try:
        version = msgspec.json.decode(raw, type=int)
    except msgspec.ValidationError as error:
        raise DecodeError(split_msgspec_error(error)[0], path="$.schema_version") from None
    if version < 1:
        raise DecodeError(f"there is no version {version}", path="$.schema_version")
    return version


_NOT_IN_JSON = ("extra", "sealed")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a message.

    Objects may have other fields than those listed: decoders preserve unknown fields.
    """
    schema = msgspec.json.schema(Message, schema_hook=_schema_hook)
    for definition in schema["$defs"].values():
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
        definition.pop("additionalProperties", None)
        for name in _NOT_IN_JSON:
            definition.get("properties", {}).pop(name, None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"metis canonical message, version {SCHEMA_VERSION}",
        **schema,
    }


def _schema_hook(kind: type) -> dict[str, Any]:
    if kind in (Extra, Sealed):
        return {"description": "not part of the JSON"}
    raise NotImplementedError(kind)
