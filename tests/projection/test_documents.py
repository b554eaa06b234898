"""Documents for a target that restricts document names and requires accompanying text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant, call, image, numbered, tool, tool_id, user
from metis.canonical import CacheHint, DocumentBlock, MediaSource, Message, TextBlock
from metis.canonical.blocks import ToolResultBlock
from metis.canonical.metadata import MessageMetadata
from metis.projection import Projection, Target, project
from metis.projection.media import DOCUMENT_TEXT, document_name

TARGET = Target(
    adapter="toy",
    issuers=frozenset({"toy"}),
    user_blocks=frozenset({"text", "image", "document"}),
    result_blocks=frozenset({"text", "document"}),
    image_media_types=frozenset({"image/png"}),
    needs_document_names=True,
)
ACCEPTED = re.compile(r"[A-Za-z0-9()\[\]-]+(?: [A-Za-z0-9()\[\]-]+)*")


def document(name: str | None = None) -> DocumentBlock:
    return DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf", name)


def losses_of(projection: Projection) -> list[tuple[str, str, str]]:
    return [(loss.change.value, loss.block_type, loss.path) for loss in projection.losses]


def names(messages: list[Message] | Projection) -> list[str | None]:
    sent = messages.messages if isinstance(messages, Projection) else messages
    blocks = [block for message in sent for block in message.content]
    inner = [
        part
        for block in blocks
        for part in (block.content if isinstance(block, ToolResultBlock) else (block,))
    ]
    return [part.name for part in inner if isinstance(part, DocumentBlock)]


@pytest.mark.row("T95")
def test_invalid_name_is_replaced_with_loss() -> None:
    projection = project([user("read", document("Lease  2026.final.pdf"))], TARGET)
    assert names(projection) == ["Lease 2026-final-pdf"]
    assert losses_of(projection) == [("altered", "document", "$.content[1].name")]
    good = [user("read", document("Lease (1) [b]"))]
    projection = project(good, TARGET)
    assert (list(projection.messages), projection.losses) == (good, [])


@pytest.mark.row("T95")
def test_document_without_name_is_numbered() -> None:
    shown = user("read", document("a"), document(), document("???"))
    projection = project([shown], TARGET)
    assert names(projection) == ["a", "document-2", "document-3"]
    assert losses_of(projection) == [
        ("synthesised", "document", "$.content[2].name"),
        ("altered", "document", "$.content[3].name"),
    ]


@pytest.mark.row("T95")
def test_no_two_documents_share_a_name_not_even_in_results() -> None:
    tool_call = call("f", tool_id(1))
    talk = numbered(
        user("read", document("a.pdf"), document("a-pdf")),
        assistant(tool_call),
        tool("see", document("a.pdf"), answers=tool_call.id),
        user("and", document("a-pdf (2)")),
    )
    assert names(project(talk, TARGET)) == [
        "a-pdf",
        "a-pdf (2)",
        "a-pdf (3)",
        "a-pdf (2) (2)",
    ]


@pytest.mark.row("T95", "T176")
@given(st.lists(st.one_of(st.none(), st.text(max_size=8)), min_size=1, max_size=6))
def test_names_are_valid_unique_and_stable_when_conversation_grows(
    given_names: list[str | None],
) -> None:
    talk = numbered(*(user("read", document(name)) for name in given_names))
    document_names = [name or "" for name in names(project(talk, TARGET))]
    assert all(ACCEPTED.fullmatch(name) for name in document_names)
    assert len(set(document_names)) == len(document_names)
    for count in range(1, len(talk)):
        assert names(project(talk[:count], TARGET)) == document_names[:count]


@pytest.mark.row("T95")
def test_long_name_is_truncated_and_unique() -> None:
    first, second = names(project([user("read", document("x" * 300), document("x" * 300))], TARGET))
    assert first is not None
    assert second is not None
    assert (len(first), len(second)) == (200, 200)
    assert second.endswith(" (2)")
    assert document_name("") == ""


@pytest.mark.row("T95", "T96")
def test_documents_of_client_of_target_are_unchanged() -> None:
    native = user(document("a.b"), metadata=MessageMetadata(origin="toy"))
    projection = project(numbered(native, user("and", document("a.b"), document("a-b"))), TARGET)
    assert names(projection) == ["a.b", "a-b", "a-b (2)"]
    assert len(projection.messages[0].content) == 1


@pytest.mark.row("T96", "T84")
def test_text_is_added_to_document_without_text() -> None:
    projection = project([user(document("a"))], TARGET)
    assert projection.messages[0].content == (TextBlock(DOCUMENT_TEXT), document("a"))
    assert losses_of(projection) == [("synthesised", "text", "$.content")]
    assert DOCUMENT_TEXT.strip() == DOCUMENT_TEXT != ""


@pytest.mark.row("T96")
def test_blank_text_does_not_count_as_text() -> None:
    projection = project([user(" ", document("a"))], TARGET)
    assert TextBlock(DOCUMENT_TEXT) in projection.messages[0].content


@pytest.mark.row("T96")
def test_no_text_is_added_with_text_or_without_document() -> None:
    for shown in (user("read", document("a")), user(image("iVBORw0KGgo="))):
        projection = project([shown], TARGET)
        assert (projection.messages[0].content, projection.losses) == (shown.content, [])


@pytest.mark.row("T96", "T172")
def test_cache_mark_stays_at_its_block() -> None:
    hinted = user(document("a"), metadata=MessageMetadata(hints=(CacheHint(after=0),)))
    target = replace(TARGET, cache_marks=4)
    (sent,) = project([hinted], target).messages
    assert [hint.after for hint in sent.metadata.hints] == [1]
    # No mark may follow a document directly: it moves to the text before it.
    strict = replace(target, unmarkable_blocks=frozenset({"document", "video"}))
    (sent,) = project([hinted], strict).messages
    assert [hint.after for hint in sent.metadata.hints] == [0]


@pytest.mark.row("T95")
def test_names_used_by_client_of_target_are_not_reused() -> None:
    native = MessageMetadata(origin="toy")
    talk = numbered(
        user("read", document("a-pdf"), document(), metadata=native),
        user("and", document("a.pdf"), document()),
    )
    assert names(project(talk, TARGET)) == ["a-pdf", None, "a-pdf (2)", "document-4"]
