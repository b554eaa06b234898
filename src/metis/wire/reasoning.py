"""The reasoning option, and how protocols encode it, Claude models included."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.catalog.model_rules import EFFORTS, Effort, ReasoningForm
from metis.wire.json_access import Wire, maybe_count, maybe_object, maybe_text


class Reasoning(Struct, frozen=True):
    """How much a model shall think: a word, or a number of tokens; neither leaves it to the model.

    >>> Reasoning("low")
    Reasoning(effort='low', budget_tokens=None)
    """

    effort: Effort | None = None
    budget_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no provider could be told."""
        if self.effort is not None and self.effort not in EFFORTS:
            fault = f"{self.effort!r} is no effort; there are {', '.join(EFFORTS)}"
            raise InvalidValueError(fault, path="$.effort")
        if self.budget_tokens is not None and self.budget_tokens < 1:
            fault = "a budget is a number of tokens above zero; the effort 'none' is no thinking"
            raise InvalidValueError(fault, path="$.budget_tokens")

    @property
    def is_off(self) -> bool:
        """Whether it shall not think at all."""
        return self.effort == "none"


REASONING_OFF = Reasoning("none")
"""No thinking."""


class DecodedReasoning(Struct, frozen=True):
    """What the keys of a request say of thinking, and which keys say it."""

    reasoning: Reasoning | None = None
    keys: frozenset[str] = frozenset()


UNSTATED_REASONING = DecodedReasoning()
"""Nothing."""


def _silent(_: Mapping[str, Any]) -> DecodedReasoning:
    return UNSTATED_REASONING


def _mute(_: Wire, _reasoning: Reasoning | None, _form: ReasoningForm | None) -> None:
    """Say nothing."""


class ReasoningCodec(Struct, frozen=True):
    """How one protocol says how much a model shall think."""

    decode: Callable[[Mapping[str, Any]], DecodedReasoning] = _silent
    encode: Callable[[Wire, Reasoning | None, ReasoningForm | None], None] = _mute
    """Say it in a request, in one of the forms of the protocol; None takes it out."""

    def apply(self, wire: Wire, reasoning: Reasoning | None, *, keep_native: bool) -> None:
        """Bring a request in line with the option; a spelling that says the same is kept.

        Without the option a spelling stays where `is_free` says that nobody decoded it.
        """
        if reasoning is None and keep_native:
            return
        if reasoning != self.decode(wire).reasoning:
            self.encode(wire, reasoning, None)


def effort_of(value: object) -> Effort | None:
    """The word, if it is one."""
    return value if isinstance(value, str) and value in EFFORTS else None


def budget_of(value: object) -> int | None:
    """The number of tokens, if it is one that a model can be given."""
    return maybe_count(value) or None


def set_inner_keys(wire: Wire, name: str, changes: Mapping[str, Any]) -> None:
    """Set keys of an object in a request, or take them away; an empty one is not sent."""
    inner = dict(maybe_object(wire.get(name)))
    for key, value in changes.items():
        inner.pop(key, None)
        if value is not None:
            inner[key] = value
    wire.pop(name, None)
    if inner:
        wire[name] = inner


CLAUDE_THINKING, CLAUDE_OUTPUT = "thinking", "output_config"
_EFFORT = f"{CLAUDE_OUTPUT}.effort"
_TYPE, _BUDGET = f"{CLAUDE_THINKING}.type", f"{CLAUDE_THINKING}.budget_tokens"


def decode_claude_thinking(
    wire: Mapping[str, Any], prefix: str = "", fallback_key: str = ""
) -> DecodedReasoning:
    """How much the model shall think; `around` is where its keys stand in the request.

    `beside` names a place that tells the effort where these keys do not, with its word in `wire`.
    """
    thinking = maybe_object(wire.get(CLAUDE_THINKING))
    inner = effort_of(maybe_object(wire.get(CLAUDE_OUTPUT)).get("effort"))
    effort = inner or (effort_of(wire.get(fallback_key)) if fallback_key else None)
    keys = frozenset({prefix + _EFFORT if inner else fallback_key}) if effort else frozenset[str]()
    kind = {prefix + _TYPE}
    match maybe_text(thinking.get("type")):
        case "disabled" | "between_tools":
            return DecodedReasoning(Reasoning("none"), frozenset(kind))
        case "adaptive":
            return DecodedReasoning(Reasoning(effort), keys | kind)
        case "enabled":
            budget = budget_of(thinking.get("budget_tokens"))
            told = kind if budget is None else {*kind, prefix + _BUDGET}
            return DecodedReasoning(Reasoning(effort, budget), keys | told)
        case _:
            return DecodedReasoning(Reasoning(effort) if effort else None, keys)


def encode_claude_thinking(
    wire: Wire, reasoning: Reasoning | None, form: ReasoningForm | None
) -> None:
    """Newer models weigh a word, older ones count tokens (T48)."""
    told: Wire = {"type": None, "budget_tokens": None}
    effort = None
    if reasoning is not None and reasoning.is_off:
        told["type"] = "between_tools" if form == "between" else "disabled"
    elif reasoning is not None and reasoning.budget_tokens is not None:
        told |= {"type": "enabled", "budget_tokens": reasoning.budget_tokens}
    elif reasoning is not None:
        told["type"], effort = "adaptive", reasoning.effort
    if told["type"] in (None, "disabled", "between_tools"):
        told["display"] = None
    set_inner_keys(wire, CLAUDE_THINKING, told)
    set_inner_keys(wire, CLAUDE_OUTPUT, {"effort": effort})
