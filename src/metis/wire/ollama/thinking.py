"""Thinking, as Ollama is told of it: on or off, and for some models how much."""

from collections.abc import Mapping
from typing import Any

from metis.catalog.reasoning import Form
from metis.wire.reasoning import Reasoning, ReasoningKeys, Spoken, effort_of
from metis.wire.shape import Wire

_THINK = "think"


def _decode(wire: Mapping[str, Any]) -> Spoken:
    think = wire.get(_THINK)
    if isinstance(think, bool):
        return Spoken(Reasoning() if think else Reasoning("none"), frozenset({_THINK}))
    effort = effort_of(think)
    return Spoken(Reasoning(effort), frozenset({_THINK})) if effort else Spoken()


def _spell(wire: Wire, reasoning: Reasoning | None, _form: Form | None) -> None:
    wire.pop(_THINK, None)
    if reasoning is not None:
        wire[_THINK] = False if reasoning.is_off else reasoning.effort or True


REASONING = ReasoningKeys(_decode, _spell)
