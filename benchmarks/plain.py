"""The floor: the canonical form as plain msgspec Structs, with no rule but its field types."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct

from metis.canonical import MessageStatus, OutcomeStatus, Role, RoutingMode, StopReason


class Block(Struct, omit_defaults=True, kw_only=True, tag_field="type"):
    critical: bool = False


class Citation(Struct, omit_defaults=True):
    kind: str
    cited_text: str | None = None
    url: str | None = None
    title: str | None = None
    start: int | None = None
    end: int | None = None
    raw: dict[str, Any] | None = None


class Text(Block, tag="text"):
    text: str
    citations: list[Citation] = []


class InvalidInput(Struct):
    raw: str
    error: str


class ToolUse(Block, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    invalid: InvalidInput | None = None


class ToolResult(Block, tag="tool_result"):
    tool_use_id: str
    content: "list[AnyBlock]"
    is_error: bool = False


class ImageSource(Struct):
    kind: Literal["base64", "url", "file_ref"]
    data: str


class Image(Block, tag="image"):
    source: ImageSource
    media_type: str


class Thinking(Block, tag="thinking"):
    text: str
    signature: str | None = None
    id: str | None = None
    format: str | None = None
    issuer: str | None = None


class RedactedThinking(Block, tag="redacted_thinking"):
    data: str
    id: str | None = None
    format: str | None = None
    issuer: str | None = None


class MediaSource(Struct, omit_defaults=True):
    kind: Literal["base64", "url", "file_ref", "text", "file_id"]
    data: str
    issuer: str | None = None


class Document(Block, tag="document"):
    source: MediaSource
    media_type: str
    name: str | None = None
    context: str | None = None


class Audio(Block, tag="audio"):
    source: MediaSource
    media_type: str
    transcript: str | None = None


class Video(Block, tag="video"):
    source: MediaSource
    media_type: str


class Artifact(Block, tag="artifact"):
    source: MediaSource
    media_type: str
    name: str | None = None
    id: str | None = None
    transcript: str | None = None


class Opaque(Block, tag="opaque"):
    issuer: str
    raw: Raw
    kind: str | None = None


AnyBlock = (
    Text
    | ToolUse
    | ToolResult
    | Image
    | Thinking
    | RedactedThinking
    | Document
    | Audio
    | Video
    | Artifact
    | Opaque
)


class Routing(Struct, omit_defaults=True):
    mode: RoutingMode
    chosen_model: str
    reason: str
    rule_name: str | None = None
    confidence: float | None = None
    alternatives_considered: list[str] = []


class Usage(Struct, omit_defaults=True):
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    pricing_version: str
    latency_ms: int
    cached_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0
    reasoning_output_tokens: int = 0
    estimated: bool = False
    reported_cost_usd: Decimal | None = None
    server_tool_requests: dict[str, int] | None = None
    service_tier: str | None = None


class Outcome(Struct, omit_defaults=True):
    status: OutcomeStatus
    tool_name: str | None = None
    value: Any = UNSET
    ui: Any = UNSET
    side_effects: list[Any] = []


class CacheHint(Struct, omit_defaults=True):
    after: int
    ttl: str | None = None


class Metadata(Struct, omit_defaults=True):
    model: str | None = None
    provider: str | None = None
    routing: Routing | None = None
    usage: Usage | None = None
    parent_tool_use_id: str | None = None
    status: MessageStatus = MessageStatus.COMPLETE
    provider_raw: Mapping[str, Any] | None = None
    user_id: str | None = None
    team_id: str | None = None
    stop_reason: StopReason | None = None
    response_id: str | None = None
    outcome: Outcome | None = None
    hints: list[CacheHint] = []
    options: Mapping[str, Any] | None = None
    parents: list[str] = []
    origin: str | None = None
    external: Mapping[str, Any] | None = None


class PlainMessage(Struct):
    id: str
    session_id: str
    role: Role
    content: list[AnyBlock]
    metadata: Metadata
    created_at: datetime
    schema_version: int = 1
