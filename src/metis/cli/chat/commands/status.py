"""Chat commands that show or set the state of a session, such as /why, /trace and /budget."""

from decimal import Decimal, InvalidOperation

from msgspec.structs import astuple
from rich.text import Text

from metis.canonical.errors import InvalidValueError
from metis.canonical.metadata import ChainPolicy
from metis.cli.chat.commands.command import Command
from metis.cli.chat.rows import column_rows, table_rows
from metis.cli.chat.state import ChatState, routing_reason, window_share
from metis.cli.text import count, format_usd, short_count, visible_controls
from metis.events.budget import SCOPES
from metis.routing import ChainEntry, Verdict
from metis.tools import Rule

_BAR_WIDTH = 40
_MARKS = {Verdict.CHOSE: "✓", Verdict.REJECTED: "✗"}
_SLOT_NAMES = {
    ChainPolicy.PER_MESSAGE_OVERRIDE: "@model in the message",
    ChainPolicy.MANUAL_STICKY: "chosen with /model",
    ChainPolicy.RULE: "routing rule",
    ChainPolicy.PATTERN: "learned pattern",
    ChainPolicy.DELEGATE_REQUEST: "requested by a worker",
    ChainPolicy.WORKSPACE_DEFAULT: "default of this directory",
    ChainPolicy.GLOBAL_DEFAULT: "default model",
}
_COST_COLUMNS = ("model", "calls", "in", "cached", "out", "cost")
_PART_NAMES = {
    "system": "instructions",
    "tool_use": "tool calls",
    "tool_result": "tool results",
    "tools": "tool definitions",
    "image": "images",
    "document": "documents",
}
TOOL_SWITCHES = ("on", "off")
_RULE_NAMES = {Rule.AUTO: "runs", Rule.ASK: "asks", Rule.DENY: "denied"}


async def show_why(state: ChatState, _: str) -> None:
    """Show why the last model was chosen, and which others were considered."""
    why = state.session.why()
    if why is None:
        state.screen.print("No model has answered yet.", "dim")
        return
    record = why.record
    heading = Text.assemble((record.chosen_model, "bold"), f"  {routing_reason(record)}")
    state.screen.write([heading])
    state.screen.print(record.reason)
    rows = [_slot_row(entry) for entry in why.chain]
    state.screen.write(column_rows(rows, state.screen.width))


async def show_trace(state: ChatState, _: str) -> None:
    """Show the steps of this conversation in order, with times, costs and reasons."""
    from metis.cli.trace import STEP_COLOURS, session_steps, step_parts  # noqa: PLC0415 - start-up

    store = state.library.store
    record = await store.session(state.session.id)
    lines: list[Text] = []
    for step in await session_steps(store, record.id):
        clock, what, detail, facts = step_parts(record, step, state.screen.width)
        colour = STEP_COLOURS.get(step.what, "")
        lines.append(
            Text.assemble((clock, "dim"), "  ", (what, colour), "  ", detail, (facts, "dim"))
        )
    state.screen.write(lines)


def _slot_row(entry: ChainEntry) -> list[Text]:
    """Return one slot of the routing chain: its name, its candidate, and the reason."""
    style = "" if entry.verdict is Verdict.CHOSE else "dim"
    name = _SLOT_NAMES.get(entry.policy, str(entry.policy))
    text = f"{entry.candidate_model}: {entry.reason}" if entry.candidate_model else entry.reason
    if entry.validation_failure is not None:
        text = f"{entry.candidate_model}: {entry.validation_failure.text}"
    mark = _MARKS.get(entry.verdict, " ")
    return [Text(f"{mark} {name}", style), Text(visible_controls(text), style)]


async def show_context(state: ChatState, model: str) -> None:
    """Show how much of the context window is used, for the current model or another."""
    window = state.session.context(model or None)
    if window is None:
        state.screen.print("No model is chosen; /model NAME chooses one.", "dim")
        return
    full = min(round(_BAR_WIDTH * window.share), _BAR_WIDTH)
    bar = Text.assemble(("█" * full, "blue"), ("░" * (_BAR_WIDTH - full), "dim"))
    used = f"about {short_count(window.tokens)} tokens"
    share = window_share(window.tokens, window.window_tokens)
    messages = count(len(state.session.messages), "message")
    state.screen.write([Text(window.model, "bold"), bar, Text(f"{used}, {share}, in {messages}")])
    parts = state.session.context_parts(model or None)
    rows = [
        (_PART_NAMES.get(kind, kind), f"about {short_count(tokens)}")
        for kind, tokens in sorted(parts.items(), key=lambda part: -part[1])
        if tokens
    ]
    state.screen.write(column_rows(rows, state.screen.width, right=(1,)))


async def show_cost(state: ChatState, _: str) -> None:
    """Show tokens and cost of the session, by model."""
    cost = state.session.cost()
    cells = [[Text(name, "bold") for name in _COST_COLUMNS]]
    for model, amount in cost.by_model.items():
        price = "no price known" if model in cost.unpriced_models else format_usd(amount)
        price = "simulated" if model in cost.simulated_models and not amount else price
        numbers = map(short_count, astuple(cost.used[model]))
        cells.append([Text(cell) for cell in (model, *numbers, price)])
    if len(cells) == 1:
        state.screen.print("Nothing spent yet.", "dim")
        return
    right = range(1, len(_COST_COLUMNS))
    state.screen.write(table_rows(cells, state.screen.width, right=right, unbroken=(0,)))
    total = format_usd(cost.total_usd)
    state.screen.print(f"total {total} (all sessions: `metis cost`)", "dim")


async def show_budget(state: ChatState, argument: str) -> None:
    """Show the budgets, or set that of this session."""
    session = state.session
    if argument:
        await session.set_budget(_parse_limit(argument))
    limits = ((scope, session.budget.limit(scope)) for scope in SCOPES)
    rows = [(scope, "no limit" if limit is None else format_usd(limit)) for scope, limit in limits]
    state.screen.write(column_rows(rows, state.screen.width, right=(1,)))
    state.screen.print(f"{format_usd(session.cost().total_usd)} spent in this session", "dim")


def _parse_limit(text: str) -> Decimal | None:
    if text in ("none", "off"):
        return None
    try:
        amount = Decimal(text.lstrip("$"))
    except InvalidOperation:
        amount = None
    # Decimal accepts "nan" and "infinity".
    if amount is None or not amount.is_finite() or amount < 0:
        hint = "give one in dollars, such as /budget 0.50, or none"
        raise InvalidValueError(f"{text!r} is not an amount; {hint}")
    return amount


async def list_tools(state: ChatState, argument: str) -> None:
    """List the tools that the model gets and whether they ask first, or switch all on or off."""
    if argument in TOOL_SWITCHES:
        if state.library.options.registry is None:
            text = "This chat was started without tools; leave, and run `metis -c --tools`."
            state.screen.print(text)
            return
        await state.session.enable_tools(enabled=argument == "on")
        state.refresh()
        state.screen.print(f"Tools: {argument}.", "dim")
        return
    if argument:
        raise InvalidValueError(f"/tools takes on or off, not {argument!r}")
    await state.session.prepare_tools()
    confirmation, tools = state.library.options.confirmation, state.session.tools
    if not tools:
        state.screen.print("This conversation has no tools.", "dim")
        return
    model = None if state.model is None else state.library.models.get(state.model)
    if model is not None and not model.capabilities.supports_tools:
        state.screen.print(f"{model.id} does not support tools and gets none of these:", "yellow")
    rows: list[tuple[str, str, str]] = []
    for tool in tools:
        rule = Rule.DENY if confirmation is None else confirmation.rule(tool)
        rows.append((tool.name, _RULE_NAMES[rule], tool.description.partition(". ")[0]))
    state.screen.write(column_rows(rows, state.screen.width))


COMMANDS = (
    Command("cost", "", "what this conversation has cost", show_cost),
    Command("budget", "[USD|none]", "show or set the budget", show_budget),
    Command("why", "", "why this model answered", show_why),
    Command("trace", "", "the steps of this conversation, with times", show_trace),
    Command("context", "[MODEL]", "how full the context window is", show_context, "model"),
    Command("tools", "[on|off]", "list the tools, or switch them on or off", list_tools),
)
