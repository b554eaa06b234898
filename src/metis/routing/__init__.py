"""Choosing the model of a turn: seven slots, rules in a file, and what each model can take."""

from metis.routing.availability import Availability, AvailabilityLimits, Outage
from metis.routing.chain import ChainEntry, Decision, Verdict
from metis.routing.facts import Asked, Tier, TurnFacts, read_override
from metis.routing.pattern import Neighbour, PatternSettings, match_pattern
from metis.routing.policy import Policy, Rule, Scope, read_policy
from metis.routing.router import Router
from metis.routing.rules_file import PLACE, Rules, RulesFile
from metis.routing.validation import Failure, Reason

__all__ = [
    "PLACE",
    "Asked",
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
    "read_override",
    "read_policy",
]
