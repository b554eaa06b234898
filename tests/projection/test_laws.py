"""The laws of the projection, on generated conversations and targets."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from build import NOW, SESSION, ulid
from metis.canonical import (
    CacheHint,
    ContentBlock,
    ImageBlock,
    Message,
    MessageMetadata,
    OpaqueBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    encode,
)
from metis.canonical.blocks import RedactedThinkingBlock
from metis.projection import Loss, Target, project
from metis.projection.message_order import is_opening
from metis.projection.pipeline import project_by_rules
from metis.projection.tool_calls import wire_tool_name
from strategies import Unknown, blocks, conversations

LOOSE = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
IDS = st.sampled_from(["", "a", "b", "functions.f:0", "tu_01"])

targets = st.builds(
    Target,
    adapter=st.just("toy"),
    issuers=st.just(frozenset({"toy", ""})),
    user_blocks=st.sets(st.sampled_from(["image", "document", "audio", "video"])).map(
        lambda tags: frozenset({"text", *tags})
    ),
    result_blocks=st.sets(st.sampled_from(["image", "document"])).map(
        lambda tags: frozenset({"text", *tags})
    ),
    image_media_types=st.just(frozenset({"image/png"})),
    url_blocks=st.sets(st.sampled_from(["image", "document"])).map(frozenset),
    accepts_text_documents=st.booleans(),
    accepts_document_context=st.booleans(),
    accepts_document_names=st.booleans(),
    accepts_tools=st.booleans(),
    accepts_raw_arguments=st.booleans(),
    tool_name_length=st.sampled_from([16, 64]),
    accepts_thinking=st.booleans(),
    needs_signatures=st.booleans(),
    developer_role=st.booleans(),
    system=st.sampled_from(["anywhere", "first"]),
    accepts_blank_text=st.booleans(),
    starts_with_user=st.booleans(),
    accepts_trailing_space=st.booleans(),
    max_image_chars=st.sampled_from([None, 4]),
    cache_marks=st.sampled_from([0, 1, 4]),
)


def harmless(block: ContentBlock, own_id: str) -> ContentBlock:
    """Return the block, not critical, with an id that other blocks may have too."""
    match block:
        case ToolUseBlock():
            return replace(block, critical=False, id=own_id)
        case ToolResultBlock():
            inner = tuple(harmless(each, own_id) for each in block.content)
            return replace(block, critical=False, tool_use_id=own_id, content=inner)
        case _:
            return cast("ContentBlock", replace(cast("Any", block), critical=False))


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Draw any conversation: valid or not, ids reused, calls and results anywhere."""
    if draw(st.booleans()):
        return draw(conversations())
    history: list[Message] = []
    for number in range(draw(st.integers(0, 6))):
        content = tuple(
            harmless(block, draw(IDS))
            for block in draw(st.lists(blocks(Unknown.NOTHING), max_size=3))
        )
        hints = draw(st.lists(st.builds(CacheHint, after=st.integers(0, 3)), max_size=2))
        history.append(
            Message(
                id=ulid(number),
                session_id=SESSION,
                role=draw(st.sampled_from(list(Role))),
                content=content,
                metadata=MessageMetadata(hints=tuple(hints)),
                created_at=NOW,
            )
        )
    return history


def faults(messages: Sequence[Message], target: Target) -> Iterator[str]:
    """Return what a target would not accept."""
    yield from role_faults(messages, target)
    waiting: list[str] = []
    call_ids: set[str] = set()
    for message in messages:
        if message.role == Role.TOOL:
            (result,) = message.content
            assert isinstance(result, ToolResultBlock)
            if not waiting or waiting.pop(0) != result.tool_use_id:
                yield f"{result.tool_use_id} is answered out of turn"
            yield from misplaced(message.role, result.content, target)
            continue
        if waiting:
            yield f"{waiting} are not answered at once"
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        waiting = [call.id for call in calls]
        if "" in waiting or len(set(waiting)) != len(waiting) or call_ids & set(waiting):
            yield f"ids {waiting}"
        call_ids |= set(waiting)
        if any(wire_tool_name(call.name, target.tool_name_length) != call.name for call in calls):
            yield "a name"
        yield from misplaced(message.role, message.content, target)
    if waiting:
        yield f"{waiting} are not answered"


def role_faults(messages: Sequence[Message], target: Target) -> Iterator[str]:
    speakers = [m.role for m in messages if m.role not in (Role.SYSTEM, Role.DEVELOPER)]
    if target.starts_with_user and messages and speakers[:1] != [Role.USER]:
        yield "no user begins"
    allowed = {Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.TOOL}
    is_leading = True
    for message in messages:
        is_leading = is_leading and message.role in (Role.SYSTEM, Role.DEVELOPER)
        is_developer = message.role == Role.DEVELOPER and is_leading and target.developer_role
        if not (message.role in allowed or is_developer) or not message.content:
            yield f"a {message.role} message with {len(message.content)} blocks"
        if message.role == Role.SYSTEM and not is_leading and target.system == "first":
            yield "a late system message"


def misplaced(role: Role, content: tuple[ContentBlock, ...], target: Target) -> Iterator[str]:
    signed = any(isinstance(block, ThinkingBlock | RedactedThinkingBlock) for block in content)
    for block in content:
        if isinstance(block, TextBlock):
            blank = not block.text.strip()
            if blank and not target.accepts_blank_text and not signed:
                yield f"blank text in a {role} message"
        elif block.type in ("thinking", "redacted_thinking", "tool_use"):
            if role != Role.ASSISTANT or (block.type != "tool_use" and not target.accepts_thinking):
                yield f"{block.type} in a {role} message"
        elif block.type == "opaque":
            if getattr(block, "issuer", None) not in target.issuers:
                yield "an opaque part of another issuer"
        else:
            accepted = target.result_blocks if role == Role.TOOL else target.user_blocks
            if role not in (Role.USER, Role.TOOL) or block.type not in accepted:
                yield f"{block.type} in a {role} message"


def is_reported_loss(message: Message, index: int, losses: list[Loss]) -> bool:
    mine = [loss.path for loss in losses if loss.message_id == message.id]
    return any(path == "$" or path.startswith(f"$.content[{index}]") for path in mine)


def parts(value: Any) -> Iterator[str]:
    """Return the values of a block that must be found in a request."""
    match value:
        case TextBlock():
            yield value.text
        case ToolUseBlock():
            yield value.name
        case ToolResultBlock():
            for inner in value.content:
                yield from parts(inner)
        case ThinkingBlock():
            yield value.text
        case ImageBlock():
            yield value.source.data
        case OpaqueBlock():
            yield bytes(value.raw).decode()
        case _:
            source = getattr(value, "source", None)
            yield getattr(source, "data", None) or getattr(value, "data", None) or ""


@pytest.mark.row("M-055", "M-065", "M-222", "T08", "T09", "T10", "T82", "T111", "T211", "T212")
@LOOSE
@given(histories(), targets)
def test_projection_is_valid_and_accounts_for_every_block(
    history: list[Message], target: Target
) -> None:
    before = [encode(message) for message in history]
    projection = project(history, target)
    assert [encode(message) for message in history] == before
    assert list(faults(projection.messages, target)) == []
    texts = [text for m in projection.messages for block in m.content for text in parts(block)]
    for message in history:
        for index, block in enumerate(message.content):
            carried = all(any(part in text for text in texts) for part in parts(block) if part)
            assert carried or is_reported_loss(message, index, projection.losses), (
                block,
                projection.losses,
            )


@pytest.mark.row("M-065")
@LOOSE
@given(histories(), targets)
def test_projection_is_idempotent(history: list[Message], target: Target) -> None:
    once = project(history, target).messages
    twice = project(once, target)
    assert [encode(message) for message in twice.messages] == [encode(each) for each in once]
    assert twice.losses == []


@pytest.mark.row("T176")
@LOOSE
@given(conversations(), targets)
def test_projection_of_prefix_is_stable(history: list[Message], target: Target) -> None:
    complete = [(sent.id, sent.role, sent.content) for sent in project(history, target).messages]
    for index, message in enumerate(history):
        if message.role == Role.ASSISTANT:
            sent = project(history[:index], target).messages
            # A prompt that is blank leaves nothing to send: the text that stands in for it goes
            # as soon as there is a prompt.
            if sent and is_opening(sent[-1]):
                continue
            assert complete[: len(sent)] == [(each.id, each.role, each.content) for each in sent]


@LOOSE
@given(messages=conversations(), target=targets)
@pytest.mark.parametrize("signature", ["", "placeholder"])
def test_fast_path_equals_general_path(
    signature: str, messages: list[Message], target: Target
) -> None:
    target = replace(target, placeholder_signature=signature)
    quick, careful = project(messages, target), project_by_rules(messages, target)
    assert list(quick.messages) == list(careful.messages)
    assert sorted(map(str, quick.losses)) == sorted(map(str, careful.losses))
    assert quick.call_ids == careful.call_ids
