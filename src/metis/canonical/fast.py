"""Fast path of validation: recognises common messages that cannot break a rule.

It duplicates the rules of the profile `full` in `metis.canonical.rules`;
`tests/canonical/test_fast.py` compares the two. True means that no rule is broken; False means
nothing: the rules have to be run.
"""

from typing import cast

from msgspec import UNSET

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.ids import CANONICAL_TOOL_ID_PATTERN
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, RoutingDecisionRecord, RoutingMode, Usage

_SAID = frozenset({TextBlock, ThinkingBlock, RedactedThinkingBlock})
_PICTURES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
# To look up a member of an enumeration takes ten times as long as to look up a name.
_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL
_USER, _SYSTEM, _DEVELOPER = Role.USER, Role.SYSTEM, Role.DEVELOPER
_RULE, _PATTERN = RoutingMode.RULE, RoutingMode.PATTERN
_is_tool_id = CANONICAL_TOOL_ID_PATTERN.fullmatch


def is_surely_valid(message: Message) -> bool:
    """Whether a message is of a common shape that keeps every rule of the profile `full`."""
    content, metadata = message.content, message.metadata
    role = message.role
    if role is _ASSISTANT:
        return bool(content) and _has_plain_provenance(metadata) and _are_said(content)
    if role is _TOOL:
        return len(content) == 1 and _is_plain_result(content[0], metadata)
    if role is _USER or role is _DEVELOPER:
        return bool(content) and _says_nothing_more(metadata) and _are_shown(content)
    if role is _SYSTEM:
        return bool(content) and _says_nothing_more(metadata) and _are_text(content)
    return False


def is_text_only(blocks: object) -> bool:
    """Whether blocks are nothing but text, so that their bytes cannot say anything else."""
    if type(blocks) is not tuple:
        return False
    for block in cast("tuple[object, ...]", blocks):
        if type(block) is TextBlock:
            is_plain = type(block.text) is str and block.citations == ()
        elif type(block) is ToolResultBlock:
            is_plain = (
                type(block.tool_use_id) is str
                and type(block.is_error) is bool
                and is_text_only(block.content)
            )
        else:
            return False
        if not is_plain or block.critical is not False or block.extra is not UNSET:
            return False
    return True


def _are_text(blocks: tuple[ContentBlock, ...]) -> bool:
    for block in blocks:  # noqa: SIM110 - a loop is twice as fast as `all`
        if type(block) is not TextBlock:
            return False
    return True


def _are_shown(blocks: tuple[ContentBlock, ...]) -> bool:
    for block in blocks:
        if type(block) is not TextBlock and (
            type(block) is not ImageBlock or block.media_type not in _PICTURES
        ):
            return False
    return True


def _are_said(blocks: tuple[ContentBlock, ...]) -> bool:
    for block in blocks:
        if type(block) in _SAID:
            continue
        if (
            type(block) is not ToolUseBlock
            or block.invalid is not None
            or not _is_tool_id(block.id)
        ):
            return False
    return True


def _is_plain_result(block: ContentBlock, metadata: MessageMetadata) -> bool:
    return (
        type(block) is ToolResultBlock
        and block.tool_use_id == metadata.parent_tool_use_id
        and _is_tool_id(block.tool_use_id) is not None
        and _says_nothing_more(metadata)
        and _are_shown(block.content)
    )


def _says_nothing_more(metadata: MessageMetadata) -> bool:
    return metadata.model is None and metadata.routing is None and metadata.usage is None


def _has_plain_provenance(metadata: MessageMetadata) -> bool:
    model, provider = metadata.model, metadata.provider
    routing, usage = metadata.routing, metadata.usage
    return (
        model is not None
        and provider is not None
        and bool(provider)
        and ":" not in provider
        and model.startswith(provider)
        and model[len(provider) : len(provider) + 1] == ":"
        and len(model) > len(provider) + 1
        and routing is not None
        and _is_plain_route(routing, model)
        and usage is not None
        and _counts_plainly(usage)
    )


def _is_plain_route(routing: RoutingDecisionRecord, model: str) -> bool:
    return (
        routing.chosen_model == model
        and bool(routing.reason)
        and routing.mode is not _RULE
        and routing.mode is not _PATTERN
        and routing.rule_name is None
        and routing.confidence is None
    )


def _counts_plainly(usage: Usage) -> bool:
    return (
        usage.input_tokens >= 0
        and 0 <= usage.reasoning_output_tokens <= usage.output_tokens
        and usage.cached_input_tokens >= 0
        and 0 <= usage.cache_creation_1h_input_tokens <= usage.cache_creation_input_tokens
        and usage.latency_ms >= 0
        and usage.cost_usd >= 0
        and bool(usage.pricing_version)
    )
