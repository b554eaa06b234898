"""Builders of messages and blocks: `user("hi")`, `assistant(call("read_file", path="a"))`."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from msgspec import Raw

from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    CacheHint,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    Message,
    MessageMetadata,
    OpaqueBlock,
    Outcome,
    OutcomeStatus,
    RedactedThinkingBlock,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    VideoBlock,
)
from metis.canonical.ids import int_to_ulid

NOW = datetime(2026, 5, 8, 12, 0, 0, 123456, tzinfo=UTC)
SESSION = "sess_42"
MODEL = "anthropic:claude-sonnet-4-6"


def ulid(number: int) -> str:
    """Return the ULID with a given number within a fixed day."""
    return int_to_ulid((1_778_241_600_000 << 80) + number)


def tool_id(number: int = 1) -> str:
    """Return a canonical tool id."""
    return f"tu_{ulid(number)}"


def text(words: str, **fields: Any) -> TextBlock:
    return TextBlock(text=words, **fields)


def call(name: str, tool_use_id: str | None = None, /, **arguments: Any) -> ToolUseBlock:
    return ToolUseBlock(id=tool_use_id or tool_id(), name=name, input=arguments)


def result(*content: ContentBlock | str, answers: str | None = None, **fields: Any) -> ContentBlock:
    return ToolResultBlock(tool_use_id=answers or tool_id(), content=_blocks(content), **fields)


def image(data: str = "aWY=", **fields: Any) -> ImageBlock:
    source = ImageSource(kind="base64", data=data)
    given: dict[str, Any] = {"source": source, "media_type": "image/png"}
    return ImageBlock(**given | fields)


def thinking(words: str = "hm", **fields: Any) -> ThinkingBlock:
    return ThinkingBlock(text=words, **fields)


def opaque(raw: bytes = b'{"type":"server_tool_use"}', **fields: Any) -> OpaqueBlock:
    return OpaqueBlock(issuer="anthropic", raw=Raw(raw), **fields)


def media(kind: Any = "base64", data: str = "aWY=") -> MediaSource:
    return MediaSource(kind=kind, data=data)


def usage(**fields: Any) -> Usage:
    given: dict[str, Any] = {
        "input_tokens": 8,
        "output_tokens": 42,
        "cost_usd": Decimal("0.000654"),
        "pricing_version": "2026-05-08",
        "latency_ms": 820,
    }
    return Usage(**given | fields)


def routing(**fields: Any) -> RoutingDecisionRecord:
    given: dict[str, Any] = {
        "mode": RoutingMode.DEFAULT,
        "chosen_model": MODEL,
        "reason": "workspace default",
    }
    return RoutingDecisionRecord(**given | fields)


def provenance(**fields: Any) -> MessageMetadata:
    """Return the provenance that every complete assistant message requires."""
    given: dict[str, Any] = {
        "model": MODEL,
        "provider": "anthropic",
        "routing": routing(),
        "usage": usage(),
    }
    return MessageMetadata(**given | fields)


def message(role: Role, *content: ContentBlock | str, **fields: Any) -> Message:
    given: dict[str, Any] = {"id": ulid(1), "session_id": SESSION, "created_at": NOW}
    return Message(role=role, content=_blocks(content), **given | fields)


def user(*content: ContentBlock | str, **fields: Any) -> Message:
    return message(Role.USER, *content, **fields)


def system(*content: ContentBlock | str, **fields: Any) -> Message:
    return message(Role.SYSTEM, *content, **fields)


def developer(*content: ContentBlock | str, **fields: Any) -> Message:
    return message(Role.DEVELOPER, *content, **fields)


def assistant(*content: ContentBlock | str, **fields: Any) -> Message:
    return message(Role.ASSISTANT, *content, **{"metadata": provenance()} | fields)


def tool(*content: ContentBlock | str, answers: str | None = None, **fields: Any) -> Message:
    """Return a TOOL message with one result of `content`."""
    answered = answers or tool_id()
    metadata = MessageMetadata(parent_tool_use_id=answered)
    return message(Role.TOOL, result(*content, answers=answered), **{"metadata": metadata} | fields)


def numbered(*messages: Message) -> list[Message]:
    """Return the messages with ids in order."""
    return [_with_id(ulid(100 + place), each) for place, each in enumerate(messages)]


def _with_id(new_id: str, old: Message) -> Message:
    return Message(
        id=new_id,
        session_id=old.session_id,
        role=old.role,
        content=old.content,
        metadata=old.metadata,
        created_at=old.created_at,
    )


def _blocks(content: tuple[ContentBlock | str, ...]) -> tuple[ContentBlock, ...]:
    return tuple(text(block) if isinstance(block, str) else block for block in content)


EVERY_BLOCK: dict[str, ContentBlock] = {
    "text": text(
        "Grüße 🦉\n",
        critical=True,
        citations=(
            Citation(
                kind="page_location",
                cited_text="so",
                url="https://example.org/a?b=c",
                title="A",
                start=0,
                end=2,
                raw={"type": "page_location", "n": [1, 1.5, None]},
            ),
        ),
    ),
    "tool_use": ToolUseBlock(
        critical=True,
        id=tool_id(1),
        name="read_file",
        input={"path": "README.md", "lines": [1, 2], "deep": {"b": None, "a": True}},
        invalid=InvalidInput(raw='{"path": ', error="unexpected end"),
    ),
    "tool_result": ToolResultBlock(
        critical=True,
        tool_use_id=tool_id(1),
        content=(text("# Project Foo"), image()),
        is_error=True,
    ),
    "image": image(critical=True),
    "thinking": thinking(
        "hm", critical=True, signature="c2ln", id="rs_1", format="anthropic", issuer="anthropic"
    ),
    "redacted_thinking": RedactedThinkingBlock(
        critical=True, data="ZW5j", id="rs_2", format="anthropic", issuer="anthropic"
    ),
    "document": DocumentBlock(
        critical=True,
        source=MediaSource(kind="file_id", data="file_1", issuer="anthropic"),
        media_type="application/pdf",
        name="a.pdf",
        context="the contract",
    ),
    "audio": AudioBlock(
        critical=True, source=media(), media_type="audio/wav", transcript="good morning"
    ),
    "video": VideoBlock(
        critical=True, source=media("url", "https://example.org/v.mp4"), media_type="video/mp4"
    ),
    "artifact": ArtifactBlock(
        critical=True,
        source=media("file_ref", "out/plot.png"),
        media_type="image/png",
        name="plot.png",
        id="ig_1",
        transcript="a plot",
    ),
    "opaque": opaque(b'{"type":"compaction","data":[1,2.50]}', critical=True, kind="compaction"),
}
"""One block of each tag with every field set."""

FULL_METADATA = MessageMetadata(
    external={"klaude": {"id": 7}},
    hints=(CacheHint(after=0, ttl="1h"),),
    model=MODEL,
    options={"temperature": 0.5, "stop": ["END"], "top_p": None},
    origin="import:klaude",
    outcome=Outcome(
        side_effects=("write", {"path": "a"}),
        status=OutcomeStatus.ERROR,
        tool_name="write_file",
        ui={"diff": "+a"},
        value=None,
    ),
    parent_tool_use_id=tool_id(1),
    parents=(ulid(7), ulid(8)),
    provider="anthropic",
    provider_raw={"stop_reason": "end_turn", "n": 1},
    response_id="msg_1",
    routing=routing(
        mode=RoutingMode.PATTERN,
        rule_name="cheap first",
        confidence=0.75,
        alternatives_considered=("openai:gpt-5", "ollama:llama-3.3-70b"),
    ),
    stop_reason=StopReason.TOOL_USE,
    team_id="team_1",
    usage=usage(
        cached_input_tokens=3,
        cache_creation_input_tokens=5,
        cache_creation_1h_input_tokens=2,
        reasoning_output_tokens=30,
        reported_cost_usd=Decimal("0.00070"),
        server_tool_requests={"web_search": 2},
        service_tier="standard",
        estimated=True,
    ),
    user_id="user_1",
)
"""Metadata with every field set; no real message has them all."""

EVERYTHING = Message(
    id=ulid(3),
    session_id=SESSION,
    role=Role.ASSISTANT,
    content=tuple(EVERY_BLOCK.values()),
    metadata=FULL_METADATA,
    created_at=NOW,
)
"""A message that breaks many rules and has every field of every type."""
