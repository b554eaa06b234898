"""Model: the one that is asked, with everything that a request to it must know."""

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.catalog.load import catalog, reasoning, refusals, token_table
from metis.catalog.models import AdapterCapabilities
from metis.catalog.reasoning import ThinkingRule
from metis.catalog.tokens import TokenRates
from metis.projection.target import Target


class Model(Struct, frozen=True, kw_only=True):
    """One model behind one adapter."""

    name: str
    """What the provider calls it."""
    capabilities: AdapterCapabilities
    target: Target
    is_listed: bool
    """Whether its limits are facts of the catalogue, not assumptions."""
    refused: frozenset[str]
    """Options that it does not take."""
    conflicts: tuple[tuple[str, ...], ...]
    """Options of which it takes one only."""
    thinking: ThinkingRule | None
    """How it can be told how much to think; None for a model that does not."""
    rates: TokenRates
    """What costs how many tokens."""


def model_of(profile: Profile, name: str) -> Model:
    """What is known of a model of a provider, and what is assumed where nothing is."""
    model = f"{profile.catalogued or profile.name}:{name}"
    entry = catalog().entries.get(model)
    capabilities = profile.defaults if entry is None else entry.capabilities
    refused = refusals().of(model)
    is_known_not_to = entry is not None and not capabilities.supports_thinking
    return Model(
        name=name,
        capabilities=capabilities,
        target=replace(
            profile.target(capabilities, name, refused),
            least_cached_tokens=refusals().least_cached_of(model),
        ),
        is_listed=entry is not None,
        refused=refused,
        conflicts=refusals().conflicts_of(model),
        thinking=None if is_known_not_to else reasoning().of(model),
        rates=token_table().rates(model),
    )
