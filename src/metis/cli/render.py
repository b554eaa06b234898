"""Messages and blocks as text for people."""

import re
import textwrap
from collections.abc import Iterator

import click
import msgspec

from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    Message,
    MessageStatus,
    OpaqueBlock,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    Usage,
    VideoBlock,
)

_COLOUR = {
    Role.USER: "green",
    Role.ASSISTANT: "cyan",
    Role.TOOL: "yellow",
    Role.SYSTEM: "magenta",
    Role.DEVELOPER: "magenta",
}
FREE = "local"
"""The pricing version of what costs nothing: a model of one's own, or the simulator."""
_TEXT_SHOWN = 2000
_DATA_SHOWN = 60


def render_message(message: Message) -> str:
    """A message for people: a line on who speaks, the content, and what it cost."""
    lines = [_heading(message)]
    for block in message.content:
        lines += _indent(render_block(block))
    usage = message.metadata.usage
    if usage is not None:
        lines += _indent(click.style(_render_usage(usage), dim=True))
    return "\n".join(lines)


def _heading(message: Message) -> str:
    metadata = message.metadata
    name = click.style(str(message.role), fg=_COLOUR.get(message.role), bold=True)
    details = [message.created_at.strftime("%Y-%m-%d %H:%M:%S")]
    if metadata.model:
        details.append(metadata.model)
    if metadata.routing is not None:
        details.append(f"{metadata.routing.mode}: {metadata.routing.reason}")
    if metadata.status is not MessageStatus.COMPLETE:
        details.append(str(metadata.status))
    return f"{name}  {click.style(' · '.join(details), dim=True)}"


def _indent(text: str) -> list[str]:
    return textwrap.indent(text, "  ").splitlines()


def render_block(block: ContentBlock) -> str:  # noqa: PLR0911 - one short case a kind of block
    """A block for people."""
    match block:
        case TextBlock():
            return shorten(block.text, _TEXT_SHOWN)
        case ThinkingBlock():
            return click.style(f"(thinks) {shorten(block.text, _TEXT_SHOWN)}", dim=True)
        case RedactedThinkingBlock():
            return click.style("(thinks, sealed by its issuer)", dim=True)
        case ToolUseBlock():
            return _render_call(block)
        case ToolResultBlock():
            return _render_result(block)
        case ImageBlock():
            return f"[image {block.media_type}, {_where(block.source.kind, block.source.data)}]"
        case DocumentBlock() | AudioBlock() | VideoBlock() | ArtifactBlock():
            name = getattr(block, "name", None) or ""
            where = _where(block.source.kind, block.source.data)
            return " ".join(f"[{block.type} {name} {block.media_type}, {where}]".split())
        case OpaqueBlock():
            return (
                f"[{block.kind or 'opaque part'} of {block.issuer}, {len(bytes(block.raw))} bytes]"
            )
        case UnknownBlock():
            return f"[unknown block {block.type!r}, kept as it is]"


def _render_call(call: ToolUseBlock) -> str:
    if call.invalid is not None:
        return f"→ {call.name}: invalid arguments, {call.invalid.error}: {call.invalid.raw!r}"
    arguments = ", ".join(
        f"{name}={shorten(msgspec.json.encode(value).decode(), _DATA_SHOWN)}"
        for name, value in call.input.items()
    )
    return f"→ {call.name}({arguments})"


def _render_result(result: ToolResultBlock) -> str:
    mark = click.style("✗ error", fg="red") if result.is_error else "←"
    parts = "\n".join(render_block(block) for block in result.content)
    return f"{mark} {parts}" if parts else f"{mark} (nothing)"


def _render_usage(usage: Usage) -> str:
    read = f" ({usage.cached_input_tokens} from cache)" if usage.cached_input_tokens else ""
    price = f"${usage.cost_usd} at prices of {usage.pricing_version}"
    cost = "free" if usage.pricing_version == FREE else price
    tokens = f"{usage.prompt_tokens} in{read} · {usage.output_tokens} out"
    return f"{tokens} · {cost} · {usage.latency_ms} ms"


def _where(kind: str, data: str) -> str:
    if kind == "base64":
        return f"{len(data) * 3 // 4} bytes inline"
    if kind == "text":
        return f"{len(data)} characters inline"
    return shorten(data, _DATA_SHOWN)


def shorten(text: str, length: int) -> str:
    """A text cut to a length, with a word on how much is missing."""
    if len(text) <= length:
        return text
    return f"{text[:length]}… ({len(text) - length} more characters)"


def count(number: int, noun: str) -> str:
    """A number and its noun: 1 message, 2 messages."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def render_conversation(messages: list[Message]) -> Iterator[str]:
    """Every message for people, and a line on the whole at the end."""
    for message in messages:
        yield render_message(message) + "\n"
    usages = [message.metadata.usage for message in messages if message.metadata.usage is not None]
    cost = sum((usage.cost_usd for usage in usages), start=usages[0].cost_usd * 0 if usages else 0)
    yield click.style(f"{count(len(messages), 'message')}, ${cost}", dim=True)


_FENCE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n(.*?)(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


def first_code(text: str) -> str:
    """The first block of code in a text; all of it if there is none."""
    found = _FENCE.search(text)
    return found[2] if found else text
