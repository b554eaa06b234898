"""Content blocks: tags, fields, defaults, sources and immutability."""

import base64
import json
from typing import Any, get_args

import pytest
from msgspec import Raw

from build import EVERY_BLOCK, assistant, call, image, opaque, result, text, user
from metis.canonical import (
    Block,
    Citation,
    DocumentBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    decode,
    encode,
)
from metis.canonical.blocks import BLOCK_TYPES, KnownBlock
from metis.canonical.errors import EncodeError, InvalidValueError
from metis.canonical.value import Value, fields_of

OF_THE_SOURCE_TEXT = {
    "text": {"text"},
    "tool_use": {"id", "name", "input"},
    "tool_result": {"tool_use_id", "content", "is_error"},
    "image": {"source", "media_type"},
    "thinking": {"text", "signature"},
    "redacted_thinking": {"data"},
}
ADDED = {"document", "audio", "video", "artifact", "opaque"}


@pytest.mark.row("M-037", "M-039", "M-043", "M-059", "M-295")
def test_set_of_block_tags() -> None:
    assert set(BLOCK_TYPES) == set(OF_THE_SOURCE_TEXT) | ADDED == set(EVERY_BLOCK)
    assert set(BLOCK_TYPES.values()) == set(get_args(KnownBlock))
    for tag, kind in BLOCK_TYPES.items():
        assert issubclass(kind, Block)
        assert getattr(kind, "type", None) == kind.__struct_config__.tag == tag
    assert BLOCK_TYPES["audio"].__name__ == "AudioBlock"
    assert BLOCK_TYPES["video"].__name__ == "VideoBlock"


@pytest.mark.parametrize("tag", OF_THE_SOURCE_TEXT)
@pytest.mark.row("M-038", "M-039", "M-043", "M-045", "M-047", "M-052", "M-057")
def test_base_spec_blocks_have_their_fields_and_optional_additions(tag: str) -> None:
    fields = {field.name: field for field in fields_of(BLOCK_TYPES[tag])}
    assert set(fields) >= OF_THE_SOURCE_TEXT[tag]
    for name in set(fields) - OF_THE_SOURCE_TEXT[tag]:
        assert not fields[name].required, name
    optional = {"is_error", "signature"}
    for name in OF_THE_SOURCE_TEXT[tag] - optional:
        assert fields[name].required, name


@pytest.mark.row("M-046", "M-052")
def test_optional_fields_have_these_defaults() -> None:
    assert ToolResultBlock(tool_use_id="x", content=()).is_error is False
    assert TextBlock(text="a").critical is False
    assert TextBlock(text="a").citations == ()
    assert ToolUseBlock(id="x", name="f", input={}).invalid is None
    assert ThinkingBlock(text="a").signature is None


@pytest.mark.parametrize("kind", ["base64", "url", "file_ref"])
@pytest.mark.row("M-048")
def test_an_image_source_is_of_one_of_three_kinds(kind: Any) -> None:
    data = {"base64": "aWY=", "url": "https://example.org/a.png", "file_ref": "a/b.png"}[kind]
    block = image(source=ImageSource(kind=kind, data=data))
    written = json.loads(encode(user(block)))["content"][0]
    assert written == {
        "media_type": "image/png",
        "source": {"data": data, "kind": kind},
        "type": "image",
    }
    assert decode(encode(user(block))).content == (block,)


@pytest.mark.row("M-048")
def test_base64_data_is_preserved_exactly() -> None:
    data = base64.b64encode(bytes(range(256))).decode()
    again = decode(encode(user(image(data)))).content[0]
    assert again == image(data)


@pytest.mark.parametrize("kind", ["base64", "url", "file_ref", "text", "file_id"])
@pytest.mark.row("M-057")
def test_a_media_source_is_of_one_of_five_kinds(kind: Any) -> None:
    block = DocumentBlock(source=MediaSource(kind=kind, data="d"), media_type="text/plain")
    assert decode(encode(user(block))) == user(block)


@pytest.mark.row("M-042")
def test_non_object_input_is_stored_separately() -> None:
    block = ToolUseBlock(
        id="tu_1", name="f", input={}, invalid=InvalidInput(raw="[1,", error="cut off")
    )
    written = json.loads(encode(assistant(block)))["content"][0]
    assert written["input"] == {}
    assert written["invalid"] == {"error": "cut off", "raw": "[1,"}
    assert decode(encode(assistant(block))).content == (block,)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$.input.a"),
        ([0, float("inf")], "$.input.a[1]"),
        ({1: 2}, "$.input.a"),
        (b"bytes", "$.input.a"),
        ({"b": {1, 2}}, "$.input.a.b"),
        (object(), "$.input.a"),
        (1j, "$.input.a"),
    ],
)
@pytest.mark.row("M-042")
def test_input_refuses_non_json_values(value: object, path: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        call("f", a=value)
    assert caught.value.path == path


@pytest.mark.row("M-042")
def test_cyclic_input_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(InvalidValueError):
        ToolUseBlock(id="tu_1", name="f", input=loop)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes"])
@pytest.mark.row("M-010")
def test_free_fields_preserve_values(value: object) -> None:
    for make in (
        lambda: user(text("a", citations=(Citation(kind="x", raw={"n": value}),))),
        lambda: assistant(call("f", n=value)),
    ):
        with pytest.raises((InvalidValueError, EncodeError)):
            encode(make())


@pytest.mark.row("M-045")
def test_result_content_is_a_tuple_when_built_from_list() -> None:
    content: Any = [text("a"), image()]
    block = ToolResultBlock(tool_use_id="x", content=content)
    assert block.content == (text("a"), image())
    assert type(block.content) is tuple
    assert block == result("a", image(), answers="x")


@pytest.mark.row("M-057")
def test_opaque_part_is_preserved_byte_for_byte_and_readable() -> None:
    raw = b'{"b": [1.10, 1e5],\n "a" : "\\u0041"}'
    block = opaque(raw)
    assert block.data == {"b": [1.1, 100000.0], "a": "A"}
    again = decode(encode(user(block)))
    assert raw in encode(again)
    kept = again.content[0]
    assert isinstance(kept, OpaqueBlock)
    assert bytes(kept.raw) == raw
    assert kept == OpaqueBlock(issuer="anthropic", raw=Raw(raw))


@pytest.mark.parametrize("tag", EVERY_BLOCK)
@pytest.mark.row("M-012")
def test_blocks_are_hashable_values(tag: str) -> None:
    block = EVERY_BLOCK[tag]
    again = decode(encode(user(block))).content[0]
    assert {block: tag}[again] == tag
    assert isinstance(block, Value)
