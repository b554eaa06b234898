"""Target: what one model behind one adapter can carry, as facts."""

from typing import Literal

from msgspec import Struct

from metis.canonical.message import Message


class Target(Struct, frozen=True, kw_only=True):
    """Where a request goes, and what may be in it."""

    adapter: str
    """The name that losses are reported under."""
    issuers: frozenset[str]
    """Whose sealed parts it takes back: signatures, redacted thoughts, opaque parts."""
    user_blocks: frozenset[str] = frozenset({"text"})
    """The tags that a user message may hold here."""
    result_blocks: frozenset[str] = frozenset({"text"})
    """The tags that a tool result may hold here; other media move behind the results."""
    image_media_types: frozenset[str] = frozenset()
    """The kinds of images it takes inline."""
    audio_media_types: frozenset[str] = frozenset()
    """The kinds of recordings it takes."""
    url_blocks: frozenset[str] = frozenset()
    """The tags whose media may be given by URL."""
    citation_kinds: frozenset[str] = frozenset()
    """The kinds of citations that text may carry back."""
    takes_tools: bool = True
    takes_thinking: bool = False
    """Whether thoughts of its own issuer go back to it."""
    needs_signatures: bool = True
    """Whether a thought without a signature is refused."""
    developer_role: bool = False
    system: Literal["anywhere", "first"] = "first"
    """Where system messages may stand."""
    takes_blank_text: bool = True
    takes_artifacts: bool = False
    """Whether files that a model made may stand in its turns."""
    call_signature: str = ""
    """What it takes for the signature of a call that another model made; empty if it asks none."""


def is_native(message: Message, target: Target) -> bool:
    """Whether a message is in the words of a client that speaks to the target.

    An answer of the target is not: it may be empty, blank or broken off, and is repaired like any.
    """
    return message.metadata.origin == target.adapter and message.metadata.model is None
