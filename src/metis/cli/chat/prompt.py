"""The prompt of a chat: several lines, an editor, history, long pastes and completion."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer
from prompt_toolkit.filters import Always, Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import DynamicStyle, Style

from metis.cli.chat.screen import Screen
from metis.cli.chat.theme import Theme
from metis.cli.chat.turn_parts import PROMPT_MARK
from metis.store.private_files import make_private_directory, make_private_file

MAX_PASTED_LINES = 8
# Longer pastes are shown as a placeholder and sent in full.
MAX_PASTED_CHARACTERS = 1000

_UNSAFE = re.compile("[\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]")
_PLACEHOLDER = re.compile(r"\[pasted (\d+): \d+ \w+\]")


class ChatPrompt:
    """Reads the next prompt of the user."""

    def __init__(
        self,
        *,
        history: Path,
        completer: Completer,
        status: Callable[[], str],
        screen: Screen,
    ) -> None:
        self._pastes: list[str] = []
        self._is_interrupted = False
        self._status = status
        self._session: PromptSession[str] = PromptSession(
            [("class:mark", PROMPT_MARK)],
            style=DynamicStyle(lambda: prompt_style(screen.theme)),
            color_depth=None if screen.has_colour else ColorDepth.DEPTH_1_BIT,
            history=_open_history(history),
            completer=completer,
            complete_while_typing=Condition(_is_completable),
            complete_in_thread=True,
            multiline=True,
            prompt_continuation="  ",
            bottom_toolbar=self._toolbar,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            key_bindings=self._bindings(),
            include_default_pygments_style=False,
            input_processors=[_ControlsProcessor()],
        )
        # Keeps the status line right below the text instead of at the bottom of the terminal.
        self._session.layout.current_window.dont_extend_height = Always()

    def redraw(self) -> None:
        """Draw the prompt again, in other colours."""
        self._session.app.invalidate()

    async def read(self, draft: str = "") -> str:
        """Return the text that the user sends; the prompt begins with a draft.

        Raises:
            KeyboardInterrupt: Ctrl-C at an empty prompt.
            EOFError: Ctrl-D at an empty prompt.
        """
        self._pastes.clear()
        text = await self._session.prompt_async(
            default=draft, handle_sigint=False, pre_run=self._apply_interrupt
        )
        return _PLACEHOLDER.sub(self._pasted_text, text)

    def interrupt(self) -> None:
        """Handle Ctrl-C as a signal: it ends this prompt, or the next one if none is open."""
        self._is_interrupted = True
        if self._session.app.is_running:
            self._apply_interrupt()

    def _apply_interrupt(self) -> None:
        if self._is_interrupted and not self._session.app.is_done:
            self._is_interrupted = False
            self._session.app.exit(exception=KeyboardInterrupt)

    def _pasted_text(self, placeholder: re.Match[str]) -> str:
        number = int(placeholder[1])
        return self._pastes[number - 1] if 0 < number <= len(self._pastes) else placeholder[0]

    def _toolbar(self) -> StyleAndTextTuples:
        return [("class:status", self._status())]

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        bindings.add("enter", filter=Condition(_is_writing))(_send)
        bindings.add("escape", "enter")(_break_line)
        # Enter arrives as c-j if it was pressed before the prompt was open.
        bindings.add("c-j", filter=Condition(_is_writing))(_send)
        bindings.add("c-c")(_clear_or_leave)
        bindings.add(Keys.BracketedPaste)(self._paste)
        return bindings

    def _paste(self, event: KeyPressEvent) -> None:
        """Insert pasted text, or a placeholder if it is long."""
        # Terminals send line breaks of a paste as carriage returns.
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if lines <= MAX_PASTED_LINES and len(text) <= MAX_PASTED_CHARACTERS:
            event.current_buffer.insert_text(text)
            return
        self._pastes.append(text)
        size = f"{lines} lines" if lines > 1 else f"{len(text)} characters"
        event.current_buffer.insert_text(f"[pasted {len(self._pastes)}: {size}]")


class _ControlsProcessor(Processor):
    """Shows characters of the prompt that the terminal would obey; the text itself stays.

    prompt_toolkit does so for control characters, but not for those that reverse or hide text.
    """

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Replace each such character by one sign, so that no position changes."""
        return Transformation(
            [
                (style, text if text.isprintable() else _UNSAFE.sub("\ufffd", text))
                for style, text, *_ in transformation_input.fragments
            ]
        )


def prompt_style(theme: Theme) -> Style:
    """Return the colours of prompts and lists in a theme."""
    return _style_of(theme.name(4, "ansiblue"), theme.name(8, "ansibrightblack"))


@cache
def _style_of(accent: str, muted: str) -> Style:
    return Style.from_dict(
        {
            "mark": f"bold {accent}",
            "current": f"bold {accent}",
            "detail": muted,
            "bottom-toolbar": "noreverse",
            "status": muted,
            "completion-menu": "noreverse bg:default",
            "completion-menu.completion": "noreverse bg:default fg:default",
            "completion-menu.completion.current": f"noreverse bold bg:default fg:{accent}",
            "completion-menu.meta.completion": f"noreverse bg:default fg:{muted}",
            "completion-menu.meta.completion.current": f"noreverse bg:default fg:{muted}",
            "scrollbar.background": "bg:default",
            "scrollbar.button": "bg:default",
        }
    )


def _open_history(path: Path) -> History:
    """Return the history of earlier prompts, in a file that only its owner may read."""
    try:
        make_private_directory(path.parent)
        make_private_file(path)
    except OSError:
        return InMemoryHistory()  # the store reports a directory that is not writable
    return FileHistory(path)


def _is_completable() -> bool:
    """Return whether the word at the cursor can be completed: a command, or a name after `@`."""
    text = get_app().current_buffer.document.text_before_cursor
    if text.startswith("/"):
        return "\n" not in text
    return text.split(" ")[-1].split("\n")[-1].startswith("@")


def _is_writing() -> bool:
    """Return whether no completion is selected that Enter would accept."""
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
