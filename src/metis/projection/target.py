"""Targets: what one model behind one adapter accepts, as facts."""

import re
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from metis.canonical.message import Message


class MessageRules(Struct, frozen=True, kw_only=True):
    """What the API of a host accepts in messages; the defaults are the least demanding API."""

    issuers: frozenset[str] = frozenset()
    """The issuers whose sealed parts it can read: signatures, redacted thinking, opaque parts."""
    maker_pattern: str = ""
    """A pattern that finds the maker in a model name, where models of several makers are served."""
    result_blocks: frozenset[str] = frozenset({"text"})
    """The types of blocks that a tool result may have; other media moves behind the results."""
    max_image_chars: int | None = None
    """How long the base64 of an inline image may be."""
    max_image_side: int | None = None
    """How many pixels wide or high an inline image may be."""
    audio_media_types: frozenset[str] = frozenset()
    document_media_types: frozenset[str] | None = None
    """The media types of documents that it accepts inline; None if it accepts any."""
    url_blocks: frozenset[str] = frozenset()
    """The types of blocks whose media may be given by URL."""
    url_schemes: frozenset[str] = frozenset({"http", "https"})
    accepts_text_documents: bool = True
    """Whether a document may be plain text; else it is sent as text, with its name."""
    accepts_document_context: bool = True
    accepts_document_names: bool = True
    needs_document_names: bool = False
    """Whether documents need distinct names, and text beside them."""
    citation_kinds: frozenset[str] = frozenset()
    """The kinds of citations that text may carry back."""
    accepts_raw_arguments: bool = False
    """Whether the arguments of a call are a string here, which need not be JSON."""
    placeholder_signature: str = ""
    """What it accepts as the signature of a call of another model; empty if it needs none."""
    tools_without_text: frozenset[str] = frozenset()
    """Server tools whose results cannot hold text."""
    tool_name_length: int = 64
    accepts_thinking: bool = False
    """Whether thinking of its own issuers is sent back to it."""
    needs_signatures: bool = True
    """Whether thinking without a signature is refused."""
    pairs_thinking: bool = False
    """Whether thinking at the end of a response is refused."""
    accepts_artifacts: Literal["none", "own", "any"] = "none"
    """Whose artifacts a response may have: none, its own, or any whose bytes are inline."""
    accepts_foreign_citations: bool = True
    """Whether text of other providers may carry citations, too."""
    developer_role: bool = False
    """Whether developer messages may stand at the beginning."""
    developer_origins: frozenset[str] = frozenset()
    """Other providers of the protocol whose clients send developer messages at any position."""
    accepts_blank_text: bool = True
    alternates_roles: bool = False
    """Whether two messages of one role may not follow each other."""
    joins_text: bool = False
    """Whether a message of several texts has to become one text."""
    allows_user_after_tool: bool = True
    """Whether a user message may directly follow a tool result."""
    prefill: Literal["any", "unfinished", "none"] = "any"
    """Whether an assistant message may be last: any, an unfinished response, or none."""
    starts_with_user: bool = False
    """Whether the first message after the instructions must be a user message."""
    accepts_trailing_space: bool = True
    """Whether a last assistant message may end in whitespace."""
    cache_marks: int = 0
    """How many blocks a request may mark as the end of a reusable prefix."""
    can_mark_calls: bool = True
    """Whether a call can carry a cache mark."""
    unmarkable_blocks: frozenset[str] = frozenset()
    """The types of blocks that cannot carry a cache mark."""


class Target(MessageRules, frozen=True, kw_only=True):
    """What one model behind one adapter accepts: the rules of its host and its own limits."""

    adapter: str
    """The adapter that losses name."""
    model: str = ""
    user_blocks: frozenset[str] = frozenset({"text"})
    """The types of blocks that a user message may have."""
    image_media_types: frozenset[str] = frozenset()
    """The media types of images that it accepts inline."""
    large_image_side: int | None = None
    """From how many pixels on an image is too large if there are many."""
    file_blocks: frozenset[str] = frozenset({"document"})
    """The types of blocks whose media may be given by the id of an uploaded file."""
    accepts_tools: bool = True
    accepts_thinking_ids: bool = False
    """Whether the id of a thinking block replaces its signature, because responses are stored."""
    include_thinking: bool = False
    """Whether thinking that it does not accept is sent as marked text."""
    stores_history: bool = False
    """Whether results may answer calls of a response that it stores, and that is not sent."""
    system: Literal["anywhere", "first"] = "first"
    """Where system messages may stand."""
    min_cached_tokens: int = 0
    """How long a prefix has to be for the target to cache it."""
    accepts_long_marks: bool = True
    """Whether a marked prefix may live for an hour."""


def foreign_maker(message: Message, target: Target) -> str | None:
    """Return the maker of the model of a response, if the target's model has another (T203)."""
    model = message.metadata.model
    if not target.maker_pattern or model is None:
        return None
    maker = _maker_of(target.maker_pattern, model.partition(":")[2])
    target_maker = _maker_of(target.maker_pattern, target.model)
    return None if maker == target_maker or target_maker is None else maker


@lru_cache(maxsize=1000)
def _maker_of(pattern: str, model: str) -> str | None:
    match = re.search(pattern, model)
    return None if match is None else match[1]


def is_native(message: Message, target: Target) -> bool:
    """Whether a message comes from a client of the target, and so is sent as it is.

    A response of the target is not native: it may be empty, blank or cut off, and is repaired.
    """
    return message.metadata.origin == target.adapter and message.metadata.model is None
