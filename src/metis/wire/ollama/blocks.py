"""Wire messages of Ollama, and their images and tool calls, to and from canonical blocks."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.value import raw_constructor
from metis.streaming.arguments import parse_arguments
from metis.wire.json_access import Wire, maybe_object, maybe_text
from metis.wire.tool_ids import canonical_tool_id

PROTOCOL = "ollama"
"""The name under which messages remember how they were spelled here."""

NonEmptyText = Annotated[str, Meta(min_length=1)]
"""A text that says something."""

# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
write_json = msgspec.json.Encoder(order="deterministic").encode
read_json = msgspec.json.Decoder().decode


class Function(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """What is called; newer servers count the calls of an answer."""

    arguments: dict[str, Any]
    index: int | UnsetType = UNSET
    name: NonEmptyText


class Call(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A tool call; only newer servers give ids."""

    function: Function
    id: NonEmptyText | UnsetType = UNSET


class ChatMessage(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One message of a chat."""

    content: str
    images: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET
    role: Literal["system", "user", "assistant", "tool"]
    thinking: NonEmptyText | UnsetType = UNSET
    tool_call_id: NonEmptyText | UnsetType = UNSET
    tool_calls: Annotated[list[Call], Meta(min_length=1)] | UnsetType = UNSET
    tool_name: NonEmptyText | UnsetType = UNSET


class ChatBody(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A request whose messages all have the usual form; the rest is for the options."""

    messages: list[ChatMessage]
    model: Any = UNSET
    stream: Any = UNSET
    options: Any = UNSET
    tools: Any = UNSET
    format: Any = UNSET
    think: Any = UNSET
    keep_alive: Any = UNSET
    logprobs: Any = UNSET
    top_logprobs: Any = UNSET
    truncate: Any = UNSET
    shift: Any = UNSET


class LineMessage(Struct, gc=False, forbid_unknown_fields=True):
    """What a line of a streamed chat adds."""

    content: str
    role: str
    thinking: str = ""


class PlainLine(Struct, gc=False, forbid_unknown_fields=True):
    """A line of a stream that adds text or thoughts and nothing else: of a chat or of a prompt."""

    model: str
    created_at: str
    done: Literal[False]
    message: LineMessage | None = None
    response: str | None = None
    thinking: str = ""


read_chat_body = msgspec.json.Decoder(ChatBody).decode
read_plain_line = msgspec.json.Decoder(PlainLine).decode


UNKNOWN_TYPE = "application/octet-stream"
"""The media type of bytes that nobody can name."""

_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_HEAD = 24
_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"BM"), "image/bmp"),
)


def decode_image(data: str) -> ImageBlock:
    """The picture of an entry of `images`; some clients leave the prefix of a data URL on (T94)."""
    inline = _DATA_URL.fullmatch(data) if data.startswith("data:") else None
    if inline is not None:
        return ImageBlock(ImageSource("base64", inline[2]), inline[1])
    return ImageBlock(ImageSource("base64", data), media_type(data))


def decode_artifact(data: str) -> ArtifactBlock:
    """The picture that a model made."""
    return ArtifactBlock(MediaSource("base64", data), media_type(data))


def media_type(data: str) -> str:
    """What base64 holds, as its first bytes tell."""
    try:
        head = base64.b64decode(data[:_HEAD], validate=True)
    except (binascii.Error, ValueError):
        return UNKNOWN_TYPE
    return next((name for mark, name in _SIGNATURES if mark.match(head)), UNKNOWN_TYPE)


_make_call = raw_constructor(ToolUseBlock)


class PendingCall(NamedTuple):
    """A call that waits for its result."""

    theirs: str
    name: str
    ours: str


class CallIds:
    """Our ids for the calls of one conversation, by the order in which calls and results come.

    A call without an id goes by its name and how often that was called before, so that the same
    history has the same ids whenever it is read (T10, T13).
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._counts: dict[str, int] = {}
        self._waiting: list[PendingCall] = []
        self._last: dict[str, str] = {}

    def of_call(self, theirs: str, name: str) -> str:
        """Our id for the next call."""
        key = theirs or f"\0{name}"
        ours = self._next(key)
        self._waiting.append(PendingCall(theirs, name, ours))
        self._last[key] = ours
        return ours

    def of_result(self, theirs: str, name: str) -> tuple[PendingCall, bool]:
        """The call that a result answers, and whether it is the oldest that waits for one."""
        place = self._place(theirs, name)
        if place is not None:
            return self._waiting.pop(place), place == 0
        known = self._last.get(theirs) if theirs else None
        return PendingCall(theirs, "", known or self._next(theirs or f"\0\0{name}")), False

    def forget(self) -> None:
        """Stop waiting for results that only their order would tell: the user has spoken since."""
        if self._waiting:
            self._waiting = [call for call in self._waiting if call.theirs]

    def _place(self, theirs: str, name: str) -> int | None:
        if theirs:
            for place, call in enumerate(self._waiting):
                if call.theirs == theirs:
                    return place
        for place, call in enumerate(self._waiting):
            # An id that no call has was made up by the client: then name and order tell.
            if not (theirs and call.theirs) and (not name or call.name == name):
                return place
        return None

    def _next(self, key: str) -> str:
        occurrence = self._counts.get(key, 0)
        self._counts[key] = occurrence + 1
        return canonical_tool_id(self._scope, key, occurrence)


def decode_call(wire: Call, ids: CallIds) -> ToolUseBlock:
    """Our block for a call of the usual form."""
    function = wire.function
    theirs = "" if wire.id is UNSET else wire.id
    return _make_call(ids.of_call(theirs, function.name), function.name, function.arguments)


def decode_any_call(wire: Any, ids: CallIds) -> ToolUseBlock | OpaqueBlock:
    """Our block for any entry of `tool_calls`; what calls nothing stays as it came."""
    call = maybe_object(wire)
    function = maybe_object(call.get("function"))
    name, read = maybe_text(function.get("name")), _decode_arguments(function.get("arguments"))
    if not name or read is None:
        return OpaqueBlock(PROTOCOL, Raw(write_json(wire)), "tool_call")
    theirs = maybe_text(call.get("id")) or ""
    return ToolUseBlock(ids.of_call(theirs, name), name, *read)


def _decode_arguments(arguments: Any) -> tuple[Wire, InvalidInput | None] | None:
    if isinstance(arguments, dict):
        return maybe_object(arguments), None
    # Some clients send text where an object is due (T33).
    return parse_arguments(arguments or "") if isinstance(arguments, str | None) else None


_make_text = raw_constructor(TextBlock)
_make_thinking = raw_constructor(ThinkingBlock)
_GAP = "\n\n"

OriginalForm = dict[str, Any]
"""What is remembered of how a message was spelled."""


def decode_assistant(
    wire: ChatMessage, ids: CallIds, issuer: str
) -> tuple[tuple[ContentBlock, ...], OriginalForm]:
    """The blocks of an assistant message of the usual form, and how they were spelled."""
    blocks: list[ContentBlock] = []
    if wire.thinking is not UNSET:
        blocks.append(_make_thinking(wire.thinking, issuer=issuer))
    if wire.content:
        blocks.append(_make_text(wire.content))
    if wire.tool_calls is UNSET:
        return tuple(blocks), {}
    spelling: OriginalForm = {}
    for call in wire.tool_calls:
        block = decode_call(call, ids)
        if call.id is not UNSET:
            spelling.setdefault("ids", {})[block.id] = call.id
        if call.function.index is not UNSET:
            spelling.setdefault("indexes", {})[block.id] = call.function.index
        blocks.append(block)
    return tuple(blocks), spelling


def encode_assistant(
    content: Sequence[ContentBlock], spelling: Mapping[str, Any], known: Mapping[str, str]
) -> ChatMessage:
    """The assistant message for blocks; `known` are the ids that the server gave to calls."""
    if len(content) == 1 and type(content[0]) is TextBlock:
        return ChatMessage(role="assistant", content=content[0].text)
    thoughts = [block.text for block in content if isinstance(block, ThinkingBlock)]
    indexes: Mapping[str, int] = spelling.get("indexes") or {}
    calls = [
        encode_call(block, known.get(block.id, UNSET), indexes.get(block.id, UNSET))
        for block in content
        if isinstance(block, ToolUseBlock)
    ]
    return ChatMessage(
        role="assistant",
        content=join_response_text(content),
        thinking="".join(thoughts) or UNSET,
        tool_calls=calls or UNSET,
    )


def encode_call(
    block: ToolUseBlock, wire_id: str | UnsetType, index: int | UnsetType = UNSET
) -> Call:
    """One call; arguments that were no object were no use to anybody and are left empty (T32)."""
    arguments = cast("dict[str, Any]", block.input)
    return Call(function=Function(name=block.name, arguments=arguments, index=index), id=wire_id)


def join_response_text(content: Sequence[ContentBlock]) -> str:
    """The text of an answer; pieces that follow each other at once are one text."""
    pieces: list[str] = []
    follows = True
    for block in content:
        if isinstance(block, TextBlock):
            pieces += (block.text,) if follows or not pieces else (_GAP, block.text)
        follows = isinstance(block, TextBlock)
    return "".join(pieces)


def join_paragraphs(content: Sequence[ContentBlock]) -> str:
    """The texts of a message of anybody else; each is a paragraph of its own (T86)."""
    return _GAP.join(block.text for block in content if isinstance(block, TextBlock))
