"""Messages and blocks as text for people."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from metis.canonical import (
    ContentBlock,
    Message,
    MessageStatus,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from metis.cli.text import count, style
from metis.interchange.export import describe_block
from metis.projection.loss import Loss
from metis.wire.call import SIMULATED

# The pricing version of what costs nothing: a model on this machine, or the simulator.
FREE = "local"

_COLOURS = {
    Role.USER: "green",
    Role.ASSISTANT: "cyan",
    Role.TOOL: "yellow",
    Role.SYSTEM: "magenta",
    Role.DEVELOPER: "magenta",
}
_MAX_TEXT = 2000
_MAX_ARGUMENT = 60
_FENCE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n(.*?)(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def render_conversation(messages: Sequence[Message]) -> Iterator[str]:
    """Yield every message as text, then a line with their number and cost."""
    for message in messages:
        yield render_message(message) + "\n"
    cost = sum(m.metadata.usage.cost_usd for m in messages if m.metadata.usage is not None)
    yield style(f"{count(len(messages), 'message')}, ${cost}", dim=True)


def render_message(message: Message) -> str:
    """Return a message as text: a heading, the content, and the usage."""
    lines = [_heading(message)]
    for block in message.content:
        lines += _indent(render_block(block))
    usage = message.metadata.usage
    if usage is not None:
        lines += _indent(style(_render_usage(usage), dim=True))
    return "\n".join(lines)


def _heading(message: Message) -> str:
    metadata = message.metadata
    name = style(str(message.role), fg=_COLOURS.get(message.role), bold=True)
    details = [message.created_at.strftime("%Y-%m-%d %H:%M:%S")]
    if metadata.model:
        details.append(metadata.model)
    if metadata.routing is not None:
        details.append(f"{metadata.routing.mode}: {metadata.routing.reason}")
    if metadata.status is not MessageStatus.COMPLETE:
        details.append(str(metadata.status))
    return f"{name}  {style(' · '.join(details), dim=True)}"


def _indent(text: str) -> list[str]:
    # Only line breaks split: `splitlines` would remove other control characters unseen.
    return [f"  {line}" if line.strip() else "" for line in text.split("\n")]


def render_block(block: ContentBlock) -> str:
    """Return a block as text; media and unknown blocks become one line."""
    match block:
        case TextBlock():
            return shorten(block.text, _MAX_TEXT)
        case ThinkingBlock():
            return style(f"(thinking) {shorten(block.text, _MAX_TEXT)}", dim=True)
        case RedactedThinkingBlock():
            return style(describe_block(block), dim=True)
        case ToolUseBlock():
            return _render_call(block)
        case ToolResultBlock():
            return _render_result(block)
        case _:
            return describe_block(block)


def _render_call(call: ToolUseBlock) -> str:
    if call.invalid is not None:
        return f"→ {call.name}: invalid arguments, {call.invalid.error}: {call.invalid.raw!r}"
    arguments = ", ".join(
        f"{name}={shorten(msgspec.json.encode(value).decode(), _MAX_ARGUMENT)}"
        for name, value in call.input.items()
    )
    return f"→ {call.name}({arguments})"


def _render_result(result: ToolResultBlock) -> str:
    mark = style("✗ error", fg="red") if result.is_error else "←"
    parts = "\n".join(render_block(block) for block in result.content)
    return f"{mark} {parts}" if parts else f"{mark} (empty)"


def _render_usage(usage: Usage) -> str:
    cached = f" ({usage.cached_input_tokens} from cache)" if usage.cached_input_tokens else ""
    price = f"${usage.cost_usd} at prices of {usage.pricing_version}"
    free = {FREE: "free", SIMULATED: "simulated, free"}
    cost = free.get(usage.pricing_version, price)
    tokens = f"{usage.prompt_tokens} in{cached} · {usage.output_tokens} out"
    return f"{tokens} · {cost} · {usage.latency_ms} ms"


def shorten(text: str, length: int) -> str:
    """Cut a text to a length, and say how much is missing."""
    if len(text) <= length:
        return text
    return f"{text[:length]}… ({len(text) - length} more characters)"


def first_code(text: str) -> str:
    """Return the first fenced code block of a text, or the whole text if it has none."""
    fence = _FENCE.search(text)
    return fence[2] if fence else text


def loss_line(loss: Loss, numbers: Mapping[str, int]) -> str:
    """Return a loss as one line; `numbers` gives the position of each message by its id."""
    number = numbers.get(loss.message_id)
    location = loss.path if number is None else f"message {number} {loss.path}".removesuffix(" $")
    return f"{loss.change}: {loss.block_type} at {location}: {loss.reason}"


def message_numbers(messages: Sequence[Message]) -> dict[str, int]:
    """Return the position of each message by its id, from 1."""
    return {message.id: number for number, message in enumerate(messages, 1)}
