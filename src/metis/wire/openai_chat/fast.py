"""Fast paths of Chat Completions: shortcuts for the most frequent messages and chunks.

Each duplicates rules of another module, for speed only. Input that does not fit a Struct here,
because of another key or another type, takes the general path.

- `decode_request` duplicates `request.decode_request`: a client sends its whole history with
  every request, and a gateway decodes it.
- `FastChatHistoryEncoder` duplicates the encoding of messages in `request`.
- `FastChatStreamDecoder` duplicates the decoding of chunks in `stream_decoder`, once per token.

Only the codec uses this module. `tests/wire/test_fast_paths.py` compares both paths.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import raw_constructor
from metis.streaming.arguments import parse_arguments_exactly
from metis.streaming.events import StreamEvent, TextDelta, ThinkingDelta, ToolUseInputDelta
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.function_tools import decode_functions
from metis.wire.json_access import Wire
from metis.wire.openai_chat import request
from metis.wire.openai_chat.assistant import TEXT_KEYS, original_call
from metis.wire.openai_chat.blocks import PROTOCOL, write_json
from metis.wire.openai_chat.options import decode_options
from metis.wire.openai_chat.request import WIRE_ID_PREFIX, ChatHistoryEncoder
from metis.wire.openai_chat.stream_decoder import ChatStreamDecoder
from metis.wire.original_form import EMPTY
from metis.wire.request import RequestDraft
from metis.wire.tool_ids import TOOL_ID_PREFIX, CallIds

_new_metadata = raw_constructor(MessageMetadata)
_new_text = raw_constructor(TextBlock)
_new_call = raw_constructor(ToolUseBlock)
_new_result = raw_constructor(ToolResultBlock)
_new_thinking = raw_constructor(ThinkingBlock)
_new_image = raw_constructor(ImageBlock)
_new_source = raw_constructor(ImageSource)

# Access to a global is faster than to a member of an enum.
_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_ROLES = {
    "assistant": _ASSISTANT,
    "developer": Role.DEVELOPER,
    "system": Role.SYSTEM,
    "user": _USER,
}
_Draft = tuple[Role, tuple[ContentBlock, ...], MessageMetadata]


# `gc=False`: these Structs are short-lived and have no reference cycles.
class _Function(Struct, gc=False, forbid_unknown_fields=True):
    arguments: str
    name: str


class _Call(Struct, gc=False, forbid_unknown_fields=True):
    function: _Function
    id: str
    type: Literal["function"]


class _TextPart(Struct, tag="text", gc=False, forbid_unknown_fields=True):
    text: str


class _ImageUrl(Struct, gc=False, forbid_unknown_fields=True):
    url: str


class _ImagePart(Struct, tag="image_url", gc=False, forbid_unknown_fields=True):
    image_url: _ImageUrl


class _Message(Struct, gc=False, forbid_unknown_fields=True):
    role: str
    annotations: list[Any] | UnsetType | None = UNSET
    content: str | list[_TextPart | _ImagePart] | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    tool_call_id: str | UnsetType = UNSET
    tool_calls: list[_Call] | UnsetType | None = UNSET


_OPTION_KEYS = (
    *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs"),
    *("max_completion_tokens", "max_tokens", "metadata", "modalities", "model", "n"),
    *("parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "provider"),
    *("reasoning", "reasoning_effort", "response_format", "safety_identifier", "seed"),
    *("service_tier", "stop", "store", "stream", "stream_options", "temperature", "thinking"),
    *("tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity", "web_search_options"),
)
_Request = msgspec.defstruct(
    "_Request",
    [("messages", list[_Message]), *((key, Any, UNSET) for key in _OPTION_KEYS)],
    forbid_unknown_fields=True,
)
_read_request = msgspec.json.Decoder(_Request).decode


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a request body, without intermediate JSON objects if its messages are common."""
    try:
        wire: Any = _read_request(body)
    except (ValueError, RecursionError):
        return request.decode_request(body, context)
    decoder = _MessageDecoder(context)
    if not decoder.add_all(wire.messages):
        return request.decode_request(body, context)
    values = ((key, getattr(wire, key)) for key in _OPTION_KEYS)
    options: Wire = {key: value for key, value in values if value is not UNSET}
    return CanonicalRequest(
        decoder.messages(), decode_functions(options.get("tools")), decode_options(options)
    )


class _MessageDecoder(RequestDraft):
    """Decodes the common messages of a request; methods return None for all others."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context, PROTOCOL)
        self._ids = CallIds(context.call_scope)

    def _detach(self) -> None:
        self._ids = self._ids.copy()

    def add_all(self, messages: list[_Message]) -> bool:
        """Decode wire messages; return False if one needs the general path."""
        for wire in messages:
            draft = self._decode(wire)
            if draft is None:
                return False
            self._drafts.append(draft)
        return True

    def _decode(self, wire: _Message) -> _Draft | None:
        """Decode a wire message by its role; None if it needs the general path."""
        role_name, content = wire.role, wire.content
        has_content_only = (
            wire.tool_calls is UNSET
            and wire.annotations is UNSET
            and wire.reasoning is UNSET
            and wire.reasoning_content is UNSET
            and wire.refusal is UNSET
        )
        if role_name == "tool":
            return self._decode_result(wire.tool_call_id, content) if has_content_only else None
        if wire.tool_call_id is not UNSET:
            return None
        is_assistant = role_name == "assistant"
        if has_content_only and type(content) is str and (content or not is_assistant):
            role = _ROLES.get(role_name)
            blocks = (_new_text(content),) if content else ()
            return None if role is None else (role, blocks, self._bare_metadata)
        if is_assistant:
            return self._decode_assistant(wire)
        return self._decode_parts(content) if has_content_only and role_name == "user" else None

    def _decode_result(self, wire_id: str | UnsetType, content: object) -> _Draft | None:
        if type(wire_id) is not str or type(content) is not str or not wire_id or not content:
            return None
        tool_use_id = self._ids.of_result(wire_id)
        metadata = _new_metadata(
            origin=self._origin,
            parent_tool_use_id=tool_use_id,
            provider_raw={PROTOCOL: {"ids": {tool_use_id: wire_id}}},
        )
        return _TOOL, (_new_result(tool_use_id, (_new_text(content),)),), metadata

    def _decode_parts(self, content: object) -> _Draft | None:
        if not isinstance(content, list):
            return None
        blocks: list[ContentBlock] = []
        for part in cast("list[_TextPart | _ImagePart]", content):
            block = _new_text(part.text) if type(part) is _TextPart else _decode_image(part)
            if block is None:
                return None
            blocks.append(block)
        return _USER, tuple(blocks), self._metadata({"parts": True})

    def _decode_assistant(self, wire: _Message) -> _Draft | None:
        """Decode an assistant message with text, thinking and calls; None for any other."""
        content, calls = wire.content, wire.tool_calls
        if wire.annotations or (wire.reasoning and wire.reasoning_content):
            return None
        if isinstance(content, list) or (not calls and calls is not UNSET):
            return None
        blocks: list[ContentBlock] = []
        form: dict[str, Any] = {}
        thinking = wire.reasoning_content or wire.reasoning
        if thinking:
            key = "reasoning_content" if wire.reasoning_content else "reasoning"
            blocks.append(_new_thinking(thinking, None, None, None, self._origin))
            form["thoughts"] = {key: True}
        if content:
            blocks.append(_new_text(content))
        if calls and not self._add_calls(calls, blocks, form):
            return None
        if not content or not (
            wire.annotations is UNSET
            and wire.reasoning is UNSET
            and wire.reasoning_content is UNSET
            and wire.refusal is UNSET
        ):
            _add_empty_keys(wire, form)
        return _ASSISTANT, tuple(blocks), self._metadata(form)

    def _add_calls(
        self, calls: list[_Call], blocks: list[ContentBlock], form: dict[str, Any]
    ) -> bool:
        """Add the blocks of calls; return False if one has no id or no name."""
        wire_ids: dict[str, str] = {}
        original_calls: Wire = {}
        of_call = self._ids.of_call
        for call in calls:
            function = call.function
            wire_id, name, text = call.id, function.name, function.arguments
            if not wire_id or not name:
                return False
            tool_use_id = of_call(wire_id)
            wire_ids[tool_use_id] = wire_id
            arguments, invalid, is_exact = parse_arguments_exactly(text)
            blocks.append(_new_call(tool_use_id, name, arguments, invalid))
            if not is_exact:
                wire = {"arguments": text, "name": name}
                original_calls[tool_use_id] = {"function": wire, "id": wire_id, "type": "function"}
        form["ids"] = wire_ids
        if original_calls:
            form["calls"] = original_calls
        return True

    def _metadata(self, form: dict[str, Any]) -> MessageMetadata:
        if not form:
            return self._bare_metadata
        return _new_metadata(origin=self._origin, provider_raw={PROTOCOL: form})


def _begin(_draft: _MessageDecoder, wire: Wire) -> None:
    if not wire.keys() <= _KEYS:
        raise ValueError("unusual keys")


def _add(draft: _MessageDecoder, data: bytes, _index: int) -> None:
    if not draft.add_all([_read_message(data)]):
        raise ValueError("an unusual message")


_KEYS = frozenset(_OPTION_KEYS)
_read_message = msgspec.json.Decoder(_Message).decode
FAST_STEPS = replace(request.STEPS, draft=_MessageDecoder, begin=_begin, add=_add)
"""The steps for a request that consists of common messages."""


def _decode_image(part: _TextPart | _ImagePart) -> ImageBlock | None:
    """Decode an image in a data URL; None for any other part."""
    if type(part) is not _ImagePart:
        return None
    head, comma, data = part.image_url.url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        return None
    media_type = head.removeprefix("data:").removesuffix(";base64")
    return None if ";" in media_type else _new_image(_new_source("base64", data), media_type)


def _add_empty_keys(wire: _Message, form: dict[str, Any]) -> None:
    """Store the keys that are present but empty, and whether `content` is absent."""
    keys: Wire = {}
    if wire.content is UNSET:
        form["absent"] = ["content"]
    elif not wire.content and wire.content != (None if wire.tool_calls else ""):
        keys["content"] = wire.content
    for key in ("annotations", "reasoning", "reasoning_content", "refusal"):
        value = getattr(wire, key)
        if value is not UNSET and not value:
            keys[key] = value
    if keys:
        form["keys"] = keys


# Encoding: the fields of these Structs are in alphabetical order, so that the JSON has sorted keys.


class _TextMessage(Struct, gc=False):
    content: str
    role: str


class _ToolMessage(Struct, gc=False):
    content: str
    role: str
    tool_call_id: str


class _EncodedCall(Struct, gc=False):
    function: _Function
    id: str
    type: str = "function"


class _CallMessage(Struct, gc=False):
    content: str | None
    role: str
    tool_calls: list[_EncodedCall | Wire]


_PLAIN_FORM = frozenset({"calls", "ids", "response"})
"""Keys of an original form that do not change how a message of texts and calls is encoded."""


class FastChatHistoryEncoder(ChatHistoryEncoder):
    """Encodes messages of texts, calls and text results as small Structs."""

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are wire ids of calls."""
        self._wire_ids.update(ids)
        encoded: list[Any] = []
        for message in messages:
            metadata = message.metadata
            raw = metadata.provider_raw
            form = EMPTY if raw is None else raw.get(PROTOCOL, EMPTY)
            if form:
                self._wire_ids.update(form.get("ids") or EMPTY)
            wire = None
            if form.keys() <= _PLAIN_FORM and not metadata.hints:
                wire = self._encode_plain(message.role, message.content, form)
            encoded.append(self._encode_message(message, form) if wire is None else wire)
        self._encoded.add(encoded)

    def _encode_plain(
        self, role: Role, content: Sequence[ContentBlock], form: Mapping[str, Any]
    ) -> Struct | None:
        if len(content) == 1:
            block = content[0]
            if type(block) is TextBlock and role is not _TOOL:
                return None if block.citations else _TextMessage(block.text, _role_name(role))
            if type(block) is ToolResultBlock:
                return self._encode_result(block)
        return self._encode_calls(content, form) if content and role is _ASSISTANT else None

    def _encode_result(self, result: ToolResultBlock) -> _ToolMessage | None:
        inner = result.content
        if len(inner) != 1 or result.is_error:
            return None
        text = inner[0]
        if type(text) is not TextBlock:
            return None
        wire_id = self._wire_ids.get(result.tool_use_id)
        if wire_id is None:
            wire_id = WIRE_ID_PREFIX + result.tool_use_id.removeprefix(TOOL_ID_PREFIX)
        return _ToolMessage(text.text, "tool", wire_id)

    def _encode_calls(
        self, content: Sequence[ContentBlock], form: Mapping[str, Any]
    ) -> _CallMessage | None:
        text = None
        calls: list[_EncodedCall | Wire] = []
        wire_ids, original_calls = self._wire_ids, form.get("calls", EMPTY)
        for block in content:
            if type(block) is ToolUseBlock:
                original = original_call(block, form, self._wire_id) if original_calls else None
                if original is not None:
                    calls.append(original)
                    continue
                invalid, tool_use_id = block.invalid, block.id
                arguments = invalid.raw if invalid else write_json(block.input).decode()
                wire_id = wire_ids.get(tool_use_id)
                if wire_id is None:
                    wire_id = WIRE_ID_PREFIX + tool_use_id.removeprefix(TOOL_ID_PREFIX)
                calls.append(_EncodedCall(_Function(arguments, block.name), wire_id))
            elif type(block) is TextBlock and text is None and not calls and not block.citations:
                text = block.text
            else:
                return None
        return _CallMessage(text, "assistant", calls)


def _role_name(role: Role) -> str:
    if role is _USER:
        return "user"
    return "assistant" if role is _ASSISTANT else str(role)


class _FunctionDelta(Struct, gc=False, forbid_unknown_fields=True):
    arguments: str
    name: None = None


class _CallDelta(Struct, gc=False, forbid_unknown_fields=True):
    function: _FunctionDelta
    index: int
    id: None = None
    type: str | None = None


class _Delta(Struct, gc=False, forbid_unknown_fields=True):
    """A piece of text, of readable reasoning, or of the arguments of an open call."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[_CallDelta] | None = None
    role: str | None = None
    refusal: None = None
    channel: str | None = None
    token_id: int | None = None


class _Choice(Struct, gc=False):
    delta: _Delta
    index: Literal[0] = 0
    finish_reason: None = None
    logprobs: None = None
    error: None = None


class _Chunk(Struct, gc=False):
    choices: tuple[_Choice]
    usage: None = None
    error: None = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode


class FastChatStreamDecoder(ChatStreamDecoder):
    """Decodes chunks that continue an open block without building JSON objects."""

    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        # A local variable, because it is checked for every token.
        is_open = self._has_started and self._end is None
        if not is_open:
            self._store_head(chunk)
        for name, data in self._frames.feed(chunk):
            if name or not is_open:
                self._decode_frame(name, data, events)
                is_open = self._has_started and self._end is None
                continue
            try:
                delta = _read_chunk(data).choices[0].delta
            except (ValueError, RecursionError):
                self._decode_frame(name, data, events)
                is_open = self._end is None
                continue
            text, order = delta.content, self._order
            if (
                text
                and order.open_kind is TextDelta
                and delta.tool_calls is None
                and not (delta.reasoning_content or delta.reasoning)
            ):
                self._first.text_pieces.append(text)
                events.append(TextDelta(self._message_id, order.index, text))
            else:
                self._add_delta(delta, events)

    def _add_delta(self, delta: _Delta, events: list[StreamEvent]) -> None:
        """Add a delta that starts a block, or that contains thinking or arguments."""
        first, order = self._first, self._order
        thinking = delta.reasoning_content or delta.reasoning
        if thinking:
            if delta.reasoning_content:
                first.reasoning_pieces["reasoning_content"].append(thinking)
            if delta.reasoning:
                first.reasoning_pieces["reasoning"].append(delta.reasoning)
            keys = {key: "" for key in TEXT_KEYS if getattr(delta, key)}
            order.add_text(ThinkingDelta, thinking, events, original_form=keys)
        if delta.content:
            first.text_pieces.append(delta.content)
            order.add_text(TextDelta, delta.content, events)
        if delta.tool_calls is None:
            return
        fragment = delta.tool_calls[0]
        piece = fragment.function.arguments
        call = first.call_at.get(fragment.index)
        if call is not None and call is order.open_call and call is first.calls[-1]:
            if piece:
                call.add_piece(piece)
                events.append(
                    ToolUseInputDelta(self._message_id, call.block_index, call.tool_use_id, piece)
                )
        else:
            wire: Wire = {"index": fragment.index, "function": {"arguments": piece}}
            self._decode_call(wire, events)
