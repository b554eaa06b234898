"""The registry: adapters by name."""

from functools import cache

from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.adapters.profiles import COMPATIBLE, PROFILES
from metis.canonical.errors import UnknownAdapterError


def get(name: str, *, base_url: str | None = None) -> Adapter:
    """The adapter of a provider; `base_url` is another place that speaks the same.

    >>> get("anthropic").name
    'anthropic'
    """
    profile = COMPATIBLE if name == COMPATIBLE.name else PROFILES.get(name)
    if profile is None:
        raise UnknownAdapterError(name, names())
    return (
        _adapter(profile.name) if base_url is None else Adapter(replace(profile, base_url=base_url))
    )


@cache
def _adapter(name: str) -> Adapter:
    """One adapter a provider, so that all callers share what it remembers."""
    return Adapter(COMPATIBLE if name == COMPATIBLE.name else PROFILES[name])


def names() -> list[str]:
    """The names of all adapters."""
    return [*PROFILES, COMPATIBLE.name]
