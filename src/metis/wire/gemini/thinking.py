"""Thinking, as Gemini is told of it: older models count tokens, newer ones have levels."""

from collections.abc import Mapping
from typing import Any

from metis.catalog.reasoning import Form
from metis.wire.gemini.names import field, put_fields, spelled_key
from metis.wire.reasoning import Reasoning, ReasoningKeys, Spoken, budget_of, effort_of
from metis.wire.shape import Wire, maybe_object, maybe_text

_CONFIG, _THINKING = "generationConfig", "thinkingConfig"
_BUDGET, _LEVEL = "thinkingBudget", "thinkingLevel"
_DYNAMIC = -1
"""The budget that leaves it to the model."""


def _decode(wire: Mapping[str, Any]) -> Spoken:
    config = maybe_object(field(wire, _CONFIG))
    thinking = maybe_object(field(config, _THINKING))
    place = f"{spelled_key(wire, _CONFIG)}.{spelled_key(config, _THINKING)}."
    effort = effort_of((maybe_text(field(thinking, _LEVEL)) or "").lower())
    budget = field(thinking, _BUDGET)
    keys: set[str] = set()
    if effort is not None:
        keys.add(place + spelled_key(thinking, _LEVEL))
    if type(budget) is int and budget >= _DYNAMIC:
        keys.add(place + spelled_key(thinking, _BUDGET))
        if budget == 0:
            return Spoken(Reasoning("none"), frozenset(keys))
        tokens = None if budget == _DYNAMIC else budget_of(budget)
        return Spoken(Reasoning(effort, tokens), frozenset(keys))
    return Spoken(Reasoning(effort) if effort else None, frozenset(keys))


def _spell(wire: Wire, reasoning: Reasoning | None, form: Form | None) -> None:
    told: Wire = {_BUDGET: None, _LEVEL: None}
    if reasoning is not None and reasoning.is_off and form != "level":
        told[_BUDGET] = 0
    elif reasoning is not None and reasoning.budget_tokens is not None:
        told[_BUDGET] = reasoning.budget_tokens
    elif reasoning is not None and reasoning.effort is not None:
        told[_LEVEL] = reasoning.effort.upper()
    elif reasoning is not None:
        told[_BUDGET] = _DYNAMIC
    name = spelled_key(wire, _CONFIG)
    config = dict(maybe_object(wire.get(name)))
    put_fields(config, _THINKING, told)
    wire.pop(name, None)
    if config:
        wire[name] = config


REASONING = ReasoningKeys(_decode, _spell)
