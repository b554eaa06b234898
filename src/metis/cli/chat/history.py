"""History: the end of a conversation, as it is shown when one comes back to it."""

from collections.abc import Sequence

from rich.text import Text

from metis.canonical.blocks import TextBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.chat.calls import call_rows, result_rows
from metis.cli.chat.flow import markdown_flow
from metis.cli.chat.letters import harmless
from metis.cli.chat.prompt import MARK
from metis.cli.chat.rows import beside, wrapped
from metis.cli.chat.talk import Talk
from metis.cli.render import count, render_block

SHOWN = 2
"""How many turns are shown."""


def show_last(talk: Talk) -> None:
    """Show the last turns of the session, if there are any."""
    messages = [each for each in talk.session.messages if each.role is not Role.SYSTEM]
    turns = [place for place, each in enumerate(messages) if each.role is Role.USER]
    if not turns:
        return
    start = turns[-SHOWN:][0]
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
        first, *others = wrapped(Text(harmless(words)), width - len(MARK))
        return [Text.assemble((MARK, "bold blue"), first), *beside("  ", others)]
    rows: list[Text] = []
    for block in message.content:
        match block:
            case TextBlock():
                flow = markdown_flow()
                rows += flow.feed(block.text, width) + flow.end(width)
            case ToolUseBlock():
                rows += call_rows(block, width)
            case _:
                pass
    return rows
