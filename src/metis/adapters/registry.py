"""The registry: adapters by name."""

from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.adapters.profiles import COMPATIBLE, PROFILES
from metis.canonical.errors import UnknownAdapterError


def get(name: str, *, base_url: str | None = None, place: str | None = None) -> Adapter:
    """The adapter of a provider; `base_url` is another place that speaks the same.

    `place` is for providers that ask for one in the path: `projects/p/locations/l` of Vertex.

    >>> get("anthropic").name
    'anthropic'
    """
    profile = COMPATIBLE if name == COMPATIBLE.name else PROFILES.get(name)
    if profile is None:
        raise UnknownAdapterError(name, names())
    if place is not None:
        profile = profile.at_place(place)
    return Adapter(profile if base_url is None else replace(profile, base_url=base_url))


def names() -> list[str]:
    """The names of all adapters."""
    return [*PROFILES, COMPATIBLE.name]
