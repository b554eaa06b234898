"""Journal entries round-trip through the codec, also unknown kinds."""

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from build import NOW, SESSION, assistant, developer, system, tool, ulid, user
from metis.canonical.errors import DecodeError
from metis.store.entries import (
    ENTRY_TYPES,
    AnyEntry,
    BookmarkEntry,
    CheckpointEntry,
    CompactionEntry,
    ErrorEntry,
    ForkEntry,
    MessageEntry,
    RecoveryEntry,
    RetractionEntry,
    RewindEntry,
    SidecarEntry,
    SwapEntry,
    TaskMetadataEntry,
    UnknownEntry,
    decode_entry,
    encode_entry,
    place_entry,
)

HEAD: dict[str, Any] = {"id": ulid(9), "session_id": SESSION, "seq": 3, "created_at": NOW}
MESSAGES = [user("hi"), assistant("hello"), system("be brief"), tool("42"), developer("note")]
EVERY_ENTRY: list[AnyEntry] = [
    *(MessageEntry(message=item, **HEAD) for item in MESSAGES),
    ErrorEntry(text="overloaded", kind="RateLimitError", status=529, retryable=True, **HEAD),
    TaskMetadataEntry(data={"main": {"cost": "0.1"}}, **HEAD),
    SwapEntry(from_model="a:b", to_model="c:d", reason="asked", **HEAD),
    CompactionEntry(summary="so far", first_kept_id=ulid(4), tokens_before=9, **HEAD),
    CheckpointEntry(number=2, message_id=ulid(3), **HEAD),
    RewindEntry(to_id=ulid(2), checkpoint=2, note="went back", **HEAD),
    RetractionEntry(message_id=ulid(5), **HEAD),
    ForkEntry(
        source_session_id="sess_1",
        source_message_id=ulid(6),
        message_ids={ulid(6): ulid(7)},
        tool_use_ids={},
        **HEAD,
    ),
    BookmarkEntry(name="main", message_id=ulid(3), **HEAD),
    SidecarEntry(kind="away_summary", data={"text": "done"}, external={"klaude": 1}, **HEAD),
    RecoveryEntry(aborted_calls=("tu_1",), failed_messages=(ulid(1),), **HEAD),
]


@pytest.mark.row("K-028", "K-074", "K-075", "K-076", "K-097")
@pytest.mark.parametrize("entry", EVERY_ENTRY, ids=lambda entry: type(entry).__name__)
def test_entry_round_trips(entry: AnyEntry) -> None:
    reread = decode_entry(encode_entry(entry))
    assert reread == entry
    assert type(reread) is type(entry)
    assert encode_entry(reread) == encode_entry(entry)


def test_cases_cover_every_kind() -> None:
    assert {type(entry) for entry in EVERY_ENTRY} == set(ENTRY_TYPES.values())


@pytest.mark.row("K-077", "K-078", "K-079", "K-080")
def test_display_only_events_have_no_entry_kind() -> None:
    for kind in ("text_delta", "thinking_delta", "tool_use_start", "interrupt", "response"):
        assert not [tag for tag in ENTRY_TYPES if kind in tag]


def test_unknown_kind_is_preserved_byte_for_byte(caplog: pytest.LogCaptureFixture) -> None:
    raw = (
        b'{"mood":  "calm","type":"weather","id":"01K","session_id":"s",'
        b'"created_at":"2026-05-08T12:00:00Z","seq":4}'
    )
    with caplog.at_level(logging.WARNING, logger="metis.store"):
        entry = decode_entry(raw)
    assert isinstance(entry, UnknownEntry)
    assert entry.created_at == datetime(2026, 5, 8, 12, tzinfo=UTC)
    assert encode_entry(entry) == raw
    assert "weather" in caplog.text
    moved = place_entry(entry, session_id="other", seq=7)
    reread = decode_entry(encode_entry(moved))
    assert (reread.session_id, reread.seq) == ("other", 7)
    assert b'"mood":"calm"' in encode_entry(reread)


def test_unknown_field_is_preserved() -> None:
    plain = encode_entry(SwapEntry(to_model="a:b", **HEAD))
    raw = plain[:-1] + b',"zeal":7}'
    entry = decode_entry(raw)
    assert isinstance(entry, SwapEntry)
    assert encode_entry(entry) == raw
    assert encode_entry(place_entry(entry, session_id=SESSION, seq=3)) == raw


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"type":"swap"}', b'{"type":"swap","type":"error"}', b"\xff"],
)
def test_invalid_entry_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_entry(data)
