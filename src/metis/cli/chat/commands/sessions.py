"""/new, /sessions, /resume, /fork, /search: conversations that are kept."""

from metis.canonical.message import Message, Role
from metis.cli.chat.commands.command import Command
from metis.cli.chat.history import show_last
from metis.cli.chat.letters import one_line
from metis.cli.chat.table import columns
from metis.cli.chat.talk import Talk
from metis.cli.finding import find_session
from metis.session.facts import words_of

_LISTED = 15
_SHORT = 6
"""How much of the end of an id names a session."""


async def list_sessions(talk: Talk, words: str) -> None:
    """List the sessions that changed last."""
    del words
    rows: list[tuple[str, str, str, str]] = []
    for record in await talk.library.sessions(_LISTED):
        mark = "*" if record.id == talk.session.id else " "
        when = record.updated_at.astimezone().strftime("%Y-%m-%d %H:%M")
        messages = await talk.library.store.messages(record.id, newest=_LISTED)
        rows.append(
            (f"{mark} {record.id[-_SHORT:]}", when, record.active_model or "", _title(messages))
        )
    talk.screen.write(columns(rows, talk.screen.width))
    talk.screen.say("/resume ID goes on with one.", "dim")


def _title(messages: list[Message]) -> str:
    said = [words_of(each.content) for each in messages if each.role is Role.USER]
    return one_line(said[-1], 60) if said else "(nothing said)"


async def resume(talk: Talk, name: str) -> None:
    """Go on with another session, named by its id or the end of it."""
    if not name:
        await list_sessions(talk, "")
        return
    talk.move(await talk.library.resume((await find_session(talk.library.store, name)).id))
    show_last(talk)


async def new(talk: Talk, model: str) -> None:
    """Begin a conversation with the same model, or another."""
    talk.move(await talk.library.session(model=model or talk.session.model))
    talk.screen.say("A new conversation.", "dim")


async def fork(talk: Talk, message_id: str) -> None:
    """Go on in a copy; the conversation so far stays as it is."""
    before = talk.session.id
    talk.move(await talk.session.fork(at=message_id or None))
    told = f"This is a copy; /resume {before[-_SHORT:]} goes back to the original."
    talk.screen.say(told, "dim")


async def search(talk: Talk, words: str) -> None:
    """Find messages of all sessions that hold the words."""
    found = await talk.library.store.search(words, limit=_LISTED)
    if not found:
        talk.screen.say(f"Nothing holds {words!r}." if words else "Search for what? /search WORDS.")
        return
    rows = [(each.session_id[-_SHORT:], one_line(each.snippet, 200)) for each in found]
    talk.screen.write(columns(rows, talk.screen.width))
    talk.screen.say("/resume ID goes on with one.", "dim")


COMMANDS = (
    Command(name="new", usage="[MODEL]", help="begin anew", run=new, completes="model"),
    Command(name="sessions", help="conversations that are kept", run=list_sessions),
    Command(name="resume", usage="[ID]", help="go on with another", run=resume),
    Command(name="fork", usage="[MESSAGE]", help="go on in a copy", run=fork),
    Command(name="search", usage="WORDS", help="find words in all of them", run=search),
)
