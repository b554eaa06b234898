"""Chat commands on models: /model, /models and /diff."""

from rich.text import Text

from metis import adapters
from metis.cli.chat.commands.command import Command
from metis.cli.chat.keyboard import ask_yes_no
from metis.cli.chat.rows import table_rows, wrap
from metis.cli.chat.state import YOUR_CHOICE, ChatState, routing_reason, window_share
from metis.cli.chat.turn_parts import (
    REASONING_PATH,
    is_noticeable,
    loss_key,
    loss_rows,
    reformatted_line,
)
from metis.cli.models import COLUMNS, LEGEND, ModelFilter, catalog_models
from metis.cli.text import short_count
from metis.projection.loss import Loss
from metis.session import Preview

AUTO = "auto"


async def choose(state: ChatState, name: str) -> None:
    """Switch to another model; without a name, show the current one."""
    if not name or name == "show":
        _show_current(state)
    elif name == AUTO:
        previous = state.model
        await state.session.swap(None)
        state.previous_model = previous
        state.refresh()
        state.screen.print("The routing rules choose the model from now on.", "dim")
    else:
        await _swap(state, _resolve(state, name))


def _resolve(state: ChatState, name: str) -> str:
    """Return the model of a name: `-` is the previous one, a provider its default model."""
    if name == "-":
        return state.previous_model or state.model or ""
    if name in adapters.names():
        return f"{name}:{adapters.profile_of(name).default_model}"
    return name


async def _swap(state: ChatState, name: str) -> None:
    """Show what the model would not receive, confirm if something is lost, and swap."""
    preview = state.session.preview_swap(name)
    previous = state.model
    if preview.fits:
        _show_preview(state, preview)
        if _needs_confirmation(preview) and not await ask_yes_no(state.keyboard, "Switch?"):
            current = previous or "the model that the rules choose"
            state.screen.print(f"Cancelled; still using {current}.", "dim")
            return
    await state.session.swap(preview.model)
    # The first turn of the new model would otherwise repeat what was just shown.
    state.reported_losses |= {loss_key(loss) for loss in _losses(preview)}
    state.previous_model = previous
    state.refresh()
    state.screen.print(f"Switched to {preview.model}.", "dim")


def _needs_confirmation(preview: Preview) -> bool:
    """Return whether the model would miss something that a person wrote or showed."""
    losses = (*preview.dropped, *preview.altered)
    return any(is_noticeable(loss) and loss.path != REASONING_PATH for loss in losses)


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
    state.screen.print(f"{model}{aliases}", "bold")
    state.screen.print(f"{reason} · context window {window} tokens")
    if state.previous_model:
        state.screen.print(f"/model - switches back to {state.previous_model}", "dim")


async def list_models(state: ChatState, words: str) -> None:
    """List the models that can be used now, or all that match the words."""
    model_filter = ModelFilter(words=tuple(words.split()), is_configured=not words)
    models = catalog_models(state.library.models.available_providers())
    matching = [model for model in models if model_filter.matches(model)]
    if not words:
        matching = [model for model in matching if model.aliases] or matching
    if not matching:
        state.screen.print(f"No model matches {words!r}; /models lists those you can use.")
        return
    cells = [[Text(name, "bold") for name in COLUMNS]]
    for model in matching:
        style = "" if model.is_configured else "dim"
        cells.append([Text(cell, style) for cell in model.cells(model.id)])
    state.screen.write(table_rows(cells, state.screen.width, right=(2, 3, 4)))
    state.screen.print(LEGEND, "dim")
    if not words:
        state.screen.print("/models WORDS searches all models; @alias asks one once.", "dim")


async def diff(state: ChatState, name: str) -> None:
    """Compare what the current model and another would receive."""
    if not name:
        state.screen.print("Name the model to compare with: /diff MODEL.", "red")
        return
    for model in (name,) if state.model is None else (state.model, name):
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
