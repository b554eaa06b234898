"""Affinity: the requests of one session go to where its prefix is cached, and it is (T177)."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.wire.call import AdapterOptions

KEY = "prompt_cache_key"
_KNOWN_AT = {"openai": "openai_chat", "openai-responses": "openai_responses"}
"""The hosts that take such a key, and the protocols in which they do."""

CONTROL = "cache_control"
_EPHEMERAL = {"type": "ephemeral"}
_ASKED_FOR_AT = {"anthropic": "anthropic"}
"""The hosts that cache a request up to its end if asked to, at their own address only."""


def with_affinity(
    options: AdapterOptions, adapter: Adapter, session_id: str, *, goes_on: bool = False
) -> AdapterOptions:
    """The same options, with the session as the key of the cache where a host knows one.

    Where a cache has to be asked for it is, if the conversation goes on: to write one costs more
    than to do without, and who asks once never reads it.
    """
    protocol = _KNOWN_AT.get(adapter.name)
    if protocol is not None:
        return _with(options, protocol, KEY, session_id)
    protocol = _ASKED_FOR_AT.get(adapter.name)
    if protocol is None or not goes_on or not _is_at_home(adapter):
        return options
    if not adapter.capabilities(options.model or "").supports_prompt_caching:
        return options
    return _with(options, protocol, CONTROL, _EPHEMERAL)


def _is_at_home(adapter: Adapter) -> bool:
    """Whether the provider itself is asked, and nobody who only speaks its protocol (T175)."""
    profile = adapter.profile
    return profile.usual_host in ("", urlsplit(profile.base_url).hostname)


def _with(options: AdapterOptions, protocol: str, key: str, value: Any) -> AdapterOptions:
    own: Mapping[str, Any] = options.native.get(protocol, {})
    if key in own:
        return options
    return replace(options, native={**options.native, protocol: {**own, key: value}})
