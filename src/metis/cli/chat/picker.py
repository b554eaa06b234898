"""A list to choose from, which narrows while the user types."""

from collections.abc import Sequence

from msgspec import Struct
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.containers import HSplit, VSplit, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.layout import Layout
from prompt_toolkit.output import ColorDepth

from metis.cli.chat.prompt import prompt_style
from metis.cli.chat.screen import Screen
from metis.cli.text import cell_width, one_line, visible_controls

MAX_ROWS = 10
_HELP = "type to search · Up, Down, Enter · Esc cancels"
_GAP = 2


class Choice(Struct, frozen=True):
    """One row: what is chosen, how it is named, and a remark."""

    value: str
    label: str
    detail: str = ""


def fuzzy_score(pattern: str, text: str) -> int | None:
    """Return how well a text matches the words of a pattern, less is better; None if it does not.

    A word matches as a substring, which scores its position, or as a subsequence of letters, which
    scores 1000 plus the length of the gaps.

    >>> fuzzy_score("son", "claude-sonnet"), fuzzy_score("cls", "claude-sonnet")
    (7, 1006)
    >>> fuzzy_score("xyz", "claude-sonnet") is None
    True
    """
    folded, total = text.lower(), 0
    for word in pattern.lower().split():
        start = folded.find(word)
        if start >= 0:
            total += start
            continue
        position, gaps = -1, 0
        for letter in word:
            following = folded.find(letter, position + 1)
            if following < 0:
                return None
            gaps += following - position - 1
            position = following
        total += 1000 + gaps
    return total


def matching(choices: Sequence[Choice], pattern: str) -> list[Choice]:
    """Return the choices that match, the best first; without a pattern all in their order."""
    if not pattern.strip():
        return list(choices)
    scored = [
        (score, number, choice)
        for number, choice in enumerate(choices)
        if (score := fuzzy_score(pattern, f"{choice.label} {choice.detail}")) is not None
    ]
    return [choice for *_, choice in sorted(scored, key=lambda item: item[:2])]


class Picker:
    """Shows the choices below a line in which the user types."""

    def __init__(self, screen: Screen, title: str, choices: Sequence[Choice]) -> None:
        self._screen = screen
        self._title = title
        self._choices = choices
        self._matching = list(choices)
        self._index = 0
        self._buffer = Buffer(multiline=False, on_text_changed=self._search)

    async def pick(self) -> str | None:
        """Return the value that the user chooses; None if the user cancels."""
        typed = Window(BufferControl(self._buffer), height=1)
        prompt = Window(
            FormattedTextControl([("class:mark", f"{self._title} › ")]),  # noqa: RUF001 - the mark of the prompt
            height=1,
            dont_extend_width=True,
        )
        rows = Window(FormattedTextControl(self._rows), height=Dimension(max=MAX_ROWS + 1))
        application: Application[str | None] = Application(
            layout=Layout(HSplit([VSplit([prompt, typed]), rows]), focused_element=typed),
            key_bindings=self._bindings(),
            style=prompt_style(self._screen.theme),
            color_depth=None if self._screen.has_colour else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
        )
        # A lone Esc cancels at once, without the wait for the rest of a sequence.
        application.ttimeoutlen = 0.05
        return await application.run_async(handle_sigint=False)

    def _search(self, _: Buffer) -> None:
        self._matching = matching(self._choices, self._buffer.text)
        self._index = 0

    def _rows(self) -> StyleAndTextTuples:
        width = self._screen.width - 1
        first = max(min(self._index - MAX_ROWS // 2, len(self._matching) - MAX_ROWS), 0)
        shown = self._matching[first : first + MAX_ROWS]
        label_width = min(
            max((cell_width(_safe(choice.label)) for choice in shown), default=0), width // 2
        )
        fragments: StyleAndTextTuples = []
        for number, choice in enumerate(shown, first):
            is_current = number == self._index
            label = one_line(_safe(choice.label), label_width)
            padding = " " * (label_width - cell_width(label) + _GAP)
            detail_width = max(width - label_width - _GAP - 2, 0)
            style = "class:current" if is_current else ""
            fragments += [
                (style, f"{'›' if is_current else ' '} {label}{padding}"),  # noqa: RUF001 - the mark of the prompt
                ("class:detail", f"{one_line(_safe(choice.detail), detail_width)}\n"),
            ]
        hint = _HELP if self._matching else f"nothing matches · {_HELP}"
        more = len(self._matching) - len(shown)
        fragments.append(
            ("class:detail", one_line(f"{more} more · {hint}" if more else hint, width))
        )
        return fragments

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        for key in ("up", "c-p"):
            bindings.add(key)(self._previous)
        for key in ("down", "c-n", "tab"):
            bindings.add(key)(self._next)
        bindings.add("enter")(self._accept)
        bindings.add("c-j")(self._accept)
        for key in ("escape", "c-c", "c-d", "c-g"):
            bindings.add(key)(_cancel)
        return bindings

    def _previous(self, event: KeyPressEvent) -> None:
        del event
        self._move(-1)

    def _next(self, event: KeyPressEvent) -> None:
        del event
        self._move(1)

    def _move(self, step: int) -> None:
        if self._matching:
            self._index = (self._index + step) % len(self._matching)

    def _accept(self, event: KeyPressEvent) -> None:
        if self._matching:
            event.app.exit(result=self._matching[self._index].value)


def _cancel(event: KeyPressEvent) -> None:
    event.app.exit(result=None)


def _safe(text: str) -> str:
    return visible_controls(" ".join(text.split()))
