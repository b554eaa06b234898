"""Thinking, as the models behind Bedrock Converse are told of it: each in its maker's words."""

from collections.abc import Mapping
from typing import Any

from metis.catalog.reasoning import Form
from metis.wire.claude import decode_thinking, spell_thinking
from metis.wire.reasoning import SILENT, Reasoning, ReasoningKeys, Spoken, effort_of, put_inside
from metis.wire.shape import Wire, maybe_object

MORE = "additionalModelRequestFields"
"""The object in which a request speaks to a model in words that are not the protocol's."""

_NOVA = "reasoningConfig"
_WORDS: Mapping[Form | None, str] = {
    "effort": "reasoning_effort",
    "reasoning": "reasoning_config",
}
"""The keys of those makers whose models are told a word and nothing else."""
_TOP_EFFORT = "outputConfig.effort"
_NOVA_EFFORT = "maxReasoningEffort"


def _decode(wire: Mapping[str, Any]) -> Spoken:
    more = maybe_object(wire.get(MORE))
    top = effort_of(maybe_object(wire.get("outputConfig")).get("effort"))
    if not more and top is None:
        return SILENT
    for word in _WORDS.values():
        effort = effort_of(more.get(word))
        if effort is not None:
            return Spoken(Reasoning(effort), frozenset({f"{MORE}.{word}"}))
    if _NOVA in more:
        return _decode_nova(maybe_object(more[_NOVA]))
    return decode_thinking({**more, _TOP_EFFORT: top}, f"{MORE}.", _TOP_EFFORT)


def _decode_nova(config: Wire) -> Spoken:
    place = f"{MORE}.{_NOVA}."
    keys = frozenset({f"{place}type", place + _NOVA_EFFORT})
    match config.get("type"):
        case "enabled":
            return Spoken(Reasoning(effort_of(config.get(_NOVA_EFFORT))), keys)
        case "disabled":
            return Spoken(Reasoning("none"), keys)
        case _:
            return SILENT


def _spell(wire: Wire, reasoning: Reasoning | None, form: Form | None) -> None:
    """Say it in the form that the model reads; what was said before is taken out."""
    more = dict(maybe_object(wire.get(MORE)))
    for word in _WORDS.values():
        more.pop(word, None)
    more.pop(_NOVA, None)
    if "outputConfig" in wire:
        put_inside(wire, "outputConfig", {"effort": None})
    is_claude = form != "level" and form not in _WORDS
    spell_thinking(more, reasoning if is_claude else None, form)
    if reasoning is not None and form == "level":
        more[_NOVA] = _nova(reasoning)
    elif reasoning is not None and not is_claude and reasoning.effort is not None:
        more[_WORDS[form]] = reasoning.effort
    wire.pop(MORE, None)
    if more:
        wire[MORE] = more


def _nova(reasoning: Reasoning) -> Wire:
    if reasoning.is_off:
        return {"type": "disabled"}
    if reasoning.effort is None:
        return {"type": "enabled"}
    return {"type": "enabled", _NOVA_EFFORT: reasoning.effort}


REASONING = ReasoningKeys(_decode, _spell)
