"""The parts of a turn as rows: text, thinking, tool calls, results and losses."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
from rich.text import Text

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.cli.chat.rows import prefix_rows, wrap
from metis.cli.render import count, render_block
from metis.cli.text import cut_line, one_line, visible_controls
from metis.projection.loss import Change, Loss

_FORMAL = frozenset({"hint", "key", "message", "system", "developer"})
"""Marks for caches, keys that one protocol knows, turns that are joined, other names of a role."""
REASONING_PATH = "$.reasoning"
"""How much to think: what a model makes of it is told, and no reason to stay with another."""
_FELT_OPTIONS = ("$.tools", "$.max_output_tokens")
_PLACES = (".id", ".tool_use_id", ".name", ".input")
"""Where a call or a result is only spelled in another way."""
_KIND_NAMES = {
    "thinking": "thought",
    "tool_use": "call",
    "tool_result": "result",
    "hint": "cache mark",
}


def is_noticeable(loss: Loss) -> bool:
    """Whether something that was said or asked for is missing, or a shadow of what it was."""
    is_dropped = loss.change is Change.DROPPED
    match loss.block_type:
        case "option":
            where = loss.path.partition("[")[0]
            return where == REASONING_PATH or (is_dropped and where in _FELT_OPTIONS)
        case "text":
            return loss.path.endswith(".citations")  # else there were only blanks
        case "tool_use":
            return loss.change is not Change.SYNTHESISED and not loss.path.endswith(_PLACES)
        case "tool_result":
            return is_dropped or loss.reason.endswith("sent as text")
        case "thinking":
            return is_dropped
        case kind:
            return kind not in _FORMAL


def reformatted_line(losses: Iterable[Loss]) -> str:
    """What changes in its form only, on one line; empty if nothing does."""
    kinds = Counter(_KIND_NAMES.get(loss.block_type, loss.block_type) for loss in losses)
    told = ", ".join(count(times, kind) for kind, times in kinds.most_common())
    return f"Sent in another form, with the same meaning: {told}" if told else ""


MAX_LOSS_KINDS = 12
"""How many kinds of losses are told in full."""


LossKey = tuple[str, str, str, str]


def loss_key(loss: Loss) -> LossKey:
    """What makes two losses the same to a person."""
    return loss.adapter, loss.block_type, str(loss.change), loss.reason


def loss_rows(losses: Iterable[Loss], width: int, most: int = MAX_LOSS_KINDS) -> list[Text]:
    """One row for each kind of loss, with how often it happens."""
    kinds = Counter((loss.block_type, str(loss.change), loss.reason) for loss in losses)
    rows: list[Text] = []
    for (block, change, reason), times in kinds.most_common(most):
        often = f"{times} " if times > 1 else ""
        told = Text.assemble(f"{often}{block} ", (f"{change}: {visible_controls(reason)}", "dim"))
        first, *others = wrap(told, width - 4)
        rows += [Text.assemble(("  · ", "dim"), first), *prefix_rows("    ", others)]
    if len(kinds) > most:
        rows.append(Text(f"  · and {len(kinds) - most} other kinds", "dim"))
    return rows


MAX_RESULT_LINES = 4
"""How many lines of a result are shown."""
_MARK = "● "
_MAX_VALUE = 60


def call_rows(call: ToolUseBlock, width: int) -> list[Text]:
    """A call on a row: the tool, and what it is given."""
    name = Text.assemble((_MARK, "blue"), (visible_controls(call.name), "bold"))
    if call.invalid is not None:
        name.append(f"  arguments that are no JSON: {call.invalid.error}", "red")
        return wrap(name, width)
    room = max(width - len(name.plain) - 2, 10)
    return [Text.assemble(name, "  ", one_line(arguments(call.input), room))]


def arguments(values: Mapping[str, Any]) -> str:
    """Arguments in brief; a single one is told without its name."""
    if len(values) == 1:
        return _value(next(iter(values.values())), 4 * _MAX_VALUE)
    return "  ".join(f"{name}={_value(value, _MAX_VALUE)}" for name, value in values.items())


def _value(value: Any, length: int) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return one_line(text, length)


def result_rows(message: Message, width: int) -> list[Text]:
    """The first lines of a result, and how many there are beside."""
    rows: list[Text] = []
    for result in message.content:
        if isinstance(result, ToolResultBlock):
            rows += _result_rows(result, width)
    return rows


def _result_rows(result: ToolResultBlock, width: int) -> list[Text]:
    text = "\n".join(render_block(block) for block in result.content).strip("\n")
    lines = text.split("\n") if text else ["(nothing)"]
    style, mark = ("red", "  ✗ ") if result.is_error else ("dim", "    ")
    first, *others = (Text(cut_line(line, width - 4), style) for line in lines[:MAX_RESULT_LINES])
    rows = [*prefix_rows(mark, [first], style), *prefix_rows("    ", others)]
    if len(lines) > MAX_RESULT_LINES:
        rows.append(Text(f"    … {count(len(lines) - MAX_RESULT_LINES, 'more line')}", "dim"))
    return rows


class RowStream(Protocol):
    """Takes words; gives rows that are finished, and those that are not yet."""

    def feed(self, text: str, width: int) -> list[Text]:
        """Take more words, and give what is finished by them."""
        ...

    def tail(self, width: int) -> list[Text]:
        """What is not finished, as it looks now."""
        ...

    def end(self, width: int) -> list[Text]:
        """Give all that is left."""
        ...


class ThinkingStream:
    """Thoughts that are shown: dim, behind a bar, line by line."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str, width: int) -> list[Text]:
        """Take more words, and give what is finished by them."""
        *lines, self._rest = (self._rest + visible_controls(text)).split("\n")
        return [row for line in lines for row in _thought(line, width)]

    def tail(self, width: int) -> list[Text]:
        """What is not finished, as it looks now."""
        return _thought(self._rest, width) if self._rest else []

    def end(self, width: int) -> list[Text]:
        """Give all that is left."""
        rows, self._rest = self.tail(width), ""
        return rows


class CollapsedThinking:
    """Thoughts that are not shown; their words are counted."""

    def __init__(self) -> None:
        self._count = 0

    def feed(self, text: str, width: int) -> list[Text]:
        """Count more words."""
        del width
        self._count += text.count(" ") + text.count("\n")
        return []

    def tail(self, width: int) -> list[Text]:
        """A word on what goes on."""
        del width
        return [Text("thinking …", "dim italic")]

    def end(self, width: int) -> list[Text]:
        """A word on what went on."""
        del width
        return [Text(f"thought, about {self._count + 1} words · /thinking show", "dim italic")]


def _thought(line: str, width: int) -> list[Text]:
    return prefix_rows("│ ", wrap(Text(line, "dim italic"), width - 2), style="dim")


def new_markdown_stream() -> RowStream:
    """Words that are markdown."""
    # Loaded while the first words are written, and not before the first prompt.
    from metis.cli.chat.markdown import MarkdownStream  # noqa: PLC0415 - the reason stands above

    return MarkdownStream()
