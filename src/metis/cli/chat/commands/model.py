"""/model, /models, /diff: who answers, who could, and what each would see."""

from rich.text import Text

from metis import adapters
from metis.canonical.errors import UnpricedModelError
from metis.catalog import ModelInfo, PriceTable, price_table
from metis.cli.chat.commands.command import Command
from metis.cli.chat.keyboard import ask_yes_no
from metis.cli.chat.rows import table_rows, wrap
from metis.cli.chat.state import ChatState
from metis.cli.chat.statusline import format_tokens, routing_reason, window_share
from metis.cli.chat.turn_parts import (
    REASONING_PATH,
    is_noticeable,
    loss_key,
    loss_rows,
    reformatted_line,
)
from metis.cli.render import count
from metis.projection.loss import Loss
from metis.session import Preview

AUTO = "auto"
_CAPABILITIES = {"tools": "tools", "images": "img", "thinking": "think"}
"""What a model may be able to do, and the word for it that leaves room for the others."""
_ROOM_FOR_ALL = 72
"""How wide a screen has to be for all columns."""


async def choose(talk: ChatState, name: str) -> None:
    """Let another model answer; without a name, say who does."""
    if not name or name == "show":
        _show(talk)
    elif name == AUTO:
        before = talk.model
        await talk.session.swap(None)
        talk.previous_model = before
        talk.refresh()
        talk.screen.say("The rules choose the model from now on.", "dim")
    else:
        await _swap(talk, _named(talk, name))


def _named(talk: ChatState, name: str) -> str:
    """A model by its own name, by that of its provider, or the one before."""
    if name == "-":
        return talk.previous_model or talk.model or ""
    if name in adapters.names():
        return f"{name}:{adapters.profile_of(name).default_model}"
    return name


async def _swap(talk: ChatState, name: str) -> None:
    """Show what the model would not see; ask, if anything is lost; swap."""
    preview = talk.session.preview_swap(name)
    before = talk.model
    if preview.fits:
        _show_preview(talk, preview)
        if _is_worth_a_question(preview) and not await ask_yes_no(talk.keyboard, "Swap?"):
            talk.screen.say(f"{before or 'The rules'} goes on.", "dim")
            return
    await talk.session.swap(preview.model)
    talk.reported_losses |= {loss_key(loss) for loss in _losses(preview)}
    talk.previous_model = before
    talk.refresh()
    talk.screen.say(f"{preview.model} answers from now on.", "dim")


def _is_worth_a_question(preview: Preview) -> bool:
    """Whether the model would miss something that a person said or showed."""
    losses = (*preview.dropped, *preview.altered)
    return any(is_noticeable(loss) and loss.path != REASONING_PATH for loss in losses)


def _losses(preview: Preview) -> tuple[Loss, ...]:
    return (*preview.dropped, *preview.altered, *preview.sealed)


def _show_preview(talk: ChatState, preview: Preview) -> None:
    """Block by block what a model would not see as it was said."""
    window = talk.library.models.catalog.model(preview.model).capabilities.max_context_tokens
    title = f"{preview.model} · the conversation takes {window_share(preview.input_tokens, window)}"
    rows = [Text(title)]
    parts = (
        ("It does not see:", preview.dropped),
        ("It sees otherwise:", preview.altered),
        ("It does not see, and whoever said it has it back later:", preview.sealed),
    )
    for head, losses in parts:
        felt = [loss for loss in losses if is_noticeable(loss)]
        if felt:
            rows += [Text(head, "yellow"), *loss_rows(felt, talk.screen.width)]
    formal = reformatted_line(loss for loss in _losses(preview) if not is_noticeable(loss))
    if formal:
        rows += wrap(Text(formal, "dim"), talk.screen.width)
    elif len(rows) == 1:
        rows.append(Text("It sees everything as it was said.", "dim"))
    talk.screen.write(rows)


def _show(talk: ChatState) -> None:
    """Who answers and why."""
    model, record = talk.model, talk.record
    if model is None:
        talk.screen.say("Nobody has answered yet; /model NAME chooses who does.")
        return
    info = talk.library.models.catalog.model(model)
    names = f" ({', '.join(info.aliases)})" if info.aliases else ""
    reason = "your choice" if talk.session.model else "chosen by the rules"
    if record is not None and record.chosen_model == model:
        reason = f"{routing_reason(record)}: {record.reason}"
    talk.screen.say(f"{model}{names}", "bold")
    talk.screen.say(f"{reason} · {format_tokens(info.capabilities.max_context_tokens)} tokens")
    if talk.previous_model:
        talk.screen.say(f"/model - goes back to {talk.previous_model}", "dim")


async def list_models(talk: ChatState, words: str) -> None:
    """List the models that can be asked, or all that hold the words."""
    models = talk.library.models
    configured = models.available_providers()
    found = [
        info
        for info in models.catalog.models()
        if all(word in _searched(info) for word in words.lower().split())
        and (words or info.provider in configured)
    ]
    if not words:
        found = [info for info in found if info.aliases] or found
    if not found:
        talk.screen.say(f"No model fits {words!r}; /models lists those that can be asked.")
        return
    table = price_table()
    cells = [
        [Text(name, "bold") for name in ("model", "alias", "window", "$/M in", "$/M out", "can")]
    ]
    cells += [_row(info, table, is_ready=info.provider in configured) for info in found]
    if talk.screen.width < _ROOM_FOR_ALL:
        cells = [row[:-1] for row in cells]
    talk.screen.write(table_rows(cells, talk.screen.width, right=(2, 3, 4)))
    if not words:
        talk.screen.say("/models WORDS looks through all of them; @alias asks one once.", "dim")


def _searched(info: ModelInfo) -> str:
    return " ".join((info.id, *info.aliases, *_can(info)))


def _can(info: ModelInfo) -> list[str]:
    can = info.capabilities
    return [each for each in _CAPABILITIES if getattr(can, f"supports_{each}")]


def _row(info: ModelInfo, table: PriceTable, *, is_ready: bool) -> list[Text]:
    style = "" if is_ready else "dim"
    try:
        rates = table.prices(info.id).period_on(None).standard.rates_for(0)
        price = (str(rates.input_per_mtok_usd), str(rates.output_per_mtok_usd))
    except UnpricedModelError:
        price = ("", "")
    window = format_tokens(info.capabilities.max_context_tokens)
    bare = info.id.partition(":")[2]
    aliases = " ".join(alias for alias in info.aliases if alias != bare)
    can = " ".join(_CAPABILITIES[each] for each in _can(info))
    cells = (info.id, aliases, window, *price, can)
    return [Text(cell, style) for cell in cells]


async def diff(talk: ChatState, name: str) -> None:
    """Compare what two models would see of the conversation."""
    if not name:
        talk.screen.say("Name the model to compare with: /diff MODEL.", "red")
        return
    own = talk.model
    names = [name] if own is None else [own, name]
    for each in names:
        preview = talk.session.preview_swap(each)
        _show_preview(talk, preview)
        if not preview.fits:
            talk.screen.say(f"It cannot take over: {preview.why}.", "red")
        lost = len(preview.dropped) + len(preview.altered) + len(preview.sealed)
        talk.screen.say(f"{count(lost, 'difference')} from what was said\n", "dim")


COMMANDS = (
    Command(
        name="model",
        usage="[NAME|-|auto|show]",
        help="who answers; - swaps back, auto follows the rules",
        run=choose,
        completes="model",
    ),
    Command(name="models", usage="[WORDS]", help="models that can be asked", run=list_models),
    Command(
        name="diff",
        usage="MODEL",
        help="what another model would see of this conversation",
        run=diff,
        completes="model",
    ),
)
