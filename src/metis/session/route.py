"""Which model answers: the routing decision of a turn, fallbacks, and swaps by the user."""

import time
from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import (
    CatalogError,
    CriticalLossError,
    InvalidValueError,
    ProviderError,
    RoutingError,
    SwapRefusedError,
)
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import RoutingDecisionRecord, RoutingMode
from metis.events import Actor, Event
from metis.events.turn_events import RouteConstraintFailed, SessionModelChanged
from metis.projection.loss import Change, Loss
from metis.routing import ChainEntry, Decision, Reason, TurnFacts
from metis.routing.router import route_decided
from metis.session.conversation import UNPIN_KIND, HistoryFacts, contains_image
from metis.session.events import Routed
from metis.session.models import ResolvedModel
from metis.session.options import Setup, request_options, sticky_model, supports_thread_options
from metis.session.prompt import matching_skills
from metis.session.response import text_of
from metis.session.state import TurnContext, estimate_tokens, minimum_tokens, turn_facts
from metis.store.entries import SwapEntry

ModelChoice = tuple[ResolvedModel, RoutingDecisionRecord]
"""A model, and the record of the decision for it."""


class TurnRouter:
    """Chooses the models of one turn."""

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._setup = context.setup
        self._trace = context.reporter.trace

    def facts(self, prompt: Message, override: str | None) -> TurnFacts:
        """Return the facts that the routing decision depends on."""
        setup, text = self._setup, text_of(prompt.content)
        sticky = self._sticky_model(override)
        return turn_facts(
            self._context.conversation.facts,
            setup.tools,
            setup.now(),
            message=text,
            override=override,
            sticky=sticky,
            tier=setup.tier,
            workspace_path=setup.workspace_path,
            skills_matching_message=matching_skills(setup.skills, text) if setup.skills else (),
            has_images_in_prompt=any(map(contains_image, prompt.content)),
            **self._size(self._likely_model(override or sticky)),
        )

    async def choose(self, facts: TurnFacts, parent: Event | None) -> ModelChoice:
        """Return the model of the turn; the decision is traced, also if no model fits.

        Raises:
            RoutingError: no model can answer the turn.
        """
        setup, state = self._setup, self._context.state
        # Before the decision, so that models whose cooldown is over are candidates again.
        setup.outages.clear_expired(self._trace)
        if setup.options.workspace is not None:  # only rules of a workspace depend on the cost
            spent = await setup.spending.totals()
            facts = replace(facts, cost_today_usd=spent.day_usd)
        started_s = time.perf_counter()
        decision = setup.router.decide(facts)
        if decision.chosen is None and self._retry_unavailable(decision):
            decision = setup.router.decide(facts)
        elapsed_ms = (time.perf_counter() - started_s) * 1000
        payload = partial(route_decided, decision, elapsed_ms=elapsed_ms)
        self._trace.emit(payload, parent=parent)
        if setup.outages.is_new_problem(decision.policy_problem, self._trace):
            text = f"the rules file is not used: {decision.policy_problem}"
            self._context.reporter.warn("rules_invalid", text)
        model, record = setup.models.get(decision.require()), decision.record
        if record is None:
            raise AssertionError("a decision without a record")
        state.last_chain = decision.chain
        return self._report(model, state.with_swap_reason(record))

    def fall_back(self, model: ResolvedModel, error: ProviderError, tried: set[str]) -> ModelChoice:
        """Return the next fallback for a model that failed.

        Raises:
            ProviderError: the given error, if there is no fallback.
        """
        setup, context = self._setup, self._context
        for outage in setup.outages.record_failure(model.id, error, self._trace):
            context.reporter.warn("outage", str(outage))
        for name in (*setup.fallbacks.get(model.id, ()), *setup.fallbacks.get("*", ())):
            other = setup.models.get(name)
            facts = turn_facts(
                context.conversation.facts, setup.tools, setup.now(), **self._size(other)
            )
            if other.id in tried or setup.router.check(other.id, facts):
                continue
            # A fallback must support the options of the thread, such as web search.
            if not supports_thread_options(setup, context.conversation, other):
                continue
            tried.add(other.id)
            record = RoutingDecisionRecord(
                mode=RoutingMode.RULE,
                chosen_model=other.id,
                reason=f"fallback for {model.id}, which is down ({type(error).__name__})",
                rule_name="fallback",
                alternatives_considered=(model.id,),
            )
            context.reporter.warn("fallback", record.reason)
            return self._report(other, record)
        raise error

    def _report(self, model: ResolvedModel, record: RoutingDecisionRecord) -> ModelChoice:
        self._context.state.last_decision = record
        reporter = self._context.reporter
        reporter.send(Routed(turn_id=reporter.turn_id, record=record))
        return model, record

    def _sticky_model(self, override: str | None) -> str | None:
        try:
            return sticky_model(self._setup, self._context.conversation)
        except CatalogError:
            if override is None:
                raise
            return None  # the model of the thread is unknown, but this turn names another

    def _likely_model(self, named: str | None) -> ResolvedModel | None:
        """Return the model that will probably answer, to estimate the size of the turn with.

        Rules may depend on the size of the turn, so it is estimated before the decision; models
        count tokens differently.
        """
        setup = self._setup
        if named is None:
            past = (m.metadata.model for m in reversed(self._context.conversation.messages))
            last = next(filter(None, past), None)
            named = last if last in setup.models.catalog.entries else None
        named = named or setup.router.default_model(setup.workspace_path, setup.tier)
        return None if named is None else setup.models.get(named)

    def _size(self, model: ResolvedModel | None) -> dict[str, int]:
        """Return the facts about the size of the turn, as the model counts it."""
        if model is None:
            return {}
        setup = self._setup
        tokens = minimum = self._context.estimate_tokens(model)
        reserved = setup.request_defaults.max_output_tokens or 0
        # A history that can be compacted needs fewer tokens. The second estimate is made only if
        # there is a model whose window is too small for the whole history.
        if (
            setup.options.compact_at is not None
            and tokens + reserved > setup.router.smallest_window
        ):
            messages = self._context.conversation.messages
            minimum = min(tokens, minimum_tokens(messages, setup.tools, model))
        return {
            "estimated_input_tokens": tokens,
            "minimum_tokens": minimum,
            "reserved_output_tokens": reserved,
        }

    def _retry_unavailable(self, decision: Decision) -> bool:
        """End outages of the candidates, since no other model is left; return whether any ended.

        A user who sends again may have fixed the key or the network.
        """
        ended = False
        for entry in decision.chain:
            model = entry.candidate_model
            if model is not None and entry.reason == Reason.PROVIDER_UNAVAILABLE:
                ended |= self._setup.outages.retry_now(model, self._trace)
        return ended


# The model and the context window of a session


class WindowUse(Struct, frozen=True, kw_only=True):
    """How full the context window of a model is; the tokens are an estimate."""

    model: str
    tokens: int
    window_tokens: int

    @property
    def share(self) -> float:
        """The used share of the window; above 1 the history does not fit."""
        return self.tokens / self.window_tokens


class Why(Struct, frozen=True, kw_only=True):
    """The routing decision of a turn."""

    record: RoutingDecisionRecord
    chain: tuple[ChainEntry, ...] = ()
    """Every slot that was tried, the winner last; empty for a turn of an earlier process."""


def window_use(context: TurnContext, model: str | None) -> WindowUse | None:
    """Return how full the window of a model is, by default of the model of the next turn."""
    resolved = _next_model(context, model)
    if resolved is None:
        return None
    tokens = _used_tokens(context, resolved)
    window = context.state.context_window(resolved)
    return WindowUse(model=resolved.id, tokens=tokens, window_tokens=window)


def window_parts(context: TurnContext, model: str | None) -> dict[str, int]:
    """Return the tokens of each kind of block in the history, and of the tool definitions.

    The estimates are scaled so that their sum is the total of `window_use`, which uses the
    provider's counts.
    """
    resolved = _next_model(context, model)
    if resolved is None:
        return {}
    by_kind: dict[str, list[Message]] = {}
    for message in context.conversation.messages:
        kinds: dict[str, list[ContentBlock]] = {}
        for block in message.content:
            kind = block.type
            is_instruction = message.role in (Role.SYSTEM, Role.DEVELOPER)
            kinds.setdefault("system" if is_instruction else kind, []).append(block)
        for kind, blocks in kinds.items():
            by_kind.setdefault(kind, []).append(replace(message, content=tuple(blocks)))
    parts = {kind: resolved.estimate_tokens(messages) for kind, messages in by_kind.items()}
    if context.setup.tools and resolved.capabilities.supports_tools:
        parts["tools"] = resolved.estimate_tokens((), context.setup.tools)
    total, estimate = _used_tokens(context, resolved), sum(parts.values())
    return {kind: round(tokens * total / estimate) for kind, tokens in parts.items() if tokens}


def _used_tokens(context: TurnContext, model: ResolvedModel) -> int:
    return estimate_tokens(context.conversation.messages, context.setup.tools, model)


def last_routing(context: TurnContext) -> Why | None:
    """Return the routing decision of the last turn, from this process or from its response."""
    state = context.state
    if state.last_decision is not None:
        return Why(record=state.last_decision, chain=state.last_chain)
    for message in reversed(context.conversation.path):
        if message.metadata.routing is not None:
            return Why(record=message.metadata.routing)
    return None


def _next_model(context: TurnContext, model: str | None) -> ResolvedModel | None:
    setup, models = context.setup, context.setup.models
    if model is not None:
        return models.get(model)
    try:
        sticky = sticky_model(setup, context.conversation)
        if sticky is not None:
            return models.get(sticky)
        facts = turn_facts(context.conversation.facts, setup.tools, setup.now())
        return models.get(setup.router.decide(facts).require())
    except (CatalogError, RoutingError):
        return None


# Swaps

_SEALED_TYPES = frozenset({"thinking", "redacted_thinking", "opaque", "artifact"})
_MISMATCH_TEXTS = {
    Reason.NO_VISION_SUPPORT: "session contains images that this model can't process",
    Reason.NO_TOOL_SUPPORT: "session works with tools, which this model can't call",
    Reason.NO_SYSTEM_PROMPT_SUPPORT: "session has instructions, which this model doesn't take",
}
CRITICAL_BLOCK = "critical_block"
"""The name of the missing capability if a critical block would be lost."""


class Preview(Struct, frozen=True, kw_only=True):
    """What a model would get of the history; the store is not changed."""

    model: str
    fits: bool
    capability: str | None = None
    """The missing capability if it does not fit."""
    why: str | None = None
    """Why it does not fit, as a text for users."""
    dropped: tuple[Loss, ...] = ()
    """Parts that the model would not get."""
    altered: tuple[Loss, ...] = ()
    """Parts that the model would get in another form, or as a substitute."""
    sealed: tuple[Loss, ...] = ()
    """Parts that only their issuer can read; they are sent again after a swap back."""
    input_tokens: int = 0
    """An estimate of the history's size for this model."""


def preview_swap(setup: Setup, messages: Sequence[Message], model: ResolvedModel) -> Preview:
    """Project a history for another model; nothing is changed or reported."""
    tokens = model.estimate_tokens(messages, setup.tools)
    history = HistoryFacts(messages)
    facts = turn_facts(history, setup.tools, setup.now(), estimated_input_tokens=tokens)
    failure = setup.router.check(model.id, facts)
    preview = Preview(model=model.id, fits=False, input_tokens=tokens)
    try:
        options = replace(setup.request_defaults, model=model.id)
        losses = model.adapter.preview(_with_prompt(messages, setup), setup.tools, options).losses
    except CriticalLossError as error:
        why = f"session holds a critical {error.block_type} block: {error.reason}"
        return replace(preview, capability=CRITICAL_BLOCK, why=why)
    except InvalidValueError as error:
        # The provider refuses an option of the thread, such as web search.
        why = f"session asks for what this model doesn't do: {error.reason}"
        return replace(preview, capability=error.path.removeprefix("$."), why=why)
    dropped = [loss for loss in losses if loss.change is Change.DROPPED]
    preview = replace(
        preview,
        fits=failure is None,
        dropped=tuple(loss for loss in dropped if loss.block_type not in _SEALED_TYPES),
        altered=tuple(loss for loss in losses if loss.change is not Change.DROPPED),
        sealed=tuple(loss for loss in dropped if loss.block_type in _SEALED_TYPES),
    )
    if failure is None:
        return preview
    why = _MISMATCH_TEXTS.get(failure.reason, failure.text)
    return replace(preview, capability=str(failure.reason), why=why)


def _with_prompt(messages: Sequence[Message], setup: Setup) -> Sequence[Message]:
    """Return the history with a prompt at its end, as it would be sent after the swap."""
    if not messages:
        return messages
    prompt = Message(
        id=new_ulid(),
        session_id=messages[-1].session_id,
        role=Role.USER,
        content=(TextBlock("?"),),
        created_at=setup.now(),
    )
    return (*messages, prompt)


class ModelPin:
    """The model that a user sets for a session; a swap during a turn waits for its end."""

    def __init__(self, context: TurnContext) -> None:
        self._context = context
        self._queued: list[str | None] = []

    @property
    def model(self) -> str | None:
        """The model that the user set last; None leaves the choice to the rules."""
        return self._queued[-1] if self._queued else self._current()

    def preview(self, name: str) -> Preview:
        """Return whether a model can continue, and every part that it would not get unchanged."""
        context = self._context
        model = context.setup.models.get(name)
        options = request_options(context.setup, context.conversation, model.id)
        messages = context.state.files.embedded(context.conversation.messages)
        return preview_swap(replace(context.setup, request_defaults=options), messages, model)

    async def swap(self, name: str | None, *, is_running: bool) -> Preview | None:
        """Set another model, now or at the end of the running turn.

        Raises:
            SwapRefusedError: the history does not fit the model.
        """
        preview = None if name is None else self.preview(name)
        if preview is not None and not preview.fits:
            raise self._refuse(preview)
        model = None if preview is None else preview.model
        changed = SessionModelChanged(
            old_model=self._current(), new_model=model, is_queued=is_running
        )
        self._context.reporter.trace.emit(changed, actor=Actor.USER)
        if is_running:
            self._queued = [model]
        else:
            await self._pin(model)
        return preview

    async def apply_queued(self) -> None:
        """Set the model that had to wait for the end of a turn."""
        if self._queued:
            model = self._queued.pop()
            self._queued.clear()
            await self._pin(model)

    def _current(self) -> str | None:
        try:
            return sticky_model(self._context.setup, self._context.conversation)
        except CatalogError:  # the thread points to a model that does not exist
            return self._context.conversation.pinned_model

    def _refuse(self, preview: Preview) -> SwapRefusedError:
        capability, why = preview.capability or "", preview.why or ""
        active = self._current()
        refused = RouteConstraintFailed(
            model=preview.model, active_model=active, capability=capability, reason=why
        )
        self._context.reporter.trace.emit(refused, actor=Actor.USER)
        return SwapRefusedError(preview.model, capability=capability, why=why, active=active)

    async def _pin(self, model: str | None) -> None:
        conversation, before = self._context.conversation, self._current()
        # A pointer of the thread precedes an earlier pin of the same model, so it is pinned again.
        if model == before and conversation.pointer is None:
            return
        if model is None:
            await conversation.note(UNPIN_KIND, {})
            return
        await conversation.record(SwapEntry, from_model=before, to_model=model, reason="user swap")
        self._context.state.swapped_from = before
