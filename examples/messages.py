"""Build, validate, encode and digest messages of the canonical form."""

from datetime import UTC, datetime
from decimal import Decimal

from msgspec import Raw

import metis
from metis import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    Extra,
    ImageBlock,
    ImageSource,
    MediaSource,
    Message,
    MessageMetadata,
    MessageStatus,
    MetisError,
    OpaqueBlock,
    Problem,
    RedactedThinkingBlock,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    Usage,
    VideoBlock,
    decode,
    encode,
    new_session_id,
    new_tool_use_id,
    new_ulid,
    validate,
    validate_session,
)

SESSION = new_session_id()
NOW = datetime(2026, 5, 8, tzinfo=UTC)


def message(role: Role, *content: ContentBlock, **metadata: object) -> Message:
    """Return a message of one session."""
    return Message(
        id=new_ulid(),
        session_id=SESSION,
        role=role,
        content=content,
        created_at=NOW,
        metadata=MessageMetadata(**metadata),  # pyright: ignore[reportArgumentType] - any field
    )


# A user sends text, an image and a document.
photo = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
paper = DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf")
speech = AudioBlock(MediaSource("base64", "UklGRg=="), "audio/wav")
clip = VideoBlock(MediaSource("url", "https://example.org/a.mp4"), "video/mp4")
prompt = message(Role.USER, TextBlock("What is on the image?"), photo, paper, speech, clip)

# The model thinks, calls a tool and stops; the tool returns a result.
call = ToolUseBlock(id=new_tool_use_id(), name="look", input={"closely": True})
usage = Usage(
    input_tokens=8,
    output_tokens=42,
    cost_usd=Decimal("0.000654"),
    pricing_version="2026-05-08",
    latency_ms=820,
)
decision = RoutingDecisionRecord(
    chosen_model="anthropic:claude-sonnet-4-6", mode=RoutingMode.MANUAL, reason="set by the user"
)
response = message(
    Role.ASSISTANT,
    ThinkingBlock("Look first.", signature="sealed", issuer="anthropic"),
    RedactedThinkingBlock("ZW5jcnlwdGVk"),
    call,
    status=MessageStatus.COMPLETE,
    stop_reason=StopReason.TOOL_USE,
    usage=usage,
    model="anthropic:claude-sonnet-4-6",
    provider="anthropic",
    routing=decision,
)
answer = ToolResultBlock(tool_use_id=call.id, content=(TextBlock("An owl."),))
result = message(Role.TOOL, answer, parent_tool_use_id=call.id)

# Rules are checked for one message or for a whole session; each problem has a path.
assert validate(prompt) == []
problems: list[Problem] = validate_session([prompt, response, result])
assert problems == []

# One message has exactly one encoding, and its digest is the same in every process.
data = encode(prompt)
assert decode(data) == prompt
assert decode(data).digest() == prompt.digest()

# A file that a model made, and a part that only its issuer understands.
chart = ArtifactBlock(MediaSource("base64", "iVBORw0KGgo="), "image/png", name="chart.png")
search = OpaqueBlock(issuer="anthropic", raw=Raw(b'{"type":"server_tool_use"}'))
later = message(Role.ASSISTANT, chart, search, stop_reason=StopReason.END_TURN)

# Blocks and fields of a newer version are kept and written back.
newer = encode(prompt).replace(b'{"text":"What', b'{"kind":9,"type":"hologram"},{"text":"What', 1)
unknown = decode(newer).content[0]
assert isinstance(unknown, UnknownBlock)
extended = decode(data.replace(b'"metadata":{}', b'"metadata":{"mood":"calm"}'))
assert isinstance(extended.metadata.extra, Extra)

# Every error of metis has one base class.
try:
    decode(b"{}")
except MetisError as error:
    print(error)

print(metis.__version__, metis.SPEC_VERSION, len(later.content))
