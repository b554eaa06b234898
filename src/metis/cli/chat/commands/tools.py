"""/tools: what models may call here."""

from metis.cli.chat.commands.command import Command
from metis.cli.chat.rows import column_rows
from metis.cli.chat.state import ChatState
from metis.tools import Rule

_TOLD = {Rule.AUTO: "runs", Rule.ASK: "asks", Rule.DENY: "denied"}


async def list_tools(talk: ChatState, words: str) -> None:
    """List the tools, and whether they run at once."""
    del words
    options = talk.library.options
    if options.tools is None:
        talk.screen.say("There are no tools in this conversation.", "dim")
        return
    rows: list[tuple[str, str, str]] = []
    for tool in options.tools.tools.values():
        rule = Rule.DENY if options.confirmation is None else options.confirmation.rule(tool)
        rows.append((tool.name, _TOLD[rule], tool.description.partition(". ")[0]))
    talk.screen.write(column_rows(rows, talk.screen.width))


COMMANDS = (Command(name="tools", help="what models may call", run=list_tools),)
