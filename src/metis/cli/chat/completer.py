"""Completion of commands, models, sessions and files in the chat prompt."""

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from metis.cli.chat.commands import COMMANDS
from metis.cli.chat.commands.conversation import DISPLAY_MODES
from metis.cli.chat.state import ChatState
from metis.cli.stored_sessions import SHORT_ID
from metis.cli.text import one_line
from metis.settings.settings import AUTO, LEVELS

MOST = 200
"""How many files of a folder, or sessions, are offered."""
TITLE = 50


class ChatCompleter(Completer):
    """Completes commands and what stands behind them, and names behind `@`."""

    def __init__(self, talk: ChatState) -> None:
        self._talk = talk
        self._loop = asyncio.get_running_loop()

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """What the word before the cursor may become."""
        del complete_event
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            yield from self._command(text)
            return
        word = text.split(" ")[-1].split("\n")[-1]
        if word.startswith("@"):
            if word == text:
                yield from _starting(self._aliases(), word[1:])
            yield from _files(word[1:].removeprefix('"'))

    def _command(self, text: str) -> Iterator[Completion]:
        name, blank, argument = text.partition(" ")
        if not blank:
            for command in COMMANDS.values():
                if command.name.startswith(name[1:]):
                    yield Completion(
                        command.name, start_position=1 - len(name), display_meta=command.help
                    )
            return
        command = COMMANDS.get(name[1:])
        kind = "" if command is None else command.completes
        if kind == "model":
            yield from _starting({**self._aliases(), **self._ids()}, argument)
        elif kind == "command":
            yield from _starting({each.name: each.help for each in COMMANDS.values()}, argument)
        elif kind == "thinking":
            yield from _starting(dict.fromkeys((*LEVELS, AUTO, *DISPLAY_MODES), ""), argument)
        elif kind == "session":
            yield from _starting(self._sessions(), argument)
        elif kind == "file":
            yield from _files(argument)

    def _sessions(self) -> dict[str, str]:
        """The ends of the ids with the titles; asked of the loop, for this runs in a thread."""
        found = asyncio.run_coroutine_threadsafe(
            self._talk.library.store.overviews(MOST), self._loop
        ).result()
        return {each.session.id[-SHORT_ID:]: one_line(each.title, TITLE) for each in found}

    def _aliases(self) -> dict[str, str]:
        return dict(self._talk.library.models.catalog.aliases)

    def _ids(self) -> dict[str, str]:
        return dict.fromkeys(sorted(self._talk.library.models.catalog.entries), "")


def _starting(names: dict[str, str], start: str) -> Iterator[Completion]:
    for name, meta in names.items():
        if name.lower().startswith(start.lower()):
            yield Completion(name, start_position=-len(start), display_meta=meta)


def _files(start: str) -> Iterator[Completion]:
    """The files and folders whose path begins so; hidden ones only if asked for."""
    folder, _, name = start.rpartition("/")
    place = Path(f"{folder}/" if start.startswith("/") else folder or ".").expanduser()
    try:
        found = sorted(os.scandir(place), key=lambda each: each.name)
    except OSError:
        return
    fitting = (
        each
        for each in found
        if each.name.startswith(name) and (name.startswith(".") or not each.name.startswith("."))
    )
    for each, _ in zip(fitting, range(MOST), strict=False):
        end = "/" if each.is_dir() else ""
        yield Completion(each.name + end, start_position=-len(name))
