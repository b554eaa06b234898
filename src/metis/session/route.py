"""Which model answers: the routing decision of a turn, fallbacks, and swaps by the user."""

import time
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import TextBlock
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
from metis.routing import ChainEntry, Decision, Failure, Reason, TurnFacts
from metis.routing.router import route_decided
from metis.session.conversation import UNPIN_KIND, Conversation, HistoryFacts
from metis.session.events import Routed, Trace, TurnReporter
from metis.session.models import ResolvedModel
from metis.session.options import Setup, request_options, sticky_model, supports_thread_options
from metis.session.prompt import matching_skills
from metis.session.state import SessionState, estimate_tokens, minimum_tokens, text_of, turn_facts
from metis.store.entries import SidecarEntry, SwapEntry

ModelChoice = tuple[ResolvedModel, RoutingDecisionRecord]
"""A model and why it was chosen."""


class TurnRouter:
    """Chooses the models of one turn."""

    def __init__(
        self, setup: Setup, conversation: Conversation, told: SessionState, telling: TurnReporter
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._telling = telling
        self._trace = telling.trace

    def facts(self, question: Message, override: str | None) -> TurnFacts:
        """What the choice depends on, as far as it is known without asking anybody."""
        setup, text = self._setup, text_of(question.content)
        facts = replace(
            turn_facts(self._conversation.facts, setup.tools, setup.now()),
            message=text,
            override=override,
            sticky=self._sticky(override),
            tier=setup.tier,
            workspace_path=setup.workspace_path,
            skills_matching_message=matching_skills(setup.skills, text),
        )
        # The size is as the model counts that would take the turn if size did not matter.
        likely = setup.router.decide(facts).chosen
        return facts if likely is None else self._sized(facts, setup.models.get(likely))

    def _sticky(self, override: str | None) -> str | None:
        """The model of the thread; nobody misses it if the turn names another."""
        try:
            return sticky_model(self._setup, self._conversation)
        except CatalogError:
            if override is None:
                raise
            return None

    async def choose(self, facts: TurnFacts, parent: Event | None) -> ModelChoice:
        """The model that owns the turn; told once, also if there is none."""
        setup = self._setup
        setup.outages.clear_expired(self._trace)
        if setup.has_rules:
            spent = await setup.spending.totals()
            facts = replace(facts, cost_today_usd=spent.day_usd)
        started_s = time.perf_counter()
        decision = setup.router.decide(facts)
        if decision.chosen is None and self._lift(decision):
            decision = setup.router.decide(facts)
        elapsed_ms = (time.perf_counter() - started_s) * 1000
        self._trace.emit(route_decided(decision, elapsed_ms=elapsed_ms), parent=parent)
        if setup.outages.is_new_problem(decision.policy_problem, self._trace):
            text = f"the rules file is not used: {decision.policy_problem}"
            self._telling.warn("rules_invalid", text)
        served, record = setup.models.get(decision.require()), decision.record
        if record is None:
            raise AssertionError("a decision without a record")
        record = self._told.with_swap_reason(record)
        self._told.last_chain = decision.chain
        return self._chosen(served, record)

    def _lift(self, decision: Decision) -> bool:
        """Whether somebody who is down is tried again, for nobody else can answer.

        Keys and networks are mended, and who asks once more may have done so.
        """
        lifted = False
        for entry in decision.chain:
            model = entry.candidate_model
            if model is not None and entry.reason == Reason.PROVIDER_UNAVAILABLE:
                lifted |= self._setup.outages.retry_now(model, self._trace)
        return lifted

    def fall_back(
        self, served: ResolvedModel, error: ProviderError, tried: set[str]
    ) -> ModelChoice:
        """The next model that steps in for one that is down; the error if there is none."""
        setup = self._setup
        for outage in setup.outages.record_failure(served.id, error, self._trace):
            self._telling.warn("outage", str(outage))
        facts = turn_facts(self._conversation.facts, setup.tools, setup.now())
        for name in (*setup.fallbacks.get(served.id, ()), *setup.fallbacks.get("*", ())):
            model = setup.models.resolve(name)
            other = setup.models.get(model)
            if model in tried or setup.router.check(model, self._sized(facts, other)) is not None:
                continue
            if not supports_thread_options(setup, self._conversation, other):
                continue
            tried.add(model)
            record = RoutingDecisionRecord(
                mode=RoutingMode.RULE,
                chosen_model=model,
                reason=f"steps in for {served.id}, which is down ({type(error).__name__})",
                rule_name="fallback",
                alternatives_considered=(served.id,),
            )
            self._telling.warn("fallback", record.reason)
            return self._chosen(other, record)
        raise error

    def _chosen(self, served: ResolvedModel, record: RoutingDecisionRecord) -> ModelChoice:
        self._told.last_decision = record
        self._telling.send(Routed(turn_id=self._telling.turn_id, record=record))
        return served, record

    def _sized(self, facts: TurnFacts, served: ResolvedModel) -> TurnFacts:
        messages, tools = self._conversation.messages, self._setup.tools
        tokens = self._told.estimate_tokens(messages, tools, served)
        least = tokens
        if self._setup.compact_at is not None:
            least = min(tokens, minimum_tokens(messages, tools, served))
        return replace(
            facts,
            estimated_input_tokens=tokens,
            minimum_tokens=least,
            reserved_output_tokens=self._setup.options.max_output_tokens or 0,
        )


class WindowUse(Struct, frozen=True, kw_only=True):
    """How full the window of a model is; the tokens are an estimate."""

    model: str
    tokens: int
    window_tokens: int

    @property
    def share(self) -> float:
        """The part of the window that is taken, from 0; more than 1 does not fit."""
        return self.tokens / self.window_tokens


class Why(Struct, frozen=True, kw_only=True):
    """Why a model was chosen."""

    record: RoutingDecisionRecord
    chain: tuple[ChainEntry, ...] = ()
    """Every slot that was asked, the winner last; empty for a turn of an earlier run."""


def window_use(
    setup: Setup, conversation: Conversation, told: SessionState, model: str | None
) -> WindowUse | None:
    """How full the window of a model is, or of the one that would answer next."""
    served = _served(setup, conversation, model)
    if served is None:
        return None
    tokens = estimate_tokens(conversation.messages, setup.tools, served)
    return WindowUse(model=served.id, tokens=tokens, window_tokens=told.context_window(served))


def last_routing(told: SessionState, conversation: Conversation) -> Why | None:
    """The reason of the last turn: of this run, or as its last answer tells it."""
    if told.last_decision is not None:
        return Why(record=told.last_decision, chain=told.last_chain)
    for message in reversed(conversation.path):
        if message.metadata.routing is not None:
            return Why(record=message.metadata.routing)
    return None


def _served(setup: Setup, conversation: Conversation, model: str | None) -> ResolvedModel | None:
    models = setup.models
    if model is not None:
        return models.get(models.resolve(model))
    try:
        named = sticky_model(setup, conversation)
        if named is not None:
            return models.get(named)
        facts = turn_facts(conversation.facts, setup.tools, setup.now())
        return models.get(setup.router.decide(facts).require())
    except (CatalogError, RoutingError):
        return None


_SEALED = frozenset({"thinking", "redacted_thinking", "opaque", "artifact"})
_WORDS = {
    Reason.NO_VISION_SUPPORT: "session contains images that this model can't process",
    Reason.NO_TOOL_SUPPORT: "session works with tools, which this model can't call",
    Reason.NO_SYSTEM_PROMPT_SUPPORT: "session has instructions, which this model doesn't take",
}
CRITICAL_BLOCK = "critical_block"
"""The capability that is missing when a block that must not be lost would be."""


class Preview(Struct, frozen=True, kw_only=True):
    """What a swap would do to the history as the new model is shown it; the store keeps it all."""

    model: str
    fits: bool
    capability: str | None = None
    """What is missing if it does not fit."""
    why: str | None = None
    """The same for people."""
    dropped: tuple[Loss, ...] = ()
    """What the model would not see."""
    altered: tuple[Loss, ...] = ()
    """What it would see in another form, or made up for it."""
    sealed: tuple[Loss, ...] = ()
    """What it would not see and what goes back to its issuer after the way back."""
    input_tokens: int = 0
    """About how much of its window the history takes."""


def preview_swap(setup: Setup, messages: Sequence[Message], served: ResolvedModel) -> Preview:
    """Look at a history with the eyes of another model; nothing is changed or told."""
    tokens = served.adapter.estimate_input_tokens(messages, setup.tools, model=served.id)
    seen = HistoryFacts(messages)
    facts = turn_facts(seen, setup.tools, setup.now())
    facts = replace(facts, estimated_input_tokens=tokens)
    failure = setup.router.check(served.id, facts)
    losses: Sequence[Loss] = ()
    try:
        options = replace(setup.options, model=served.id)
        asked = _with_question(messages, setup.now())
        losses = served.adapter.preview(asked, setup.tools, options).losses
    except CriticalLossError as error:
        why = f"session holds a critical {error.block_type} block: {error.reason}"
        return Preview(
            model=served.id, fits=False, capability=CRITICAL_BLOCK, why=why, input_tokens=tokens
        )
    except InvalidValueError as error:
        # What the thread asks for, such as a search, this provider refuses.
        option = error.path.removeprefix("$.")
        why = f"session asks for what this model doesn't do: {error.reason}"
        return Preview(model=served.id, fits=False, capability=option, why=why, input_tokens=tokens)
    gone = [loss for loss in losses if loss.change is Change.DROPPED]
    return Preview(
        model=served.id,
        fits=failure is None,
        capability=None if failure is None else str(failure.reason),
        why=None if failure is None else _told(failure),
        dropped=tuple(loss for loss in gone if loss.block_type not in _SEALED),
        altered=tuple(loss for loss in losses if loss.change is not Change.DROPPED),
        sealed=tuple(loss for loss in gone if loss.block_type in _SEALED),
        input_tokens=tokens,
    )


def _with_question(messages: Sequence[Message], now: datetime) -> Sequence[Message]:
    """The history as it would be sent: the user says something first."""
    if not messages:
        return messages
    content = (TextBlock("?"),)
    question = Message(
        id=new_ulid(),
        session_id=messages[-1].session_id,
        role=Role.USER,
        content=content,
        created_at=now,
    )
    return (*messages, question)


def _told(failure: Failure) -> str:
    return _WORDS.get(failure.reason, failure.text)


class ModelPin:
    """Sets the model of one session."""

    def __init__(
        self, setup: Setup, conversation: Conversation, told: SessionState, trace: Trace
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._trace = trace
        self._queued: list[str | None] = []

    @property
    def model(self) -> str | None:
        """The model that the user set last; None leaves the choice to the rules."""
        return self._queued[-1] if self._queued else self._settled()

    def preview(self, model: str) -> Preview:
        """Whether another model can go on, and exactly what it would not see as it is."""
        served = self._setup.models.get(self._setup.models.resolve(model))
        options = request_options(self._setup, self._conversation, served.id)
        setup = replace(self._setup, options=options)
        return preview_swap(setup, self._told.files.embedded(self._conversation.messages), served)

    async def swap(self, model: str | None, *, is_running: bool) -> Preview | None:
        """Set another model, or let it wait for the end of the turn that runs."""
        found = None if model is None else self.preview(model)
        if found is not None and not found.fits:
            raise self._refused(found)
        chosen = None if found is None else found.model
        changed = SessionModelChanged(
            old_model=self._settled(), new_model=chosen, is_queued=is_running
        )
        self._trace.emit(changed, actor=Actor.USER)
        if is_running:
            self._queued = [chosen]
        else:
            await self._pin(chosen)
        return found

    async def apply_queued(self) -> None:
        """Set what had to wait."""
        if self._queued:
            chosen = self._queued.pop()
            self._queued.clear()
            await self._pin(chosen)

    def _settled(self) -> str | None:
        """The model of the session or of its thread, if there is such a model."""
        try:
            return sticky_model(self._setup, self._conversation)
        except CatalogError:
            return self._conversation.pinned_model

    def _refused(self, found: Preview) -> SwapRefusedError:
        capability, why = found.capability or "", found.why or ""
        active = self._settled()
        self._trace.emit(
            RouteConstraintFailed(
                model=found.model, active_model=active, capability=capability, reason=why
            ),
            actor=Actor.USER,
        )
        return SwapRefusedError(found.model, capability=capability, why=why, active=active)

    async def _pin(self, model: str | None) -> None:
        conversation, now = self._conversation, self._setup.now()
        before = self._settled()
        if model == before and conversation.pointer is None:
            return
        if model is None:
            await conversation.record(
                SidecarEntry(
                    id=new_ulid(),
                    session_id=conversation.id,
                    created_at=now,
                    kind=UNPIN_KIND,
                    data={},
                )
            )
            return
        entry = SwapEntry(
            id=new_ulid(),
            session_id=conversation.id,
            created_at=now,
            from_model=before,
            to_model=model,
            reason="user swap",
        )
        await conversation.record(entry)
        self._told.swapped_from = before
