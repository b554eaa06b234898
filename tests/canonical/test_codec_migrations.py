"""Stored messages of older and newer versions: migrations, and exact writing back."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from msgspec import Raw
from msgspec.structs import replace

from build import EVERYTHING, text, user
from metis.canonical import (
    MIGRATIONS,
    SCHEMA_VERSION,
    Extra,
    Message,
    MessageMetadata,
    MetisError,
    Migrations,
    decode,
    decode_trusted,
    encode,
)
from metis.canonical.codec import RawFields
from metis.canonical.errors import MigrationError, NewerVersionError
from strategies import messages


def one_to_two(row: RawFields) -> RawFields:
    """Migrate to an example version 2, which renames `session_id` to `session`."""
    row["session"] = row.pop("session_id")
    return row


def two_to_three(row: RawFields) -> RawFields:
    """Migrate to an example version 3: `session_id` again, in capitals, and a metadata mark."""
    session = msgspec.json.decode(row.pop("session"), type=str)
    row["session_id"] = Raw(msgspec.json.encode(session.upper()))
    metadata = msgspec.json.decode(row["metadata"], type=dict[str, Raw])
    metadata["origin"] = Raw(b'"v2"')
    row["metadata"] = Raw(msgspec.json.encode(metadata, order="sorted"))
    return row


THREE = Migrations(current=3, steps={1: one_to_two, 2: two_to_three})
OLD = user("a", session_id="s")
NEW = user("a", session_id="S", metadata=MessageMetadata(origin="v2"), schema_version=3)


@pytest.mark.row("M-277", "M-285")
@pytest.mark.parametrize("read", [decode, decode_trusted])
def test_old_row_is_migrated_when_read(read: Any) -> None:
    assert read(encode(OLD), migrations=THREE) == NEW


@pytest.mark.row("M-277")
def test_intermediate_row_takes_only_remaining_steps() -> None:
    middle = (
        encode(OLD)
        .replace(b'"session_id"', b'"session"')
        .replace(b'"schema_version":1', b'"schema_version":2')
    )
    assert decode(middle, migrations=THREE) == NEW


@pytest.mark.row("M-277")
def test_row_without_version_is_version_one() -> None:
    bare = encode(OLD).replace(b'"schema_version":1,', b"")
    assert decode(bare, migrations=THREE) == NEW
    assert decode(bare) == OLD


@pytest.mark.row("M-278", "M-285")
def test_row_is_unchanged_until_message_is_saved(tmp_path: Path) -> None:
    row = tmp_path / "row.json"
    row.write_bytes(encode(OLD))
    message = decode(row.read_bytes(), migrations=THREE)
    assert json.loads(row.read_bytes())["schema_version"] == 1
    assert decode(row.read_bytes()) == OLD
    row.write_bytes(encode(message, migrations=THREE))
    assert json.loads(row.read_bytes())["schema_version"] == 3
    assert decode(row.read_bytes(), migrations=THREE) == message


@pytest.mark.row("M-277", "M-279")
def test_fields_untouched_by_step_are_preserved_byte_for_byte() -> None:
    odd = b'{"b" : 1.10,"a":[ 1e5 ,"\\u0041"]}'
    strange = Extra({"new": Raw(odd)})
    old = user("a", session_id="s", extra=strange, metadata=MessageMetadata(extra=strange))
    data = encode(old)
    assert data.count(odd) == 2
    again = encode(decode(data, migrations=THREE), migrations=THREE)
    assert again.count(odd) == 2


@given(messages())
@pytest.mark.row("M-277")
def test_every_version_one_message_can_be_migrated(message: Message) -> None:
    upgraded = decode(encode(message), migrations=THREE)
    assert upgraded.schema_version == 3
    assert upgraded.content == message.content
    assert upgraded.session_id == message.session_id.upper()
    again = encode(upgraded, migrations=THREE)
    assert decode(again, migrations=THREE) == upgraded
    assert encode(decode(again, migrations=THREE), migrations=THREE) == again


@pytest.mark.row("M-277")
def test_missing_step_error_names_the_step() -> None:
    with pytest.raises(MigrationError, match="from version 2 to 3") as caught:
        decode(encode(OLD), migrations=Migrations(current=3, steps={1: one_to_two}))
    assert caught.value.path == "$.schema_version"


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        TypeError("x"),
        ValueError("x"),
        AttributeError("x"),
        ZeroDivisionError("x"),
        RecursionError("x"),
    ],
)
@pytest.mark.row("M-277")
def test_a_failing_step_is_a_typed_error(error: Exception) -> None:
    def fail(_: RawFields) -> RawFields:
        raise error

    with pytest.raises(MigrationError, match="from version 1 to 2") as caught:
        decode(encode(OLD), migrations=Migrations(current=2, steps={1: fail}))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("name", ["metadata", "content", "role", "created_at", "session_id", "zz"])
@pytest.mark.row("M-277")
def test_step_with_non_json_result_is_a_typed_error(name: str) -> None:
    def spoil(row: RawFields) -> RawFields:
        return row | {name: Raw(b"}{")}

    with pytest.raises(MetisError):
        encode(
            decode(encode(OLD), migrations=Migrations(current=2, steps={1: spoil})),
            migrations=Migrations(current=2, steps={1: spoil}),
        )


@pytest.mark.row("M-277")
def test_step_cannot_change_row_of_caller() -> None:
    row: RawFields = msgspec.json.decode(encode(OLD), type=dict[str, Raw])
    before = dict(row)
    THREE.upgrade(row, 1)
    assert row == before


@pytest.mark.parametrize("version", [0, 3, 4])
@pytest.mark.row("M-277")
def test_step_to_unknown_version_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="are unused"):
        Migrations(current=3, steps={version: one_to_two})


@pytest.mark.row("M-275", "M-276")
def test_version_one_is_the_first_and_needs_no_steps() -> None:
    assert MIGRATIONS.current == SCHEMA_VERSION == 1
    assert decode(encode(OLD)).schema_version == 1


NEWER = (
    b' {"schema_version": 2, "id":"x","session_id":"s","role":"user", "mood": 1.10,\n'
    b'"created_at":"2026-05-08T12:00:00.500000+02:00","content":[{"type":"text","text":"\\u0061"},'
    b'{"type":"hologram"}],"metadata":{"status":"complete"}}'
)


@pytest.mark.row("M-276")
@pytest.mark.parametrize("read", [decode, decode_trusted])
def test_a_newer_row_can_be_read_and_is_written_back_exactly(
    read: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "metis.canonical"):
        message = read(NEWER)
    assert message.content[0] == text("a")
    assert message.schema_version == 2
    assert encode(message) == NEWER
    assert encode(decode(encode(message))) == NEWER
    assert any("version 2" in record.getMessage() for record in caplog.records)


@given(messages())
@pytest.mark.row("M-276")
def test_any_newer_row_is_written_back_exactly(message: Message) -> None:
    data = encode(message).replace(b'"schema_version":1', b'"schema_version":2')
    assert encode(decode(data)) == data
    loose = b" " + data + b"\n"
    assert encode(decode(loose)) == loose
    assert decode(loose) == decode(data)
    assert hash(decode(loose)) == hash(decode(data))


@pytest.mark.row("M-276")
def test_changed_newer_row_is_refused() -> None:
    message = decode(NEWER)
    for changed in (
        replace(message, content=(text("b"),)),
        replace(message, schema_version=1),
        replace(message, schema_version=3),
        replace(message, metadata=MessageMetadata(provider_raw={"a": 1})),
        replace(EVERYTHING, sealed=message.sealed),
    ):
        with pytest.raises(NewerVersionError) as caught:
            encode(changed)
        assert caught.value.path == "$.schema_version"
    assert encode(replace(message, content=message.content)) == NEWER


@pytest.mark.row("M-275")
@pytest.mark.parametrize("version", [2, 3, 2**31])
def test_message_of_newer_version_cannot_be_constructed(version: int) -> None:
    with pytest.raises(NewerVersionError):
        encode(user("a", schema_version=version))


@pytest.mark.row("M-276")
def test_unreadable_newer_row_error_names_the_version() -> None:
    with pytest.raises(MetisError, match="version 2, this metis supports 1"):
        decode(NEWER.replace(b'"role":"user"', b'"speaker":"user"'))
