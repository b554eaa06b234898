"""Media for a target: types, sizes, base64, references, and text files."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant, call, image, system, text, tool, tool_id, user
from metis import adapters
from metis.adapters import AdapterOptions
from metis.canonical import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    VideoBlock,
)
from metis.canonical.errors import CriticalLossError
from metis.projection import Projection, Target, project
from metis.projection.media import is_base64, sniff_media_type
from metis.projection.message_order import OPENING_TEXT

TARGET = Target(
    adapter="toy",
    issuers=frozenset({"toy"}),
    user_blocks=frozenset({"text", "image"}),
    result_blocks=frozenset({"text", "image"}),
    image_media_types=frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"}),
    url_blocks=frozenset({"image"}),
)
HEADS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "image/gif": b"GIF89a\x01\x00\x01\x00",
    "image/webp": b"RIFF\x24\x00\x00\x00WEBPVP8 ",
}


def picture(kind: str) -> str:
    return base64.b64encode(HEADS[kind] + bytes(20)).decode()


def losses_of(projection: Projection) -> list[tuple[str, str, str]]:
    return [(loss.change.value, loss.block_type, loss.path) for loss in projection.losses]


@pytest.mark.row("T89")
@pytest.mark.parametrize("kind", HEADS)
def test_image_type_follows_its_bytes(kind: str) -> None:
    assert sniff_media_type(picture(kind)) == kind
    right = image(picture(kind), media_type=kind)
    assert project([user(right)], TARGET).losses == []
    wrong = replace(right, media_type="image/bmp")
    tool_call = call("f", tool_id())
    talk = [user(wrong), assistant(tool_call), tool(wrong, answers=tool_call.id)]
    projection = project(talk, TARGET)
    assert projection.messages[0].content == (right,)
    result = projection.messages[2].content[0]
    assert isinstance(result, ToolResultBlock)
    assert result.content == (right,)
    assert losses_of(projection) == [
        ("altered", "image", "$.content[0]"),
        ("altered", "image", "$.content[0].content[0]"),
    ]
    assert sniff_media_type("aWY=") is sniff_media_type("?") is None


@pytest.mark.row("T94")
def test_data_url_prefix_is_removed() -> None:
    data = picture("image/png")
    data_url = image(f"data:image/png;base64,{data}", media_type="image/jpeg")
    projection = project([user(data_url)], TARGET)
    assert projection.messages[0].content == (image(data),)
    assert losses_of(projection) == [("altered", "image", "$.content[0]")]


@pytest.mark.row("T91")
def test_size_limit_applies_to_sent_bytes() -> None:
    target = replace(TARGET, max_image_chars=100)
    small = image("A" * 100)
    assert project([user(small)], target).losses == []
    projection = project([user(image("A" * 101))], target)
    assert losses_of(projection) == [("altered", "image", "$.content[0]")]
    assert "101 characters" in projection.losses[0].reason


@pytest.mark.row("M-054")
@pytest.mark.parametrize("data", ["", "?", "a", "aW=Y", "aWYä", "YWJjY", "YWJj!"])
def test_invalid_base64_is_omitted_with_loss(data: str) -> None:
    broken = replace(image(), source=ImageSource("base64", data))
    tool_call = call("f", tool_id())
    talk = [user(broken), assistant(tool_call), tool(broken, answers=tool_call.id)]
    projection = project(talk, TARGET)
    assert losses_of(projection) == [
        ("altered", "image", "$.content[0]"),
        ("altered", "image", "$.content[0].content[0]"),
    ]
    assert {loss.reason for loss in projection.losses} == {
        "its data is not valid base64; replaced by a note"
    }
    with pytest.raises(CriticalLossError):
        project([user(replace(broken, critical=True))], TARGET)


@pytest.mark.row("T94")
@pytest.mark.parametrize("data", ["YWI-_w", "YWI+\r\n/w==", "YWI+/w", "YWI+/w=", "YWI+/x=="])
def test_base64_variants_are_normalised(data: str) -> None:
    document = DocumentBlock(MediaSource("base64", data), "application/pdf")
    target = replace(TARGET, user_blocks=frozenset({"text", "image", "document"}))
    projection = project([user(image(data), document)], target)
    sent = [block.source.data for block in projection.messages[0].content]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - media
    assert sent == ["YWI+/w==", "YWI+/w=="]
    assert losses_of(projection) == [
        ("altered", "image", "$.content[0]"),
        ("altered", "document", "$.content[1]"),
    ]


@given(st.binary() | st.text("AQBx+/=", max_size=9).map(str.encode))
def test_only_decodable_text_is_base64(data: bytes) -> None:
    assert is_base64(base64.b64encode(data).decode()) is bool(data)
    text = data.decode(errors="replace")
    try:
        plain = base64.b64encode(base64.b64decode(text, validate=True)).decode()
    except ValueError:
        plain = None
    assert is_base64(text) is (plain == text != "")


@pytest.mark.row("T93")
@pytest.mark.parametrize("url", ["gs://bucket/a.png", "s3://bucket/a.png", "file:///a.png"])
def test_unreachable_media_reference_is_a_loss(url: str) -> None:
    block = ImageBlock(ImageSource("url", url), "image/png")
    projection = project([user(block)], TARGET)
    assert losses_of(projection) == [("altered", "image", "$.content[0]")]
    web = ImageBlock(ImageSource("url", "https://example.org/a.png"), "image/png")
    assert project([user(web)], TARGET).losses == []


@pytest.mark.row("T93")
def test_google_storage_url_is_sent_only_to_vertex() -> None:
    image = ImageBlock(ImageSource("url", "gs://bucket/a.png"), "image/png")
    video = VideoBlock(MediaSource("url", "gs://bucket/a.mp4"), "video/mp4")
    vertex = adapters.get("vertex").to_wire([user(image, video)], (), AdapterOptions())
    parts = json.loads(vertex.body)["contents"][0]["parts"]
    assert [part["fileData"]["fileUri"] for part in parts] == [
        "gs://bucket/a.png",
        "gs://bucket/a.mp4",
    ]
    assert vertex.losses == []
    gemini = adapters.get("gemini").to_wire([user(image, video)], (), AdapterOptions())
    assert len(gemini.losses) == 2


STRICT = replace(TARGET, starts_with_user=True, accepts_trailing_space=False)


@pytest.mark.row("T76", "T77", "T84", "T176")
def test_conversation_starts_with_user_where_required() -> None:
    tool_call = call("f", tool_id())
    given: list[Message] = [
        system("s"),
        assistant(tool_call),
        tool("ok", answers=tool_call.id),
        user("on"),
    ]
    projection = project(given, STRICT)
    roles = [message.role for message in projection.messages]
    assert roles == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]
    assert projection.messages[1].content == (TextBlock(OPENING_TEXT),)
    assert losses_of(projection) == [("synthesised", "text", "$")]
    alone = project(given[:1], STRICT)
    assert projection.messages[:2] == alone.messages
    assert project([], STRICT).messages == []
    assert project(given, TARGET).losses == []


@pytest.mark.row("T79")
def test_trailing_blanks_of_last_message_are_removed_where_required() -> None:
    given = [user("go"), assistant(text("so "), text("far \n"))]
    projection = project(given, STRICT)
    assert projection.messages[1].content == (text("so "), text("far"))
    assert losses_of(projection) == [("altered", "text", "$.content[1]")]
    assert project([*given, user("on")], STRICT).losses == []


@pytest.mark.row("G-010")
@pytest.mark.parametrize(
    "kind",
    ["text/markdown", "text/csv; charset=utf-8", "application/json", "application/ld+json"],
)
def test_text_file_becomes_text_where_files_are_unsupported(kind: str) -> None:
    data = base64.b64encode(b"a,b\n").decode()
    table = DocumentBlock(MediaSource("base64", data), kind, name="t")
    taking = replace(
        TARGET,
        user_blocks=frozenset({"text", "document"}),
        document_media_types=frozenset({"application/pdf"}),
    )
    projection = project([user(table)], taking)
    assert projection.messages[0].content == (replace(table, source=MediaSource("text", "a,b\n")),)
    assert projection.losses == []
    told_as_text = project([user(table)], TARGET)
    assert told_as_text.messages[0].content == (text("t\n\na,b\n"),)
    assert losses_of(told_as_text) == [("altered", "document", "$.content[0]")]
    answers = [user("go"), assistant(call("f", tool_id(1))), tool(table, answers=tool_id(1))]
    (result,) = project(answers, TARGET).messages[2].content
    assert isinstance(result, ToolResultBlock)
    assert result.content == (text("t\n\na,b\n"),)


@pytest.mark.row("G-010")
@pytest.mark.parametrize(
    ("kind", "data"),
    [("text/plain", b"\xff\xfe"), ("application/zip", b"PK"), ("text/plain", b" ")],
)
def test_binary_file_becomes_a_note(kind: str, data: bytes) -> None:
    block = DocumentBlock(MediaSource("base64", base64.b64encode(data).decode()), kind)
    (note,) = project([user(block)], TARGET).messages[0].content
    assert note == text(f"[document {kind}: not shown to this model]")
