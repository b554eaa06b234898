"""The facts of a turn that a routing decision may depend on, collected when it starts."""

import re
from collections.abc import Set as AbstractSet
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from msgspec import Struct

from metis.canonical.errors import InvalidValueError
from metis.canonical.tools import SideEffects
from metis.routing.pattern import Neighbour

_OVERRIDE = re.compile(r"@(\S+)(?:\s+|$)")


class Tier(StrEnum):
    """The class of model that a delegated task gets."""

    FAST = "fast"
    BALANCED = "balanced"
    DEEP = "deep"


class TurnFacts(Struct, frozen=True, kw_only=True):
    """Everything that the router knows about a turn."""

    now: datetime
    """The time in the user's time zone, for rules about the time of day."""
    message: str = ""
    """The text of the prompt, without an `@alias` at its start."""
    override: str | None = None
    """The model that the prompt names."""
    sticky: str | None = None
    """The model that is set for the session or its thread."""
    tier: Tier | None = None
    """The tier of a worker session; None in other sessions."""
    workspace_path: str = ""
    estimated_input_tokens: int = 0
    minimum_tokens: int | None = None
    """The tokens of a compacted history; None if it cannot be compacted."""
    reserved_output_tokens: int = 0
    """The tokens of the window that are reserved for the response."""
    has_images: bool = False
    has_tool_calls_in_history: bool = False
    needs_tools: bool = False
    needs_system_prompt: bool = False
    needs_structured_output: bool = False
    side_effects: AbstractSet[SideEffects] = frozenset()
    """The side effects of the tools of this turn."""
    skills_matching_message: AbstractSet[str] = frozenset()
    file_extensions_in_context: AbstractSet[str] = frozenset()
    """In lower case, such as `.py`."""
    cost_today_usd: Decimal = Decimal(0)
    """The cost of this UTC day so far."""
    team_budget_remaining_usd: Decimal | None = None
    """None if the team has no budget."""
    neighbours: tuple[Neighbour, ...] = ()
    """Similar earlier turns, if a program supplies them."""

    def __post_init__(self) -> None:
        """Refuse NaN and infinite amounts, which cannot be compared."""
        for name in ("cost_today_usd", "team_budget_remaining_usd"):
            amount = getattr(self, name)
            if amount is not None and not amount.is_finite():
                raise InvalidValueError(f"{amount} is not an amount of money", path=f"$.{name}")


class AddressedPrompt(Struct, frozen=True):
    """A prompt, and the model that it names."""

    text: str
    override: str | None = None


def parse_override(text: str) -> AddressedPrompt:
    r"""Split an `@alias` off the start of a prompt; `\\@` stands for a plain `@`.

    >>> parse_override("@haiku fix the typo")
    AddressedPrompt(text='fix the typo', override='haiku')
    >>> parse_override(r"\\@haiku is a name")
    AddressedPrompt(text='@haiku is a name', override=None)
    """
    # A prompt may begin with a person's handle or a decorator.
    if text.startswith("\\@"):
        return AddressedPrompt(text[1:])
    match = _OVERRIDE.match(text)
    if match is None:
        return AddressedPrompt(text)
    body = text[match.end() :]
    if not body:
        raise InvalidValueError(f"there is no message after @{match[1]}", path="$.message")
    return AddressedPrompt(body, match[1])
