"""Chat commands on stored conversations: /new, /sessions, /resume, /fork, /search."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.text import Text

from metis.cli.chat.commands.command import Command
from metis.cli.chat.rows import GAP, column_rows
from metis.cli.chat.state import ChatState
from metis.cli.chat.turn_parts import show_last_turns
from metis.cli.default_model import last_model_of
from metis.cli.stored_sessions import (
    COLUMNS,
    RIGHT_ALIGNED,
    SHORT_ID,
    find_session,
    model_namer,
    session_rows,
)
from metis.cli.text import one_line
from metis.store import Overview

_LISTED = 15
_SEARCHED = 1000
# How many messages are searched for the model that answered last.
_RECENT_MESSAGES = 8
_CURRENT_MARK = "*"
_SNIPPET_WIDTH = 200


async def list_sessions(state: ChatState, words: str) -> None:
    """List the sessions that changed last, or those whose title contains the words."""
    overviews = await state.library.store.overviews(_SEARCHED if words else _LISTED)
    matching = [row for row in overviews if words.lower() in row.title.lower()][:_LISTED]
    if not matching:
        text = f"No title contains {words!r}; /search {words} searches all messages."
        state.screen.print(text)
        return
    state.screen.write(_rows(state, matching))
    state.screen.print("/resume ID continues one; words of its title work, too.", "dim")


def _rows(state: ChatState, overviews: Sequence[Overview]) -> list[Text]:
    """Return a row for each session; the current one is marked."""
    width = state.screen.width - len(_CURRENT_MARK) - GAP
    name = model_namer(dict(state.library.models.catalog.aliases))
    rows = session_rows(overviews, width, now=datetime.now(UTC), name=name)
    head = [Text(cell, "dim") for cell in ("", *COLUMNS)]
    cells = [head]
    for overview, row in zip(overviews, rows, strict=True):
        mark = _CURRENT_MARK if overview.session.id == state.session.id else ""
        cells.append([Text(mark, "bold blue"), *map(Text, row)])
    return column_rows(cells, state.screen.width, right=[index + 1 for index in RIGHT_ALIGNED])


async def resume(state: ChatState, name: str) -> None:
    """Continue another session, named by a part of its id or title."""
    if not name:
        await list_sessions(state, "")
        return
    store = state.library.store
    record = await find_session(store, name)
    newest = await store.messages(record.id, newest=_RECENT_MESSAGES)
    # The library of a chat either simulates every provider or none.
    last_model = last_model_of(record.active_model, newest)
    if last_model is not None and last_model.is_simulated != state.library.options.simulate:
        choice = state.chooser.continued(last_model)
        await state.discard_if_empty()
        state.library = await state.opener.open(choice)
        state.screen.print(choice.notice or f"This conversation uses {choice.model}.", "dim")
    await state.switch_to(await state.library.resume(record.id))
    show_last_turns(state.session.messages, state.screen)


async def new(state: ChatState, model: str) -> None:
    """Start a conversation with the same model, or another."""
    await state.start_new(model or state.session.model)
    state.screen.print("New conversation.", "dim")


async def fork(state: ChatState, message_id: str) -> None:
    """Continue in a copy; the conversation so far is not changed."""
    original_id = state.session.id
    await state.switch_to(await state.session.fork(at=message_id or None))
    state.screen.print(f"Forked. /resume {original_id[-SHORT_ID:]} returns to the original.", "dim")


async def search(state: ChatState, words: str) -> None:
    """Search the messages of all sessions for the words."""
    if not words:
        state.screen.print("Search for what? /search WORDS.")
        return
    matches = await state.library.store.search(words, limit=_LISTED)
    if not matches:
        state.screen.print(f"No message contains {words!r}.")
        return
    rows = [
        (match.session_id[-SHORT_ID:], one_line(match.snippet, _SNIPPET_WIDTH)) for match in matches
    ]
    state.screen.write(column_rows(rows, state.screen.width))
    state.screen.print("/resume ID continues one.", "dim")


COMMANDS = (
    Command("new", "[MODEL]", "start a new conversation", new, "model"),
    Command("sessions", "[WORDS]", "list stored conversations", list_sessions),
    Command("resume", "[ID|WORDS]", "continue another conversation", resume, "session"),
    Command("fork", "[MESSAGE]", "continue in a copy", fork),
    Command("search", "WORDS", "search all conversations", search),
)
