"""The router: seven slots in a fixed order; the first candidate that can answer the turn is chosen.

A model that the user named is never replaced: if it cannot answer the turn, the turn is refused.
If the model of a rule cannot answer the turn, the next rule that holds is tried, then the next
slot.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import NoModelError, RefusedChoiceError, RoutingPolicyError
from metis.canonical.metadata import ChainPolicy, RoutingDecisionRecord
from metis.catalog.models import Catalog
from metis.events.system_events import (
    RoutingPolicyInvalid,
    RoutingProviderRecovered,
    RoutingProviderUnavailable,
)
from metis.events.turn_events import RouteAlternative, RouteDecided, RouteStep
from metis.routing.facts import Outage, Tier, TurnFacts
from metis.routing.pattern import Score, match_pattern
from metis.routing.policy import Policy, Rules, RulesFile
from metis.routing.predicates import all_hold


class Reason(StrEnum):
    """Why a model cannot answer a turn."""

    NOT_CONFIGURED = "not_configured"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    NO_VISION_SUPPORT = "no_vision_support"
    EXCEEDS_CONTEXT_WINDOW = "exceeds_context_window"
    NO_TOOL_SUPPORT = "no_tool_support"
    NO_SYSTEM_PROMPT_SUPPORT = "no_system_prompt_support"
    NO_STRUCTURED_OUTPUT_SUPPORT = "no_structured_output_support"
    SIDE_EFFECTS_EXCLUDED = "side_effects_excluded"


class Failure(Struct, frozen=True):
    """A reason against a model: a code for programs and a text for users."""

    reason: Reason
    text: str


class Validator(Struct, frozen=True, kw_only=True):
    """Checks whether a model can answer a turn; only capabilities that the turn needs count."""

    catalog: Catalog
    policy: Policy
    configured: AbstractSet[str]
    """The providers that can be called: they have a key, or need none."""
    outage: Callable[[str], Outage | None]
    missing_key: Callable[[str], str]
    allow_unsupported: bool = False
    """Whether tools may be left out, and images of the history may become notes."""

    def check(self, model: str, turn: TurnFacts) -> Failure | None:
        """Return the first reason against a model, or None if it can answer the turn."""
        return next(self._failures(model, turn), None)

    def _failures(self, model: str, turn: TurnFacts) -> Iterator[Failure]:
        provider = model.partition(":")[0]
        # The capabilities of such a model are unknown, so no further reason is checked.
        if model not in self.catalog.entries or provider not in self.configured:
            yield Failure(Reason.NOT_CONFIGURED, self.missing_key(provider))
            return
        outage = self.outage(model)
        if outage is not None:
            yield Failure(Reason.PROVIDER_UNAVAILABLE, str(outage))
        capabilities = self.catalog.entries[model].capabilities
        has_images = turn.has_images_in_prompt if self.allow_unsupported else turn.has_images
        if has_images and not capabilities.supports_images:
            yield Failure(Reason.NO_VISION_SUPPORT, "it does not support images")
        # A history that can be compacted needs only the window for its compacted form.
        minimum = turn.minimum_tokens
        tokens = turn.estimated_input_tokens if minimum is None else minimum
        needed = tokens + turn.reserved_output_tokens
        if needed > capabilities.max_context_tokens:
            window = capabilities.max_context_tokens
            text = f"about {needed} tokens do not fit into its context window of {window}"
            yield Failure(Reason.EXCEEDS_CONTEXT_WINDOW, text)
        needs_tools = turn.needs_tools and not self.allow_unsupported
        if needs_tools and not capabilities.supports_tools:
            yield Failure(Reason.NO_TOOL_SUPPORT, "it does not support tools")
        if turn.needs_system_prompt and not capabilities.supports_system_prompt:
            yield Failure(Reason.NO_SYSTEM_PROMPT_SUPPORT, "it does not support a system prompt")
        if turn.needs_structured_output and not capabilities.supports_structured_output:
            text = "it does not support structured output"
            yield Failure(Reason.NO_STRUCTURED_OUTPUT_SUPPORT, text)
        for effect in sorted(turn.side_effects):
            if model in self.policy.exclude.get(effect, ()):
                text = f"the rules exclude it from turns with {effect} tools"
                yield Failure(Reason.SIDE_EFFECTS_EXCLUDED, text)


class Verdict(StrEnum):
    """The result of a slot."""

    NOT_APPLICABLE = "not_applicable"
    DEFERRED = "deferred"
    """Reserved."""
    REJECTED = "rejected"
    CHOSE = "chose"


class ChainEntry(Struct, frozen=True, kw_only=True):
    """One candidate of a slot, or the reason why it has none."""

    policy: ChainPolicy
    verdict: Verdict
    reason: str
    candidate_model: str | None = None
    rule_name: str | None = None
    confidence: float | None = None
    pattern_alternatives: tuple[Score, ...] = ()
    validation_failure: Failure | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """The model of a turn, and every slot that was tried.

    `chain` ends with the chosen candidate; without one, `chosen` and `record` are None and
    `require` raises.
    """

    chosen: str | None
    chain: tuple[ChainEntry, ...]
    record: RoutingDecisionRecord | None
    policy_version: str
    policy_problem: RoutingPolicyError | None = None
    """The error of the rules file, if its last valid version is used."""
    configured: tuple[str, ...] = ()

    @property
    def winner_index(self) -> int:
        """The index of the chosen candidate in the chain; -1 without one."""
        return len(self.chain) - 1 if self.chosen is not None else -1

    def require(self) -> str:
        """Return the chosen model.

        Raises:
            RoutingError: no model was chosen; the error has the reasons.
        """
        if self.chosen is not None:
            return self.chosen
        last = self.chain[-1]
        if last.policy in EXPLICIT and last.validation_failure and last.candidate_model:
            failure = last.validation_failure
            raise RefusedChoiceError(last.candidate_model, reason=failure.reason, text=failure.text)
        tried = [
            (entry.candidate_model, entry.validation_failure.text)
            for entry in self.chain
            if entry.candidate_model is not None and entry.validation_failure is not None
        ]
        raise NoModelError(tried, providers=self.configured)


class Candidate(Struct, frozen=True, kw_only=True):
    """A model that a slot proposes."""

    model: str
    reason: str
    rule_name: str | None = None
    confidence: float | None = None
    alternatives: tuple[Score, ...] = ()


Slot = Callable[[TurnFacts, Policy], Iterator[Candidate | str]]
"""Yields the candidates of a slot, or one text with the reason why it has none."""

EXPLICIT = frozenset((ChainPolicy.PER_MESSAGE_OVERRIDE, ChainPolicy.MANUAL_STICKY))
"""The slots in which a user names a model."""


def decide(turn: TurnFacts, validator: Validator) -> Decision:
    """Try the slots in order until a candidate can answer the turn."""
    chain: list[ChainEntry] = []
    for policy, slot in SLOTS.items():
        for candidate in slot(turn, validator.policy):
            entry = _judge(policy, candidate, turn, validator)
            chain.append(entry)
            if entry.verdict is Verdict.CHOSE:
                return _decision(chain, validator, entry)
        # A user who names a model must not get a response of another one.
        if chain[-1].verdict is Verdict.REJECTED and policy in EXPLICIT:
            break
    return _decision(chain, validator, None)


def _judge(
    policy: ChainPolicy, candidate: Candidate | str, turn: TurnFacts, validator: Validator
) -> ChainEntry:
    if isinstance(candidate, str):
        return ChainEntry(policy=policy, verdict=Verdict.NOT_APPLICABLE, reason=candidate)
    failure = validator.check(candidate.model, turn)
    return ChainEntry(
        policy=policy,
        verdict=Verdict.CHOSE if failure is None else Verdict.REJECTED,
        reason=candidate.reason if failure is None else failure.reason,
        candidate_model=candidate.model,
        rule_name=candidate.rule_name,
        confidence=candidate.confidence,
        pattern_alternatives=candidate.alternatives,
        validation_failure=failure,
    )


def _decision(chain: list[ChainEntry], validator: Validator, winner: ChainEntry | None) -> Decision:
    return Decision(
        chosen=None if winner is None else winner.candidate_model,
        chain=tuple(chain),
        record=None if winner is None else _record(chain, winner),
        policy_version=validator.policy.version,
        configured=() if winner is not None else tuple(sorted(validator.configured)),
    )


def _record(chain: list[ChainEntry], winner: ChainEntry) -> RoutingDecisionRecord:
    rejected = [entry for entry in chain if entry.verdict is Verdict.REJECTED]
    rejections = [f"{entry.candidate_model} ({entry.reason})" for entry in rejected]
    models = [entry.candidate_model for entry in rejected]
    models += [score.model for score in winner.pattern_alternatives]
    chosen = winner.candidate_model or ""
    alternatives = dict.fromkeys(model for model in models if model and model != chosen)
    return RoutingDecisionRecord(
        mode=winner.policy.mode,
        chosen_model=chosen,
        reason="; instead of ".join([winner.reason, *rejections]),
        rule_name=winner.rule_name,
        confidence=winner.confidence,
        alternatives_considered=tuple(alternatives),
    )


def _override(turn: TurnFacts, _: Policy) -> Iterator[Candidate | str]:
    if turn.override is None:
        yield "the message names no model"
    else:
        yield Candidate(model=turn.override, reason="the message asks for it")


def _sticky(turn: TurnFacts, _: Policy) -> Iterator[Candidate | str]:
    if turn.sticky is None:
        yield "no model is set for the session"
    else:
        yield Candidate(model=turn.sticky, reason="set for the session by the user")


def _rule(turn: TurnFacts, policy: Policy) -> Iterator[Candidate | str]:
    # All rules that hold are yielded, because the next one is the fallback if a model is down.
    has_match = False
    for rule in policy.rules(turn.workspace_path):
        if all_hold(rule.when, turn):
            has_match = True
            yield Candidate(model=rule.use, reason=f"rule {rule.name!r}", rule_name=rule.name)
    if not has_match:
        yield "no rule holds"


def _pattern(turn: TurnFacts, policy: Policy) -> Iterator[Candidate | str]:
    match = match_pattern(turn.neighbours, policy.pattern(turn.workspace_path))
    if match is None:
        yield "no earlier turns are like this one"
    elif match.doubt is not None:
        yield match.doubt
    else:
        yield Candidate(
            model=match.best.model,
            reason=f"did best on {match.best.sample_size} turns like this one",
            confidence=match.confidence,
            alternatives=match.scores,
        )


def _delegate(turn: TurnFacts, policy: Policy) -> Iterator[Candidate | str]:
    if turn.tier is None:
        yield "not asked for by a planner"
        return
    model = policy.tiers(turn.workspace_path).get(turn.tier)
    if model is None:
        yield f"no model is set for tier {turn.tier}"
    else:
        yield Candidate(model=model, reason=f"tier {turn.tier}")


def _workspace_default(turn: TurnFacts, policy: Policy) -> Iterator[Candidate | str]:
    yield from _default(policy.workspace_default(turn.workspace_path), "the workspace")


def _global_default(_: TurnFacts, policy: Policy) -> Iterator[Candidate | str]:
    yield from _default(policy.common.default, "the configuration")


def _default(model: str | None, source: str) -> Iterator[Candidate | str]:
    """Yield a default model; both defaults give equal records and differ in the chain (M-098)."""
    if model is None:
        yield f"{source} sets none"
    else:
        yield Candidate(model=model, reason="the default model")


SLOTS: Mapping[ChainPolicy, Slot] = {
    ChainPolicy.PER_MESSAGE_OVERRIDE: _override,
    ChainPolicy.MANUAL_STICKY: _sticky,
    ChainPolicy.RULE: _rule,
    ChainPolicy.PATTERN: _pattern,
    ChainPolicy.DELEGATE_REQUEST: _delegate,
    ChainPolicy.WORKSPACE_DEFAULT: _workspace_default,
    ChainPolicy.GLOBAL_DEFAULT: _global_default,
}
"""The seven slots in the order in which they are tried."""


def _no_outage(_: str) -> Outage | None:
    return None


def _not_configured(provider: str) -> str:
    return f"no API key for {provider}"


class Router:
    """Chooses the model of a turn; the same facts, rules and outages give the same decision.

    `rules` is a policy, or a file that is read again when it changes; `configured` contains the
    providers that can be called, and may grow; `outage` is `Availability.outage`, if failures are
    recorded; `missing_key` returns how to set the key of a provider; with `allow_unsupported`, a
    model without tools or images can answer a turn with tools, or with images in earlier messages.
    """

    def __init__(  # noqa: PLR0913 - settings, all by name
        self,
        catalog: Catalog,
        *,
        configured: AbstractSet[str],
        rules: RulesFile | Policy,
        outage: Callable[[str], Outage | None] = _no_outage,
        missing_key: Callable[[str], str] = _not_configured,
        allow_unsupported: bool = False,
    ) -> None:
        self._catalog = catalog
        self._configured = configured
        self._rules = rules
        self._outage = outage
        self._missing_key = missing_key
        self._allow_unsupported = allow_unsupported
        windows = (entry.capabilities.max_context_tokens for entry in catalog.entries.values())
        self.smallest_window = min(windows, default=0)
        """The smallest context window of all models, in tokens."""

    def decide(self, turn: TurnFacts) -> Decision:
        """Choose the model of a turn.

        Raises:
            CatalogError: the user named a model that the catalogue does not list.
        """
        rules = self._read_rules()
        decision = decide(self._with_ids(turn), self._validator(rules.policy))
        if rules.problem is None:
            return decision
        return replace(decision, policy_problem=rules.problem)

    def check(self, model: str, turn: TurnFacts) -> Failure | None:
        """Return why a model cannot answer a turn, or None if it can."""
        validator = self._validator(self._read_rules().policy)
        return validator.check(self._catalog.resolve(model), turn)

    def tiers(self, workspace_path: str) -> Mapping[Tier, str]:
        """Return the models for delegated tasks; empty if none are set."""
        return self._read_rules().policy.tiers(workspace_path)

    def default_model(self, workspace_path: str, tier: Tier | None) -> str | None:
        """Return the model of a tier or the default model, without checking it."""
        policy = self._read_rules().policy
        tier_model = None if tier is None else policy.tiers(workspace_path).get(tier)
        return tier_model or policy.workspace_default(workspace_path) or policy.common.default

    def _validator(self, policy: Policy) -> Validator:
        return Validator(
            catalog=self._catalog,
            policy=policy,
            configured=self._configured,
            outage=self._outage,
            missing_key=self._missing_key,
            allow_unsupported=self._allow_unsupported,
        )

    def _read_rules(self) -> Rules:
        return self._rules.read() if isinstance(self._rules, RulesFile) else Rules(self._rules)

    def _with_ids(self, turn: TurnFacts) -> TurnFacts:
        """Return the facts with ids instead of names for the models that the user named."""
        ids = {
            name: None if value is None else self._catalog.resolve(value)
            for name, value in (("override", turn.override), ("sticky", turn.sticky))
            # Resolving takes longer than this check, and most turns have ids.
            if value not in self._catalog.entries
        }
        return replace(turn, **ids) if any(ids.values()) else turn


# Payloads of the bus events


def route_decided(decision: Decision, *, elapsed_ms: float) -> RouteDecided:
    """Return the payload for a decision; emitted once per turn, also if no model was chosen."""
    return RouteDecided(
        chosen_model=decision.chosen,
        winner_index=decision.winner_index,
        elapsed_ms=elapsed_ms,
        chain=tuple(_step(entry) for entry in decision.chain),
        policy_version=decision.policy_version,
    )


def _step(entry: ChainEntry) -> RouteStep:
    failure = entry.validation_failure
    return RouteStep(
        policy=entry.policy,
        verdict=entry.verdict.value,
        reason=entry.reason,
        candidate_model=entry.candidate_model,
        rule_name=entry.rule_name,
        confidence=entry.confidence,
        pattern_alternatives=tuple(
            RouteAlternative(model=score.model, score=score.score, sample_size=score.sample_size)
            for score in entry.pattern_alternatives
        ),
        validation_failure=None if failure is None else failure.reason.value,
    )


def policy_invalid(error: RoutingPolicyError) -> RoutingPolicyInvalid:
    """Return the payload for an invalid rules file, with the path of every problem."""
    return RoutingPolicyInvalid(
        policy_path=error.subject, errors=tuple(str(problem) for problem in error.problems)
    )


def provider_unavailable(outage: Outage) -> RoutingProviderUnavailable:
    """Return the payload for an outage that began."""
    return RoutingProviderUnavailable(
        provider=outage.provider,
        scope=outage.scope,
        models_affected=outage.models,
        trigger_reason=outage.reason,
    )


def provider_recovered(outage: Outage, at: datetime) -> RoutingProviderRecovered:
    """Return the payload for an outage that ended."""
    return RoutingProviderRecovered(
        provider=outage.provider,
        scope=outage.scope,
        models_recovered=outage.models,
        downtime_seconds=(at - outage.began_at).total_seconds(),
    )
