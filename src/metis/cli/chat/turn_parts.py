"""The parts of a turn as rows: text, thinking, tool calls, results and losses."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from rich.text import Text

from metis.canonical.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.chat.rows import prefix_rows, wrap
from metis.cli.chat.screen import Screen
from metis.cli.render import render_block
from metis.cli.text import count, one_line, truncate, unstyled, visible_controls
from metis.projection.loss import Change, Loss

PROMPT_MARK = "› "  # noqa: RUF001 - a typographic mark, not a greater-than sign
# The path of the reasoning option, whose loss is shown but does not need a confirmation.
REASONING_PATH = "$.reasoning"
TOOLS_PATH = "$.tools"
# In the reason of the loss of each tool if a model supports none.
NO_TOOLS_TEXT = "does not support tools"
MAX_LOSS_KINDS = 12
MAX_RESULT_LINES = 4
# How much of a line of thinking is drawn at once.
MAX_THINKING_PIECE = 4_000
# After so many lines of thinking the terminal breaks them: a row takes 30 microseconds.
_MAX_THINKING_LINES = 10_000
# How many turns of a resumed conversation are shown.
SHOWN_TURNS = 2

# Cache hints, keys that only one protocol has, joined messages, other names of a role.
_UNNOTICEABLE = frozenset({"hint", "key", "message", "system", "developer"})
_NOTICEABLE_OPTIONS = ("$.tools", "$.max_output_tokens")
# Fields of calls and results that each protocol writes in its own way.
_REFORMATTED_FIELDS = (".id", ".tool_use_id", ".name", ".input")
_KIND_NAMES = {
    "thinking": "thinking block",
    "tool_use": "tool call",
    "tool_result": "tool result",
    "hint": "cache hint",
}
_MAX_VALUE = 60

LossKey = tuple[str, str, str, str]


class RowStream(Protocol):
    """Turns text into rows as it arrives: finished rows, and rows that may still change."""

    def feed(self, text: str, width: int) -> list[Text]:
        """Add text, and return the rows that it finishes."""
        ...

    def tail(self, width: int) -> list[Text]:
        """Return the rows that are not finished, as they look now."""
        ...

    def end(self, width: int) -> list[Text]:
        """Return all remaining rows."""
        ...


class ThinkingStream:
    """Shows thinking: dim, behind a bar, line by line."""

    def __init__(self) -> None:
        self._partial_line = ""
        self._line_count = 0

    def feed(self, text: str, width: int) -> list[Text]:
        """Add text, and return the rows that it finishes."""
        *lines, partial_line = (self._partial_line + text).split("\n")
        # A line without an end is drawn in pieces: each redraw draws everything that is unfinished.
        end = len(partial_line) - len(partial_line) % MAX_THINKING_PIECE
        if end:
            lines.append(partial_line[:end])
        self._partial_line = partial_line[end:]
        wrapped = lines[: max(0, _MAX_THINKING_LINES - self._line_count)]
        self._line_count += len(lines)
        rows = [row for line in wrapped for row in _thinking_rows(line, width)]
        if len(wrapped) < len(lines):
            others = visible_controls("\n".join(lines[len(wrapped) :]))
            rows.append(Text("│ " + others.replace("\n", "\n│ "), "dim"))
        return rows

    def tail(self, width: int) -> list[Text]:
        """Return the rows that are not finished, as they look now."""
        return _thinking_rows(self._partial_line, width) if self._partial_line else []

    def end(self, width: int) -> list[Text]:
        """Return all remaining rows."""
        rows, self._partial_line = self.tail(width), ""
        return rows


def _thinking_rows(line: str, width: int) -> list[Text]:
    text = Text(visible_controls(line.removesuffix("\r")), "dim italic")
    return prefix_rows("│ ", wrap(text, width - 2), style="dim")


class CollapsedThinking:
    """Shows thinking as the number of its words only."""

    def __init__(self) -> None:
        self._space_count = 0

    def feed(self, text: str, width: int) -> list[Text]:
        """Count the words of more text."""
        del width
        self._space_count += text.count(" ") + text.count("\n")
        return []

    def tail(self, width: int) -> list[Text]:
        """Return a row that shows that the model is thinking."""
        del width
        return [Text("thinking …", "dim italic")]

    def end(self, width: int) -> list[Text]:
        """Return a row with the number of words."""
        del width
        words = count(self._space_count + 1, "word")
        return [Text(f"thinking (about {words}), /thinking show", "dim italic")]


def new_markdown_stream() -> RowStream:
    """Return a stream for the text of a response."""
    # The Markdown parser is imported while the first words arrive, so that the first prompt appears
    # earlier.
    from metis.cli.chat.markdown import MarkdownStream  # noqa: PLC0415 - see above

    return MarkdownStream()


def call_rows(call: ToolUseBlock, width: int) -> list[Text]:
    """Return a tool call on one row: the tool and its arguments."""
    name = Text.assemble(("● ", "blue"), (visible_controls(call.name), "bold"))
    if call.invalid is not None:
        name.append(f"  arguments are not valid JSON: {call.invalid.error}", "red")
        return wrap(name, width)
    remaining = max(width - len(name.plain) - 2, 10)
    return [Text.assemble(name, "  ", one_line(_arguments(call.input), remaining))]


def _arguments(values: Mapping[str, Any]) -> str:
    """Return arguments in brief; a single one without its name."""
    if len(values) == 1:
        return _value(next(iter(values.values())), 4 * _MAX_VALUE)
    return "  ".join(f"{name}={_value(value, _MAX_VALUE)}" for name, value in values.items())


def _value(value: Any, width: int) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return one_line(text, width)


def result_rows(message: Message, width: int) -> list[Text]:
    """Return the first lines of tool results, and how many more there are."""
    rows: list[Text] = []
    for result in message.content:
        if isinstance(result, ToolResultBlock):
            rows += _result_rows(result, width)
    return rows


def _result_rows(result: ToolResultBlock, width: int) -> list[Text]:
    text = unstyled("\n".join(render_block(block) for block in result.content)).strip("\n")
    lines = text.split("\n") if text else ["(empty)"]
    style, mark = ("red", "  ✗ ") if result.is_error else ("dim", "    ")
    first, *others = (
        # A line may have megabytes, and only its beginning is shown.
        Text(truncate(visible_controls(line[:width]), width - 4), style)
        for line in lines[:MAX_RESULT_LINES]
    )
    rows = [*prefix_rows(mark, [first], style), *prefix_rows("    ", others)]
    if len(lines) > MAX_RESULT_LINES:
        rows.append(Text(f"    … {count(len(lines) - MAX_RESULT_LINES, 'more line')}", "dim"))
    return rows


def show_last_turns(messages: Sequence[Message], screen: Screen) -> None:
    """Show the last turns of a conversation that is resumed."""
    shown = [message for message in messages if message.role is not Role.SYSTEM]
    starts = [index for index, message in enumerate(shown) if message.role is Role.USER]
    if not starts:
        return
    start = starts[-SHOWN_TURNS:][0]
    if start:
        screen.print(f"… {count(start, 'earlier message')}", "dim")
    rows: list[Text] = []
    for message in shown[start:]:
        rows += [Text(), *_message_rows(message, screen.width)]
    screen.write(rows)


def _message_rows(message: Message, width: int) -> list[Text]:
    """Return a message as it looked when it was new."""
    if message.role is Role.TOOL:
        return result_rows(message, width)
    if message.role is Role.USER:
        text = unstyled("\n".join(render_block(block) for block in message.content))
        first, *others = wrap(Text(visible_controls(text)), width - len(PROMPT_MARK))
        return [Text.assemble((PROMPT_MARK, "bold blue"), first), *prefix_rows("  ", others)]
    rows: list[Text] = []
    for block in message.content:
        match block:
            case TextBlock():
                stream = new_markdown_stream()
                rows += stream.feed(block.text, width) + stream.end(width)
            case ToolUseBlock():
                rows += call_rows(block, width)
            case _:
                pass
    return rows


def is_noticeable(loss: Loss) -> bool:
    """Return whether a person would miss something; other losses only concern the wire format."""
    is_dropped = loss.change is Change.DROPPED
    match loss.block_type:
        case "option":
            option = loss.path.partition("[")[0]
            return option == REASONING_PATH or (is_dropped and option in _NOTICEABLE_OPTIONS)
        case "text":
            return loss.path.endswith(".citations")  # other dropped text was only whitespace
        case "tool_use":
            is_field = loss.path.endswith(_REFORMATTED_FIELDS)
            return loss.change is not Change.SYNTHESISED and not is_field
        case "tool_result":
            return is_dropped or loss.as_text
        case "thinking":
            return is_dropped
        case kind:
            return kind not in _UNNOTICEABLE


def loss_key(loss: Loss) -> LossKey:
    """Return a key that is equal for losses which a person sees as the same."""
    return loss.adapter, loss.block_type, str(loss.change), loss.reason


def is_unsupported_tool(loss: Loss) -> bool:
    """Return whether a tool is left out because the model supports none."""
    return loss.path == TOOLS_PATH and NO_TOOLS_TEXT in loss.reason


def loss_rows(losses: Iterable[Loss], width: int, max_kinds: int = MAX_LOSS_KINDS) -> list[Text]:
    """Return one row for each kind of loss, with its number and reason."""
    kinds = Counter(
        ("tool", loss.reason.partition(":")[0])
        if is_unsupported_tool(loss)
        else (loss.block_type, loss.reason)
        for loss in losses
    )
    rows: list[Text] = []
    for (block_type, reason), number in kinds.most_common(max_kinds):
        name = count(number, _KIND_NAMES.get(block_type, block_type))
        # The row already begins with the kind.
        explanation = reason.removeprefix(f"{block_type} is ")
        text = Text.assemble(f"{name}: ", (visible_controls(explanation), "dim"))
        first, *others = wrap(text, width - 4)
        rows += [Text.assemble(("  · ", "dim"), first), *prefix_rows("    ", others)]
    if len(kinds) > max_kinds:
        rows.append(Text(f"  · and {len(kinds) - max_kinds} other kinds", "dim"))
    return rows


def reformatted_line(losses: Iterable[Loss]) -> str:
    """Return one line about what only changes its wire format; empty if nothing does."""
    kinds = Counter(_KIND_NAMES.get(loss.block_type, loss.block_type) for loss in losses)
    parts = ", ".join(count(number, kind) for kind, number in kinds.most_common())
    return f"Reformatted without loss: {parts}" if parts else ""
