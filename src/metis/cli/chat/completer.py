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
from metis.cli.text import one_line, visible_controls
from metis.settings.settings import AUTO, LEVELS

MAX_COMPLETIONS = 200
_TITLE_WIDTH = 50


class ChatCompleter(Completer):
    """Completes commands and their arguments, and names after `@`."""

    def __init__(self, state: ChatState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield the completions of the word before the cursor."""
        del complete_event
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            yield from self._command(text)
            return
        word = text.split(" ")[-1].split("\n")[-1]
        if word.startswith("@"):
            # Only the first word of a message can name a model.
            if word == text:
                yield from _with_prefix(self._aliases(), word[1:])
            yield from _files(word[1:].removeprefix('"'))

    def _command(self, text: str) -> Iterator[Completion]:
        name, space, argument = text.partition(" ")
        if not space:
            yield from _with_prefix(_command_help(), name[1:])
            return
        command = COMMANDS.get(name[1:])
        kind = "" if command is None else command.completes
        if kind == "model":
            yield from _with_prefix({**self._aliases(), **self._model_ids()}, argument)
        elif kind == "command":
            yield from _with_prefix(_command_help(), argument)
        elif kind == "thinking":
            yield from _with_prefix(dict.fromkeys((*LEVELS, AUTO, *DISPLAY_MODES), ""), argument)
        elif kind == "session":
            yield from _with_prefix(self._sessions(), argument)
        elif kind == "file":
            yield from _files(argument)

    def _sessions(self) -> dict[str, str]:
        """Return the short ids of sessions with their titles."""
        # The prompt completes in a thread, and the store belongs to the event loop.
        overviews = asyncio.run_coroutine_threadsafe(
            self._state.library.store.overviews(MAX_COMPLETIONS), self._loop
        ).result()
        return {
            overview.session.id[-SHORT_ID:]: one_line(overview.title, _TITLE_WIDTH)
            for overview in overviews
        }

    def _aliases(self) -> dict[str, str]:
        return dict(self._state.library.models.catalog.aliases)

    def _model_ids(self) -> dict[str, str]:
        return dict.fromkeys(sorted(self._state.library.models.catalog.entries), "")


def _command_help() -> dict[str, str]:
    return {command.name: command.help for command in COMMANDS.values()}


def _with_prefix(descriptions: dict[str, str], prefix: str) -> Iterator[Completion]:
    for name, description in descriptions.items():
        if name.lower().startswith(prefix.lower()) and _is_insertable(name):
            meta = visible_controls(description)
            yield Completion(name, start_position=-len(prefix), display_meta=meta)


def _is_insertable(name: str) -> bool:
    """Return whether a name can stand in the prompt, which writes it to the terminal as it is."""
    return visible_controls(name) == name


def _files(prefix: str) -> Iterator[Completion]:
    """Yield the files and directories with a prefix; hidden ones only if it begins with a dot."""
    parent, _, name = prefix.rpartition("/")
    directory = Path(f"{parent}/" if prefix.startswith("/") else parent or ".").expanduser()
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    matching = (
        entry
        for entry in entries
        if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith("."))
    )
    for entry, _ in zip(matching, range(MAX_COMPLETIONS), strict=False):
        if _is_insertable(entry.name):
            end = "/" if entry.is_dir() else ""
            yield Completion(entry.name + end, start_position=-len(name))
