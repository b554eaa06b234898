"""The canonical codec: golden files, round trips, defaults and refused values."""

import json
import logging
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given

from build import (
    EVERY_BLOCK,
    EVERYTHING,
    FULL_METADATA,
    assistant,
    call,
    developer,
    image,
    message,
    opaque,
    provenance,
    result,
    routing,
    system,
    text,
    thinking,
    tool,
    tool_id,
    usage,
    user,
)
from metis.canonical import (
    SCHEMA_VERSION,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    decode,
    decode_trusted,
    encode,
)
from metis.canonical.blocks import BLOCK_TYPES
from metis.canonical.errors import EncodeError, MetisError
from metis.version import SPEC_VERSION
from strategies import Unknown, conversations, messages

GOLDEN = Path(__file__).parent / "golden" / "v1"

ROLE_OF_TAG = {
    "tool_use": assistant,
    "thinking": assistant,
    "redacted_thinking": assistant,
    "artifact": assistant,
    "opaque": assistant,
}
"""The role that may have a block of a tag; all other tags are in user messages."""

ANSWERING = MessageMetadata(parent_tool_use_id=tool_id())

EXPECTED: dict[str, Message] = {
    **{f"role_{make.__name__}": make("Hello") for make in (user, assistant, system, developer)},
    "role_tool": tool("Hello"),
    "role_system_empty": system(),
    **{
        f"block_{tag}": message(Role.TOOL, block, metadata=ANSWERING)
        if tag == "tool_result"
        else ROLE_OF_TAG.get(tag, user)(block)
        for tag, block in EVERY_BLOCK.items()
    },
    "block_text_plain": user(text("")),
    "block_tool_use_plain": assistant(call("read_file", path="README.md")),
    "block_tool_result_plain": tool("# Project Foo", image()),
    "metadata_full": message(Role.ASSISTANT, "Hello", metadata=FULL_METADATA),
}
"""The golden files of version 1, by name, as values."""


def read_golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes().removesuffix(b"\n")


@pytest.mark.row("M-037", "M-058")
def test_there_is_a_golden_file_for_every_tag_and_every_role() -> None:
    names = {path.stem for path in GOLDEN.glob("*.json")}
    assert names == set(EXPECTED)
    assert {f"block_{tag}" for tag in BLOCK_TYPES} <= names
    assert {f"role_{role}" for role in Role} <= names


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.row("M-010", "M-018", "M-019", "M-032", "M-039", "M-043", "M-057", "M-058")
def test_golden_file_decodes_to_value_and_value_encodes_to_file(name: str) -> None:
    data = read_golden(name)
    assert decode(data) == EXPECTED[name]
    assert decode_trusted(data) == EXPECTED[name]
    assert encode(EXPECTED[name]) == data
    assert encode(decode(data)) == data
    assert json.loads(data)["schema_version"] == 1


@pytest.mark.row("M-019")
@pytest.mark.parametrize("tag", EVERY_BLOCK)
def test_tag_decides_block_type(tag: str) -> None:
    block = EVERY_BLOCK[tag]
    again = decode(encode(user(block))).content[0]
    assert type(again) is BLOCK_TYPES[tag]
    assert again == block
    assert again.type == tag
    assert json.loads(encode(user(block)))["content"][0]["type"] == tag


@given(messages())
@pytest.mark.row("M-010", "M-017", "M-134", "M-279", "M-280")
def test_decode_undoes_encode(message: Message) -> None:
    data = encode(message)
    again = decode(data)
    assert again == message
    assert again.metadata.provider_raw == message.metadata.provider_raw
    assert again.metadata.hints == message.metadata.hints
    assert encode(again) == data
    assert hash(again) == hash(message)


@given(messages())
@pytest.mark.row("M-010")
def test_trusted_decoding_gives_the_same(message: Message) -> None:
    data = encode(message)
    assert encode(decode_trusted(data)) == data
    assert decode_trusted(data) == message


@given(messages())
@pytest.mark.row("M-010")
def test_str_and_bytes_decode_equally(message: Message) -> None:
    data = encode(message)
    assert decode(data.decode()) == decode(data)


@given(messages(Unknown.NOTHING))
@pytest.mark.row("M-010")
def test_keys_are_sorted_without_whitespace(message: Message) -> None:
    data = encode(message)
    plain = json.dumps(
        json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode()
    assert data == plain


@given(conversations())
@pytest.mark.row("M-010", "M-017", "M-018", "M-134")
def test_conversation_round_trips_in_order(conversation: list[Message]) -> None:
    assert [decode(encode(each)) for each in conversation] == conversation


@pytest.mark.row("M-010")
def test_key_order_and_whitespace_do_not_matter() -> None:
    data = json.loads(encode(EVERYTHING))
    loose = json.dumps(_reversed_keys(data), indent=3)
    again = decode(loose)
    opaque_apart = [block for block in again.content if block.type != "opaque"]
    assert opaque_apart == [block for block in EVERYTHING.content if block.type != "opaque"]
    assert again.metadata == EVERYTHING.metadata


def _reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        entries = list(cast("dict[str, Any]", value).items())
        return {key: _reversed_keys(item) for key, item in reversed(entries)}
    if isinstance(value, list):
        return [_reversed_keys(item) for item in cast("list[Any]", value)]
    return value


@pytest.mark.row("M-001", "M-032", "M-275")
def test_new_messages_have_version_one() -> None:
    assert SPEC_VERSION == "1.1"
    assert SCHEMA_VERSION == 1
    assert user("hi").schema_version == 1
    assert b'"schema_version":1' in encode(user("hi"))


@pytest.mark.row("M-030", "M-046", "M-071", "M-085", "M-101", "M-102")
def test_absent_fields_have_their_defaults() -> None:
    data = (
        b'{"content":[{"content":[],"tool_use_id":"tu_1","type":"tool_result"}],'
        b'"created_at":"2026-05-08T12:00:00Z","id":"a","role":"tool","session_id":"s"}'
    )
    decoded = decode(data)
    assert decoded.metadata == MessageMetadata()
    assert decoded.content == (result(answers="tu_1", is_error=False),)
    assert decoded.metadata.status == "complete"
    assert (decoded.metadata.user_id, decoded.metadata.team_id) == (None, None)
    assert decoded.schema_version == 1
    assert (usage().cached_input_tokens, usage().cache_creation_input_tokens) == (0, 0)
    assert routing().alternatives_considered == ()


@pytest.mark.row("M-046", "M-071")
def test_explicit_default_equals_absent_field() -> None:
    short = tool("a")
    long = encode(short).replace(
        b'"content":[{"content"', b'"content":[{"critical":false,"content"'
    )
    long = long.replace(b'"tool_use_id"', b'"is_error":false,"tool_use_id"')
    long = long.replace(
        b'"metadata":{', b'"metadata":{"status":"complete","usage":null,"hints":[],'
    )
    assert long.count(b"is_error") == 1
    assert decode(long) == short
    assert encode(decode(long)) == encode(short)


@pytest.mark.parametrize(
    "words", ["", "\n", "\r\n\n", "🦉🏳️‍🌈", "a\u0000b", "\u2028", "é e\u0301", "𝄞"]
)
@pytest.mark.row("M-038")
def test_any_text_round_trips(words: str) -> None:
    assert decode(encode(user(text(words)))).content == (TextBlock(text=words),)


@pytest.mark.row("M-052")
def test_signatures_round_trip_byte_for_byte() -> None:
    signature = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk=+/\u2603"
    for block in (thinking("", signature=signature), thinking("", signature=None)):
        assert decode(encode(assistant(block))).content == (block,)


@pytest.mark.row("M-045")
def test_a_result_keeps_text_and_images_in_order() -> None:
    content = (text("a"), image("aQ=="), text("b"), image("ag=="))
    again = decode(encode(tool(*content))).content[0]
    assert again == result(*content)
    assert again != result(*reversed(content))


@pytest.mark.row("M-072")
@given(messages())
def test_provider_raw_round_trips(message: Message) -> None:
    assert decode(encode(message)).metadata.provider_raw == message.metadata.provider_raw


@pytest.mark.row("M-103")
def test_money_is_an_exact_decimal_string() -> None:
    digits = "0.0006540000000000000000000000000000000001"
    data = encode(assistant("a", metadata=provenance(usage=usage(cost_usd=digits))))
    assert f'"cost_usd":"{digits}"'.encode() in data
    again = decode(data).metadata.usage
    assert again is not None
    assert str(again.cost_usd) == digits


@pytest.mark.row("M-042")
def test_input_is_an_object_and_numbers_keep_their_type() -> None:
    block = call("f", integer=1, float=1.0, truth=True, big=2**70, none=None)
    again = decode(encode(assistant(block))).content[0]
    assert again == block
    assert again != call("f", integer=1.0, float=1.0, truth=True, big=2**70, none=None)
    assert again != call("f", integer=1, float=1.0, truth=1, big=2**70, none=None)


@pytest.mark.row("M-010")
def test_canonical_bytes_decode_without_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        decode(encode(EVERYTHING))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        (user("\ud800"), "$.content[0].text"),
        (user("a", id="\ud800"), "$.id"),
        (user("a", session_id="\udfff"), "$.session_id"),
        (assistant(call("f", a=["\ud800"])), "$.content[0].input.a[0]"),
        (assistant(call("f", **{"\ud800": 1})), "$.content[0].input"),
        (tool("a", "\ud800"), "$.content[0].content[1].text"),
        (user("a", metadata=MessageMetadata(external={"a": "\ud800"})), "$.metadata.external.a"),
        (user("a", session_id="\ud800", extra={"new": 1}), "$.session_id"),
        (user("a", metadata=provenance(user_id="\ud800"), extra={"new": 1}), "$.metadata.user_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.row("M-010")
def test_unencodable_value_error_names_the_path(broken: Message, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(broken)
    assert caught.value.path == path
    assert "surrogate" in caught.value.reason


@pytest.mark.row("M-010")
def test_encode_never_writes_invalid_json() -> None:
    with pytest.raises(MetisError):
        encode(user(opaque(b"}{")))


@pytest.mark.row("M-010", "M-084")
def test_integral_confidence_round_trips() -> None:
    sure = assistant("a", metadata=provenance(routing=routing(mode="pattern", confidence=1)))
    assert decode(encode(sure)) == sure


@pytest.mark.row("M-040", "M-137")
def test_tool_ids_round_trip() -> None:
    assert decode(encode(assistant(call("f", tool_id(9))))).content == (call("f", tool_id(9)),)
