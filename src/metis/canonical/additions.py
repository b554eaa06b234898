"""Additions: what this project added to the source text, and the profile `strict` refuses."""

from collections.abc import Iterator, Mapping
from typing import cast

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
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, RoutingDecisionRecord, Usage
from metis.canonical.open_enum import OpenEnum
from metis.canonical.place import join
from metis.canonical.placement import Profile
from metis.canonical.unknown import UnknownBlock
from metis.canonical.value import Value, fields_of

SPEC_FIELDS: Mapping[type[Value], frozenset[str]] = {
    Message: frozenset(
        {"id", "session_id", "role", "content", "metadata", "created_at", "schema_version"}
    ),
    TextBlock: frozenset({"text"}),
    ToolUseBlock: frozenset({"id", "name", "input"}),
    ToolResultBlock: frozenset({"tool_use_id", "content", "is_error"}),
    ImageBlock: frozenset({"source", "media_type"}),
    ImageSource: frozenset({"kind", "data"}),
    ThinkingBlock: frozenset({"text", "signature"}),
    RedactedThinkingBlock: frozenset({"data"}),
    MessageMetadata: frozenset(
        {
            "model",
            "provider",
            "routing",
            "usage",
            "parent_tool_use_id",
            "status",
            "provider_raw",
            "user_id",
            "team_id",
        }
    ),
    RoutingDecisionRecord: frozenset(
        {
            "mode",
            "chosen_model",
            "reason",
            "rule_name",
            "confidence",
            "alternatives_considered",
        }
    ),
    Usage: frozenset(
        {
            "input_tokens",
            "output_tokens",
            "cached_input_tokens",
            "cache_creation_input_tokens",
            "cost_usd",
            "pricing_version",
            "latency_ms",
        }
    ),
}
"""The types of the source text with their fields; everything else is an addition."""

_TEXT = "it is no part of the source text"


def additions(message: Message, _: Profile) -> Iterator[tuple[str, str, str]]:
    """Row, path and text for every part of a message that the source text does not know."""
    if message.role == Role.DEVELOPER:
        yield "M-033", "$.role", f"the role {str(message.role)!r}: {_TEXT}"
    yield from _added(message, "$")


def _added(value: object, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, Value):
        yield from _added_fields(value, path)
    elif isinstance(value, tuple):
        for index, item in enumerate(cast("tuple[object, ...]", value)):
            yield from _added(item, join(path, index))
    elif isinstance(value, UnknownBlock):
        yield "M-037", path, f"the block {value.type!r}: {_TEXT}"
    elif isinstance(value, OpenEnum) and not value.is_known:
        yield "M-028", path, f"{value.value!r} is no {type(value).__name__}"


def _added_fields(value: Value, path: str) -> Iterator[tuple[str, str, str]]:
    known = SPEC_FIELDS.get(type(value))
    if known is None:
        kind = getattr(value, "type", type(value).__name__)
        yield "M-037", path, f"{kind!r}: {_TEXT}"
        return
    if value.extra is not UNSET:
        for name in value.extra:
            yield "M-037", join(path, name), _TEXT
    for field in fields_of(type(value)):
        content = getattr(value, field.name)
        if field.name in known:
            yield from _added(content, join(path, field.name))
        elif field.default is NODEFAULT or content is not field.default:
            yield "M-037", join(path, field.name), _TEXT
