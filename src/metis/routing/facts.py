"""TurnFacts: everything that a decision may depend on, taken once when a turn starts."""

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
    """How much thought a delegated task is given."""

    FAST = "fast"
    BALANCED = "balanced"
    DEEP = "deep"


class TurnFacts(Struct, frozen=True, kw_only=True):
    """A turn as the router sees it."""

    now: datetime
    """The time in the user's own zone; rules about the time of day go by it."""
    message: str = ""
    """The user's text, without an `@alias` in front."""
    override: str | None = None
    """The model that this message asks for."""
    sticky: str | None = None
    """The model that the user set for the session."""
    tier: Tier | None = None
    """What a planner asked for; set in worker sessions only."""
    workspace_path: str = ""
    estimated_input_tokens: int = 0
    minimum_tokens: int | None = None
    """What a window must hold at least, if older parts can be summed up; None is all of it."""
    reserved_output_tokens: int = 0
    """How much of the window must stay free for the answer."""
    has_images: bool = False
    has_tool_calls_in_history: bool = False
    needs_tools: bool = False
    needs_system_prompt: bool = False
    needs_structured_output: bool = False
    side_effects: AbstractSet[SideEffects] = frozenset()
    """What the tools that are offered in this turn can do."""
    skills_matching_message: AbstractSet[str] = frozenset()
    file_extensions_in_context: AbstractSet[str] = frozenset()
    """Such as `.py`, in lower case."""
    cost_today_usd: Decimal = Decimal(0)
    """What this UTC day has cost so far."""
    team_budget_remaining_usd: Decimal | None = None
    """None if the team has no budget."""
    neighbours: tuple[Neighbour, ...] = ()
    """Earlier turns like this one, if somebody keeps them."""

    def __post_init__(self) -> None:
        """Refuse amounts that cannot be compared."""
        for name in ("cost_today_usd", "team_budget_remaining_usd"):
            amount = getattr(self, name)
            if amount is not None and not amount.is_finite():
                raise InvalidValueError(f"{amount} is not an amount of money", path=f"$.{name}")


class AddressedPrompt(Struct, frozen=True):
    """A message apart from the model that it asks for."""

    text: str
    override: str | None = None


def parse_override(text: str) -> AddressedPrompt:
    r"""Take an `@alias` off the start of a message; `\\@` stands for a plain `@`.

    >>> read_override("@haiku fix the typo")
    Asked(text='fix the typo', override='haiku')
    >>> read_override(r"\\@haiku is a name")
    Asked(text='@haiku is a name', override=None)
    """
    if text.startswith("\\@"):
        return AddressedPrompt(text[1:])
    found = _OVERRIDE.match(text)
    if found is None:
        return AddressedPrompt(text)
    body = text[found.end() :]
    if not body:
        raise InvalidValueError(f"after @{found[1]} there is no message", path="$.message")
    return AddressedPrompt(body, found[1])
