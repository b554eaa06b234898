"""Thinking, as OpenAI Responses is told of it."""

from collections.abc import Mapping
from typing import Any

from metis.catalog.reasoning import Form
from metis.wire.reasoning import Reasoning, ReasoningKeys, Spoken, effort_of, put_inside
from metis.wire.shape import Wire, maybe_object

_REASONING = "reasoning"


def _decode(wire: Mapping[str, Any]) -> Spoken:
    effort = effort_of(maybe_object(wire.get(_REASONING)).get("effort"))
    return Spoken(Reasoning(effort), frozenset({"reasoning.effort"})) if effort else Spoken()


def _spell(wire: Wire, reasoning: Reasoning | None, _form: Form | None) -> None:
    effort = None if reasoning is None else reasoning.effort or "medium"
    put_inside(wire, _REASONING, {"effort": effort})


REASONING = ReasoningKeys(_decode, _spell)
