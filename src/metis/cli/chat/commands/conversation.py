"""Chat commands on the current conversation: /retry, /rewind, /bookmark, /compact, /export."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from metis.canonical.errors import InvalidValueError, NoTurnError, StoreError
from metis.canonical.message import Role
from metis.cli.chat.commands.command import Command
from metis.cli.chat.keyboard import ask_yes_no
from metis.cli.chat.picker import Choice, Picker
from metis.cli.chat.rows import column_rows
from metis.cli.chat.state import ChatState
from metis.cli.chat.turn_parts import loss_rows
from metis.cli.render import first_code
from metis.cli.stored_sessions import SHORT_ID
from metis.cli.text import count, one_line
from metis.cli.transfer import export_formats, export_session
from metis.session import text_of
from metis.settings.settings import AUTO, LEVELS, format_thinking, parse_thinking

# The arguments of /thinking that concern the screen, and not the model.
DISPLAY_MODES = ("show", "hide")
_LISTED_TURNS = 10
_EXCERPT_WIDTH = 60
_CODE = "code"
_FORMATS_BY_SUFFIX: Mapping[str, str] = {
    ".md": "markdown",
    ".html": "html",
    ".json": "json",
    ".jsonl": "jsonl",
}


async def retry(state: ChatState, model: str) -> None:
    """Take the last turn back and send its prompt again, to another model if one is named."""
    await state.show_turn(state.session.retry(model.removeprefix("@") or None))


async def rewind(state: ChatState, position: str) -> None:
    """Go back to before a turn, or to a bookmark; without an argument, list the turns."""
    if not position and not state.screen.is_plain and state.session.turns:
        position = await Picker(state.screen, "/rewind", await _positions(state)).pick() or ""
        if not position:
            return
    if not position:
        _list_turns(state)
        return
    session, turn_count = state.session, len(state.session.turns)
    if position.isdigit():
        if not 1 <= int(position) <= turn_count:
            raise NoTurnError(f"there is no turn {position}; /rewind lists them")
        # The checkpoint lets the user return to the turns that this removes.
        checkpoint = await session.checkpoint()
        await session.undo(turn_count - int(position) + 1)
        hint = f" The removed turns are kept; /rewind #{checkpoint} restores them."
        message = f"Went back to before turn {position}.{hint}"
    else:
        await session.rewind(_bookmark_position(state, position))
        message = f"Went back to bookmark {position}."
    state.refresh()
    state.screen.print(message, "dim")


def _bookmark_position(state: ChatState, name: str) -> int | str:
    """Return the position of a bookmark: its number, or the name that another program gave it."""
    session = state.session
    number = session.checkpoint_names.get(name)
    if number is None and name.startswith("#") and name[1:].isdigit():
        number = int(name[1:])
    if number in session.checkpoints:
        return number
    if name in session.bookmarks:
        return name
    raise NoTurnError(f"there is no bookmark {name}; /bookmark lists them")


async def _positions(state: ChatState) -> list[Choice]:
    """Return the turns, the newest first, and the bookmarks."""
    turns = [
        Choice(str(turn.number), f"before turn {turn.number}", text_of(turn.prompt.content))
        for turn in reversed(state.session.turns)
    ]
    bookmarks = [
        Choice(number or name, f"{number} {name}".strip(), text)
        for number, name, text in await bookmarked_points(state)
    ]
    return [*turns, *bookmarks]


def _list_turns(state: ChatState) -> None:
    turns = state.session.turns[-_LISTED_TURNS:]
    if not turns:
        state.screen.print("This conversation is empty.", "dim")
        return
    rows = [
        (str(turn.number), one_line(text_of(turn.prompt.content), state.screen.width - 8))
        for turn in turns
    ]
    state.screen.write(column_rows(rows, state.screen.width, right=(0,)))
    state.screen.print("/rewind NUMBER goes back to before that turn.", "dim")


async def bookmark(state: ChatState, name: str) -> None:
    """Bookmark this point under a name and a number; without a name, list the bookmarks."""
    session = state.session
    if name:
        number = await session.checkpoint(name)
        text = f'Bookmarked as "{name}" (#{number}). /rewind {name} returns to this point.'
        state.screen.print(text, "dim")
        return
    points = await bookmarked_points(state)
    if not points:
        state.screen.print("There are no bookmarks; /bookmark NAME sets one.", "dim")
        return
    state.screen.write(column_rows(points, state.screen.width))


async def bookmarked_points(state: ChatState) -> list[tuple[str, str, str]]:
    """Return the number, the name and the text of each bookmark."""
    session = state.session
    texts = {message.id: text_of(message.content) for message in session.messages}
    names = {number: name for name, number in session.checkpoint_names.items()}
    points = [
        (f"#{number}", names.get(number, ""), message_id)
        for number, message_id in session.checkpoints.items()
    ]
    points += [("", name, message_id) for name, message_id in session.bookmarks.items()]
    for _, _, message_id in points:
        # A bookmark may point into turns that were taken back, which are only in the store.
        if message_id is not None and message_id not in texts:
            with suppress(StoreError):
                message = await state.library.store.message(session.id, message_id)
                texts[message_id] = text_of(message.content)
    texts[""] = "(the beginning)"
    return [
        (number, name, one_line(texts.get(message_id or "", ""), _EXCERPT_WIDTH))
        for number, name, message_id in points
    ]


async def compact(state: ChatState, model: str) -> None:
    """Summarise old messages to free space in the context window."""
    state.screen.print("summarising …", "dim")
    number = await state.session.compact(model or None)
    state.refresh()
    if number:
        text = f"Summarised {count(number, 'message')}; originals are kept."
    else:
        text = "There are no messages old enough to summarise."
    state.screen.print(text, "dim")


async def thinking(state: ChatState, argument: str) -> None:
    """Set the reasoning effort, or whether thinking is shown; without an argument, show both."""
    if argument in DISPLAY_MODES:
        state.shows_thinking = argument == "show"
    elif argument:
        await state.session.set_reasoning(parse_thinking(argument))
    level = format_thinking(state.session.reasoning)
    effort = "model default" if level == AUTO else level
    display = "full" if state.shows_thinking else "collapsed"
    state.screen.print(f"Thinking: {effort}. Display: {display}.", "dim")
    if not argument:
        levels = ", ".join((*LEVELS, "a number of tokens", AUTO))
        state.screen.print(f"/thinking takes {levels}; show, hide.", "dim")


async def copy(state: ChatState, argument: str) -> None:
    """Copy the last response, or its first code block, to the clipboard of the terminal."""
    messages = state.session.messages
    responses = [message for message in messages if message.role is Role.ASSISTANT]
    text = text_of(responses[-1].content) if responses else ""
    if argument == _CODE:
        text = first_code(text)
    if not text:
        state.screen.print("There is no answer to copy yet.", "dim")
    elif state.screen.is_plain:
        state.screen.print("This terminal has no clipboard; /export writes a file.", "dim")
    else:
        # OSC 52 sets the clipboard, also through ssh; terminals do not confirm it.
        state.screen.send_sequence(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07")
        characters = count(len(text), "character")
        message = f"Copied {characters} (needs a terminal that supports OSC 52)."
        state.screen.print(message, "dim")


async def export(state: ChatState, argument: str) -> None:
    """Write the session to a file; the format follows from the suffix, or comes after the name."""
    name, _, format_name = argument.partition(" ")
    path = _expand(name or f"metis-{state.session.id[-SHORT_ID:]}.md")
    format_name = format_name.strip() or _FORMATS_BY_SUFFIX.get(path.suffix, "")
    if format_name not in export_formats():
        formats = ", ".join(export_formats())
        raise InvalidValueError(f"unknown format for {path}; add one of: {formats}")
    question = f"{path} exists. Overwrite it?"
    if path.exists() and not await ask_yes_no(state.keyboard, question):
        state.screen.print("Not exported.", "dim")
        return
    store = state.library.store
    record = await store.session(state.session.id)
    exported = await export_session(store, record, format_name)
    path.write_bytes(exported.data)
    state.screen.print(f"Wrote {path} ({count(len(exported.data), 'byte')})", "dim")
    if exported.losses:
        state.screen.print("Not fully exported:", "yellow")
        state.screen.write(loss_rows(exported.losses, state.screen.width))


def _expand(name: str) -> Path:
    return Path(name).expanduser()


COMMANDS = (
    Command("retry", "[MODEL]", "ask the last question again, or another model", retry, "model"),
    Command("rewind", "[TURN|BOOKMARK]", "go back to before a turn, or to a bookmark", rewind),
    Command("bookmark", "[NAME]", "bookmark this point, or list bookmarks", bookmark),
    Command("compact", "[MODEL]", "summarise old messages to free space", compact, "model"),
    Command(
        "thinking",
        "[LEVEL|show|hide]",
        "reasoning effort, and whether it is shown",
        thinking,
        "thinking",
    ),
    Command("copy", "[code]", "copy the last answer, or its code", copy),
    Command(
        "export", "[FILE] [FORMAT]", "write to a file: .md, .html, .json, .jsonl", export, "file"
    ),
)
