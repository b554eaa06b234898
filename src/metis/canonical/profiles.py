"""The two rule profiles: the allowed blocks of each role, and the fields that only `full` accepts.

`strict` is the base specification of the canonical form; `full` accepts the additions.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, cast

from msgspec import NODEFAULT, UNSET

from metis.canonical.blocks import (
    ImageBlock,
    ImageSource,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.json_value import join_path
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, RoutingDecisionRecord, Usage
from metis.canonical.value import OpenEnum, UnknownBlock, Value, fields_of

RuleProfile = Literal["strict", "full"]
"""`strict` is the base specification; `full` accepts the additions."""

_MEDIA_BLOCKS = frozenset({"image", "document", "audio", "video"})
_MODEL_BLOCKS = frozenset({"text", "tool_use", "thinking", "redacted_thinking"})

ALLOWED_BLOCKS: Mapping[RuleProfile, Mapping[Role, frozenset[str]]] = {
    "strict": {
        Role.USER: frozenset({"text", "image"}),
        Role.ASSISTANT: _MODEL_BLOCKS,
        Role.SYSTEM: frozenset({"text"}),
        Role.TOOL: frozenset({"tool_result"}),
    },
    "full": {
        Role.USER: frozenset({"text", "opaque"}) | _MEDIA_BLOCKS,
        Role.DEVELOPER: frozenset({"text", "opaque"}) | _MEDIA_BLOCKS,
        # Generated images are artifacts: the base specification forbids `image` in this role.
        Role.ASSISTANT: _MODEL_BLOCKS | {"artifact", "opaque"},
        Role.SYSTEM: frozenset({"text", "opaque"}),
        Role.TOOL: frozenset({"tool_result"}),
    },
}
"""The tags of the blocks that a message of each role may contain."""

ALLOWED_IN_TOOL_RESULT: Mapping[RuleProfile, frozenset[str]] = {
    "strict": frozenset({"text", "image"}),
    "full": frozenset({"text", "artifact", "opaque"}) | _MEDIA_BLOCKS,
}
"""The tags of the blocks that a tool result may contain."""

_ROLE_ROWS = {
    Role.USER: "M-125",
    Role.ASSISTANT: "M-128",
    Role.TOOL: "M-131",
    Role.SYSTEM: "M-133",
}
_PAIR_ROWS = {
    (Role.USER, "tool_use"): "M-126",
    (Role.USER, "tool_result"): "M-127",
    (Role.ASSISTANT, "tool_result"): "M-129",
    (Role.ASSISTANT, "image"): "M-130",
}


def misplaced_blocks(message: Message, profile: RuleProfile) -> Iterator[tuple[str, str, str]]:
    """Yield row, path and text for every block that is not allowed in its message or tool result.

    Unknown blocks and roles are from a newer version; `full` accepts them.
    """
    allowed = ALLOWED_BLOCKS[profile].get(message.role)
    for index, block in enumerate(message.content):
        path = f"$.content[{index}]"
        if allowed is not None and not _is_allowed(block, allowed, profile):
            row = _PAIR_ROWS.get((message.role, block.type)) or _ROLE_ROWS.get(message.role)
            text = f"a {message.role} message may not contain a {block.type} block"
            yield row or "M-125", path, text
        if isinstance(block, ToolResultBlock):
            yield from _misplaced_in_result(block, path, profile)


def _misplaced_in_result(
    result: ToolResultBlock, path: str, profile: RuleProfile
) -> Iterator[tuple[str, str, str]]:
    for index, inner in enumerate(result.content):
        if not _is_allowed(inner, ALLOWED_IN_TOOL_RESULT[profile], profile):
            text = f"a tool result may not contain a {inner.type} block"
            yield "M-045", f"{path}.content[{index}]", text


def _is_allowed(block: object, allowed: frozenset[str], profile: RuleProfile) -> bool:
    if isinstance(block, UnknownBlock):
        return profile == "full"
    return getattr(block, "type", None) in allowed


def _fields(names: str) -> frozenset[str]:
    return frozenset(names.split())


SPEC_FIELDS: Mapping[type[Value], frozenset[str]] = {
    Message: _fields("id session_id role content metadata created_at schema_version"),
    TextBlock: _fields("text"),
    ToolUseBlock: _fields("id name input"),
    ToolResultBlock: _fields("tool_use_id content is_error"),
    ImageBlock: _fields("source media_type"),
    ImageSource: _fields("kind data"),
    ThinkingBlock: _fields("text signature"),
    RedactedThinkingBlock: _fields("data"),
    MessageMetadata: _fields(
        "model provider routing usage parent_tool_use_id status provider_raw user_id team_id"
    ),
    RoutingDecisionRecord: _fields(
        "mode chosen_model reason rule_name confidence alternatives_considered"
    ),
    Usage: _fields(
        "input_tokens output_tokens cached_input_tokens cache_creation_input_tokens "
        "cost_usd pricing_version latency_ms"
    ),
}
"""The types of the base specification with their fields; everything else is an addition."""

NOTE_FIELDS: Mapping[type[Value], frozenset[str]] = {
    TextBlock: _fields("citations"),
    ThinkingBlock: _fields("id format issuer"),
    RedactedThinkingBlock: _fields("id format issuer"),
    MessageMetadata: _fields("stop_reason response_id outcome hints origin external"),
    Usage: _fields(
        "cache_creation_1h_input_tokens reasoning_output_tokens estimated reported_cost_usd "
        "server_tool_requests service_tier"
    ),
}
"""Added fields that `strict` accepts: a reader of the base specification may ignore them without
misunderstanding the message. Every response that metis stores has some of them."""

_NOT_IN_BASE = "not part of the base specification"


def additions(message: Message, _: RuleProfile) -> Iterator[tuple[str, str, str]]:
    """Yield row, path and text for every part of a message that is an addition."""
    if message.role == Role.DEVELOPER:
        yield "M-033", "$.role", f"the role {str(message.role)!r}: {_NOT_IN_BASE}"
    yield from _additions_in(message, "$")


def _additions_in(value: object, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, Value):
        yield from _added_fields(value, path)
    elif isinstance(value, tuple):
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            yield from _additions_in(item, join_path(path, index))
    elif isinstance(value, UnknownBlock):
        yield "M-037", path, f"the block {value.type!r}: {_NOT_IN_BASE}"
    elif isinstance(value, OpenEnum) and not value.is_known:
        yield "M-028", path, f"{value.value!r} is not a {type(value).__name__}"


def _added_fields(value: Value, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of a value that are additions, at any depth."""
    source_fields = SPEC_FIELDS.get(type(value))
    if source_fields is None:
        kind = getattr(value, "type", type(value).__name__)
        yield "M-037", path, f"{kind!r}: {_NOT_IN_BASE}"
        return
    if value.extra is not UNSET:
        for name in value.extra:
            yield "M-037", join_path(path, name), _NOT_IN_BASE
    for field in fields_of(type(value)):
        content = getattr(value, field.name)
        if field.name in source_fields:
            yield from _additions_in(content, join_path(path, field.name))
        elif field.name in NOTE_FIELDS.get(type(value), ()):
            if isinstance(content, OpenEnum):
                yield from _additions_in(content, join_path(path, field.name))
        # An added field with its default value is not encoded, so that the message has the form of
        # the base specification.
        elif field.default is NODEFAULT or content is not field.default:
            yield "M-037", join_path(path, field.name), _NOT_IN_BASE
