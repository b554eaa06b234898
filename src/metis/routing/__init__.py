"""Routing: the choice of a turn's model by seven slots, a rules file and model capabilities."""

from metis.routing.facts import (
    AddressedPrompt,
    Availability,
    AvailabilityLimits,
    Outage,
    Tier,
    TurnFacts,
    parse_override,
)
from metis.routing.pattern import Neighbour, PatternSettings, match_pattern
from metis.routing.policy import RULES_PATH, Policy, Rule, Rules, RulesFile, Scope, read_policy
from metis.routing.router import ChainEntry, Decision, Failure, Reason, Router, Verdict

__all__ = [
    "RULES_PATH",
    "AddressedPrompt",
    "Availability",
    "AvailabilityLimits",
    "ChainEntry",
    "Decision",
    "Failure",
    "Neighbour",
    "Outage",
    "PatternSettings",
    "Policy",
    "Reason",
    "Router",
    "Rule",
    "Rules",
    "RulesFile",
    "Scope",
    "Tier",
    "TurnFacts",
    "Verdict",
    "match_pattern",
    "parse_override",
    "read_policy",
]
