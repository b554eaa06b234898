"""History: the end of a conversation, as it is shown when one comes back to it."""

from collections.abc import Sequence

from rich.text import Text

from metis.canonical.blocks import TextBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.chat.prompt import MARK
from metis.cli.chat.rows import prefix_rows, wrap
from metis.cli.chat.state import ChatState
from metis.cli.chat.turn_parts import call_rows, new_markdown_stream, result_rows
from metis.cli.render import count, render_block
from metis.cli.text import visible_controls

SHOWN_TURNS = 2
"""How many turns are shown."""


def show_last(talk: ChatState) -> None:
    """Show the last turns of the session, if there are any."""
    messages = [each for each in talk.session.messages if each.role is not Role.SYSTEM]
    turns = [place for place, each in enumerate(messages) if each.role is Role.USER]
    if not turns:
        return
    start = turns[-SHOWN_TURNS:][0]
    if start:
        talk.screen.say(f"… {count(start, 'message')} before", "dim")
    talk.screen.write(message_rows(messages[start:], talk.screen.width))


def message_rows(messages: Sequence[Message], width: int) -> list[Text]:
    """Messages as they looked when they came."""
    rows: list[Text] = []
    for message in messages:
        rows += [Text(), *_rows(message, width)]
    return rows


def _rows(message: Message, width: int) -> list[Text]:
    if message.role is Role.TOOL:
        return result_rows(message, width)
    if message.role is Role.USER:
        words = "\n".join(render_block(block) for block in message.content)
        first, *others = wrap(Text(visible_controls(words)), width - len(MARK))
        return [Text.assemble((MARK, "bold blue"), first), *prefix_rows("  ", others)]
    rows: list[Text] = []
    for block in message.content:
        match block:
            case TextBlock():
                flow = new_markdown_stream()
                rows += flow.feed(block.text, width) + flow.end(width)
            case ToolUseBlock():
                rows += call_rows(block, width)
            case _:
                pass
    return rows
