"""/why and /context: why this model, and how full its window is."""

from rich.text import Text

from metis.cli.chat.commands.command import Command
from metis.cli.chat.rows import column_rows
from metis.cli.chat.state import ChatState
from metis.cli.chat.statusline import format_tokens, routing_reason, window_share
from metis.cli.render import count
from metis.cli.text import visible_controls
from metis.routing import ChainEntry, Verdict

_BAR = 40
_MARKS = {Verdict.CHOSE: "✓", Verdict.REJECTED: "✗"}


async def show_why(talk: ChatState, words: str) -> None:
    """Say why the last model was picked, and who else was considered."""
    del words
    found = talk.session.why()
    if found is None:
        talk.screen.say("Nobody has answered yet.", "dim")
        return
    record = found.record
    talk.screen.write([Text.assemble((record.chosen_model, "bold"), f"  {routing_reason(record)}")])
    talk.screen.say(record.reason)
    rows = [_slot(entry) for entry in found.chain]
    talk.screen.write(column_rows(rows, talk.screen.width))


def _slot(entry: ChainEntry) -> list[Text]:
    """One slot of the chain: what it is, what became of it, and why."""
    style = "" if entry.verdict is Verdict.CHOSE else "dim"
    mark = _MARKS.get(entry.verdict, " ")
    name = str(entry.policy).replace("_", " ")
    told = f"{entry.candidate_model}: {entry.reason}" if entry.candidate_model else entry.reason
    failure = entry.validation_failure
    if failure is not None:
        told = f"{told}; {failure.text}"
    return [Text(f"{mark} {name}", style), Text(visible_controls(told), style)]


async def show_context(talk: ChatState, words: str) -> None:
    """Show how much of the window is used."""
    used = talk.session.context(words or None)
    if used is None:
        talk.screen.say("No model is chosen; /model NAME chooses one.", "dim")
        return
    full = min(round(_BAR * used.share), _BAR)
    bar = Text.assemble(("█" * full, "blue"), ("░" * (_BAR - full), "dim"))
    messages = count(len(talk.session.messages), "message")
    share = window_share(used.tokens, used.window_tokens)
    summary = f"about {format_tokens(used.tokens)} tokens, {share}, in {messages}"
    talk.screen.write([Text(used.model, "bold"), bar, Text(summary)])


COMMANDS = (
    Command(name="why", help="why this model answered", run=show_why),
    Command(
        name="context",
        usage="[MODEL]",
        completes="model",
        help="how full the window is",
        run=show_context,
    ),
)
