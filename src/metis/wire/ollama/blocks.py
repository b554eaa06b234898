"""Wire messages of Ollama, and their images and tool calls, to and from canonical blocks.

Messages of the usual form are Structs. A message that does not fit them (other keys, empty lists,
arguments as text) is not an error: it is decoded as plain JSON, which is stored as its original
form. The fields are in alphabetical order, so that the JSON has sorted keys.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

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
from metis.wire.tool_ids import WaitingCall, WaitingCalls, canonical_tool_id

PROTOCOL = "ollama"
"""The name under which messages store their original form in this protocol."""
CHAT_PATH, GENERATE_PATH = "/api/chat", "/api/generate"
UNKNOWN_TYPE = "application/octet-stream"
"""The media type of data without the signature of an image format."""

Content = tuple[ContentBlock, ...]
OriginalForm = dict[str, Any]
NonEmptyText = Annotated[str, Meta(min_length=1)]

# Keys are sorted, so that the bytes do not change when a history is stored and loaded. Otherwise
# the prompt cache of the server misses without an error (T176).
write_json = msgspec.json.Encoder(order="deterministic").encode
read_json = msgspec.json.Decoder().decode

PARAGRAPH = "\n\n"
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
# 24 characters of base64 are 18 bytes; the longest signature has 12.
_SIGNATURE_CHARACTERS = 24
# Ollama sends images without a media type, which all other protocols require.
_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"BM"), "image/bmp"),
)
_new_text = raw_constructor(TextBlock)
_new_thinking = raw_constructor(ThinkingBlock)
_new_call = raw_constructor(ToolUseBlock)


class Function(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The name and the arguments of a call; newer servers number the calls of a response."""

    arguments: dict[str, Any]
    index: int | UnsetType = UNSET
    name: NonEmptyText


class Call(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A tool call; only newer servers send ids."""

    function: Function
    id: NonEmptyText | UnsetType = UNSET


class ChatMessage(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A wire message of the usual form."""

    content: str
    images: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET
    role: Literal["system", "user", "assistant", "tool"]
    thinking: NonEmptyText | UnsetType = UNSET
    tool_call_id: NonEmptyText | UnsetType = UNSET
    tool_calls: Annotated[list[Call], Meta(min_length=1)] | UnsetType = UNSET
    tool_name: NonEmptyText | UnsetType = UNSET


def decode_image(data: str) -> ImageBlock:
    """Decode an entry of `images`, which is bare base64 without a media type."""
    # Some clients send a data URL, which Ollama itself rejects with `illegal base64 data at input
    # byte 4` (T94).
    inline = _DATA_URL.fullmatch(data) if data.startswith("data:") else None
    if inline is not None:
        return ImageBlock(ImageSource("base64", inline[2]), inline[1])
    return ImageBlock(ImageSource("base64", data), _media_type(data))


def decode_artifact(data: str) -> ArtifactBlock:
    """Decode an image that the model generated."""
    return ArtifactBlock(MediaSource("base64", data), _media_type(data))


def _media_type(data: str) -> str:
    """Return the media type of base64 data according to its first bytes."""
    try:
        head = base64.b64decode(data[:_SIGNATURE_CHARACTERS], validate=True)
    except (binascii.Error, ValueError):
        return UNKNOWN_TYPE
    return next((name for signature, name in _SIGNATURES if signature.match(head)), UNKNOWN_TYPE)


class PendingCalls:
    """Assigns ids to the calls of one conversation, and finds the call that a result belongs to.

    Only newer servers send ids. Otherwise a result refers to its call by tool name or by order
    alone. The id of a call without a wire id derives from its name and the number of earlier calls
    of that name, so that a history has the same ids each time it is decoded (T10, T13).
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._counts: dict[str, int] = {}
        self._pending = WaitingCalls()
        self._last_by_key: dict[str, str] = {}

    def copy(self) -> "PendingCalls":
        """Return an independent copy of the current state."""
        other = PendingCalls(self._scope)
        other._counts, other._last_by_key = self._counts.copy(), self._last_by_key.copy()
        other._pending = self._pending.copy()
        return other

    def of_call(self, wire_id: str, name: str) -> str:
        """Return the tool_use_id of the next call."""
        key = wire_id or f"\0{name}"
        tool_use_id = self._new_id(key)
        self._pending.add(WaitingCall(tool_use_id, name, wire_id))
        self._last_by_key[key] = tool_use_id
        return tool_use_id

    def of_result(self, wire_id: str, name: str) -> tuple[WaitingCall, bool]:
        """Return the call that a result belongs to, and whether it is the oldest pending one."""
        pending_call = self._pending.take(wire_id, name or None)
        if pending_call is not None:
            return pending_call
        last = self._last_by_key.get(wire_id) if wire_id else None
        tool_use_id = last or self._new_id(wire_id or f"\0\0{name}")
        return WaitingCall(tool_use_id, "", wire_id), False

    def drop_without_id(self) -> None:
        """Stop waiting for results of calls without a wire id."""
        self._pending.drop_without_id()

    def _new_id(self, key: str) -> str:
        occurrence = self._counts.get(key, 0)
        self._counts[key] = occurrence + 1
        return canonical_tool_id(self._scope, key, occurrence)


def decode_assistant(
    wire: ChatMessage, calls: PendingCalls, issuer: str
) -> tuple[Content, OriginalForm]:
    """Decode an assistant message of the usual form into its blocks and their original form."""
    blocks: list[ContentBlock] = []
    if wire.thinking is not UNSET:
        blocks.append(_new_thinking(wire.thinking, issuer=issuer))
    if wire.content:
        blocks.append(_new_text(wire.content))
    if wire.tool_calls is UNSET:
        return tuple(blocks), {}
    form: OriginalForm = {}
    for call in wire.tool_calls:
        function = call.function
        wire_id = "" if call.id is UNSET else call.id
        tool_use_id = calls.of_call(wire_id, function.name)
        blocks.append(_new_call(tool_use_id, function.name, function.arguments))
        if wire_id:
            form.setdefault("ids", {})[tool_use_id] = wire_id
        # Newer servers number the calls; the number is sent back with the call.
        if function.index is not UNSET:
            form.setdefault("indexes", {})[tool_use_id] = function.index
    return tuple(blocks), form


def decode_any_call(wire: Any, calls: PendingCalls) -> ToolUseBlock | OpaqueBlock:
    """Decode any entry of `tool_calls`; one that is not a call becomes an opaque block."""
    call = maybe_object(wire)
    function = maybe_object(call.get("function"))
    name, arguments = maybe_text(function.get("name")), _parse(function.get("arguments"))
    if not name or arguments is None:
        return OpaqueBlock(PROTOCOL, Raw(write_json(wire)), "tool_call")
    wire_id = maybe_text(call.get("id")) or ""
    return ToolUseBlock(calls.of_call(wire_id, name), name, *arguments)


def _parse(arguments: Any) -> tuple[Wire, InvalidInput | None] | None:
    if isinstance(arguments, dict):
        return maybe_object(arguments), None
    # Clients written for OpenAI send the arguments as a JSON string (T33).
    return parse_arguments(arguments or "") if isinstance(arguments, str | None) else None


def encode_assistant(
    content: Sequence[ContentBlock], form: Mapping[str, Any], wire_ids: Mapping[str, str]
) -> ChatMessage:
    """Encode an assistant message; calls that are not in `wire_ids` get no id."""
    if len(content) == 1 and type(content[0]) is TextBlock:
        return ChatMessage(role="assistant", content=content[0].text)
    thinking = "".join(block.text for block in content if isinstance(block, ThinkingBlock))
    indexes: Mapping[str, int] = form.get("indexes") or {}
    calls = [
        Call(
            function=Function(
                name=block.name,
                # Projection passes invalid arguments only to a server that sent such text (T32).
                arguments=cast(
                    "dict[str, Any]", block.invalid.raw if block.invalid else block.input
                ),
                index=indexes.get(block.id, UNSET),
            ),
            id=wire_ids.get(block.id, UNSET),
        )
        for block in content
        if isinstance(block, ToolUseBlock)
    ]
    images = [
        block.source.data
        for block in content
        if isinstance(block, ArtifactBlock) and block.source.kind == "base64"
    ]
    return ChatMessage(
        role="assistant",
        content=join_response_text(content),
        images=images or UNSET,
        thinking=thinking or UNSET,
        tool_calls=calls or UNSET,
    )


def join_response_text(content: Sequence[ContentBlock]) -> str:
    """Join the texts of a response: adjacent ones directly, others as separate paragraphs."""
    # A stream may split one text into adjacent blocks, which must not become paragraphs.
    pieces: list[str] = []
    follows_text = True
    for block in content:
        if isinstance(block, TextBlock) and block.text:
            pieces += (block.text,) if follows_text or not pieces else (PARAGRAPH, block.text)
        follows_text = isinstance(block, TextBlock)
    return "".join(pieces)


def join_paragraphs(content: Sequence[ContentBlock]) -> str:
    """Join the texts of an input message as paragraphs, because content is one string (T86)."""
    return PARAGRAPH.join(block.text for block in content if isinstance(block, TextBlock))
