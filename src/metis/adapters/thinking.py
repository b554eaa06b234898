"""Thinking: how much a model is told to think, in what it takes; every other wish is reported.

The rules, in their order (T37, T46-T48, T206, T207):

- A model that cannot be told is not told.
- Where thinking stands against something else (a tool that must be called, tools at all, an open
  call without its thought), the model does not think; if it cannot help thinking, the tool is
  not forced.
- A word becomes the nearest that the model knows, and a word and a number stand for each other.
- A budget is brought between the least and the most that the model takes. Where it has to be
  smaller than the limit of the answer, half of that limit is left for what is said.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from metis.adapters.model import ModelFacts
from metis.adapters.tool_options import OptionLoss
from metis.canonical.blocks import RedactedThinkingBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.catalog.model_rules import EFFORT_BUDGETS, ReasoningRule, effort_for
from metis.projection.blocks import thinking_refusal
from metis.projection.loss import Change
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.reasoning import REASONING_OFF, Reasoning

_KEY = "reasoning"
_ROOM = 4096
"""How many tokens an answer gets beside the thoughts, if nobody says."""


class ReasoningPlanner:
    """Brings the wish for thoughts to what one model takes."""

    def __init__(self, model: ModelFacts, protocol: str, lost: list[OptionLoss]) -> None:
        self._model = model
        self._rule = model.thinking
        self._protocol = protocol
        self._lost = lost
        self.refused_options: dict[str, str] = {}
        """What the model does not take while it thinks, with the reason."""

    def fit(
        self, options: AdapterOptions, *, has_tools: bool, messages: Sequence[Message]
    ) -> AdapterOptions:
        """The options with a wish that the model takes, or none."""
        rule, asked = self._rule, options.reasoning
        if rule is None or rule.form is None:
            return self._untold(options)
        thinks = rule.on_by_default if asked is None else not asked.is_off
        if thinks:
            options = self._settled(options, rule, messages, has_tools=has_tools)
            asked = options.reasoning
            thinks = asked is None or not asked.is_off
        if asked is not None:
            options = self._brought(options, rule, asked)
        told = options.reasoning
        if thinks and not (told is not None and told.is_off):
            name = self._model.name
            self.refused_options = {
                one: f"{name} takes no {one} while it thinks" for one in rule.refused_options
            }
        return options

    def _untold(self, options: AdapterOptions) -> AdapterOptions:
        asked, thinks = options.reasoning, self._rule is not None and self._rule.on_by_default
        if asked is None:
            return options
        if thinks or not asked.is_off:
            reason = f"{self._model.name} cannot be told how much to think"
            self._lost.append(OptionLoss(_KEY, reason))
        return replace(options, reasoning=None)

    def _settled(
        self,
        options: AdapterOptions,
        rule: ReasoningRule,
        messages: Sequence[Message],
        *,
        has_tools: bool,
    ) -> AdapterOptions:
        """Without what a model that thinks does not do."""
        name = self._model.name
        if has_tools and self._protocol in rule.no_tools_in and rule.can_disable:
            return self._resting(options, f"{name} cannot think and have tools at once here")
        if has_tools and _forces(options) and not rule.forced_tools:
            if rule.can_disable:
                return self._resting(options, f"{name} cannot think when it must call a tool")
            reason = f"{name} thinks, and so cannot be made to call a tool"
            self._lost.append(OptionLoss("tool_choice", reason, Change.ALTERED))
            return replace(options, tool_choice=ToolChoice("auto"))
        if (
            rule.needs_thinking_before_calls
            and rule.can_disable
            and not _is_thought_through(messages, self._model)
        ):
            reason = f"{name} cannot think on, because the call that is answered has no thought"
            return self._resting(options, reason)
        return options

    def _resting(self, options: AdapterOptions, reason: str) -> AdapterOptions:
        change = Change.SYNTHESISED if options.reasoning is None else Change.ALTERED
        self._lost.append(OptionLoss(_KEY, reason, change))
        return replace(options, reasoning=REASONING_OFF)

    def _brought(
        self, options: AdapterOptions, rule: ReasoningRule, asked: Reasoning
    ) -> AdapterOptions:
        """With the wish in the model's own terms."""
        if asked.is_off and rule.can_disable:
            return replace(options, reasoning=REASONING_OFF)
        if asked.budget_tokens is not None and rule.budget is not None and not _forces(options):
            return self._budgeted(options, rule, asked.budget_tokens)
        if rule.form == "budget":
            return self._counted(options, rule, asked)
        return replace(options, reasoning=self._worded(rule, asked))

    def _counted(
        self, options: AdapterOptions, rule: ReasoningRule, asked: Reasoning
    ) -> AdapterOptions:
        """A word as the number that it is worth; an older model of Gemini may also decide."""
        if asked.is_off:
            self._alter(f"{self._model.name} always thinks, so it is told to think least")
            return self._budgeted(options, rule, 1, is_exact=False)
        if asked.effort is None and not rule.budget_below_max_tokens:
            return replace(options, reasoning=Reasoning())
        return self._budgeted(
            options, rule, EFFORT_BUDGETS[asked.effort or "medium"], is_exact=False
        )

    def _worded(self, rule: ReasoningRule, asked: Reasoning) -> Reasoning | None:
        """A word that the model knows; None where it needs none."""
        name, wanted = self._model.name, asked.effort
        if not rule.enabling_efforts:
            if asked != Reasoning():
                self._alter(f"{name} can be told to think, but not how much")
            return Reasoning()
        if wanted is None and asked.budget_tokens is None:
            return _unmeasured(rule)
        word = rule.nearest_effort(wanted or effort_for(asked.budget_tokens or 0))
        if wanted is None:
            self._alter(f"{name} counts no tokens for thinking, so it is told {word!r}")
        elif word != wanted:
            self._alter(f"{name} knows no effort {wanted!r}, so it is told {word!r}")
        return Reasoning(word)

    def _budgeted(
        self, options: AdapterOptions, rule: ReasoningRule, budget: int, *, is_exact: bool = True
    ) -> AdapterOptions:
        """A number of tokens between the limits of the model (T47)."""
        least, most = rule.budget or (1, budget)
        fitting = min(max(budget, least), most)
        if fitting != budget and is_exact:
            self._alter(f"{self._model.name} thinks with {least} to {most} tokens")
        changes: dict[str, Any] = {}
        if rule.budget_below_max_tokens:
            fitting = self._inside(options, fitting, least, changes, is_exact=is_exact)
        return replace(options, reasoning=Reasoning(None, fitting), **changes)

    def _inside(
        self,
        options: AdapterOptions,
        budget: int,
        least: int,
        changes: dict[str, Any],
        *,
        is_exact: bool,
    ) -> int:
        """A number of tokens below the limit of the answer, which may have to be raised."""
        most, limit = self._model.capabilities.max_output_tokens, options.max_output_tokens
        if limit is None:
            changes["max_output_tokens"] = limit = min(budget + _ROOM, most)
            is_exact = False
        if budget < limit:
            return budget
        if limit // 2 >= least:
            if is_exact:
                self._alter(f"the thoughts must leave room in an answer of {limit} tokens")
            return limit // 2
        changes["max_output_tokens"] = raised = least + limit
        reason = f"{self._model.name} thinks with {least} tokens at least, which count as written"
        self._lost.append(
            OptionLoss("max_output_tokens", f"{reason}: {raised} instead", Change.ALTERED)
        )
        return least

    def _alter(self, reason: str) -> None:
        self._lost.append(OptionLoss(_KEY, reason, Change.ALTERED))


def _unmeasured(rule: ReasoningRule) -> Reasoning | None:
    """Thinking that is left to the model; one that thinks by itself may not have to be told."""
    if rule.form in ("adaptive", "between", "reasoning", "think", "thinking"):
        return Reasoning()
    return None if rule.on_by_default else Reasoning(rule.nearest_effort("medium"))


def _forces(options: AdapterOptions) -> bool:
    choice = options.tool_choice
    return choice is not None and choice.mode in ("required", "tool")


def _is_thought_through(messages: Sequence[Message], model: ModelFacts) -> bool:
    """Whether the answer whose calls are being answered begins with a thought of the model's own.

    A conversation that does not end in results has no such answer.
    """
    if not messages or messages[-1].role is not Role.TOOL:
        return True
    answer = next((one for one in reversed(messages) if one.role is not Role.TOOL), None)
    if answer is None or not any(type(block) is ToolUseBlock for block in answer.content):
        return True
    first = answer.content[0]
    if not isinstance(first, ThinkingBlock | RedactedThinkingBlock):
        return False
    return thinking_refusal(first, answer, model.target) is None
