"""Prompt: where people write; several lines, an editor, history, long pastes and completion."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer
from prompt_toolkit.filters import Always, Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

MARK = "› "  # noqa: RUF001 - meant to be calmer than a greater-than sign
PASTE_LINES = 8
PASTE_LETTERS = 1000
"""Longer pastes stand as a word in the prompt, and are sent as they are."""

_STYLE = Style.from_dict(
    {
        "mark": "bold ansiblue",
        "bottom-toolbar": "noreverse",
        "status": "ansibrightblack",
        "completion-menu": "noreverse bg:default",
        "completion-menu.completion": "noreverse bg:default fg:default",
        "completion-menu.completion.current": "noreverse bold bg:default fg:ansiblue",
        "completion-menu.meta.completion": "noreverse bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "noreverse bg:default fg:ansibrightblack",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:default",
    }
)
_PASTED = re.compile(r"\[pasted (\d+): \d+ \w+\]")


class Prompt:
    """Asks for the next words of the user."""

    def __init__(
        self,
        *,
        history: Path | None,
        completer: Completer,
        status: Callable[[], str],
        has_colour: bool,
    ) -> None:
        self._pastes: list[str] = []
        self._is_interrupted = False
        self._status = status
        self._session: PromptSession[str] = PromptSession(
            [("class:mark", MARK)],
            style=_STYLE,
            color_depth=None if has_colour else ColorDepth.DEPTH_1_BIT,
            history=_history(history),
            completer=completer,
            complete_while_typing=Condition(_is_completed),
            complete_in_thread=True,
            multiline=True,
            prompt_continuation="  ",
            bottom_toolbar=self._toolbar,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            key_bindings=self._keys(),
            include_default_pygments_style=False,
        )
        # The line with the status stands under the words, not at the foot of the terminal.
        self._session.layout.current_window.dont_extend_height = Always()

    async def ask(self) -> str:
        """The words that the user sends.

        Raises:
            KeyboardInterrupt: Ctrl-C at an empty prompt.
            EOFError: Ctrl-D at an empty prompt.
        """
        self._pastes.clear()
        text = await self._session.prompt_async(handle_sigint=False, pre_run=self._heed)
        return _PASTED.sub(self._unfold, text)

    def interrupt(self) -> None:
        """Ctrl-C came as a signal: the prompt that is there, or else the next one, hears of it."""
        self._is_interrupted = True
        if self._session.app.is_running:
            self._heed()

    def _heed(self) -> None:
        if self._is_interrupted and not self._session.app.is_done:
            self._is_interrupted = False
            self._session.app.exit(exception=KeyboardInterrupt)

    def _unfold(self, found: re.Match[str]) -> str:
        number = int(found[1])
        return self._pastes[number - 1] if 0 < number <= len(self._pastes) else found[0]

    def _toolbar(self) -> StyleAndTextTuples:
        return [("class:status", self._status())]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        keys.add("enter", filter=Condition(_is_writing))(_send)
        keys.add("escape", "enter")(_break_line)
        keys.add("c-j", filter=Condition(_is_writing))(_send)  # Enter, if typed ahead
        keys.add("c-c")(_clear_or_leave)
        keys.add(Keys.BracketedPaste)(self._paste)
        return keys

    def _paste(self, event: KeyPressEvent) -> None:
        """Long text stands as a word until it is sent."""
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if lines <= PASTE_LINES and len(text) <= PASTE_LETTERS:
            event.current_buffer.insert_text(text)
            return
        self._pastes.append(text)
        size = f"{lines} lines" if lines > 1 else f"{len(text)} letters"
        event.current_buffer.insert_text(f"[pasted {len(self._pastes)}: {size}]")


def _history(path: Path | None) -> History:
    """What was sent before, in a file that only its owner may read."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()  # a folder that cannot be written is told by the store
    return FileHistory(path)


def _is_completed() -> bool:
    """Whether the word under the cursor is one that is completed: a command, or behind `@`."""
    text = get_app().current_buffer.document.text_before_cursor
    if text.startswith("/"):
        return "\n" not in text
    return text.split(" ")[-1].split("\n")[-1].startswith("@")


def _is_writing() -> bool:
    """Whether no completion is chosen that Enter would take."""
    state = get_app().current_buffer.complete_state
    return state is None or state.current_completion is None


def _send(event: KeyPressEvent) -> None:
    if event.current_buffer.text.strip():
        event.current_buffer.validate_and_handle()


def _break_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _clear_or_leave(event: KeyPressEvent) -> None:
    if event.current_buffer.text:
        event.current_buffer.reset()
    else:
        event.app.exit(exception=KeyboardInterrupt)
