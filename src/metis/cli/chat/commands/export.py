"""/export: the conversation as a file, in the form that its ending names."""

from collections.abc import Mapping
from pathlib import Path

from metis.canonical.errors import InvalidValueError
from metis.cli.chat.commands.command import Command
from metis.cli.chat.state import ChatState
from metis.cli.chat.turn_parts import loss_rows
from metis.cli.render import count
from metis.interchange.export import Conversation, ExportedFile
from metis.interchange.writers import WRITERS
from metis.store.threads import Threads
from metis.tools.builtin import BUILTINS

LINES = "jsonl"
"""The form that holds everything, and that `metis import` reads."""

_FORMS: Mapping[str, str] = {
    ".md": "markdown",
    ".html": "html",
    ".json": "json",
    ".jsonl": LINES,
}
_SHORT = 6


async def export_file(talk: ChatState, words: str) -> None:
    """Write the session to a file: its name, and a form if the ending does not say it."""
    name, _, form = words.partition(" ")
    path = _path(name or f"metis-{talk.session.id[-_SHORT:]}.md")
    chosen = form.strip() or _FORMS.get(path.suffix, "")
    if chosen != LINES and chosen not in WRITERS:
        known = ", ".join((LINES, *WRITERS))
        raise InvalidValueError(f"{path} does not say its form; write one of {known} behind it")
    written = await _written(talk, chosen)
    path.write_bytes(written.data)
    talk.screen.say(f"{path}: {count(len(written.data), 'byte')}", "dim")
    if written.losses:
        talk.screen.say("It could not hold:", "yellow")
        talk.screen.write(loss_rows(written.losses, talk.screen.width))


def _path(name: str) -> Path:
    return Path(name).expanduser()


async def _written(talk: ChatState, form: str) -> ExportedFile:
    store, own = talk.library.store, talk.session.id
    if form == LINES:
        return ExportedFile(b"".join(line + b"\n" for line in await store.export(own)))
    messages = Threads(await store.history(own)).path()
    return WRITERS[form](
        Conversation(await store.session(own), messages, [tool().definition for tool in BUILTINS])
    )


COMMANDS = (
    Command(
        name="export",
        usage="[FILE] [FORM]",
        help="write this one to a file: .md, .html, .json, .jsonl",
        run=export_file,
        completes="file",
    ),
)
