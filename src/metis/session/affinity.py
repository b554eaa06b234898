"""Affinity: the requests of one session go to where its prefix is cached (T177)."""

from msgspec.structs import replace

from metis.adapters.adapter import Adapter
from metis.wire.call import AdapterOptions

KEY = "prompt_cache_key"
_KNOWN_AT = {"openai": "openai_chat", "openai-responses": "openai_responses"}
"""The hosts that take such a key, and the protocols in which they do."""


def with_affinity(options: AdapterOptions, adapter: Adapter, session_id: str) -> AdapterOptions:
    """The same options, with the session as the key of the cache where a host knows one."""
    protocol = _KNOWN_AT.get(adapter.name)
    if protocol is None:
        return options
    own = options.native.get(protocol, {})
    if KEY in own:
        return options
    return replace(options, native={**options.native, protocol: {**own, KEY: session_id}})
