"""Decoding arbitrary bytes: a valid message, or a typed error that names the path."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build import EVERY_BLOCK, EVERYTHING, assistant, call, tool, user
from folded import for_every
from metis.canonical import Limits, Message, MetisError, decode, decode_trusted, encode
from metis.canonical.errors import DecodeError, LimitError
from metis.canonical.json_value import join_path
from metis.canonical.value import Value, fields_of
from strategies import json_texts, messages

PLAIN = encode(user("hi"))
CALLING = encode(assistant(call("f", a=1)))
FULL = encode(EVERYTHING)
SEEDS = [PLAIN, CALLING, FULL, encode(tool("a", "b")), encode(user("a", extra={"new": [1.5]}))]
MEGABYTES = 10 * 1024 * 1024


def judge(data: bytes | str) -> Message | None:
    """Check that bytes give an equal message, or a typed error that names a path."""
    try:
        message = decode(data)
    except DecodeError as error:
        return _judge_error(error)
    again = encode(message)
    assert decode(again) == message
    assert encode(decode(again)) == again
    assert len(message.digest()) == 64
    json.loads(again)
    return message


def _judge_error(error: DecodeError) -> None:
    assert error.path.startswith("$")
    assert error.reason


@given(st.binary(max_size=200))
@pytest.mark.row("M-010")
def test_any_bytes_give_a_message_or_a_typed_error(data: bytes) -> None:
    judge(data)


@given(st.text())
@pytest.mark.row("M-010")
def test_any_text_gives_a_message_or_a_typed_error(data: str) -> None:
    judge(data)


@given(json_texts())
@pytest.mark.row("M-010")
def test_any_json_gives_a_message_or_a_typed_error(data: bytes) -> None:
    judge(data)


@given(messages(), st.data())
@pytest.mark.row("M-010")
def test_every_truncated_message_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DecodeError):
        decode(whole[:cut])


TOKENS = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\x00", b"\xff", b"\xed\xa0\x80", b" "),
    *(b"null", b"true", b"1", b"-", b"1.5", b"1e400", b"NaN", b"Infinity", b"5" * 5000),
    *(b'"\\ud800"', b"\\ud800", b'{"a":1,"a":2}', b'"id":1,', b'"NaN"', b'"Infinity"', b'"sNaN"'),
    *(
        b'"type":"text",',
        b'"schema_version":2',
        b'"9999-12-31T23:59:59-05:00"',
        b'"+00:00"',
        b"[[]]",
    ),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw valid bytes with a few random changes."""
    data = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        middle = draw(
            st.sampled_from(TOKENS)
            | st.just(data[start:end] * 2)
            | st.just(b"")
            | st.binary(max_size=2)
        )
        data = data[:start] + middle + data[end:]
    return data


@settings(max_examples=400)
@given(mutated())
@pytest.mark.row("M-010")
def test_damaged_bytes_give_a_message_or_a_typed_error(data: bytes) -> None:
    judge(data)


def _spots(value: Any, path: str = "$") -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield every value in a JSON tree with its path and the steps to it."""
    yield path, ()
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        for key, item in entries.items():
            yield from ((at, (key, *rest)) for at, rest in _spots(item, join_path(path, key)))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from ((at, (index, *rest)) for at, rest in _spots(item, join_path(path, index)))


SPOTS = dict(_spots(json.loads(FULL)))
REPLACEMENTS: list[Any] = [None, True, 7, -1.5, "x", [], {}, [1], {"a": 1}, "\x00", 2**70]


def _with(steps: tuple[Any, ...], stranger: Any) -> bytes:
    tree: Any = {"root": json.loads(FULL)}
    spot, last = tree, "root"
    for step in steps:
        spot, last = spot[last], step
    spot[last] = stranger
    return json.dumps(tree["root"]).encode()


def _fields(value: object, path: str = "$") -> Iterator[tuple[str, bool]]:
    """Yield the path of every canonical field with a value, and whether it is required."""
    if isinstance(value, Value):
        for field in fields_of(type(value)):
            here = join_path(path, field.encode_name)
            yield here, field.required
            yield from _fields(getattr(value, field.name), here)
    elif isinstance(value, tuple):
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            yield from _fields(item, join_path(path, index))


REQUIRED = [path for path, required in _fields(EVERYTHING) if required]


@for_every(REQUIRED)
@pytest.mark.row("M-010")
def test_missing_field_error_names_the_field(path: str) -> None:
    steps = SPOTS[path]
    tree: Any = json.loads(FULL)
    spot = tree
    for step in steps[:-1]:
        spot = spot[step]
    del spot[steps[-1]]
    with pytest.raises(DecodeError) as caught:
        decode(json.dumps(tree))
    assert caught.value.path == path


TYPED = {path for path, _ in _fields(EVERYTHING)}


@pytest.mark.slow
@for_every(SPOTS)
@pytest.mark.row("M-010")
def test_any_value_at_any_path_is_decoded_or_refused_there(path: str) -> None:
    refused = 0
    for stranger in REPLACEMENTS:
        try:
            message = decode(_with(SPOTS[path], stranger))
        except DecodeError as error:
            refused += 1
            assert error.path.startswith(path), (stranger, error)  # noqa: PT017 - it may be read
        else:
            assert decode(encode(message)) == message
    kind_of_opaque = path.endswith(".raw") and "citations" not in path and "invalid" not in path
    if path in TYPED:
        takes_any_value = SPOTS[path][-1] in ("ui", "value") or kind_of_opaque
        assert (refused == 0) is takes_any_value


@for_every(SPOTS)
@pytest.mark.row("M-010")
def test_duplicate_key_error_names_the_path(path: str) -> None:
    tree: Any = json.loads(FULL)
    spot = tree
    for step in SPOTS[path]:
        spot = spot[step]
    if not isinstance(spot, dict) or not spot:
        return
    key = next(iter(cast("dict[str, Any]", spot)))
    marked = json.dumps(_with_mark(tree, SPOTS[path]), ensure_ascii=False)
    for doubled in (f"{json.dumps(key)}:1", f'"\\u{ord(key[0]):04x}{key[1:]}":1'):
        with pytest.raises(DecodeError) as caught:
            decode(marked.replace('"@@": 0', doubled))
        assert caught.value.path == join_path(path, key)


def _with_mark(tree: Any, steps: tuple[Any, ...]) -> Any:
    spot = tree
    for step in steps:
        spot = spot[step]
    spot["@@"] = 0
    return tree


BLOCK = b'{"text":"hi","type":"text"}'


def in_input(raw: bytes) -> bytes:
    use = b'{"id":"t","input":{"a":%s},"name":"n","type":"tool_use"}' % raw
    return PLAIN.replace(BLOCK, use)


def in_unknown_field(raw: bytes) -> bytes:
    return PLAIN.replace(b'"role"', b'"new":%s,"role"' % raw)


def in_unknown_block(raw: bytes) -> bytes:
    return PLAIN.replace(BLOCK, b'{"new":%s,"type":"hologram"}' % raw)


def in_opaque(raw: bytes) -> bytes:
    return PLAIN.replace(BLOCK, b'{"issuer":"x","raw":%s,"type":"opaque"}' % raw)


def in_provider_raw(raw: bytes) -> bytes:
    return PLAIN.replace(b'"metadata":{}', b'"metadata":{"provider_raw":{"a":%s}}' % raw)


def in_created_at(raw: bytes) -> bytes:
    return PLAIN.replace(b'"2026-05-08T12:00:00.123456Z"', raw)


def in_usage(name: bytes, raw: bytes) -> bytes:
    data = b'"metadata":{"usage":{"cost_usd":"0.1","input_tokens":1,"latency_ms":1,'
    data += b'"output_tokens":1,"pricing_version":"v","reported_cost_usd":"0.1"}}'
    return PLAIN.replace(b'"metadata":{}', _set(data, name, raw))


def _set(data: bytes, name: bytes, raw: bytes) -> bytes:
    start = data.index(b'"%s":' % name) + len(name) + 3
    end = min(place for stop in b",}" if (place := data.find(stop, start)) > 0)
    return data[:start] + raw + data[end:]


FREE_PLACES = {
    "$.content[0].input.a": in_input,
    "$.new": in_unknown_field,
    "$.content[0].new": in_unknown_block,
    "$.content[0].raw": in_opaque,
    "$.metadata.provider_raw.a": in_provider_raw,
}


@pytest.mark.parametrize("path", FREE_PLACES)
@pytest.mark.parametrize(
    ("raw", "inner"),
    [
        (b'{"k":1,"k":2}', ".k"),
        (b'{"k":[{"":1,"":2}]}', '.k[0][""]'),
        (b"NaN", ""),
        (b"[1,-Infinity]", "[1]"),
        (b"Infinity", ""),
        (b'"\\ud800"', ""),
        (b'["a","\\udc00\\ud800"]', "[1]"),
        (b'{"\\ud800":1}', ""),
        (b'["\xff"]', "[0]"),
        (b'["\xed\xa0\x80"]', "[0]"),
        (b'["\x01"]', "[0]"),
        (b"[1,]", ""),
        (b"[01]", "[0]"),
        (b"[+1]", "[0]"),
        (b"[1.]", "[0]"),
        (b"['a']", "[0]"),
    ],
    ids=lambda value: repr(value)[:24],
)
@pytest.mark.row("M-010")
def test_invalid_json_error_names_the_path(path: str, raw: bytes, inner: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(FREE_PLACES[path](raw))
    assert caught.value.path.startswith(path + inner)


@pytest.mark.parametrize("path", FREE_PLACES)
@pytest.mark.parametrize(
    "number", [b"1e400", b"-1e400", b"5" * 5000], ids=["1e400", "-1e400", "5x5000"]
)
@pytest.mark.row("M-010")
def test_number_out_of_range_is_preserved_or_refused_with_path(path: str, number: bytes) -> None:
    data = FREE_PLACES[path](b'{"n":[%s]}' % number)
    outcomes: list[str] = []
    for each in (data, b" " + data):
        try:
            outcomes.append(encode(decode(each)).decode())
        except DecodeError as error:
            outcomes.append(error.path)
    assert outcomes in ([f"{path}.n[0]"] * 2, [data.decode()] * 2)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b"", "$"),
        (b" ", "$"),
        (b"\xef\xbb\xbf" + PLAIN, "$"),
        (PLAIN + b"x", "$"),
        (PLAIN + PLAIN, "$"),
        (b"null", "$"),
        (b"[]", "$"),
        (b'"message"', "$"),
        (b"5" * 5000, "$"),
        (b"{}", "$.content"),
        ("\ud800", "$"),
        (PLAIN.replace(b'"type":"text"', b'"type":1'), "$.content[0].type"),
        (PLAIN.replace(b'"type":"text"', b'"type":null'), "$.content[0].type"),
        (PLAIN.replace(b'"type":"text"', b'"type":["text"]'), "$.content[0].type"),
        (PLAIN.replace(b',"type":"text"', b""), "$.content[0].type"),
        (PLAIN.replace(BLOCK, b"null"), "$.content[0]"),
        (PLAIN.replace(BLOCK, b'"hi"'), "$.content[0]"),
        (PLAIN.replace(BLOCK, b"[]"), "$.content[0]"),
        (PLAIN.replace(b'"user"', b"null"), "$.role"),
        (PLAIN.replace(b'"schema_version":1', b'"schema_version":0'), "$.schema_version"),
        (PLAIN.replace(b'"schema_version":1', b'"schema_version":-1'), "$.schema_version"),
        (PLAIN.replace(b'"schema_version":1', b'"schema_version":1.5'), "$.schema_version"),
        (PLAIN.replace(b'"schema_version":1', b'"schema_version":true'), "$.schema_version"),
        (PLAIN.replace(b'"schema_version":1', b'"schema_version":"1"'), "$.schema_version"),
        (PLAIN.replace(b'"schema_version":1', b'"schema_version":null'), "$.schema_version"),
        (
            PLAIN.replace(b'"schema_version":1', b'"schema_version":1180591620717411303424'),
            "$.schema_version",
        ),
        (in_usage(b"input_tokens", b"1180591620717411303424"), "$.metadata.usage.input_tokens"),
        (in_usage(b"input_tokens", b"-9223372036854775809"), "$.metadata.usage.input_tokens"),
        (in_usage(b"latency_ms", b"1.5"), "$.metadata.usage.latency_ms"),
        (in_usage(b"latency_ms", b"true"), "$.metadata.usage.latency_ms"),
        (in_usage(b"cost_usd", b'"NaN"'), "$.metadata.usage.cost_usd"),
        (in_usage(b"cost_usd", b'"-Infinity"'), "$.metadata.usage.cost_usd"),
        (in_usage(b"cost_usd", b'"sNaN"'), "$.metadata.usage.cost_usd"),
        (in_usage(b"cost_usd", b'"1,5"'), "$.metadata.usage.cost_usd"),
        (in_usage(b"cost_usd", b'""'), "$.metadata.usage.cost_usd"),
        (in_usage(b"cost_usd", b"null"), "$.metadata.usage.cost_usd"),
        (in_usage(b"reported_cost_usd", b'"NaN"'), "$.metadata.usage.reported_cost_usd"),
        (in_usage(b"reported_cost_usd", b'"Infinity"'), "$.metadata.usage.reported_cost_usd"),
    ],
)
@pytest.mark.row("M-010", "M-031", "M-048", "M-103")
def test_common_mistake_error_names_the_path(data: bytes | str, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "raw",
    [
        b'"2026-05-08T12:00:00"',
        b'"2026-05-08T12:00:00.123456"',
        b'"2026-05-08T12:00:00.123456789Z"',
        b'"2026-05-08T12:00:00.0000001Z"',
        b'"2026-05-08"',
        b'"2026-13-08T12:00:00Z"',
        b'"2026-05-08T25:00:00Z"',
        b'"yesterday"',
        b'""',
        b"1778241600",
        b"null",
        b'"9999-12-31T23:59:59-05:00"',
        b'"0001-01-01T00:00:00+05:00"',
    ],
)
@pytest.mark.row("M-031")
def test_time_not_in_utc_microseconds_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(in_created_at(raw))
    assert caught.value.path == "$.created_at"


@pytest.mark.parametrize("kind", ["base64 ", "BASE64", "path", "", "file_id", "text"])
@pytest.mark.row("M-048")
def test_an_image_source_of_another_kind_is_refused(kind: str) -> None:
    data = encode(user(EVERY_BLOCK["image"])).replace(b'"base64"', json.dumps(kind).encode())
    with pytest.raises(DecodeError) as caught:
        decode(data)
    assert caught.value.path == "$.content[0].source.kind"


BOMBS = {
    "arrays": b"[" * MEGABYTES,
    "objects": b'{"a":' * (MEGABYTES // 5),
    "mixed": b'[{"a":' * (MEGABYTES // 6),
    "closed": b"[" * (MEGABYTES // 2) + b"]" * (MEGABYTES // 2),
    **{
        f"{make.__name__}_{name}": make(
            opening * (MEGABYTES // 6) + b"1" + closing * (MEGABYTES // 6)
        )
        for make in FREE_PLACES.values()
        for name, opening, closing in ((("arrays"), b"[", b"]"), (("objects"), b'{"a":', b"}"))
    },
    "nested_results": PLAIN.replace(
        BLOCK, b'{"content":[' * 10**5 + b'],"tool_use_id":"x","type":"tool_result"}' * 10**5
    ),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.row("M-010")
def test_nesting_bomb_is_refused(name: str) -> None:
    with pytest.raises(LimitError) as caught:
        decode(BOMBS[name])
    assert len(str(caught.value)) < 300
    assert caught.value.path.startswith("$")
    with pytest.raises(LimitError):
        decode_trusted(BOMBS[name])


@pytest.mark.row("M-010")
def test_wide_document_is_decoded() -> None:
    data = in_input(b"[" + b"1," * (MEGABYTES // 2) + b"1]")
    assert encode(decode(data)) == data


@pytest.mark.row("M-010")
def test_the_limits_are_settings() -> None:
    with pytest.raises(LimitError):
        decode(PLAIN, limits=Limits(max_bytes=len(PLAIN) - 1))
    assert decode(PLAIN, limits=Limits(max_bytes=len(PLAIN))) == user("hi")
    deep = in_unknown_field(b"[" * 99 + b"]" * 99)
    assert encode(decode(deep)) == deep
    with pytest.raises(LimitError):
        decode(deep, limits=Limits(max_depth=50))
    with pytest.raises(LimitError):
        decode(in_unknown_field(b"[" * 100 + b"]" * 100))
    deeper = in_unknown_field(b"[" * 200 + b"]" * 200)
    assert encode(decode(deeper, limits=Limits(max_depth=300))) == deeper


@pytest.mark.row("M-010")
def test_generous_limits_still_give_typed_errors() -> None:
    bomb = in_unknown_field(b"[" * 10**5 + b"]" * 10**5)
    with pytest.raises(DecodeError):
        decode(bomb, limits=Limits(max_depth=10**6))


@pytest.mark.row("M-010")
def test_a_deep_message_can_be_changed_and_written() -> None:
    data = in_input(b'{"a":' * 600 + b"1" + b"}" * 600)
    message = decode(data)
    assert encode(message) == data
    widened = type(message)(
        id=message.id,
        session_id=message.session_id,
        role=message.role,
        content=message.content,
        created_at=message.created_at,
        extra={"new": 1},  # pyright: ignore[reportArgumentType] - the constructor takes mappings too
    )
    with contextlib.suppress(MetisError):
        assert encode(widened) == data.replace(b'"role"', b'"new":1,"role"')
