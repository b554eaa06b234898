"""Details of the canonical form: limits, versions, ids, hints, citations and outcomes."""

from datetime import UTC, datetime

from metis import Message, MessageMetadata, Role, TextBlock, ToolDefinition, ToolUseBlock, canonical
from metis.canonical import (
    Block,
    CacheHint,
    ChainPolicy,
    Citation,
    InvalidInput,
    Limits,
    MetisError,
    Migrations,
    Outcome,
    OutcomeStatus,
    RuleProfile,
    SideEffects,
    ToolResultBlock,
    UlidSource,
    check,
    decode,
    decode_tool,
    decode_trusted,
    encode,
    encode_tool,
    json_schema,
)

NOW = datetime(2026, 5, 8, tzinfo=UTC)

# Ids of one source always increase.
ids = UlidSource()
first, second = ids.mint(), ids.mint()
assert first < second

# A text with a citation, and a hint that a reusable prefix ends after block 0.
source = Citation("web", url="https://example.org/owls", title="Owls", cited_text="270 degrees")
block: Block = TextBlock("Owls turn their heads by 270 degrees.", citations=(source,))
hint = CacheHint(after=0, ttl="1h")
message = Message(
    id=first,
    session_id="sess_example",
    role=Role.USER,
    content=(block,),
    created_at=NOW,
    metadata=MessageMetadata(hints=(hint,)),
)

# `check` returns a valid message, and raises with every problem of another.
profile: RuleProfile = "full"
assert check(message, profile) is message
print(f"{len(canonical.RULES)} rules")

# Bytes of `encode` are read faster with `decode_trusted`; other bytes have limits.
data = encode(message)
assert decode_trusted(data) == message
assert Limits() == canonical.LIMITS
try:
    decode(data, limits=Limits(max_bytes=10))
except MetisError as error:
    print(error)

# Versions: a message of another version goes through migrations.
assert message.schema_version == canonical.SCHEMA_VERSION
migrations: Migrations = canonical.MIGRATIONS
assert decode(data, migrations=migrations) == message

# Arguments that are not JSON, and how a call ended.
invalid = InvalidInput(raw='{"path": ', error="not JSON")
call = ToolUseBlock(id="tu_0", name="read_file", input={}, invalid=invalid)
outcome = Outcome(status=OutcomeStatus.ERROR, tool_name="read_file")
failed = Message(
    id=second,
    session_id="sess_example",
    role=Role.TOOL,
    content=(ToolResultBlock(call.id, (TextBlock("Invalid arguments."),), is_error=True),),
    created_at=NOW,
    metadata=MessageMetadata(parent_tool_use_id=call.id, outcome=outcome),
)
assert check(failed) is failed

# Tool definitions have a codec, messages a JSON Schema, and the routing chain seven slots.
definition = ToolDefinition("owls", "Count owls.", {"type": "object"}, SideEffects.NONE)
assert decode_tool(encode_tool(definition)) == definition
print(sorted(json_schema())[:3])
print([f"{slot} ({slot.mode})" for slot in ChainPolicy])
