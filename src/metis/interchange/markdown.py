"""Conversations as Markdown."""

import re
from collections.abc import Iterator

import msgspec

from metis.canonical.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.cli.render import render_block
from metis.interchange.export import Conversation, ExportedFile, ExportLosses
from metis.projection.loss import Change

_TITLES = {
    Role.USER: "User",
    Role.ASSISTANT: "Assistant",
    Role.TOOL: "Tool",
    Role.SYSTEM: "Instructions",
    Role.DEVELOPER: "Instructions",
}


def write_markdown(talk: Conversation) -> ExportedFile:
    """Headings for who speaks, quotes for thoughts, code blocks for calls and results."""
    losses = ExportLosses("markdown")
    parts = [f"# {talk.session.id}", _facts(talk)]
    for message in talk.messages:
        parts.append(_heading(message))
        parts += _parts(message, losses)
    return ExportedFile(("\n\n".join(parts) + "\n").encode(), tuple(losses.losses))


def _facts(talk: Conversation) -> str:
    when = talk.session.created_at.strftime("%Y-%m-%d %H:%M UTC")
    return f"*{when}, {len(talk.messages)} messages*"


def _heading(message: Message) -> str:
    title = _TITLES.get(message.role, str(message.role))
    model = message.metadata.model
    return f"## {title} ({model})" if model else f"## {title}"


def _parts(message: Message, losses: ExportLosses) -> Iterator[str]:
    for place, block in enumerate(message.content):
        match block:
            case TextBlock():
                yield block.text
            case ThinkingBlock() if block.text:
                yield _quoted(block.text)
            case ToolUseBlock():
                arguments = msgspec.json.format(msgspec.json.encode(block.input)).decode()
                yield f"**calls `{block.name}`**\n\n{fenced(arguments, 'json')}"
            case ToolResultBlock():
                yield _result(message, place, block, losses)
            case _:
                yield _stand_in(message, place, block, losses)


def _result(message: Message, place: int, result: ToolResultBlock, losses: ExportLosses) -> str:
    texts: list[str] = []
    for block in result.content:
        if isinstance(block, TextBlock):
            texts.append(block.text)
        else:
            texts.append(_stand_in(message, place, block, losses))
    title = "**failed**\n\n" if result.is_error else ""
    return title + fenced("\n".join(texts))


def _stand_in(message: Message, place: int, block: ContentBlock, losses: ExportLosses) -> str:
    """A line in the place of what is no text."""
    losses.add(message, place, block, "only a line on it is written", Change.ALTERED)
    return f"*{render_block(block).strip()}*"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
