"""Names of models: from what people write to what a provider is asked for."""

from functools import cache

from metis.adapters.profile import Profile
from metis.canonical.errors import InvalidValueError, WrongProviderError
from metis.catalog.load import catalog


def wire_model(name: str | None, profile: Profile) -> str:
    """The provider's own name of a model that is given by its id, an alias or that name itself.

    Raises:
        WrongProviderError: the model is one of another provider.
    """
    if name is None:
        return profile.default_model
    if not _is_text(name):
        raise InvalidValueError(f"a model is named by a string, not {name!r}", path="$.model")
    known, homes = catalog(), _homes(profile)
    for home in homes:
        entry = known.entries.get(name if name.startswith(f"{home}:") else f"{home}:{name}")
        if entry is not None:
            return entry.wire_name
    prefix, _, rest = name.partition(":")
    if rest and prefix in homes:
        return rest
    stranger = prefix if name in known.entries or _names_provider(prefix, rest, profile) else None
    alias = known.aliases.get(name.lower()) if stranger is None else None
    if alias is not None:
        provider = known.entries[alias].provider
        if provider in homes:
            return known.entries[alias].wire_name
        stranger = provider if homes & _listed() and not profile.free_names else None
    if stranger is not None:
        raise WrongProviderError(alias or name, adapter=profile.name, provider=stranger)
    return name


def _is_text(name: object) -> bool:
    """Whether a name is a string; what clients send may be anything."""
    return isinstance(name, str)


def _homes(profile: Profile) -> set[str]:
    if profile.known_models:
        return {profile.name}  # what a model is called at home says nothing here
    return {profile.name, profile.catalogued or profile.name}


def _names_provider(prefix: str, rest: str, profile: Profile) -> bool:
    """Whether a name begins with a provider; on a server of one's own it may be a tag."""
    return bool(rest) and not profile.free_names and prefix in _listed()


@cache
def _listed() -> frozenset[str]:
    """The providers whose models the catalogue lists."""
    return frozenset(entry.provider for entry in catalog().entries.values())
