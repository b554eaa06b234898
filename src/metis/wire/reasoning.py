"""The reasoning option, and how protocols encode it, Claude models included."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.catalog.model_rules import EFFORTS, Effort, ReasoningForm
from metis.wire.json_access import Wire, maybe_count, maybe_object, maybe_text


class Reasoning(Struct, frozen=True):
    """How much a model reasons: an effort or a token budget; without either the model decides.

    >>> Reasoning("low")
    Reasoning(effort='low', budget_tokens=None)
    """

    effort: Effort | None = None
    budget_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise an error for an unknown effort or a budget below one."""
        if self.effort is not None and self.effort not in EFFORTS:
            fault = f"unknown effort {self.effort!r}; use one of {', '.join(EFFORTS)}"
            raise InvalidValueError(fault, path="$.effort")
        if self.budget_tokens is not None and self.budget_tokens < 1:
            fault = "a budget must be above zero; use the effort 'none' to turn thinking off"
            raise InvalidValueError(fault, path="$.budget_tokens")

    @property
    def is_off(self) -> bool:
        """Whether thinking is turned off."""
        return self.effort == "none"


REASONING_OFF = Reasoning("none")
"""The option that turns reasoning off."""


class DecodedReasoning(Struct, frozen=True):
    """The reasoning that a request states, and the keys that state it."""

    reasoning: Reasoning | None = None
    keys: frozenset[str] = frozenset()


UNSTATED_REASONING = DecodedReasoning()
"""The value for a request that states no reasoning."""


class ReasoningCodec(Struct, frozen=True):
    """How one protocol decodes and encodes reasoning."""

    decode: Callable[[Mapping[str, Any]], DecodedReasoning]
    encode: Callable[[Wire, Reasoning | None, ReasoningForm | None], None]
    """Sets the keys of a request, in one of the forms of the protocol; None removes them."""

    def apply(self, wire: Wire, reasoning: Reasoning | None, *, keep_native: bool) -> None:
        """Set the option in a request; native keys with the same meaning remain unchanged.

        With `keep_native`, the native keys also remain if the option is not set: then they were
        not decoded into it.
        """
        if reasoning is None and keep_native:
            return
        # Compared by meaning: equivalent keys of a client are sent byte for byte.
        if reasoning != self.decode(wire).reasoning:
            self.encode(wire, reasoning, None)


def effort_of(value: object) -> Effort | None:
    """Return the value if it is an effort, else None."""
    return value if isinstance(value, str) and value in EFFORTS else None


def budget_of(value: object) -> int | None:
    """Return the value if it is a token count above zero, else None."""
    return maybe_count(value) or None


def set_inner_keys(wire: Wire, name: str, changes: Mapping[str, Any]) -> None:
    """Set keys of the object `name` in a request; None removes a key; empty objects go too."""
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
    """Decode the reasoning of a Claude model.

    `prefix` is added to the paths of the keys. `fallback_key` is a key of `wire` with the effort
    for requests that have none in `output_config`.
    """
    thinking = maybe_object(wire.get(CLAUDE_THINKING))
    inner = effort_of(maybe_object(wire.get(CLAUDE_OUTPUT)).get("effort"))
    effort = inner or (effort_of(wire.get(fallback_key)) if fallback_key else None)
    keys = frozenset({prefix + _EFFORT if inner else fallback_key}) if effort else frozenset[str]()
    kind = {prefix + _TYPE}
    match maybe_text(thinking.get("type")):
        # Models that cannot turn thinking off accept `between_tools` as the minimum.
        case "disabled" | "between_tools":
            return DecodedReasoning(Reasoning("none"), frozenset(kind))
        case "adaptive":
            return DecodedReasoning(Reasoning(effort), keys | kind)
        case "enabled":
            budget = budget_of(thinking.get("budget_tokens"))
            thinking_keys = kind if budget is None else {*kind, prefix + _BUDGET}
            return DecodedReasoning(Reasoning(effort, budget), keys | thinking_keys)
        case _:
            return DecodedReasoning(Reasoning(effort) if effort else None, keys)


def encode_claude_thinking(
    wire: Wire, reasoning: Reasoning | None, form: ReasoningForm | None
) -> None:
    """Set the reasoning of a Claude model: newer models accept an effort, older a budget (T48)."""
    thinking: Wire = {"type": None, "budget_tokens": None}
    effort = None
    if reasoning is not None and reasoning.is_off:
        thinking["type"] = "between_tools" if form == "between" else "disabled"
    elif reasoning is not None and reasoning.budget_tokens is not None:
        thinking |= {"type": "enabled", "budget_tokens": reasoning.budget_tokens}
    elif reasoning is not None:
        thinking["type"], effort = "adaptive", reasoning.effort
    # Anthropic rejects `display` if thinking is turned off.
    if thinking["type"] in (None, "disabled", "between_tools"):
        thinking["display"] = None
    set_inner_keys(wire, CLAUDE_THINKING, thinking)
    set_inner_keys(wire, CLAUDE_OUTPUT, {"effort": effort})
