"""Chat commands on models: /model, /models and /diff."""

from rich.text import Text

from metis import adapters
from metis.canonical.errors import AuthenticationError
from metis.cli.chat.commands.command import Command
from metis.cli.chat.keyboard import ask_yes_no
from metis.cli.chat.picker import Choice, Picker
from metis.cli.chat.rows import table_rows, wrap
from metis.cli.chat.state import YOUR_CHOICE, ChatState, routing_reason, window_share
from metis.cli.chat.turn_parts import (
    REASONING_PATH,
    is_noticeable,
    is_unsupported_tool,
    loss_key,
    loss_rows,
    reformatted_line,
)
from metis.cli.default_model import LOCAL, SIMULATOR, ModelChoice
from metis.cli.local_servers import SERVER_NAMES, running_servers
from metis.cli.models import COLUMNS, LEGEND, ListedModel, ModelFilter, all_models
from metis.cli.text import short_count
from metis.projection.loss import Loss
from metis.session import Preview

AUTO = "auto"


async def choose(state: ChatState, name: str) -> None:
    """Switch to another model; without a name, show the current one."""
    if not name and not state.screen.is_plain:
        _show_current(state)
        picked = await Picker(state.screen, "/model", await _model_choices(state)).pick()
        if picked is not None and picked != state.model:
            await _choose_named(state, picked)
    elif not name or name == "show":
        _show_current(state)
    elif name == AUTO:
        previous = state.model
        await state.session.swap(None)
        state.previous_model = previous
        state.refresh()
        state.screen.print("The routing rules choose the model from now on.", "dim")
    elif name == "-":
        await _choose_named(state, state.previous_model or state.model or "")
    else:
        await _choose_named(state, name)


async def _model_choices(state: ChatState) -> list[Choice]:
    """Return the models that can be used now, the current one first."""
    is_simulated = state.library.options.simulate
    models = [model for model in await _all_models(state) if model.is_configured]
    models.sort(key=lambda model: not model.aliases)
    # The current model may be one of the simulator, which the catalog does not list.
    current = [] if state.model is None else [Choice(state.model, state.model, "current")]
    others = [
        Choice(model.id, model.id, _detail(model, is_simulated=is_simulated))
        for model in models
        if model.id != state.model
    ]
    special = [Choice(AUTO, AUTO, "the routing rules choose")]
    if not is_simulated:
        special.append(Choice(SIMULATOR, SIMULATOR, "the simulator: canned replies, free"))
    return [*current, *others, *special]


def _detail(model: ListedModel, *, is_simulated: bool) -> str:
    _, aliases, window, rate_in, rate_out, *_ = model.cells(model.id)
    price = f"${rate_in} in, ${rate_out} out" if model.input_usd_per_mtok else ""
    price = "simulated, free" if is_simulated else price
    return " · ".join(part for part in (aliases, window, price) if part)


async def _all_models(state: ChatState) -> list[ListedModel]:
    """Return the models of the catalog, and those that servers on this machine have."""
    servers = await running_servers(state.loaded.settings.base_urls)
    served = {model for server in servers for model in server.models}
    # A local server needs no key, so only the models that it lists count as available.
    providers = state.library.models.available_providers() - SERVER_NAMES.keys()
    return all_models(providers, served)


async def _choose_named(state: ChatState, name: str) -> None:
    """Swap to the model of a name; another library is opened if the model needs one."""
    choice = await _choice_of(state, name)
    if state.opener.fits(choice):
        await state.opener.state_features(state.library, choice.model)
        await _swap(state, choice.model)
        return
    before, previous = state.opener.choice, state.model
    await state.use_library(choice)
    if not await _swap(state, choice.model, previous) and before is not None:
        await state.use_library(before)


async def _choice_of(state: ChatState, name: str) -> ModelChoice:
    """Return the model of a name; the user confirms leaving a simulated chat, which is free."""
    if name.partition(":")[0] in (SIMULATOR, LOCAL) or name in SERVER_NAMES:
        return await state.chooser.named(name)
    if not state.library.options.simulate:
        return ModelChoice(model=_resolved(state, name))
    simulated = await state.chooser.named(f"{SIMULATOR}:{name}")
    try:
        real = await state.chooser.named(name)
    except AuthenticationError:
        return simulated
    question = f"{real.model} can be used for real. Leave the simulator?"
    return real if await ask_yes_no(state.keyboard, question) else simulated


def _resolved(state: ChatState, name: str) -> str:
    """Return the id of a model by its id, alias or suffix, or by its provider alone."""
    if name in adapters.names():
        name = f"{name}:{adapters.profile_of(name).default_model}"
    return state.library.models.resolve(name)


async def _swap(state: ChatState, name: str, previous: str | None = None) -> bool:
    """Show what the model would not receive, confirm if something is lost, and swap."""
    preview = state.session.preview_swap(name)
    previous = previous or state.model
    if preview.fits:
        _show_preview(state, preview)
        if _needs_confirmation(preview) and not await ask_yes_no(state.keyboard, "Switch?"):
            current = previous or "the model that the rules choose"
            state.screen.print(f"Cancelled; still using {current}.", "dim")
            return False
    await state.session.swap(preview.model)
    # The first turn of the new model would otherwise repeat what was just shown.
    state.reported_losses |= {loss_key(loss) for loss in _losses(preview)}
    state.previous_model = previous
    state.refresh()
    mark = " (simulated)" if state.library.options.simulate else ""
    state.screen.print(f"Switched to {preview.model}{mark}.", "dim")
    return True


def _needs_confirmation(preview: Preview) -> bool:
    """Return whether the model would miss something that a person wrote or showed."""
    losses = (*preview.dropped, *preview.altered)
    return any(
        is_noticeable(loss) and loss.path != REASONING_PATH and not is_unsupported_tool(loss)
        for loss in losses
    )


def _losses(preview: Preview) -> tuple[Loss, ...]:
    return (*preview.dropped, *preview.altered, *preview.sealed)


def _show_preview(state: ChatState, preview: Preview, *, shows_reformatted: bool = False) -> None:
    """Show what a model would not receive unchanged."""
    capabilities = state.library.models.catalog.model(preview.model).capabilities
    share = window_share(preview.input_tokens, capabilities.max_context_tokens)
    rows = [Text(f"{preview.model} · this conversation takes {share}")]
    name = preview.model.partition(":")[2]
    parts = (
        (f"Not sent to {name}:", preview.dropped),
        ("Changed:", preview.altered),
        (f"Not sent to {name} (kept, and restored if you switch back):", preview.sealed),
    )
    for heading, losses in parts:
        noticeable = [loss for loss in losses if is_noticeable(loss)]
        if noticeable:
            rows += [Text(heading, "yellow"), *loss_rows(noticeable, state.screen.width)]
    if len(rows) == 1:
        rows.append(Text("Nothing is lost.", "dim"))
    reformatted = reformatted_line(loss for loss in _losses(preview) if not is_noticeable(loss))
    if reformatted and shows_reformatted:
        rows += wrap(Text(reformatted, "dim"), state.screen.width)
    state.screen.write(rows)


def _show_current(state: ChatState) -> None:
    """Show the current model, and why it was chosen."""
    model, decision = state.model, state.decision
    if model is None:
        state.screen.print("No model yet; /model NAME chooses one.")
        return
    info = state.library.models.catalog.model(model)
    aliases = f" ({', '.join(info.aliases)})" if info.aliases else ""
    reason = YOUR_CHOICE if state.session.model else "chosen by the rules"
    if decision is not None and decision.chosen_model == model:
        reason = f"{routing_reason(decision)}: {decision.reason}"
    window = short_count(info.capabilities.max_context_tokens)
    mark = " [simulated]" if state.library.options.simulate else ""
    state.screen.print(f"{model}{aliases}{mark}", "bold")
    state.screen.print(f"{reason} · context window {window} tokens")
    if state.previous_model:
        state.screen.print(f"/model - switches back to {state.previous_model}", "dim")


async def list_models(state: ChatState, words: str) -> None:
    """List the models that can be used now, or all that match the words."""
    model_filter = ModelFilter(words=tuple(words.split()), is_configured=not words)
    models = await _all_models(state)
    matching = [model for model in models if model_filter.matches(model)]
    if not words:
        matching = [
            model for model in matching if model.aliases or model.is_on_local_server
        ] or matching
    if not matching:
        state.screen.print(f"No model matches {words!r}; /models lists those you can use.")
        return
    cells = [[Text(name, "bold") for name in COLUMNS]]
    for model in matching:
        style = "" if model.is_configured else "dim"
        cells.append([Text(cell, style) for cell in model.cells(model.id)])
    state.screen.write(table_rows(cells, state.screen.width, right=(2, 3, 4), unbroken=(0,)))
    state.screen.print(LEGEND, "dim")
    if not words:
        state.screen.print("/models WORDS searches all models; @alias asks one once.", "dim")


async def diff(state: ChatState, name: str) -> None:
    """Compare what the current model and another would receive."""
    if not name:
        state.screen.print("Name the model to compare with: /diff MODEL.", "red")
        return
    other = _resolved(state, name)
    for model in (other,) if state.model is None else (state.model, other):
        preview = state.session.preview_swap(model)
        _show_preview(state, preview, shows_reformatted=True)
        if not preview.fits:
            state.screen.print(f"Cannot switch to it: {preview.why}.", "red")
        state.screen.print("")


COMMANDS = (
    Command(
        "model",
        "[NAME|-|auto|show]",
        "show or change the model; - previous, auto by rules",
        choose,
        "model",
    ),
    Command("models", "[WORDS]", "list models that can be used", list_models),
    Command("diff", "MODEL", "what another model would receive", diff, "model"),
)
