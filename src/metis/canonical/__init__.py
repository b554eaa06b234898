"""The canonical form: typed messages made of typed blocks, and everything that is true of them."""

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
from metis.canonical.codec import decode, decode_trusted, encode
from metis.canonical.document import LIMITS, Limits
from metis.canonical.errors import MetisError
from metis.canonical.ids import UlidSource, new_session_id, new_tool_use_id, new_ulid
from metis.canonical.json_schema import json_schema
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
from metis.canonical.migrations import MIGRATIONS, Migrations
from metis.canonical.placement import Profile
from metis.canonical.problem import Problem
from metis.canonical.rules import RULES, check, validate
from metis.canonical.session_rules import validate_session
from metis.canonical.tools import SideEffects, ToolDefinition, ToolSet
from metis.canonical.unknown import Extra, UnknownBlock

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
    "Profile",
    "RedactedThinkingBlock",
    "Role",
    "RoutingDecisionRecord",
    "RoutingMode",
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
    "decode_trusted",
    "encode",
    "json_schema",
    "new_session_id",
    "new_tool_use_id",
    "new_ulid",
    "validate",
    "validate_session",
]
