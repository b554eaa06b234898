"""Messages: roles, times, versions, immutability and hashing."""

import copy
import pickle
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import (
    EVERYTHING,
    NOW,
    assistant,
    developer,
    message,
    system,
    text,
    tool,
    user,
)
from metis.canonical import Message, MessageMetadata, MetisError, Role, decode, encode
from metis.canonical.errors import EncodeError, InvalidValueError
from metis.canonical.value import Value, fields_of
from strategies import messages

zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
anywhere = st.datetimes(datetime(1000, 1, 1), datetime(9000, 1, 1), timezones=zones)  # noqa: DTZ001 - bounds


@pytest.mark.row("M-028", "M-033", "M-034", "M-035", "M-036")
def test_role_strings() -> None:
    assert {role.name: role.value for role in Role} == {
        "USER": "user",
        "ASSISTANT": "assistant",
        "SYSTEM": "system",
        "TOOL": "tool",
        "DEVELOPER": "developer",
    }
    for role in Role:
        assert f'"role":"{role.value}"'.encode() in encode(message(role, "a"))
        assert decode(encode(message(role, "a"))).role is role


@pytest.mark.row("M-017", "M-018")
def test_messages_of_every_role_have_one_shape() -> None:
    made = [user("a"), assistant("a"), system("a"), developer("a"), tool("a")]
    assert {type(each) for each in made} == {Message}
    assert {type(each.content) for each in made} == {tuple}
    assert [field.name for field in fields_of(Message)] == [
        "content",
        "created_at",
        "id",
        "metadata",
        "role",
        "schema_version",
        "session_id",
    ]


@pytest.mark.row("M-017")
def test_content_is_a_tuple_when_built_from_list() -> None:
    given: Any = [text("a"), text("b")]
    made = Message(id="a", session_id="s", role=Role.USER, content=given, created_at=NOW)
    given.append(text("c"))
    assert made.content == (text("a"), text("b"))
    assert type(made.content) is tuple


@pytest.mark.row("M-030")
def test_metadata_is_never_none() -> None:
    made = Message(id="a", session_id="s", role=Role.USER, content=(), created_at=NOW)
    assert made.metadata == MessageMetadata()


@pytest.mark.row("M-028")
def test_a_role_may_be_given_as_its_string() -> None:
    role: Any = "user"
    made = Message(id="a", session_id="s", role=role, content=(), created_at=NOW)
    assert made.role is Role.USER


@pytest.mark.row("M-031")
def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidValueError) as caught:
        user("a", created_at=datetime(2026, 5, 8, 12))  # noqa: DTZ001 - the point of the test
    assert caught.value.path == "$.created_at"


@given(anywhere)
@pytest.mark.row("M-031")
def test_times_of_other_zones_become_utc_with_all_six_digits(moment: datetime) -> None:
    made = user("a", created_at=moment)
    assert made.created_at == moment
    assert made.created_at.tzinfo is UTC
    assert made.created_at.microsecond == moment.microsecond
    again = decode(encode(made))
    assert again.created_at == moment
    assert again.created_at.tzinfo is UTC
    assert again == made == user("a", created_at=moment.astimezone(UTC))


@given(anywhere)
@pytest.mark.row("M-031")
def test_a_time_of_another_zone_is_read_as_utc(moment: datetime) -> None:
    data = encode(user("a")).replace(b"2026-05-08T12:00:00.123456Z", moment.isoformat().encode())
    assert decode(data) == user("a", created_at=moment)


@pytest.mark.parametrize("year", [1, 9999])
@pytest.mark.row("M-031")
def test_time_outside_of_utc_range_is_refused(year: int) -> None:
    month, day, hour, shift = (1, 1, 0, 5) if year == 1 else (12, 31, 23, -5)
    zone = timezone(timedelta(hours=shift))
    with pytest.raises(MetisError):
        user("a", created_at=datetime(year, month, day, hour, tzinfo=zone))


@pytest.mark.row("M-012")
def test_no_attribute_of_any_part_can_be_set_or_deleted() -> None:
    inner: Any = EVERYTHING.content[2]
    parts: list[object] = [
        EVERYTHING,
        EVERYTHING.metadata,
        EVERYTHING.metadata.usage,
        EVERYTHING.metadata.routing,
        EVERYTHING.metadata.outcome,
        EVERYTHING.metadata.hints[0],
        *EVERYTHING.content,
        inner.content[0],
    ]
    for part in parts:
        assert isinstance(part, Value)
        for field in fields_of(type(part)):
            with pytest.raises(AttributeError):
                setattr(part, field.name, getattr(part, field.name))
            with pytest.raises((AttributeError, TypeError)):
                delattr(part, field.name)
        with pytest.raises(AttributeError):
            part.brand_new = 1  # pyright: ignore[reportAttributeAccessIssue] - the point of the test


@pytest.mark.row("M-031")
def test_a_time_without_a_zone_is_never_written() -> None:
    naive = datetime(2026, 5, 8)  # noqa: DTZ001 - the point of the test
    with pytest.raises(MetisError):
        encode(replace(user("a"), created_at=naive))


@given(messages())
@pytest.mark.row("M-012")
def test_messages_can_be_pickled_and_copied(message: Message) -> None:
    for again in (
        pickle.loads(pickle.dumps(message)),  # noqa: S301 - our own bytes
        copy.deepcopy(message),
        copy.copy(message),
    ):
        assert again == message
        assert encode(again) == encode(message)


@pytest.mark.row("M-032")
def test_unsupported_version_is_refused() -> None:
    with pytest.raises(EncodeError) as caught:
        encode(user("a", schema_version=2))
    assert caught.value.path == "$.schema_version"


@pytest.mark.row("M-012")
def test_a_hash_fits_into_a_machine_word() -> None:
    assert abs(hash(EVERYTHING)) <= sys.maxsize
