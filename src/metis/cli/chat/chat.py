"""Chat: a conversation at a terminal, from the first prompt to the last."""

import asyncio
import contextlib
import importlib
import logging

from metis.canonical.errors import MetisError
from metis.cli.attachments import read_prompt
from metis.cli.chat.commands import run_command
from metis.cli.chat.completer import ChatCompleter
from metis.cli.chat.history import show_last
from metis.cli.chat.keyboard import ConfirmationDialog
from metis.cli.chat.prompt import MARK, Prompt
from metis.cli.chat.screen import Screen, echo_disabled, is_cancelling, signal_handlers
from metis.cli.chat.state import ChatState
from metis.cli.error_text import chat_error_text
from metis.cli.startup import StartedSession
from metis.version import __version__

log = logging.getLogger("metis.chat")

DRAWING_S = 0.1
"""How long the first prompt has the processor for itself."""
TERMINATED = 143
"""The exit code of a program that was told to end."""

_LATER = (
    "markdown_it.tree",
    "rich.syntax",
    "pygments.lexers.python",
    "metis.cli.chat.markdown",
)
"""What the first answer needs and the first prompt does not."""


async def run(opened: StartedSession) -> int:
    """Talk until the user leaves; gives the exit code."""
    return await Chat(opened).run()


class Chat:
    """Reads what the user writes, and does it."""

    def __init__(self, opened: StartedSession) -> None:
        self._screen = screen = Screen()
        self._talk = talk = ChatState(opened.library, opened.session, screen)
        opened.confirmation.handler = ConfirmationDialog(
            screen, talk.keyboard, talk.stage.paused, talk.stage.stop
        )
        self._notice = opened.notice
        self._prompt = None if screen.is_plain else _prompt(opened, talk)
        self._is_leaving = False
        self._command_task: asyncio.Task[bool] | None = None

    async def run(self) -> int:
        """Talk until the user leaves."""
        self._greet()
        preparing = asyncio.create_task(self._prepare())
        listening = asyncio.create_task(self._listen())
        with (
            contextlib.nullcontext() if self._screen.is_plain else echo_disabled(),
            signal_handlers(
                stop=self._stop, resized=self._talk.stage.resized, end=listening.cancel
            ),
        ):
            try:
                await listening
            except asyncio.CancelledError:
                if not listening.cancelled():
                    raise
                return TERMINATED
            finally:
                preparing.cancel()
                await self._talk.discard_if_empty()
        return 0

    async def _prepare(self) -> None:
        """Load behind the first prompt what the first answer needs; it may also fail by itself."""
        try:
            await asyncio.sleep(DRAWING_S)
            await asyncio.to_thread(_load)
            await self._talk.library.prepare()
        except (MetisError, OSError) as error:
            log.info("the first answer will take longer: %s", error)

    async def _listen(self) -> None:
        while (text := await self._ask()) is not None:
            self._is_leaving = False
            try:
                if not await self._take(text):
                    break
            except Exception as error:
                if not isinstance(error, MetisError | OSError):
                    log.exception("a command broke")
                self._screen.say(f"{chat_error_text(error)}\n", "red")

    def _greet(self) -> None:
        self._screen.say(f"metis {__version__} · /help · Ctrl-D leaves", "dim")
        if self._notice:
            self._screen.say(self._notice, "dim")
        show_last(self._talk)
        self._screen.say("")

    async def _ask(self) -> str | None:
        """The next words of the user; None if there are no more."""
        while True:
            try:
                return await self._words()
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._is_leaving:
                    return None
                self._is_leaving = True
                self._screen.say("Ctrl-C again, or Ctrl-D, leaves", "dim")

    async def _words(self) -> str:
        if self._prompt is None:
            return await self._talk.keyboard.line(MARK)
        return await self._prompt.ask()

    async def _take(self, text: str) -> bool:
        """Do what the user wrote; whether to go on."""
        if not text.strip():
            return True
        if text.startswith("/"):
            return await self._command(text)
        said = read_prompt(text, self._talk.library.models.catalog.aliases)
        for note in said.notes:
            self._screen.say(f"  + {note}", "dim")
        await self._talk.send(said.blocks, model=said.model)
        if self._screen.is_plain:
            self._screen.say(f"[{self._talk.status()}]\n")
        return True

    async def _command(self, text: str) -> bool:
        """Do a command, which Ctrl-C stops; whether to go on."""
        self._command_task = task = asyncio.create_task(run_command(self._talk, text))
        try:
            return await task
        except asyncio.CancelledError:
            if is_cancelling():
                raise
            self._screen.say("stopped\n", "dim")
            return True
        finally:
            self._command_task = None

    def _stop(self) -> None:
        """Ctrl-C as a signal: stop what runs; if nothing does, the prompt hears of it."""
        task = self._command_task
        if self._talk.keyboard.interrupt() or self._talk.stage.stop() or (task and task.cancel()):
            return
        if self._prompt is not None:
            self._prompt.interrupt()


def _prompt(opened: StartedSession, talk: ChatState) -> Prompt:
    return Prompt(
        history=opened.places.home / "history",
        completer=ChatCompleter(talk),
        status=talk.status,
        has_colour=talk.screen.has_colour,
    )


def _load() -> None:
    for name in _LATER:
        importlib.import_module(name)
