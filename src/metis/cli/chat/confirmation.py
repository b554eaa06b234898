"""The confirmation of tool calls: a person sees all of a call, page by page, before it may run."""

import asyncio
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from rich.text import Text

from metis.canonical.errors import MetisError
from metis.cli.chat.keyboard import Keyboard
from metis.cli.chat.rows import prefix_rows, split_full, wrap
from metis.cli.chat.screen import Screen
from metis.cli.text import visible_controls
from metis.tools import Answer, Question, Verdict
from metis.tools.caution import cautions
from metis.tools.hidden_text import HIDDEN
from metis.tools.workspace import Workspace

VERDICT_KEYS = {"y": Verdict.ALLOW_ONCE, "s": Verdict.ALLOW_FOR_SESSION, "n": Verdict.DENY}
REASON_KEY = "w"
NEXT_PAGE, ALL_PAGES = " ", "a"
CHOICES = "Allow?  [y] yes  [s] always in this session  [n] no  [w] no, and say why"

_VERDICT_TEXTS = {
    Verdict.ALLOW_ONCE: "allowed once",
    Verdict.ALLOW_FOR_SESSION: "allowed for this session",
    Verdict.DENY: "not allowed",
}
# Rows below a page: an empty one, and the question, which may take two in a narrow terminal.
_QUESTION_ROWS = 3
_MIN_PAGE_ROWS = 4
# Larger files are shown as they will be: a diff of them takes seconds.
_MAX_DIFF_BYTES = 200_000
_MAX_DIFF_LINES = 2_000
# Further hidden characters of a text are shown without a style: each style costs time.
_MAX_MARKS = 1_000
_INDENT = "    "
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


class ConfirmationDialog:
    """Asks the user whether a tool call may run."""

    def __init__(
        self,
        screen: Screen,
        keyboard: Keyboard,
        paused: Callable[[str], AbstractContextManager[None]],
        stop: Callable[[], object],
    ) -> None:
        self._screen = screen
        self._keyboard = keyboard
        self._paused = paused
        self._stop = stop

    async def __call__(self, question: Question) -> Answer:
        """Return what the user decides; Ctrl-C denies the call and stops the turn."""
        width = self._screen.width
        # A call may have megabytes of arguments; the stream of another turn goes on meanwhile.
        rows, notes = await asyncio.to_thread(_dialog_rows, question, width)
        with self._paused(question.call.id):
            try:
                return await self._show(rows, notes) or await self._decide()
            except (KeyboardInterrupt, EOFError):
                self._stop()
                return Answer(Verdict.DENY)

    async def _show(self, rows: Sequence[Text], notes: Sequence[Text]) -> Answer | None:
        """Show all rows; return an answer if the user denies the call before the last page."""
        start = 0
        # A plain screen, such as a pipe, cannot wait for a key between pages.
        size = len(rows) if self._screen.is_plain else self._page_size(len(notes))
        while len(rows) - start > size:
            self._screen.write(rows[start : start + size])
            start += size
            page, pages = start // size, -(-len(rows) // size)
            message = (
                f"Page {page} of {pages}  [space] next  [a] all  [n] no  [w] no, and say why  "
            )
            key = await self._keyboard.key(message, NEXT_PAGE + ALL_PAGES + "n" + REASON_KEY)
            if key in ("n", REASON_KEY):
                return await self._answer(key)
            if key == ALL_PAGES:
                size = len(rows)
        self._screen.write([*rows[start:], *notes])
        return None

    def _page_size(self, note_count: int) -> int:
        return max(self._screen.height - note_count - _QUESTION_ROWS, _MIN_PAGE_ROWS)

    async def _decide(self) -> Answer:
        keys = "".join((*VERDICT_KEYS, REASON_KEY))
        return await self._answer(await self._keyboard.key(f"{CHOICES}  ", keys))

    async def _answer(self, key: str) -> Answer:
        if key != REASON_KEY:
            self._screen.print(f"{_INDENT}{_VERDICT_TEXTS[VERDICT_KEYS[key]]}", "dim")
            return Answer(VERDICT_KEYS[key])
        reason = await self._keyboard.line("tell the model: ")
        return Answer(Verdict.DENY, reason.strip())


def _dialog_rows(question: Question, width: int) -> tuple[list[Text], list[Text]]:
    """Return a call with all of its arguments, and what is unusual about it."""
    call, definition = question.call, question.definition
    name, effect = visible_controls(definition.name), str(definition.side_effects)
    rows = [Text.assemble(("● ", "yellow"), (name, "bold"), (f"  {effect}", "dim"))]
    for argument, lines in _shown_arguments(question):
        rows += _argument_rows(argument, lines, width)
    return rows, _note_rows(cautions(call, definition, question.context.workspace), width)


def _note_rows(notes: Sequence[str], width: int) -> list[Text]:
    rows: list[Text] = []
    for note in notes:
        first, *others = wrap(Text(visible_controls(note), "bold yellow"), width - len(_INDENT))
        rows += [Text.assemble(("  ! ", "bold yellow"), first), *prefix_rows(_INDENT, others)]
    return rows


def _shown_arguments(question: Question) -> Iterator[tuple[str, Sequence[Text]]]:
    """Yield the name and the lines of each argument; writes of a file are shown as a diff."""
    arguments, workspace = question.call.input, question.context.workspace
    match question.definition.name, arguments:
        case "write_file", {"path": str(path), "content": str(content)} if len(arguments) == 2:  # noqa: PLR2004 - these two
            yield "path", [_revealed(path)]
            yield _written_file(path, content, workspace)
        case "edit_file", {"old_text": str(old), "new_text": str(new), **others}:
            yield from ((name, _value_lines(value)) for name, value in others.items())
            removed = [f"-{line}" for line in old.split("\n")]
            added = [f"+{line}" for line in new.split("\n")]
            yield "changes", _diff_lines([*removed, *added])
        case _:
            yield from ((name, _value_lines(value)) for name, value in arguments.items())


def _written_file(
    path: str, content: str, workspace: Workspace | None
) -> tuple[str, Sequence[Text]]:
    """Return what a write changes in a file, or the whole content of a new or large one."""
    lines = content.split("\n")
    try:
        before = b"" if workspace is None else workspace.read_bytes(path, _MAX_DIFF_BYTES)
        old_lines = before.decode().split("\n")
    except (MetisError, OSError, UnicodeDecodeError):
        return "content", _value_lines(content)
    if not before or max(len(lines), len(old_lines)) > _MAX_DIFF_LINES:
        return "content", _value_lines(content)
    diff = difflib.unified_diff(old_lines, lines, lineterm="")
    # The first two lines would name the files, which the dialog does above.
    changed = list(diff)[2:]
    return "changes", _diff_lines(changed) if changed else [Text("none", "dim")]


def _diff_lines(lines: Sequence[str]) -> list[Text]:
    rows = [_revealed(line) for line in lines]
    for row in rows:
        row.stylize(_DIFF_STYLES.get(row.plain[:1], ""))
    return rows


def _value_lines(value: Any) -> list[Text]:
    if isinstance(value, Mapping | list | tuple):
        value = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return [_revealed(line) for line in text.split("\n")]


def _revealed(line: str) -> Text:
    """Return a line in which invisible characters are shown in reverse."""
    line = line.removesuffix("\r")
    text, position = Text(), 0
    for number, hidden in enumerate(HIDDEN.finditer(line)):
        text.append(visible_controls(line[position : hidden.start()]))
        shown = visible_controls(hidden[0])
        shown = f"\\u{ord(hidden[0]):04x}" if shown == hidden[0] else shown
        text.append(shown, "reverse" if number < _MAX_MARKS else "")
        position = hidden.end()
    text.append(visible_controls(line[position:]))
    return text


def _argument_rows(name: str, lines: Sequence[Text], width: int) -> list[Text]:
    """Return an argument as rows, broken where the terminal ends and nowhere else."""
    label = _revealed(name).plain
    if len(lines) == 1 and len(label) + len(lines[0].plain) + 6 <= width:
        return [Text.assemble((f"{_INDENT}{label}  ", "dim"), lines[0])]
    rows = [part for line in lines for part in split_full(line, width - len(_INDENT))]
    return [Text(f"{_INDENT}{label}", "dim"), *prefix_rows(_INDENT, rows)]
