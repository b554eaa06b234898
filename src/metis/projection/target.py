"""Target: what one model behind one adapter can carry, as facts."""

import re
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from metis.canonical.message import Message


class Target(Struct, frozen=True, kw_only=True):
    """Where a request goes, and what may be in it."""

    adapter: str
    """The name that losses are reported under."""
    model: str = ""
    issuers: frozenset[str]
    """Whose sealed parts it takes back: signatures, redacted thoughts, opaque parts."""
    makers: str = ""
    """A pattern that finds the maker of a model in its name, where models of several are served."""
    user_blocks: frozenset[str] = frozenset({"text"})
    """The tags that a user message may hold here."""
    result_blocks: frozenset[str] = frozenset({"text"})
    """The tags that a tool result may hold here; other media move behind the results."""
    image_media_types: frozenset[str] = frozenset()
    """The kinds of images it takes inline."""
    max_image_chars: int | None = None
    """How long an inline image may be, as the base64 that is sent."""
    max_image_side: int | None = None
    """How many pixels an inline image may have on a side."""
    large_image_side: int | None = None
    """From how many pixels on an image is large, which matters where there are many."""
    audio_media_types: frozenset[str] = frozenset()
    """The kinds of recordings it takes."""
    document_media_types: frozenset[str] | None = None
    """The kinds of documents it takes inline; None if it takes any."""
    url_blocks: frozenset[str] = frozenset()
    """The tags whose media may be given by URL."""
    address_schemes: frozenset[str] = frozenset({"http", "https"})
    """How the addresses begin that it can read."""
    file_blocks: frozenset[str] = frozenset({"document"})
    """The tags whose media may lie at the target already, and be given by id."""
    takes_text_documents: bool = True
    """Whether a document may be plain text; else it is sent as text, with its name."""
    takes_document_context: bool = True
    """Whether a document may carry words about what it is."""
    names_documents: bool = False
    """Whether documents need names of their own, and words beside them."""
    citation_kinds: frozenset[str] = frozenset()
    """The kinds of citations that text may carry back."""
    takes_tools: bool = True
    takes_raw_arguments: bool = False
    """Whether the arguments of a call are a string here, which may be no JSON at all."""
    call_signature: str = ""
    """What it takes for the signature of a call that another model made; empty if it asks none."""
    wordless_calls: frozenset[str] = frozenset()
    """The tools of its own making whose results have no place for words."""
    tool_name_length: int = 64
    """How long the name of a tool may be."""
    takes_thinking: bool = False
    """Whether thoughts of its own issuer go back to it."""
    needs_signatures: bool = True
    """Whether a thought without a signature is refused."""
    knows_ids: bool = False
    """Whether the id of a thought will do for its signature, because it keeps its answers."""
    tells_thoughts: bool = False
    """Whether thoughts that it does not take are told to it as marked text."""
    pairs_thoughts: bool = False
    """Whether a thought is refused without what it led to."""
    takes_artifacts: Literal["none", "own", "any"] = "none"
    """Whose artifacts may stand in an answer: nobody's, its own, or any whose bytes are at hand."""
    takes_foreign_citations: bool = True
    """Whether text of other providers may carry citations, too."""
    remembers: bool = False
    """Whether the calls of results may lie in an earlier answer, which it keeps."""
    developer_role: bool = False
    """Whether a developer may instruct it, before the conversation begins."""
    developer_origins: frozenset[str] = frozenset()
    """Other providers of the protocol whose clients speak as developers at any place."""
    system: Literal["anywhere", "first"] = "first"
    """Where system messages may stand."""
    takes_blank_text: bool = True
    alternates: bool = False
    """Whether two messages of one role may not follow each other."""
    joins_text: bool = False
    """Whether a message of texts has to be one text."""
    user_after_tool: bool = True
    """Whether a user may speak right after a result."""
    prefill: Literal["any", "begun", "none"] = "any"
    """Whether an assistant may speak last: always, with an answer that was begun, or never."""
    starts_with_user: bool = False
    """Whether a conversation must begin with words of a user."""
    takes_blank_end: bool = True
    """Whether the last turn may be an answer that ends in blanks."""
    cache_marks: int = 0
    """How many places a request may mark as the end of a reusable prefix."""
    marks_calls: bool = True
    """Whether a call can be marked, and not only what is said and shown."""
    unmarked_blocks: frozenset[str] = frozenset()
    """The tags behind which no mark may stand."""
    least_cached_tokens: int = 0
    """How long a prefix has to be for the target to keep it."""
    takes_long_marks: bool = True
    """Whether a marked prefix may live for an hour."""


def foreign_maker(message: Message, target: Target) -> str | None:
    """The maker of the model that gave an answer, if the target is a model of another (T203)."""
    model = message.metadata.model
    if not target.makers or model is None:
        return None
    maker, own = _maker(target.makers, model.partition(":")[2]), _maker(target.makers, target.model)
    return None if maker == own or own is None else maker


@lru_cache(maxsize=1000)
def _maker(pattern: str, model: str) -> str | None:
    found = re.search(pattern, model)
    return None if found is None else found[1]


def is_native(message: Message, target: Target) -> bool:
    """Whether a message is in the words of a client that speaks to the target.

    An answer of the target is not: it may be empty, blank or broken off, and is repaired like any.
    """
    return message.metadata.origin == target.adapter and message.metadata.model is None
