"""Choose the model of a turn by rules, and suspend models that fail."""

import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from metis import SideEffects
from metis.canonical.errors import AuthenticationError
from metis.catalog import catalog
from metis.routing import (
    RULES_PATH,
    AddressedPrompt,
    Availability,
    AvailabilityLimits,
    ChainEntry,
    Decision,
    Failure,
    Neighbour,
    Outage,
    PatternSettings,
    Policy,
    Reason,
    Router,
    Rule,
    Rules,
    RulesFile,
    Scope,
    Tier,
    TurnFacts,
    Verdict,
    match_pattern,
    parse_override,
    read_policy,
)

NOW = datetime(2026, 5, 8, tzinfo=UTC)
MODELS = catalog()
RULES = b"""
schema_version = 1
global_default = "sonnet"
tiers = { fast = "haiku", balanced = "sonnet", deep = "opus" }

[[rules]]
name = "small things"
when = { message_contains_any = ["typo", "rename"] }
use = "haiku"
"""

# A rule chooses the model; the decision lists every slot that was tried.
policy: Policy = read_policy(RULES, MODELS)
rule: Rule = policy.rules("")[0]
router = Router(MODELS, configured={"anthropic"}, rules=policy)
decision: Decision = router.decide(TurnFacts(now=NOW, message="fix the typo"))
assert decision.require() == rule.use
winner: ChainEntry = decision.chain[decision.winner_index]
assert winner.verdict is Verdict.CHOSE
print(winner.policy, winner.reason)

# A prompt can name its model, and a delegated task a class of model.
prompt: AddressedPrompt = parse_override("@opus explain this")
named = router.decide(TurnFacts(now=NOW, message=prompt.text, override=prompt.override))
assert named.chosen == "anthropic:claude-opus-4-7"
assert policy.tiers("")[Tier.FAST] == "anthropic:claude-haiku-4-5"

# A model that cannot take a turn is rejected with a reason.
failure: Failure | None = router.check("openai:gpt-5", TurnFacts(now=NOW))
assert failure is not None
assert failure.reason is Reason.NOT_CONFIGURED

# A policy without a file.
local = Policy(
    common=Scope(default="anthropic:claude-sonnet-4-6"),
    exclude={SideEffects.EXECUTE: frozenset({"ollama:llama-3.3-70b"})},
)
assert Router(MODELS, configured={"anthropic"}, rules=local).decide(TurnFacts(now=NOW)).chosen

# A rules file is read again when it changes.
with tempfile.TemporaryDirectory() as directory:
    path = Path(directory) / RULES_PATH
    path.parent.mkdir()
    path.write_bytes(RULES)
    current: Rules = RulesFile(path, MODELS).read()
    assert current.problem is None

# After repeated failures a model or a provider is suspended for a while.
limits = AvailabilityLimits(model_failures=3)
availability = Availability(clock=lambda: NOW, limits=limits)
outages: tuple[Outage, ...] = availability.record_failure(
    "anthropic:claude-haiku-4-5", AuthenticationError("invalid x-api-key", provider="anthropic")
)
print(outages[0].scope, outages[0].reason)

# Earlier turns like this one can decide, too.
similar = Neighbour(
    model="anthropic:claude-haiku-4-5",
    similarity=0.9,
    success=1.0,
    sample_size=12,
    cost_usd=Decimal("0.001"),
)
match = match_pattern([similar], PatternSettings(min_sample_size=5))
assert match is not None
print(match.best.model)
