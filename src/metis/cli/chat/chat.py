"""A chat at a terminal, from the first prompt to the last."""

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Generator

from metis.canonical.errors import MetisError
from metis.cli.attachments import read_prompt
from metis.cli.chat.commands import run_command
from metis.cli.chat.completer import ChatCompleter
from metis.cli.chat.confirmation import ConfirmationDialog
from metis.cli.chat.keyboard import paste_mode
from metis.cli.chat.prompt import ChatPrompt
from metis.cli.chat.screen import Screen, is_cancelling, signal_handlers
from metis.cli.chat.state import ChatState
from metis.cli.chat.theme import terminal_colours
from metis.cli.chat.turn_parts import PROMPT_MARK, show_last_turns
from metis.cli.error_text import chat_error_text
from metis.cli.startup import StartedSession
from metis.version import __version__

log = logging.getLogger("metis.chat")

# The delay before modules are preloaded, so that the first prompt appears at once.
PRELOAD_DELAY_S = 0.1
# The exit code that shells report for a program that SIGTERM ended.
TERMINATED = 143

# Modules that the first response needs and the first prompt does not.
_PRELOADED = (
    "markdown_it.tree",
    "rich.syntax",
    "pygments.lexers.python",
    "metis.cli.chat.markdown",
)


async def run_chat(started: StartedSession) -> int:
    """Run a chat until the user leaves, and return the exit code."""
    return await Chat(started).run()


class Chat:
    """Reads prompts and commands, and runs them."""

    def __init__(self, started: StartedSession) -> None:
        self._screen = screen = Screen(theme=started.loaded.settings.theme)
        self._state = state = ChatState(started, screen)
        started.confirmation.handler = ConfirmationDialog(
            screen, state.keyboard, state.display.paused, state.display.stop
        )
        self._notice = started.notice
        self._prompt = None if screen.is_plain else _new_prompt(started, state)
        self._is_leaving = False
        self._command_task: asyncio.Task[bool] | None = None

    async def run(self) -> int:
        """Run until the user leaves."""
        self._greet()
        preparing = asyncio.create_task(self._prepare())
        reading = asyncio.create_task(self._read_prompts())
        with (
            self._terminal_modes(),
            signal_handlers(
                stop=self._stop, resized=self._state.display.resized, end=reading.cancel
            ),
        ):
            try:
                await reading
            except asyncio.CancelledError:
                if not reading.cancelled():
                    raise
                return TERMINATED
            finally:
                preparing.cancel()
                await self._state.discard_if_empty()
        return 0

    @contextlib.contextmanager
    def _terminal_modes(self) -> Generator[None]:
        screen, prompt = self._screen, self._prompt
        with contextlib.ExitStack() as stack:
            if prompt is not None:
                stack.enter_context(paste_mode())
                if screen.has_colour:
                    colours = terminal_colours(screen.theme, screen.send_sequence, prompt.redraw)
                    stack.enter_context(colours)
            yield

    async def _prepare(self) -> None:
        """Preload modules and the library while the user types; a failure only costs time later."""
        try:
            await asyncio.sleep(PRELOAD_DELAY_S)
            await asyncio.to_thread(_preload)
            await self._state.library.prepare()
        except (MetisError, OSError) as error:
            log.info("could not prepare the first response: %s", error)

    async def _read_prompts(self) -> None:
        while (text := await self._next_text()) is not None:
            self._is_leaving = False
            try:
                with self._state.keyboard.typed_ahead():
                    continues = await self._run(text)
                if not continues:
                    break
            # An error in one command must not end the chat.
            except Exception as error:
                if not isinstance(error, MetisError | OSError):
                    log.exception("a command failed")
                self._screen.print(f"{chat_error_text(error)}\n", "red")

    def _greet(self) -> None:
        self._screen.print(f"metis {__version__} · /help · Ctrl-D leaves", "dim")
        if self._notice:
            self._screen.print(self._notice, "dim")
        show_last_turns(self._state.session.messages, self._screen)
        self._screen.print("")

    async def _next_text(self) -> str | None:
        """Return what the user writes next; None if the user leaves."""
        while True:
            try:
                if self._prompt is None:
                    return await self._state.keyboard.line(PROMPT_MARK)
                draft, self._state.draft = self._state.draft, ""
                return await self._prompt.read(draft)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._is_leaving:
                    return None
                self._is_leaving = True
                self._screen.print("Press Ctrl-C again, or Ctrl-D, to leave", "dim")

    async def _run(self, text: str) -> bool:
        """Run a command or send a prompt; return whether the chat continues."""
        if not text.strip():
            return True
        if text.startswith("/"):
            return await self._run_command(text)
        prompt = read_prompt(text, self._state.library.models.catalog.aliases)
        for note in prompt.notes:
            self._screen.print(f"  + {note}", "dim")
        attached = tuple(self._state.attachments)
        self._state.attachments.clear()
        await self._state.send((*attached, *prompt.blocks), model=prompt.model)
        if self._screen.is_plain:
            self._screen.print(f"[{self._state.status()}]\n")
        return True

    async def _run_command(self, text: str) -> bool:
        """Run a command, which Ctrl-C stops; return whether the chat continues."""
        self._command_task = task = asyncio.create_task(run_command(self._state, text))
        try:
            return await task
        except asyncio.CancelledError:
            if is_cancelling():
                raise
            self._screen.print("stopped\n", "dim")
            return True
        finally:
            self._command_task = None

    def _stop(self) -> None:
        """Handle Ctrl-C as a signal: stop what runs, else interrupt the prompt."""
        # A confirmation question is answered first: the turn waits for it.
        task, state = self._command_task, self._state
        if state.keyboard.interrupt() or state.display.stop() or (task and task.cancel()):
            return
        if self._prompt is not None:
            self._prompt.interrupt()


def _new_prompt(started: StartedSession, state: ChatState) -> ChatPrompt:
    return ChatPrompt(
        history=started.paths.home / "history",
        completer=ChatCompleter(state),
        status=state.status,
        screen=state.screen,
    )


def _preload() -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
