"""What a message says in Ollama's words only: keys that the canonical form has no place for."""

from collections.abc import Iterator

from metis.canonical.message import Message
from metis.wire.ollama.messages import whole
from metis.wire.ollama.types import ChatMessage
from metis.wire.spelling import says

_TOLD = frozenset(ChatMessage.__struct_fields__)
"""Keys that blocks speak for, however they are spelled."""


def unsaid_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    for key, value in (whole(message) or {}).items():
        if key not in _TOLD and says(key, value):
            yield f"$.{key}"
