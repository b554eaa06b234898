"""Transcript: a history told in words, in pieces that each fit into a window."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.projection.exchanges import told_call

Count = Callable[[str], int]
"""How many tokens a text takes."""

_LEAST_CHARS = 200
"""No piece is cut shorter: a window that does not take this takes nothing."""


def transcript(messages: Sequence[Message]) -> Iterator[str]:
    """What was said, a text for each exchange: the results of calls stand with the calls."""
    told: list[str] = []
    for message in messages:
        if message.role is Role.SYSTEM:
            continue
        if told and message.role is not Role.TOOL:
            yield "\n".join(told)
            told = []
        told.append(f"{message.role.value}: {_words(message.content)}")
    if told:
        yield "\n".join(told)


def pieces(texts: Iterable[str], most: int, count: Count) -> Iterator[str]:
    """The texts in as few pieces as fit; a text is cut only if it alone is too long."""
    held: list[str] = []
    size = 0
    for text in texts:
        for part in _parts(text, most, count):
            own = count(part)
            if held and size + own > most:
                yield "\n\n".join(held)
                held, size = [], 0
            held.append(part)
            size += own
    if held:
        yield "\n\n".join(held)


def _parts(text: str, most: int, count: Count) -> Iterator[str]:
    while (tokens := count(text)) > most and len(text) > _LEAST_CHARS:
        end = max(_LEAST_CHARS, len(text) * most // (tokens + 1))
        # Rather between two lines or words, if there are any near.
        near = max(text.rfind("\n", end // 2, end), text.rfind(" ", end // 2, end))
        end = near if near > 0 else end
        yield text[:end]
        text = text[end:]
    yield text


def _words(content: Sequence[ContentBlock]) -> str:
    return "\n".join(filter(None, map(_told, content)))


def _told(block: ContentBlock) -> str:
    match block:
        case TextBlock():
            return block.text
        case ToolUseBlock():
            return told_call(block).text
        case ToolResultBlock():
            return f"[{'failed' if block.is_error else 'gave'}: {_words(block.content)}]"
        case _:
            return f"[{block.type}]"
