"""/new, /sessions, /resume, /fork, /search: conversations that are kept."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.text import Text

from metis.cli.chat.commands.command import Command
from metis.cli.chat.history import show_last
from metis.cli.chat.rows import column_rows
from metis.cli.chat.state import ChatState
from metis.cli.default_model import LastModel, last_model_of
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
_ANSWERS = 8
"""How many messages are looked through for who answered last."""
_GAP = 2
_HERE = "*"
"""Marks the conversation that one is in."""


async def list_sessions(talk: ChatState, words: str) -> None:
    """List the sessions that changed last, or those whose title holds the words."""
    wanted = words.lower()
    found = await talk.library.store.overviews(_SEARCHED if words else _LISTED)
    fitting = [each for each in found if wanted in each.title.lower()][:_LISTED]
    if not fitting:
        talk.screen.say(f"No title holds {words!r}; /search {words} looks at all that was said.")
        return
    talk.screen.write(_rows(talk, fitting))
    talk.screen.say("/resume ID goes on with one; words of its title will do.", "dim")


def _rows(talk: ChatState, found: Sequence[Overview]) -> list[Text]:
    """A row each; the one that is open is marked."""
    width = talk.screen.width - len(_HERE) - _GAP
    name = model_namer(dict(talk.library.models.catalog.aliases))
    rows = session_rows(found, width, now=datetime.now(UTC), name=name)
    marks = [_HERE if each.session.id == talk.session.id else "" for each in found]
    head = [Text(cell, "dim") for cell in ("", *COLUMNS)]
    cells = [
        [Text(mark, "bold blue"), *map(Text, row)] for mark, row in zip(marks, rows, strict=True)
    ]
    return column_rows(
        [head, *cells], talk.screen.width, right=[place + 1 for place in RIGHT_ALIGNED]
    )


async def resume(talk: ChatState, name: str) -> None:
    """Go on with another session, named by a part of its id or of its title."""
    if not name:
        await list_sessions(talk, "")
        return
    record = await find_session(talk.library.store, name)
    newest = await talk.library.store.messages(record.id, newest=_ANSWERS)
    held = last_model_of(record.active_model, newest)
    if held is not None and held.is_simulated != talk.library.options.simulate:
        talk.screen.say(_elsewhere(held, record.id), "yellow")
        return
    await talk.switch_to(await talk.library.resume(record.id))
    show_last(talk)


def _elsewhere(held: LastModel, session_id: str) -> str:
    """Why a session cannot go on in this program: only one of them has the simulator."""
    who = "the simulator" if held.is_simulated else held.model
    here = "real models answer" if held.is_simulated else "the simulator answers"
    again = f"leave, and go on with `metis -s {session_id[-SHORT_ID:]}`"
    return f"That conversation was held with {who}, and here {here}: {again}."


async def new(talk: ChatState, model: str) -> None:
    """Begin a conversation with the same model, or another."""
    await talk.start_new(model or talk.session.model)
    talk.screen.say("A new conversation.", "dim")


async def fork(talk: ChatState, message_id: str) -> None:
    """Go on in a copy; the conversation so far stays as it is."""
    before = talk.session.id
    await talk.switch_to(await talk.session.fork(at=message_id or None))
    told = f"This is a copy; /resume {before[-SHORT_ID:]} goes back to the original."
    talk.screen.say(told, "dim")


async def search(talk: ChatState, words: str) -> None:
    """Find messages of all sessions that hold the words."""
    found = await talk.library.store.search(words, limit=_LISTED)
    if not found:
        talk.screen.say(f"Nothing holds {words!r}." if words else "Search for what? /search WORDS.")
        return
    rows = [(each.session_id[-SHORT_ID:], one_line(each.snippet, 200)) for each in found]
    talk.screen.write(column_rows(rows, talk.screen.width))
    talk.screen.say("/resume ID goes on with one.", "dim")


COMMANDS = (
    Command(name="new", usage="[MODEL]", help="begin anew", run=new, completes="model"),
    Command(
        name="sessions", usage="[WORDS]", help="conversations that are kept", run=list_sessions
    ),
    Command(
        name="resume",
        usage="[ID|WORDS]",
        help="go on with another",
        run=resume,
        completes="session",
    ),
    Command(name="fork", usage="[MESSAGE]", help="go on in a copy", run=fork),
    Command(name="search", usage="WORDS", help="find words in all of them", run=search),
)
