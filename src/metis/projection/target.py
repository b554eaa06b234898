"""Target: what one model behind one adapter accepts, as data."""

import re
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from metis.canonical.message import Message


class MessageRules(Struct, frozen=True, kw_only=True):
    """What the API of a host accepts in messages."""

    issuers: frozenset[str] = frozenset()
    """The issuers whose sealed parts the host can read: signatures, redacted and opaque parts."""
    maker_pattern: str = ""
    """A pattern for the vendor in a model name, for hosts that serve models of several vendors."""
    result_blocks: frozenset[str] = frozenset({"text"})
    """The types of blocks that a tool result may contain; other media is sent after the results."""
    max_image_chars: int | None = None
    """The most characters of base64 in an inline image."""
    max_image_side: int | None = None
    """The longest side of an inline image in pixels."""
    audio_media_types: frozenset[str] = frozenset()
    document_media_types: frozenset[str] | None = None
    """The media types of inline documents; None if all are accepted."""
    url_blocks: frozenset[str] = frozenset()
    """The types of blocks whose media may be a URL."""
    url_schemes: frozenset[str] = frozenset({"http", "https"})
    accepts_text_documents: bool = True
    """Whether a document may be plain text; otherwise it is sent as a text block with its name."""
    accepts_document_context: bool = True
    accepts_document_names: bool = True
    needs_document_names: bool = False
    """Whether documents need unique names, and text in the same message."""
    citation_kinds: frozenset[str] = frozenset()
    """The kinds of citations that a request may contain."""
    accepts_raw_arguments: bool = False
    """Whether the arguments of a call are a string, which need not be JSON."""
    placeholder_signature: str = ""
    """A signature that is accepted for calls of other models; empty if none is needed."""
    tools_without_text: frozenset[str] = frozenset()
    """Tools whose results cannot contain text."""
    tool_name_length: int = 64
    accepts_thinking: bool = False
    """Whether thinking of `issuers` is sent back."""
    needs_signatures: bool = True
    """Whether thinking without a signature is rejected."""
    pairs_thinking: bool = False
    """Whether thinking at the end of a response is rejected."""
    accepts_artifacts: Literal["none", "own", "any"] = "none"
    """Which artifacts a response may contain: none, those of `issuers`, or any with inline data."""
    accepts_foreign_citations: bool = True
    """Whether text of other providers may have citations."""
    developer_role: bool = False
    """Whether the first messages may be developer messages."""
    developer_origins: frozenset[str] = frozenset()
    """Other providers of the protocol whose clients send developer messages at any position."""
    accepts_blank_text: bool = True
    alternates_roles: bool = False
    """Whether adjacent messages must have different roles."""
    joins_text: bool = False
    """Whether the texts of a message must be joined to one text."""
    allows_user_after_tool: bool = True
    """Whether a user message may directly follow a tool result."""
    prefill: Literal["any", "unfinished", "none"] = "any"
    """Which assistant messages may be last: any, unfinished responses only, or none."""
    starts_with_user: bool = False
    """Whether the first message after the instructions must be a user message."""
    accepts_trailing_space: bool = True
    """Whether the last assistant message may end in whitespace."""
    cache_marks: int = 0
    """The most cache marks in a request."""
    can_mark_calls: bool = True
    """Whether a call can carry a cache mark."""
    unmarkable_blocks: frozenset[str] = frozenset()
    """The types of blocks that cannot carry a cache mark."""


class Target(MessageRules, frozen=True, kw_only=True):
    """What one model behind one adapter accepts: the rules of the host and limits of the model."""

    adapter: str
    """The name of the adapter, which losses contain."""
    model: str = ""
    user_blocks: frozenset[str] = frozenset({"text"})
    """The types of blocks that a user message may contain."""
    image_media_types: frozenset[str] = frozenset()
    """The media types of inline images."""
    large_image_side: int | None = None
    """The longest side of an image in pixels if a request has many images."""
    file_blocks: frozenset[str] = frozenset({"document"})
    """The types of blocks whose media may be the id of an uploaded file."""
    accepts_tools: bool = True
    accepts_thinking_ids: bool = False
    """Whether the id of a thinking block replaces its signature, because responses are stored."""
    include_thinking: bool = False
    """Whether thinking that is not accepted is sent as text with `<thinking>` tags."""
    stores_history: bool = False
    """Whether results may refer to calls of a stored response that the request does not contain."""
    system: Literal["anywhere", "first"] = "first"
    """The allowed position of system messages."""
    min_cached_tokens: int = 0
    """The shortest prefix that is cached, in tokens."""
    accepts_long_marks: bool = True
    """Whether a prefix may be cached for one hour."""


def foreign_maker(message: Message, target: Target) -> str | None:
    """Return the vendor of the model of a response if that of the target differs (T203)."""
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
    """Whether a message comes from a client of the target, so that it is sent unchanged.

    A response of the target is not native: it may be empty, blank or truncated and need a repair.
    """
    return message.metadata.origin == target.adapter and message.metadata.model is None
