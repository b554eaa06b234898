"""Unknown fields, blocks and enum values are preserved, with a warning."""

import copy
import json
import logging
import pickle
import warnings
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from msgspec import Raw
from msgspec.structs import replace

from build import EVERYTHING, assistant, provenance, result, routing, text, tool, user
from metis.canonical import (
    Extra,
    Message,
    MessageMetadata,
    MetisError,
    TextBlock,
    UnknownBlock,
    decode,
    encode,
)
from metis.canonical.errors import EncodeError, InvalidValueError
from metis.canonical.json_value import join_path
from metis.canonical.value import Value, fields_of
from strategies import ODD_TEXTS, json_texts, unknown_blocks

Steps = tuple[str | int, ...]
LOGGER = "metis.canonical"
HERE = "@here@"


def places(value: object, steps: Steps = ()) -> Iterator[Steps]:
    """Yield the path to every canonical object in a message."""
    if isinstance(value, Value):
        yield steps
        for field in fields_of(type(value)):
            yield from places(getattr(value, field.name), (*steps, field.encode_name))
    elif isinstance(value, tuple):
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            yield from places(item, (*steps, index))


def path_of(steps: Steps) -> str:
    path = "$"
    for step in steps:
        path = join_path(path, step)
    return path


def canonical_with(steps: Steps, name: str, raw: bytes) -> bytes:
    """Return the canonical bytes of EVERYTHING with one more field at a path."""
    tree: Any = json.loads(encode(EVERYTHING))
    spot = tree
    for step in steps:
        spot = spot[step]
    spot[name] = HERE
    flat = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return flat.encode().replace(json.dumps(HERE).encode(), raw)


PLACES = list(places(EVERYTHING))


@pytest.mark.row("M-279")
def test_places_cover_every_type() -> None:
    kinds = {path_of(steps) for steps in PLACES}
    assert {
        "$",
        "$.metadata",
        "$.metadata.usage",
        "$.metadata.routing",
        "$.metadata.outcome",
        "$.metadata.hints[0]",
        "$.content[0]",
        "$.content[0].citations[0]",
        "$.content[1].invalid",
        "$.content[2].content[0]",
        "$.content[2].content[1].source",
        "$.content[3].source",
        "$.content[6].source",
        "$.content[10]",
    } <= kinds


@pytest.mark.parametrize("steps", PLACES, ids=path_of)
@pytest.mark.row("M-276", "M-279")
def test_unknown_field_is_preserved_byte_for_byte_with_warning(
    steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    odd = b'{"b" : 1.10,\n"a":[ 1e5 , 1180591620717411303424, "\\u0041\\/"] }'
    data = canonical_with(steps, "zz_new", odd)
    with caplog.at_level(logging.WARNING, LOGGER):
        decoded = decode(data)
    (record,) = caplog.records
    assert encode(decoded) == data
    assert decode(encode(decoded)) == decoded
    assert (record.name, record.levelno) == (LOGGER, logging.WARNING)
    assert record.__dict__["paths"] == [path_of((*steps, "zz_new"))]
    assert record.__dict__["message_id"] == EVERYTHING.id
    assert record.__dict__["session_id"] == EVERYTHING.session_id
    assert path_of((*steps, "zz_new")) in record.getMessage()


@pytest.mark.parametrize(
    "name", ["extra", "sealed", "", "a b", "ünï", '"', "\n", "Type", "zz\u0000"]
)
@pytest.mark.parametrize(
    "steps", [(), ("metadata",), ("content", 0), ("content", 3, "source")], ids=path_of
)
@pytest.mark.row("M-279")
def test_unknown_field_may_have_any_name(steps: Steps, name: str) -> None:
    data = canonical_with(steps, name, b"[ 1.10 ]")
    assert encode(decode(data)) == data


@pytest.mark.parametrize("raw", ODD_TEXTS)
@pytest.mark.row("M-279")
def test_the_value_of_an_unknown_field_can_be_read(raw: bytes) -> None:
    decoded = decode(canonical_with((), "zz_new", raw))
    assert isinstance(decoded.extra, Extra)
    assert decoded.extra["zz_new"] == json.loads(raw)
    assert dict(decoded.extra) == {"zz_new": json.loads(raw)}
    assert decoded.extra.raw() == {"zz_new": raw}


@pytest.mark.row("M-280", "M-295")
@given(unknown_blocks())
def test_unknown_block_keeps_its_position(block: UnknownBlock) -> None:
    for message in (
        user("a", block, "b"),
        tool("a", block, "b"),
        user(result(result("a", block, answers="x"), "b")),
    ):
        data = encode(message)
        assert block.raw in data
        again = decode(data)
        assert again == message
        assert encode(again) == data
    kept = decode(encode(user("a", block, "b"))).content
    assert kept == (text("a"), block, text("b"))
    assert isinstance(kept[1], UnknownBlock)
    assert (kept[1].raw, kept[1].type, kept[1].data) == (block.raw, block.type, block.data)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.row("M-280")
def test_an_unknown_block_is_reported(nested: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001 - a parameter of the test
    block = UnknownBlock(b'{"type":"hologram","n":1.10}')
    message = tool("a", block) if nested else user("a", block)
    with caplog.at_level(logging.WARNING, LOGGER):
        decode(encode(message))
    (record,) = caplog.records
    assert (record.name, record.levelno) == (LOGGER, logging.WARNING)
    assert record.__dict__["paths"] == ["$.content[0].content[1]" if nested else "$.content[1]"]


ENUMS = {
    "$.role": (b'"role":"assistant"', b'"role":"oracle"'),
    "$.metadata.status": (b'"role":"assistant"', b'"role":"assistant"'),
    "$.metadata.stop_reason": (b'"stop_reason":"tool_use"', b'"stop_reason":"bored"'),
    "$.metadata.routing.mode": (b'"mode":"pattern"', b'"mode":"dice"'),
    "$.metadata.outcome.status": (b'"status":"error"', b'"status":"melted"'),
}


@pytest.mark.parametrize("path", ENUMS)
@pytest.mark.row("M-028", "M-276")
def test_an_unknown_enum_value_is_kept_with_a_warning(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = encode(EVERYTHING)
    if path == "$.metadata.status":
        data = data.replace(b'"stop_reason"', b'"status":"paused","stop_reason"')
    else:
        old, new = ENUMS[path]
        assert data.count(old) == 1
        data = data.replace(old, new)
    with caplog.at_level(logging.WARNING, LOGGER):
        decoded = decode(data)
    assert encode(decoded) == data
    assert decode(data) == decoded != EVERYTHING
    assert caplog.records
    assert {(record.name, record.levelno) for record in caplog.records} == {
        (LOGGER, logging.WARNING)
    }


@pytest.mark.row("M-279", "M-280")
def test_unknown_parts_never_raise_python_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decode(encode(user(UnknownBlock(b'{"type":"x"}'), extra={"new": 1})))
    assert caught == []


@given(json_texts(), json_texts())
@pytest.mark.row("M-012", "M-279")
def test_unknown_fields_compare_by_value(one: bytes, two: bytes) -> None:
    same = json.dumps(json.loads(one), sort_keys=True) == json.dumps(
        json.loads(two), sort_keys=True
    )
    left, right = (user("a", extra=Extra({"new": Raw(raw)})) for raw in (one, two))
    assert (left == right) is same
    assert (hash(left) == hash(right)) is same
    assert (left.digest() == right.digest()) is same
    assert (Extra({"new": Raw(one)}) == Extra({"new": Raw(two)})) is same
    assert left != user("a")


@pytest.mark.row("M-279")
def test_a_changed_message_keeps_the_unknown_fields_that_it_had() -> None:
    data = encode(user("a", extra={"new": Raw(b"[ 1.10 ]")}))
    changed = replace(decode(data), content=(text("b"),))
    assert encode(changed) == data.replace(b'"a"', b'"b"')


@pytest.mark.row("M-279")
def test_unknown_field_cannot_have_name_of_defined_field() -> None:
    for message in (
        user("a", extra={"role": "tool"}),
        user(text("a", extra=Extra({"type": "image"}))),
        user(text("a", extra=Extra({"citations": []}))),
        assistant("a", metadata=provenance(routing=routing(extra={"mode": "rule"}))),
    ):
        with pytest.raises(EncodeError, match="unknown field"):
            encode(message)


@pytest.mark.row("M-279")
def test_plain_mapping_of_unknown_fields_is_accepted() -> None:
    fields: Any = {"new": 1}
    for value in (user("a", extra=fields), MessageMetadata(extra=fields), routing(extra=fields)):
        assert value.extra == Extra(fields)
    block = TextBlock(text="a", extra=fields)
    assert block == TextBlock(text="a", extra=Extra(fields))
    assert b'"extra"' not in encode(user(block))


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {1: 2}, b"", object(), {"a": {1}}, "\ud800"]
)
@pytest.mark.row("M-279")
def test_extra_refuses_non_json_values(value: object) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Extra({"new": value})
    assert caught.value.path.startswith("$.new")


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{}", b'{"type":1}', b'{"type":null}', b'{"type":"x"', b"\xff", b"[" * 10**5],
)
@pytest.mark.row("M-280")
def test_an_unknown_block_is_an_object_with_a_tag(raw: bytes) -> None:
    with pytest.raises(MetisError):
        UnknownBlock(raw)


@pytest.mark.row("M-280")
def test_whitespace_around_unknown_block_is_removed() -> None:
    data = encode(user(UnknownBlock(b' {"type":"x"}\n')))
    assert encode(decode(data)) == data


@pytest.mark.row("M-012")
def test_unknown_parts_are_immutable_and_picklable() -> None:
    block, extra = UnknownBlock(b'{"type":"x", "n":1.10}'), Extra({"b": Raw(b"1.10"), "a": 1})
    for frozen in (block, extra):
        with pytest.raises(AttributeError):
            frozen.type = "y"  # pyright: ignore[reportAttributeAccessIssue] - the point of the test
        with pytest.raises(AttributeError):
            frozen._raw = b""  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - the same
        assert copy.deepcopy(frozen) == frozen == pickle.loads(pickle.dumps(frozen))  # noqa: S301 - our own bytes
        assert hash(copy.copy(frozen)) == hash(frozen)
        assert repr(frozen)
    assert pickle.loads(pickle.dumps(extra)).raw() == extra.raw()  # noqa: S301 - our own bytes
    message = user(block, extra=extra)
    assert encode(pickle.loads(pickle.dumps(message))) == encode(message)  # noqa: S301 - our own bytes
    assert list(extra) == ["a", "b"]
    assert len(extra) == 2
    assert extra != {"a": 1, "b": 1.1}
    assert block != text("x")


@given(unknown_blocks())
@pytest.mark.row("M-280")
def test_unknown_blocks_compare_by_value(block: UnknownBlock) -> None:
    tidy = UnknownBlock(json.dumps(json.loads(block.raw), sort_keys=True).encode())
    assert block == tidy
    assert hash(block) == hash(tidy)
    assert user(block) == user(tidy)
    assert user(block).digest() == user(tidy).digest()


@pytest.mark.row("M-279")
def test_messages_of_two_decoders_are_equal(caplog: pytest.LogCaptureFixture) -> None:
    old: Message = decode(encode(tool("a", extra={"new": 1})))
    assert old == tool("a", extra=Extra({"new": 1}))
    assert old != tool("a")
