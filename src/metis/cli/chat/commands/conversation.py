"""/retry, /rewind, /bookmark, /compact, /thinking: the conversation as it goes."""

from metis.canonical.errors import NoTurnError
from metis.cli.chat.commands.command import Command
from metis.cli.chat.rows import column_rows
from metis.cli.chat.state import ChatState
from metis.cli.render import count
from metis.cli.text import one_line
from metis.session import text_of
from metis.settings.settings import AUTO, LEVELS, format_thinking, parse_thinking

_LISTED = 10
DISPLAY_MODES = ("show", "hide")
"""The words that are about the screen, and not about the model."""
_AS_IT_LIKES = "The model thinks as much as it does by itself"


async def retry(talk: ChatState, model: str) -> None:
    """Take the last turn back and ask the same again, another model if one is named."""
    await talk.play(talk.session.retry(model.removeprefix("@") or None))


async def rewind(talk: ChatState, words: str) -> None:
    """Go back to before a turn, or to a place; without one, list the turns."""
    if not words:
        _list_turns(talk)
        return
    turns = talk.session.turns
    if words.isdigit() and 1 <= int(words) <= len(turns):
        await talk.session.undo(len(turns) - int(words) + 1)
    elif words.isdigit():
        raise NoTurnError(f"there is no turn {words}; /rewind lists them")
    elif words.startswith("#") and words[1:].isdigit():
        await talk.session.rewind(int(words[1:]))
    else:
        await talk.session.rewind(words)
    talk.refresh()
    now = count(len(talk.session.turns), "turn")
    talk.screen.say(f"The conversation has {now} now; the store still has the others.", "dim")


def _list_turns(talk: ChatState) -> None:
    turns = talk.session.turns[-_LISTED:]
    if not turns:
        talk.screen.say("Nothing was said yet.", "dim")
        return
    rows = [
        (str(turn.number), one_line(text_of(turn.prompt.content), talk.screen.width - 8))
        for turn in turns
    ]
    talk.screen.write(column_rows(rows, talk.screen.width, right=(0,)))
    talk.screen.say("/rewind NUMBER goes back to before it.", "dim")


async def bookmark(talk: ChatState, name: str) -> None:
    """Give a number to this place, and a name to what goes on from it; or list them."""
    session = talk.session
    if name:
        await session.bookmark(name)
        number = await session.checkpoint()
        talk.screen.say(f"This is {name}; /rewind #{number} comes back to this very place.", "dim")
        return
    said = {each.id: text_of(each.content) for each in session.messages}
    places = [(f"#{number}", place) for number, place in session.checkpoints.items()]
    places += session.bookmarks.items()
    if not places:
        talk.screen.say("There is no bookmark; /bookmark NAME makes one.", "dim")
        return
    rows = [(mark, one_line(said.get(place or "", ""), 60)) for mark, place in places]
    talk.screen.write(column_rows(rows, talk.screen.width))


async def compact(talk: ChatState, model: str) -> None:
    """Sum up what is old, so that there is room again."""
    talk.screen.say("summing up …", "dim")
    done = await talk.session.compact(model or None)
    talk.refresh()
    if done:
        talk.screen.say(f"{count(done, 'message')} were summed up; the store has them all.", "dim")
    else:
        talk.screen.say("There is nothing old enough to be summed up.", "dim")


async def thinking(talk: ChatState, words: str) -> None:
    """Set how much models think, or whether their thoughts are shown; without a word, say both."""
    if words in DISPLAY_MODES:
        talk.shows_thinking = words == "show"
        talk.screen.say(f"Thoughts are {_shown(talk)} from now on.", "dim")
        return
    if words:
        await talk.session.set_reasoning(parse_thinking(words))
    level = format_thinking(talk.session.reasoning)
    how = _AS_IT_LIKES if level == AUTO else f"Thinking is {level}"
    talk.screen.say(f"{how}; thoughts are {_shown(talk)}.", "dim")
    if not words:
        known = ", ".join((*LEVELS, "a number of tokens", AUTO))
        talk.screen.say(f"/thinking takes {known}; show, hide.", "dim")


def _shown(talk: ChatState) -> str:
    return "shown in full" if talk.shows_thinking else "folded"


COMMANDS = (
    Command(
        name="retry",
        usage="[MODEL]",
        help="ask again, perhaps another",
        run=retry,
        completes="model",
    ),
    Command(name="rewind", usage="[TURN|#PLACE]", help="go back to before a turn", run=rewind),
    Command(name="bookmark", usage="[NAME]", help="mark this place", run=bookmark),
    Command(
        name="compact",
        usage="[MODEL]",
        help="sum up what is old, to make room",
        run=compact,
        completes="model",
    ),
    Command(
        name="thinking",
        usage="[LEVEL|show|hide]",
        help="how much to think; whether thoughts are seen",
        run=thinking,
        completes="thinking",
    ),
)
