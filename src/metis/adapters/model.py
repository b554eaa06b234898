"""Model: the one that is asked, with everything that a request to it must know."""

from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.catalog.capability import Capability, abilities_of
from metis.catalog.load import catalog, output, reasoning, refusals, token_table
from metis.catalog.models import AdapterCapabilities, ModelInfo
from metis.catalog.output import ALL, OBJECTS, OutputRule
from metis.catalog.reasoning import ThinkingRule
from metis.catalog.tokens import TokenRates
from metis.projection.target import Target


class Model(Struct, frozen=True, kw_only=True):
    """One model behind one adapter."""

    name: str
    """What the provider calls it."""
    capabilities: AdapterCapabilities
    abilities: frozenset[Capability]
    """What it can do, in a word each."""
    target: Target
    is_listed: bool
    """Whether its limits are facts of the catalogue, not assumptions."""
    refused: frozenset[str]
    """Options that it does not take."""
    conflicts: tuple[tuple[str, ...], ...]
    """Options of which it takes one only."""
    thinking: ThinkingRule | None
    """How it can be told how much to think; None for a model that does not."""
    output: OutputRule
    """What it can be told of its answer."""
    rates: TokenRates
    """What costs how many tokens."""


class _Facts(NamedTuple):
    """What the catalogue says of a model."""

    entry: ModelInfo | None
    refused: frozenset[str]
    conflicts: tuple[tuple[str, ...], ...]
    least_cached_tokens: int
    thinking: ThinkingRule | None
    output: OutputRule
    rates: TokenRates


@lru_cache(maxsize=1000)
def _facts(model: str, hosted: str) -> _Facts:
    """The catalogue, asked once for each model: it goes through its rules by name."""
    known, entry = refusals(), catalog().entries.get(model)
    takes_schemas = entry is None or entry.capabilities.supports_structured_output
    return _Facts(
        entry,
        known.of(model),
        known.conflicts_of(model),
        known.least_cached_of(model),
        reasoning().of(model),
        output().of(hosted) or output().of(model) or (ALL if takes_schemas else OBJECTS),
        token_table().rates(model),
    )


def model_of(profile: Profile, name: str) -> Model:
    """What is known of a model of a provider, and what is assumed where nothing is."""
    # What an answer may be is a fact of a model at a host (T117).
    facts = _facts(profile.catalogue_id(name), f"{profile.name}:{name}")
    entry, refused = facts.entry, facts.refused
    capabilities = profile.defaults if entry is None else entry.capabilities
    is_known_not_to = entry is not None and not capabilities.supports_thinking
    return Model(
        name=name,
        capabilities=capabilities,
        abilities=abilities_of(capabilities, entry),
        target=replace(
            profile.target(capabilities, name, refused),
            least_cached_tokens=facts.least_cached_tokens,
        ),
        is_listed=entry is not None,
        refused=refused,
        conflicts=facts.conflicts,
        thinking=None if is_known_not_to else facts.thinking,
        output=facts.output,
        rates=facts.rates,
    )
