"""The reasoning option of a request, fitted to a model; every change becomes a loss.

The rules, in their order (T37, T46-T48, T206, T207):

- A model whose thinking cannot be controlled gets no option.
- Where thinking conflicts with something else (a forced call, any tools, an open call without
  thinking before it), thinking is turned off; if that is not possible, the call is not forced.
- An effort becomes the nearest effort of the model; efforts and budgets are converted into each
  other.
- A budget is clamped to the range of the model. Where it counts towards the limit of the
  response, half of that limit remains for the response.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from metis.adapters.model import ModelFacts
from metis.adapters.tool_options import OptionLoss
from metis.canonical.blocks import RedactedThinkingBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.catalog.model_rules import EFFORT_BUDGETS, ReasoningRule, effort_for
from metis.projection import Change, thinking_refusal
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.reasoning import REASONING_OFF, Reasoning

_KEY = "reasoning"


class ReasoningPlanner:
    """Fits the reasoning option to one model."""

    def __init__(self, model: ModelFacts, protocol: str, losses: list[OptionLoss]) -> None:
        self._model = model
        self._rule = model.thinking
        self._protocol = protocol
        self._losses = losses
        self.refused_options: dict[str, str] = {}
        """Options that the model refuses while it thinks, with the reason."""

    def fit(
        self, options: AdapterOptions, *, has_tools: bool, messages: Sequence[Message]
    ) -> AdapterOptions:
        """Return the options with a reasoning option that the model accepts, or none."""
        rule, requested = self._rule, options.reasoning
        if rule is None or rule.form is None:
            return self._without_reasoning(options)
        thinks = rule.on_by_default if requested is None else not requested.is_off
        if thinks:
            options = self._without_conflicts(options, rule, messages, has_tools=has_tools)
            requested = options.reasoning
            thinks = requested is None or not requested.is_off
        if requested is not None:
            options = self._in_terms_of_model(options, rule, requested)
        fitted = options.reasoning
        if thinks and not (fitted is not None and fitted.is_off):
            name = self._model.name
            self.refused_options = {
                option: f"{option} is not supported by {name} while it thinks"
                for option in rule.refused_options
            }
        return options

    def _without_reasoning(self, options: AdapterOptions) -> AdapterOptions:
        requested = options.reasoning
        if requested is None:
            return options
        if not requested.is_off or (self._rule is not None and self._rule.on_by_default):
            reason = f"the thinking of {self._model.name} cannot be controlled"
            self._losses.append(OptionLoss(_KEY, reason))
        return replace(options, reasoning=None)

    def _without_conflicts(
        self,
        options: AdapterOptions,
        rule: ReasoningRule,
        messages: Sequence[Message],
        *,
        has_tools: bool,
    ) -> AdapterOptions:
        name = self._model.name
        if has_tools and self._protocol in rule.no_tools_in and rule.can_disable:
            return self._turned_off(options, f"{name} cannot think and use tools in this API")
        if has_tools and _forces_call(options) and not rule.forced_tools:
            if rule.can_disable:
                return self._turned_off(options, f"{name} cannot think if a call is forced")
            reason = f"{name} always thinks, and so cannot be forced to call a tool"
            self._losses.append(OptionLoss("tool_choice", reason, Change.ALTERED))
            return replace(options, tool_choice=ToolChoice("auto"))
        # Anthropic refuses thinking in a tool loop whose first response has none (T37).
        if (
            rule.needs_thinking_before_calls
            and rule.can_disable
            and not _loop_has_thinking(messages, self._model)
        ):
            reason = f"{name} cannot think now: the response with the open call has no thinking"
            return self._turned_off(options, reason)
        return options

    def _turned_off(self, options: AdapterOptions, reason: str) -> AdapterOptions:
        change = Change.SYNTHESISED if options.reasoning is None else Change.ALTERED
        self._losses.append(OptionLoss(_KEY, reason, change))
        return replace(options, reasoning=REASONING_OFF)

    def _in_terms_of_model(
        self, options: AdapterOptions, rule: ReasoningRule, requested: Reasoning
    ) -> AdapterOptions:
        if requested.is_off and rule.can_disable:
            return replace(options, reasoning=REASONING_OFF)
        budget = requested.budget_tokens
        if budget is not None and rule.budget is not None and not _forces_call(options):
            return self._with_budget(options, rule, budget)
        if rule.form == "budget":
            return self._with_budget_for(options, rule, requested)
        return replace(options, reasoning=self._as_effort(rule, requested))

    def _with_budget_for(
        self, options: AdapterOptions, rule: ReasoningRule, requested: Reasoning
    ) -> AdapterOptions:
        # Gemini 2.5 can also choose a budget by itself, if none is stated.
        if requested.is_off:
            self._alter(f"{self._model.name} always thinks; the smallest budget is sent")
            return self._with_budget(options, rule, 1, is_exact=False)
        if requested.effort is None and not rule.budget_below_max_tokens:
            return replace(options, reasoning=Reasoning())
        budget = EFFORT_BUDGETS[requested.effort or "medium"]
        return self._with_budget(options, rule, budget, is_exact=False)

    def _as_effort(self, rule: ReasoningRule, requested: Reasoning) -> Reasoning | None:
        """Return the nearest effort of the model; None if the model thinks without one."""
        name, effort = self._model.name, requested.effort
        if not rule.enabling_efforts:
            if requested != Reasoning():
                self._alter(f"{name} can think, but not by a given amount")
            return Reasoning()
        if effort is None and requested.budget_tokens is None:
            return _default_effort(rule)
        nearest = rule.nearest_effort(effort or effort_for(requested.budget_tokens or 0))
        if effort is None:
            self._alter(f"{name} has no thinking-token budget; mapped to effort {nearest!r}")
        elif nearest != effort:
            self._alter(f"{name} has no effort {effort!r}; mapped to {nearest!r}")
        return Reasoning(nearest)

    def _with_budget(
        self, options: AdapterOptions, rule: ReasoningRule, budget: int, *, is_exact: bool = True
    ) -> AdapterOptions:
        # Providers answer 400 to a budget outside of the range (T47).
        min_budget, max_budget = rule.budget or (1, budget)
        fitted = min(max(budget, min_budget), max_budget)
        if fitted != budget and is_exact:
            self._alter(f"{self._model.name} thinks with {min_budget} to {max_budget} tokens")
        changes: dict[str, Any] = {}
        if rule.budget_below_max_tokens:
            fitted = self._below_response_limit(
                options, fitted, min_budget, changes, is_exact=is_exact
            )
        return replace(options, reasoning=Reasoning(None, fitted), **changes)

    def _below_response_limit(
        self,
        options: AdapterOptions,
        budget: int,
        min_budget: int,
        changes: dict[str, Any],
        *,
        is_exact: bool,
    ) -> int:
        # Anthropic counts thinking towards `max_tokens`, and answers 400 to a budget that is not
        # smaller.
        max_budget, limit = self._model.capabilities.max_output_tokens, options.max_output_tokens
        if limit is None:
            changes["max_output_tokens"] = limit = max_budget
            is_exact = False
        if budget < limit:
            return budget
        if limit // 2 >= min_budget:
            if is_exact:
                self._alter(f"thinking must leave space in a response of {limit} tokens")
            return limit // 2
        changes["max_output_tokens"] = raised = min_budget + limit
        reason = (
            f"{self._model.name} thinks with at least {min_budget} tokens, which count as output"
        )
        loss = OptionLoss("max_output_tokens", f"{reason}; {raised} is sent", Change.ALTERED)
        self._losses.append(loss)
        return min_budget

    def _alter(self, reason: str) -> None:
        self._losses.append(OptionLoss(_KEY, reason, Change.ALTERED))


def _default_effort(rule: ReasoningRule) -> Reasoning | None:
    # A model that thinks by default needs no option to do so.
    if rule.form in ("adaptive", "between", "reasoning", "think", "thinking"):
        return Reasoning()
    return None if rule.on_by_default else Reasoning(rule.nearest_effort("medium"))


def _forces_call(options: AdapterOptions) -> bool:
    choice = options.tool_choice
    return choice is not None and choice.mode in ("required", "tool")


def _loop_has_thinking(messages: Sequence[Message], model: ModelFacts) -> bool:
    """Whether the response with the open calls begins with thinking that this model accepts.

    True also for a history that does not end in tool results.
    """
    if not messages or messages[-1].role is not Role.TOOL:
        return True
    response = next((m for m in reversed(messages) if m.role is not Role.TOOL), None)
    if response is None or not any(type(block) is ToolUseBlock for block in response.content):
        return True
    first = response.content[0]
    if not isinstance(first, ThinkingBlock | RedactedThinkingBlock):
        return False
    return thinking_refusal(first, response, model.target) is None
