"""The export formats by name, with the writers of Markdown and of canonical JSON."""

import io
import re
from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw

from metis.canonical import encode
from metis.canonical.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.interchange.export import (
    Conversation,
    ExportedFile,
    ExportLosses,
    Writer,
    describe_block,
    model_label,
)
from metis.interchange.framework_export import write_atif, write_pydantic_ai, write_vercel
from metis.interchange.html import write_html
from metis.interchange.training_data import write_finetune, write_sharegpt
from metis.projection.loss import Change

_TITLES = {
    Role.USER: "User",
    Role.ASSISTANT: "Assistant",
    Role.TOOL: "Tool",
    Role.SYSTEM: "Instructions",
    Role.DEVELOPER: "Instructions",
}


def write_markdown(conversation: Conversation) -> ExportedFile:
    """Write a heading for each message, quotes for thinking, code blocks for calls and results."""
    losses = ExportLosses("markdown")
    created = conversation.session.created_at.strftime("%Y-%m-%d %H:%M UTC")
    head = f"# {conversation.session.id}\n\n*{created}, {len(conversation.messages)} messages*"
    # The page grows by one part at a time: a list of parts would hold a long session twice.
    page = io.BytesIO()
    page.write(head.encode())
    for message in conversation.messages:
        page.write(b"\n\n" + _heading(message).encode())
        for part in _parts(message, losses):
            page.write(b"\n\n")
            page.write(part.encode())
    page.write(b"\n")
    return ExportedFile(page.getvalue(), tuple(losses.losses))


def _heading(message: Message) -> str:
    title = _TITLES.get(message.role, str(message.role))
    model = model_label(message)
    return f"## {title} ({model})" if model else f"## {title}"


def _parts(message: Message, losses: ExportLosses) -> Iterator[str]:
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                yield block.text
            case ThinkingBlock() if block.text:
                yield "\n".join(f"> {line}".rstrip() for line in block.text.splitlines())
            case ToolUseBlock():
                arguments = msgspec.json.format(msgspec.json.encode(block.input)).decode()
                yield f"**calls `{block.name}`**\n\n{fenced(arguments, 'json')}"
            case ToolResultBlock():
                yield _result(message, index, block, losses)
            case _:
                yield _placeholder(message, index, block, losses)


def _result(message: Message, index: int, result: ToolResultBlock, losses: ExportLosses) -> str:
    texts = [
        block.text if isinstance(block, TextBlock) else _placeholder(message, index, block, losses)
        for block in result.content
    ]
    title = "**failed**\n\n" if result.is_error else ""
    return title + fenced("\n".join(texts))


def _placeholder(message: Message, index: int, block: ContentBlock, losses: ExportLosses) -> str:
    losses.add(message, index, block, "written as a one-line note", Change.ALTERED)
    return f"*{describe_block(block)}*"


def fenced(text: str, language: str = "") -> str:
    """Return a code block whose fence is longer than any inside."""
    # A fence inside of the text would end the code block.
    longest = max((run.end() - run.start() for run in re.finditer(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def write_json(conversation: Conversation) -> ExportedFile:
    """Write the session and its messages in the canonical form, as one JSON document.

    Journal entries that are not messages (swaps, summaries, bookmarks) are not in it.
    """
    document = {
        "session": conversation.session,
        "messages": [Raw(encode(message)) for message in conversation.messages],
    }
    data = msgspec.json.encode(document)
    del document  # a long session would be in memory four times
    data = msgspec.json.format(data)
    return ExportedFile(data + b"\n")


WRITERS: Mapping[str, Writer] = {
    "markdown": write_markdown,
    "html": write_html,
    "json": write_json,
    "openai-finetune": write_finetune,
    "sharegpt": write_sharegpt,
    "pydantic-ai": write_pydantic_ai,
    "vercel": write_vercel,
    "atif": write_atif,
}
"""The writer of each format that people, frameworks or training programs read."""
