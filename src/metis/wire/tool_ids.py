"""Ids of tool calls on the wire: ours for theirs, theirs for ours, always the same.

A provider's id becomes a canonical one by a hash over session and id, so that the same history
gives the same ids every time it is read, in every process. The way back is remembered with the
message that holds the call; for other providers an id is derived from ours.
"""

import hashlib

from metis.canonical.ids import int_to_ulid


def canonical_tool_id(session_id: str, provider_id: str, occurrence: int = 0) -> str:
    """Our id for a provider's; `occurrence` tells calls apart that reuse an id in a later turn."""
    key = f"{session_id}\0{provider_id}\0{occurrence}".encode()
    number = int.from_bytes(hashlib.sha256(key).digest()[:16], "big")
    return f"tu_{int_to_ulid(number)}"


def derived_id(tool_use_id: str, prefix: str) -> str:
    """An id for a call that the target did not make: its prefix, and what is unique of ours."""
    return prefix + tool_use_id.removeprefix("tu_")
