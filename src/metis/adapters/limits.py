"""Options within the ranges and limits of a host: clamped with a loss, or refused before sending.

The rules are rows of `catalog/data/limits.toml`, each with its source (T213-T215).
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from metis.adapters.model import ModelFacts, TokenEstimate
from metis.adapters.tool_options import OptionLoss
from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.catalog.limits import SHARED_LIMITS, LimitRule
from metis.projection.loss import Change
from metis.wire.call import AdapterOptions
from metis.wire.json_access import Wire, maybe_object

_NUMBERS = ("max_output_tokens", "temperature", "top_k", "top_p")
# Half of a SHA-256 hash is unique in practice, and fits every limit of an id.
_HASH_LENGTH = 32
_MIN_OUTPUT_TOKENS = 4096
"""The smallest limit to send if the caller states none and the context window is nearly full."""


class OptionLimits:
    """The limits of one model at one host, applied to requests; every change becomes a loss."""

    def __init__(self, host: str, rules: Mapping[str, LimitRule], losses: list[OptionLoss]) -> None:
        self._host = host
        self._rules = rules
        self._losses = losses

    def fit(self, options: AdapterOptions) -> dict[str, Any]:
        """Return the shared options that change."""
        changes: dict[str, Any] = {}
        for name in _NUMBERS:
            value, rule = getattr(options, name), self._rules.get(name)
            if value is None or rule is None:
                continue
            nearest = rule.nearest(value)
            if nearest != value:
                changes[name] = nearest
                reason = f"{self._host} accepts {rule.range_text}; {nearest} is sent"
                self._alter(name, reason)
        stops, rule = options.stop_sequences, self._rules.get("stop_sequences")
        if stops and rule is not None:
            accepted = self._stop_sequences(stops, rule)
            if accepted != stops:
                changes["stop_sequences"] = accepted or None
        return changes

    def _stop_sequences(self, stops: tuple[str, ...], rule: LimitRule) -> tuple[str, ...]:
        accepted: list[str] = []
        for index, stop in enumerate(stops):
            if rule.visible and not stop.strip():
                fault = "accepts no blank stop sequence"
            elif rule.not_empty and not stop:
                fault = "accepts no empty stop sequence"
            elif rule.max_length is not None and len(stop.encode()) > rule.max_length:
                fault = f"accepts stop sequences of at most {rule.max_length} bytes"
            elif rule.max_items is not None and len(accepted) >= rule.max_items:
                fault = f"accepts at most {rule.max_items} stop sequences"
            else:
                accepted.append(stop)
                continue
            self._losses.append(OptionLoss(f"stop_sequences[{index}]", f"{self._host} {fault}"))
        return tuple(accepted)

    def check_tools(self, tools: Sequence[ToolDefinition]) -> None:
        """Refuse more tools than the host accepts; only the caller can decide which to leave out.

        Raises:
            InvalidValueError: there are too many.
        """
        rule = self._rules.get("tools")
        if rule is not None and rule.max_items is not None and len(tools) > rule.max_items:
            fault = f"{self._host} accepts at most {rule.max_items} tools, got {len(tools)}"
            raise InvalidValueError(f"{fault}; send fewer", path="$.tools")

    def fit_native(self, native: Wire) -> None:
        """Change native keys, such as metadata and ids, so that they keep to their limits."""
        for option, rule in self._rules.items():
            if option in SHARED_LIMITS:
                continue
            holder, key = native, option
            if "." in option:
                outer, key = option.split(".", 1)
                if not isinstance(native.get(outer), dict):
                    continue
                holder = maybe_object(native[outer])
            value = holder.get(key)
            fitted: Any = value
            if isinstance(value, str):
                fitted = self._short_id(option, value, rule)
            elif isinstance(value, dict):
                fitted = self._small_object(option, maybe_object(value), rule)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                fitted = self._nearest(option, value, rule)
            if fitted is value:
                continue
            # Nested objects belong to the caller: they are copied, not changed.
            if holder is native:
                native[key] = fitted
            else:
                native[option.split(".", 1)[0]] = {**holder, key: fitted}

    def _nearest(self, option: str, value: float, rule: LimitRule) -> float:
        nearest = rule.nearest(value)
        if nearest == value:
            return value
        self._alter(option, f"{self._host} accepts {rule.range_text}; {nearest} is sent")
        return nearest

    def _short_id(self, option: str, value: str, rule: LimitRule) -> str:
        if rule.max_length is None or len(value) <= rule.max_length:
            return value
        # A hash still distinguishes users and cache keys; the first characters of an id may not.
        digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
        reason = f"{self._host} accepts at most {rule.max_length} characters; a hash is sent"
        self._alter(option, reason)
        return digest

    def _small_object(self, option: str, value: Wire, rule: LimitRule) -> Wire:
        fitted: Wire = {}
        for key, item in value.items():
            fault = None
            if rule.max_items is not None and len(fitted) >= rule.max_items:
                fault = f"at most {rule.max_items} keys"
            elif rule.max_key_length is not None and len(key) > rule.max_key_length:
                fault = f"keys of at most {rule.max_key_length} characters"
            if fault is not None:
                self._losses.append(OptionLoss(f"{option}.{key}", f"{self._host} accepts {fault}"))
                continue
            fitted[key] = item
            if rule.max_length is not None and isinstance(item, str):
                fitted[key] = self._cut(f"{option}.{key}", item, rule.max_length)
        return value if fitted == value else fitted

    def _cut(self, path: str, text: str, length: int) -> str:
        if len(text) <= length:
            return text
        self._alter(path, f"{self._host} accepts at most {length} characters; the rest is cut")
        return text[:length]

    def _alter(self, key: str, reason: str) -> None:
        self._losses.append(OptionLoss(key, reason, Change.ALTERED))


def fitted_output_limit(
    body_size: int,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    options: AdapterOptions,
    model: ModelFacts,
) -> int | None:
    """Return an output limit that fits into the window beside the prompt; None if it does (T216).

    The estimate is raised by a tenth, by which it may be too low. A limit below
    `_MIN_OUTPUT_TOKENS` is not sent, because such a short response is useless; the provider may
    then refuse the request as too long.
    """
    limit, window = options.max_output_tokens, model.capabilities.max_context_tokens
    if limit is None or body_size // 2 + limit <= window:
        return None
    tokens = TokenEstimate(model.token_rates, model.target).request_tokens(messages, tools)
    available = max(window - tokens * 11 // 10, _MIN_OUTPUT_TOKENS)
    # A thinking budget has to be smaller than the limit.
    budget = 0 if options.reasoning is None else options.reasoning.budget_tokens or 0
    return min(max(available, budget + 1), limit)
