"""The registry: adapters by name."""

from functools import cache

from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.adapters.hosts import HOSTS
from metis.adapters.profile import Profile
from metis.adapters.profiles import OPENAI_COMPATIBLE, PROFILES
from metis.canonical.errors import UnknownAdapterError
from metis.deprecation import renamed_parameters

_ROWS = {**PROFILES, **HOSTS, OPENAI_COMPATIBLE.name: OPENAI_COMPATIBLE}


@renamed_parameters(hides_ids="redact_ids")
def get(
    name: str,
    *,
    base_url: str | None = None,
    place: str | None = None,
    account: str | None = None,
    redact_ids: bool = False,
) -> Adapter:
    """The adapter of a provider; `base_url` is another host that speaks the same.

    `place` is for providers that ask for one in the path: `projects/p/locations/l` of Vertex.
    `account` is a word for whose key is used: what was sealed for one account goes to no other.
    `redact_ids` lets models see hashes in the place of our ids of calls.

    >>> get("anthropic").name
    'anthropic'
    """
    if name not in _ROWS:
        raise UnknownAdapterError(name, names())
    if base_url is None and place is None and account is None and not redact_ids:
        return _adapter(name)
    profile = _ROWS[name] if place is None else _ROWS[name].at_location(place)
    return Adapter(replace(profile.with_address(base_url, account), redact_ids=redact_ids))


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
