"""Chat commands on stored conversations: /new, /sessions, /resume, /fork, /search."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.text import Text

from metis.cli.chat.commands.command import Command
from metis.cli.chat.keyboard import ask_yes_no
from metis.cli.chat.picker import Choice, Picker
from metis.cli.chat.rows import GAP, column_rows
from metis.cli.chat.state import ChatState
from metis.cli.chat.turn_parts import show_last_turns
from metis.cli.default_model import last_model_of
from metis.cli.stored_sessions import (
    COLUMNS,
    RIGHT_ALIGNED,
    SHORT_ID,
    find_session,
    format_age,
    label_session,
    labelled_title,
    matching_sessions,
    model_namer,
    session_rows,
)
from metis.cli.text import one_line
from metis.store import Overview, SessionRecord

_LISTED = 15
_SEARCHED = 1000
# How many messages are searched for the model that answered last.
_RECENT_MESSAGES = 8
_CURRENT_MARK = "*"
_SNIPPET_WIDTH = 200
_TITLE_WIDTH = 50


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
    store = state.library.store
    if not name and state.screen.is_plain:
        await list_sessions(state, "")
        return
    record = await _find(state, name)
    if record is None:
        return
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


async def _find(state: ChatState, name: str) -> SessionRecord | None:
    """Return the session of a name; of several, or without a name, the user chooses one."""
    store = state.library.store
    if name:
        matches = await matching_sessions(store, name)
        if len(matches) <= 1:
            return await find_session(store, name)
        matching_ids = {record.id for record in matches}
    else:
        matching_ids = None
    overviews = await store.overviews(_SEARCHED)
    listed = [row for row in overviews if matching_ids is None or row.session.id in matching_ids]
    if state.screen.is_plain:
        state.screen.print(f"{len(listed)} sessions match {name!r}; give more of the id:")
        state.screen.write(_rows(state, listed[:_LISTED]))
        return None
    now = datetime.now(UTC)
    choices = [
        Choice(
            row.session.id,
            f"{row.session.id[-SHORT_ID:]}  {format_age(row.session.updated_at, now)}",
            labelled_title(row),
        )
        for row in listed
        if row.session.id != state.session.id
    ]
    if not choices:
        state.screen.print("There is no other conversation yet.", "dim")
        return None
    picked = await Picker(state.screen, "/resume", choices).pick()
    return None if picked is None else await store.session(picked)


async def rename(state: ChatState, title: str) -> None:
    """Give this conversation a title."""
    if not title:
        state.screen.print("Rename it to what? /rename TITLE.")
        return
    await label_session(state.library.store, state.session.id, title=title)
    state.screen.print(f"Renamed to {title}.", "dim")


async def delete(state: ChatState, name: str) -> None:
    """Delete this conversation, or another, for good."""
    store = state.library.store
    record = await find_session(store, name) if name else await store.session(state.session.id)
    overviews = await store.overviews(_SEARCHED)
    title = next((labelled_title(row) for row in overviews if row.session.id == record.id), "")
    shown = f"{record.id[-SHORT_ID:]} {one_line(title, _TITLE_WIDTH)}".strip()
    if not await ask_yes_no(state.keyboard, f"Delete {shown} for good?"):
        state.screen.print("Not deleted.", "dim")
        return
    if record.id == state.session.id:
        await state.start_new(state.session.model)
    await store.delete(record.id)
    state.screen.print(f"Deleted {shown}.", "dim")


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
    Command("rename", "TITLE", "give this conversation a title", rename),
    Command("delete", "[ID|WORDS]", "delete this conversation, or another", delete, "session"),
    Command("fork", "[MESSAGE]", "continue in a copy", fork),
    Command("search", "WORDS", "search all conversations", search),
)
