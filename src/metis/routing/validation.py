"""Whether a model can take a turn; each thing is asked only if the turn needs it."""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from enum import StrEnum

from msgspec import Struct

from metis.catalog.models import Catalog
from metis.routing.availability import Outage
from metis.routing.facts import TurnFacts
from metis.routing.policy import Policy


class Reason(StrEnum):
    """Why a model cannot take a turn."""

    NOT_CONFIGURED = "not_configured"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    NO_VISION_SUPPORT = "no_vision_support"
    EXCEEDS_CONTEXT_WINDOW = "exceeds_context_window"
    NO_TOOL_SUPPORT = "no_tool_support"
    NO_SYSTEM_PROMPT_SUPPORT = "no_system_prompt_support"
    NO_STRUCTURED_OUTPUT_SUPPORT = "no_structured_output_support"
    SIDE_EFFECTS_EXCLUDED = "side_effects_excluded"


class Failure(Struct, frozen=True):
    """One reason against a model, for programs and for people."""

    reason: Reason
    text: str


class Validator(Struct, frozen=True, kw_only=True):
    """What candidates are judged by."""

    catalog: Catalog
    policy: Policy
    configured: AbstractSet[str]
    """The providers that can be called: there is a key, or none is needed."""
    outage: Callable[[str], Outage | None]

    def check(self, model: str, turn: TurnFacts) -> Failure | None:
        """The first reason against a model, or None if it can take the turn."""
        return next(self._failures(model, turn), None)

    def _failures(self, model: str, turn: TurnFacts) -> Iterator[Failure]:
        provider = model.partition(":")[0]
        if model not in self.catalog.entries or provider not in self.configured:
            yield Failure(Reason.NOT_CONFIGURED, f"{provider} is not configured")
            return
        outage = self.outage(model)
        if outage is not None:
            yield Failure(Reason.PROVIDER_UNAVAILABLE, str(outage))
        can = self.catalog.entries[model].capabilities
        if turn.has_images and not can.supports_images:
            yield Failure(Reason.NO_VISION_SUPPORT, "it does not read images")
        least = turn.estimated_input_tokens if turn.needed_tokens is None else turn.needed_tokens
        needed = least + turn.reserved_output_tokens
        if needed > can.max_context_tokens:
            text = f"about {needed} tokens do not fit into {can.max_context_tokens}"
            yield Failure(Reason.EXCEEDS_CONTEXT_WINDOW, text)
        if turn.needs_tools and not can.supports_tools:
            yield Failure(Reason.NO_TOOL_SUPPORT, "it does not call tools")
        if turn.needs_system_prompt and not can.supports_system_prompt:
            yield Failure(Reason.NO_SYSTEM_PROMPT_SUPPORT, "it takes no system prompt")
        if turn.needs_structured_output and not can.supports_structured_output:
            text = "it does not answer by a schema"
            yield Failure(Reason.NO_STRUCTURED_OUTPUT_SUPPORT, text)
        for effect in sorted(turn.side_effects):
            if model in self.policy.exclude.get(effect, ()):
                text = f"the rules keep it from tools of class {effect}"
                yield Failure(Reason.SIDE_EFFECTS_EXCLUDED, text)
