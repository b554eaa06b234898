"""Ids of tool calls on the wire: ours for theirs, theirs for ours, always the same.

A provider's id becomes a canonical one by a hash over session and id, so that the same history
gives the same ids every time it is read, in every process. The way back is remembered with the
message that holds the call; for other providers an id is derived from ours.
"""

from metis.canonical.ids import hashed_tool_id


def canonical_tool_id(session_id: str, provider_id: str, occurrence: int = 0) -> str:
    """Our id for a provider's; `occurrence` tells calls apart that reuse an id in a later turn."""
    return hashed_tool_id(session_id, provider_id, str(occurrence))


def derived_id(tool_use_id: str, prefix: str) -> str:
    """An id for a call that the target did not make: its prefix, and what is unique of ours."""
    return prefix + tool_use_id.removeprefix("tu_")
