"""Route: which model takes a turn, and which steps in when that one is down."""

import time

from msgspec.structs import replace

from metis.canonical.errors import CatalogError, ProviderError
from metis.canonical.message import Message
from metis.canonical.metadata import RoutingDecisionRecord, RoutingMode
from metis.events import Event
from metis.routing import Decision, Reason, TurnFacts
from metis.routing.told import route_decided
from metis.session.conversation import Conversation
from metis.session.facts import facts_of, needed, words_of
from metis.session.inherited import does, sticky
from metis.session.models import Served
from metis.session.notices import Routed
from metis.session.setup import Setup
from metis.session.skills import matching
from metis.session.telling import Telling
from metis.session.told import Told

Chosen = tuple[Served, RoutingDecisionRecord]
"""A model and why it was chosen."""


class Route:
    """Chooses the models of one turn."""

    def __init__(
        self, setup: Setup, conversation: Conversation, told: Told, telling: Telling
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._telling = telling
        self._trace = telling.trace

    def facts(self, question: Message, override: str | None) -> TurnFacts:
        """What the choice depends on, as far as it is known without asking anybody."""
        setup, text = self._setup, words_of(question.content)
        facts = replace(
            facts_of(self._conversation.seen, setup.tools, setup.now()),
            message=text,
            override=override,
            sticky=self._sticky(override),
            tier=setup.tier,
            workspace_path=setup.workspace_path,
            skills_matching_message=matching(setup.skills, text),
        )
        # The size is as the model counts that would take the turn if size did not matter.
        likely = setup.router.decide(facts).chosen
        return facts if likely is None else self._sized(facts, setup.models.served(likely))

    def _sticky(self, override: str | None) -> str | None:
        """The model of the thread; nobody misses it if the turn names another."""
        try:
            return sticky(self._setup, self._conversation)
        except CatalogError:
            if override is None:
                raise
            return None

    async def choose(self, facts: TurnFacts, parent: Event | None) -> Chosen:
        """The model that owns the turn; told once, also if there is none."""
        setup = self._setup
        setup.outages.look(self._trace)
        if setup.has_rules:
            spent = await setup.spending.spent()
            facts = replace(facts, cost_today_usd=spent.day_usd)
        started_s = time.perf_counter()
        decision = setup.router.decide(facts)
        if decision.chosen is None and self._lift(decision):
            decision = setup.router.decide(facts)
        elapsed_ms = (time.perf_counter() - started_s) * 1000
        self._trace.emit(route_decided(decision, elapsed_ms=elapsed_ms), parent=parent)
        if setup.outages.is_new(decision.policy_problem, self._trace):
            text = f"the rules file is not used: {decision.policy_problem}"
            self._telling.warn("rules_invalid", text)
        served, record = setup.models.served(decision.require()), decision.record
        if record is None:
            raise AssertionError("a decision without a record")
        record = self._told.with_swap(record)
        self._told.chain = decision.chain
        return self._chosen(served, record)

    def _lift(self, decision: Decision) -> bool:
        """Whether somebody who is down is tried again, for nobody else can answer.

        Keys and networks are mended, and who asks once more may have done so.
        """
        lifted = False
        for entry in decision.chain:
            model = entry.candidate_model
            if model is not None and entry.reason == Reason.PROVIDER_UNAVAILABLE:
                lifted |= self._setup.outages.lift(model, self._trace)
        return lifted

    def fall_back(self, served: Served, error: ProviderError, tried: set[str]) -> Chosen:
        """The next model that steps in for one that is down; the error if there is none."""
        setup = self._setup
        for outage in setup.outages.failed(served.id, error, self._trace):
            self._telling.warn("outage", str(outage))
        facts = facts_of(self._conversation.seen, setup.tools, setup.now())
        for name in (*setup.fallbacks.get(served.id, ()), *setup.fallbacks.get("*", ())):
            model = setup.models.resolve(name)
            other = setup.models.served(model)
            if model in tried or setup.router.check(model, self._sized(facts, other)) is not None:
                continue
            if not does(setup, self._conversation, other):
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

    def _chosen(self, served: Served, record: RoutingDecisionRecord) -> Chosen:
        self._told.record = record
        self._telling.tell(Routed(turn_id=self._telling.turn_id, record=record))
        return served, record

    def _sized(self, facts: TurnFacts, served: Served) -> TurnFacts:
        messages, tools = self._conversation.messages, self._setup.tools
        tokens = self._told.tokens(messages, tools, served)
        least = tokens
        if self._setup.compact_at is not None:
            least = min(tokens, needed(messages, tools, served))
        return replace(
            facts,
            estimated_input_tokens=tokens,
            needed_tokens=least,
            reserved_output_tokens=self._setup.options.max_output_tokens or 0,
        )
