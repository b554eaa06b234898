"""The registry: adapters by name."""

from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.adapters.hosts import HOSTS
from metis.adapters.profiles import COMPATIBLE, PROFILES
from metis.canonical.errors import UnknownAdapterError


def get(name: str, *, base_url: str | None = None) -> Adapter:
    """The adapter of a provider; `base_url` is another place that speaks the same.

    >>> get("anthropic").name
    'anthropic'
    """
    profile = COMPATIBLE if name == COMPATIBLE.name else PROFILES.get(name) or HOSTS.get(name)
    if profile is None:
        raise UnknownAdapterError(name, names())
    return Adapter(profile if base_url is None else replace(profile, base_url=base_url))


def names() -> list[str]:
    """The names of all adapters."""
    return [*PROFILES, *HOSTS, COMPATIBLE.name]
