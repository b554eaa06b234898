"""Calls: what a model asks of a tool and what the tool gave, in brief."""

from collections.abc import Mapping
from typing import Any

import msgspec
from rich.text import Text

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.cli.chat.letters import cut, harmless, one_line
from metis.cli.chat.rows import beside, wrapped
from metis.cli.render import count, render_block

SHOWN = 4
"""How many lines of a result are shown."""
_MARK = "● "
_VALUE = 60


def call_rows(call: ToolUseBlock, width: int) -> list[Text]:
    """A call on a row: the tool, and what it is given."""
    name = Text.assemble((_MARK, "blue"), (harmless(call.name), "bold"))
    if call.invalid is not None:
        name.append(f"  arguments that are no JSON: {call.invalid.error}", "red")
        return wrapped(name, width)
    room = max(width - len(name.plain) - 2, 10)
    return [Text.assemble(name, "  ", one_line(arguments(call.input), room))]


def arguments(values: Mapping[str, Any]) -> str:
    """Arguments in brief; a single one is told without its name."""
    if len(values) == 1:
        return _value(next(iter(values.values())), 4 * _VALUE)
    return "  ".join(f"{name}={_value(value, _VALUE)}" for name, value in values.items())


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
    first, *others = (Text(cut(line, width - 4), style) for line in lines[:SHOWN])
    rows = [*beside(mark, [first], style), *beside("    ", others)]
    if len(lines) > SHOWN:
        rows.append(Text(f"    … {count(len(lines) - SHOWN, 'more line')}", "dim"))
    return rows
