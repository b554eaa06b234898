"""The chain: seven slots in a fixed order; the first candidate that can take the turn wins.

What the user asked for outranks what is configured, and that outranks what was learned. A model
that the user asked for by name is never replaced: if it cannot take the turn, the turn is refused.
A rule whose model cannot take the turn gives way to the next rule that holds, then to the next
slot.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from metis.canonical.errors import NoModelError, RefusedChoiceError, RoutingPolicyError
from metis.canonical.metadata import ChainPolicy, RoutingDecisionRecord
from metis.routing.facts import TurnFacts
from metis.routing.pattern import Score, match_pattern
from metis.routing.policy import Policy
from metis.routing.predicates import all_hold
from metis.routing.validation import Failure, Validator


class Verdict(StrEnum):
    """What became of a slot."""

    NOT_APPLICABLE = "not_applicable"
    DEFERRED = "deferred"
    """Reserved."""
    REJECTED = "rejected"
    CHOSE = "chose"


class ChainEntry(Struct, frozen=True, kw_only=True):
    """One candidate of a slot, or the word that it has none."""

    policy: ChainPolicy
    verdict: Verdict
    reason: str
    candidate_model: str | None = None
    rule_name: str | None = None
    confidence: float | None = None
    pattern_alternatives: tuple[Score, ...] = ()
    validation_failure: Failure | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """Which model takes a turn, and every step on the way there.

    `chain` ends with the winner; without one, `chosen` and `record` are None and `require` raises.
    """

    chosen: str | None
    chain: tuple[ChainEntry, ...]
    record: RoutingDecisionRecord | None
    policy_version: str
    policy_problem: RoutingPolicyError | None = None
    """What is wrong with the rules file, if older rules had to be used."""
    configured: tuple[str, ...] = ()

    @property
    def winner_index(self) -> int:
        """Where in the chain the winner stands; -1 without one."""
        return len(self.chain) - 1 if self.chosen is not None else -1

    def require(self) -> str:
        """The chosen model, or the error that says why there is none."""
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
    """What a slot puts forward."""

    model: str
    reason: str
    rule_name: str | None = None
    confidence: float | None = None
    alternatives: tuple[Score, ...] = ()


Slot = Callable[[TurnFacts, Policy], Iterator[Candidate | str]]
"""The candidates of a slot; or a text instead, which says why there is none."""

EXPLICIT = frozenset((ChainPolicy.PER_MESSAGE_OVERRIDE, ChainPolicy.MANUAL_STICKY))
"""The slots with which a user names a model."""


def decide(turn: TurnFacts, validator: Validator) -> Decision:
    """Ask the slots in order until a candidate can take the turn."""
    chain: list[ChainEntry] = []
    for policy, slot in SLOTS.items():
        for candidate in slot(turn, validator.policy):
            entry = _judge(policy, candidate, turn, validator)
            chain.append(entry)
            if entry.verdict is Verdict.CHOSE:
                return _decision(chain, validator, entry)
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
        configured=tuple(sorted(validator.configured)),
    )


def _record(chain: list[ChainEntry], winner: ChainEntry) -> RoutingDecisionRecord:
    rejected = [entry for entry in chain if entry.verdict is Verdict.REJECTED]
    passed_over = [f"{entry.candidate_model} ({entry.reason})" for entry in rejected]
    others = [entry.candidate_model for entry in rejected]
    others += [score.model for score in winner.pattern_alternatives]
    chosen = winner.candidate_model or ""
    return RoutingDecisionRecord(
        mode=winner.policy.mode,
        chosen_model=chosen,
        reason="; instead of ".join([winner.reason, *passed_over]),
        rule_name=winner.rule_name,
        confidence=winner.confidence,
        alternatives_considered=tuple(
            dict.fromkeys(model for model in others if model and model != chosen)
        ),
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


def _default(model: str | None, who: str) -> Iterator[Candidate | str]:
    """Both defaults give the same record; which of the two it was stands in the chain (M-098)."""
    yield f"{who} sets none" if model is None else Candidate(model=model, reason="default model")


SLOTS: Mapping[ChainPolicy, Slot] = {
    ChainPolicy.PER_MESSAGE_OVERRIDE: _override,
    ChainPolicy.MANUAL_STICKY: _sticky,
    ChainPolicy.RULE: _rule,
    ChainPolicy.PATTERN: _pattern,
    ChainPolicy.DELEGATE_REQUEST: _delegate,
    ChainPolicy.WORKSPACE_DEFAULT: _workspace_default,
    ChainPolicy.GLOBAL_DEFAULT: _global_default,
}
"""The seven slots in the order in which they are asked."""
