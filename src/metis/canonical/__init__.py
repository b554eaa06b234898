"""The canonical form: messages of typed blocks, their codec, rules, digests and tools."""

from typing import TYPE_CHECKING

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    Block,
    Citation,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.codec import (
    MIGRATIONS,
    Migrations,
    decode,
    decode_trusted,
    encode,
    json_schema,
)
from metis.canonical.errors import MetisError, Problem
from metis.canonical.ids import UlidSource, new_session_id, new_tool_use_id, new_ulid
from metis.canonical.message import SCHEMA_VERSION, Message, Role
from metis.canonical.metadata import (
    CacheHint,
    ChainPolicy,
    MessageMetadata,
    MessageStatus,
    Outcome,
    OutcomeStatus,
    RoutingDecisionRecord,
    RoutingMode,
    StopReason,
    Usage,
)
from metis.canonical.profiles import RuleProfile
from metis.canonical.reader import LIMITS, Limits
from metis.canonical.rules import RULES, check, validate, validate_session
from metis.canonical.tools import (
    SideEffects,
    ToolDefinition,
    ToolSet,
    decode_tool,
    encode_tool,
)
from metis.canonical.value import Extra, UnknownBlock
from metis.deprecation import renamed_names

__all__ = [
    "LIMITS",
    "MIGRATIONS",
    "RULES",
    "SCHEMA_VERSION",
    "ArtifactBlock",
    "AudioBlock",
    "Block",
    "CacheHint",
    "ChainPolicy",
    "Citation",
    "ContentBlock",
    "DocumentBlock",
    "Extra",
    "ImageBlock",
    "ImageSource",
    "InvalidInput",
    "Limits",
    "MediaSource",
    "Message",
    "MessageMetadata",
    "MessageStatus",
    "MetisError",
    "Migrations",
    "OpaqueBlock",
    "Outcome",
    "OutcomeStatus",
    "Problem",
    "RedactedThinkingBlock",
    "Role",
    "RoutingDecisionRecord",
    "RoutingMode",
    "RuleProfile",
    "SideEffects",
    "StopReason",
    "TextBlock",
    "ThinkingBlock",
    "ToolDefinition",
    "ToolResultBlock",
    "ToolSet",
    "ToolUseBlock",
    "UlidSource",
    "UnknownBlock",
    "Usage",
    "VideoBlock",
    "check",
    "decode",
    "decode_tool",
    "decode_trusted",
    "encode",
    "encode_tool",
    "json_schema",
    "new_session_id",
    "new_tool_use_id",
    "new_ulid",
    "validate",
    "validate_session",
]

if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"Profile": "RuleProfile"})
