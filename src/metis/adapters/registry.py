"""The registry: adapters by name."""

from functools import cache

from metis.adapters.adapter import Adapter
from metis.adapters.hosts import HOSTS
from metis.adapters.profile import Profile
from metis.adapters.profiles import COMPATIBLE, PROFILES
from metis.canonical.errors import UnknownAdapterError

_ROWS = {**PROFILES, **HOSTS, COMPATIBLE.name: COMPATIBLE}


def get(
    name: str,
    *,
    base_url: str | None = None,
    place: str | None = None,
    account: str | None = None,
) -> Adapter:
    """The adapter of a provider; `base_url` is another host that speaks the same.

    `place` is for providers that ask for one in the path: `projects/p/locations/l` of Vertex.
    `account` is a word for whose key is used: what was sealed for one account goes to no other.

    >>> get("anthropic").name
    'anthropic'
    """
    if name not in _ROWS:
        raise UnknownAdapterError(name, names())
    if base_url is None and place is None and account is None:
        return _adapter(name)
    profile = _ROWS[name] if place is None else _ROWS[name].at_place(place)
    return Adapter(profile.moved(base_url, account))


def profile_of(name: str) -> Profile:
    """What is known of a provider; other than its adapter this loads no protocol.

    >>> profile_of("anthropic").auth.variable
    'ANTHROPIC_API_KEY'
    """
    if name not in _ROWS:
        raise UnknownAdapterError(name, names())
    return _ROWS[name]


@cache
def _adapter(name: str) -> Adapter:
    """One adapter a provider, so that all callers share what it remembers."""
    return Adapter(_ROWS[name])


def names() -> list[str]:
    """The names of all adapters."""
    return list(_ROWS)
