"""Requests of Chat Completions, both directions: each wire message is one canonical message.

All keys of a request except messages and tools become options. The parts of a wire message that its
blocks do not contain are stored as its original form, so that it can be encoded identically.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.function_tools import decode_functions, with_error_prefix
from metis.wire.history import HistoryEncoder
from metis.wire.json_access import (
    Wire,
    maybe_list,
    maybe_object,
    maybe_text,
    read_object,
    read_value,
    unknown_role,
)
from metis.wire.openai_chat.assistant import (
    EXTRA_KEY,
    call_signature,
    decode_assistant,
    encode_assistant,
)
from metis.wire.openai_chat.blocks import (
    PROTOCOL,
    WireIdOf,
    cache_hints,
    decode_part,
    decode_parts,
    encode_call,
    encode_part,
    encode_parts,
    is_empty,
    with_cache_marks,
    write_json,
)
from metis.wire.openai_chat.options import decode_options, encode_options
from metis.wire.original_form import (
    EMPTY,
    is_meaningful,
    original_form_of,
    provider_raw_of,
    unmapped_paths,
)
from metis.wire.request import RequestDraft, RequestSteps
from metis.wire.tool_ids import CallIds, derived_id

WIRE_ID_PREFIX = "call_"
"""The prefix of wire ids that are derived from tool_use_ids."""

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}
_MAPPED_KEYS = frozenset(
    {"role", "content", "tool_calls", "function_call", "tool_call_id", "annotations"}
)
"""The keys of a wire message whose values become blocks."""
_CALL_KEYS = {"function", "id", "type"}
_FUNCTION_KEYS = {"arguments", "name"}

_new_metadata = raw_constructor(MessageMetadata)
_Content = tuple[ContentBlock, ...]


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a request body."""
    wire = read_object(body, "request")
    messages = wire.pop("messages", None)
    if not isinstance(messages, list):
        raise DecodeError("a request needs a list of messages", path="$.messages")
    decoder = _new_draft(context)
    for index, message in enumerate(maybe_list(messages)):
        _add(decoder, message, index)
    return CanonicalRequest(decoder.messages(), *_end(wire, context))


def _new_draft(context: RequestContext) -> "_HistoryDecoder":
    return _HistoryDecoder(context, PROTOCOL)


def _begin(_draft: "_HistoryDecoder", _wire: Wire) -> None:
    """Do nothing: requests have no content outside of the message list."""


def _add(draft: "_HistoryDecoder", message: Any, index: int) -> None:
    draft.add(maybe_object(message), f"$.messages[{index}]")


def _add_json(draft: "_HistoryDecoder", data: bytes, index: int) -> None:
    _add(draft, read_value(data), index)


def _end(wire: Wire, _: RequestContext) -> tuple[tuple[ToolDefinition, ...], AdapterOptions]:
    return decode_functions(wire.get("tools")), decode_options(wire)


STEPS = RequestSteps(
    key="messages",
    response_mark=b'"assistant"',
    draft=_new_draft,
    begin=_begin,
    add=_add_json,
    end=_end,
)
"""The steps of `decode_request`."""


class _HistoryDecoder(RequestDraft):
    """Decodes the messages of one request, in order."""

    def __init__(self, context: RequestContext, protocol: str) -> None:
        super().__init__(context, protocol)
        self._ids = CallIds(context.call_scope)

    def _detach(self) -> None:
        self._ids = self._ids.copy()

    def add(self, wire: Wire, path: str) -> None:
        """Decode one wire message."""
        role = _ROLES.get(str(wire.get("role")))
        if role is None:
            raise unknown_role(wire.get("role"), path)
        content, form = _decode_blocks(wire, self._ids, self._origin)
        form = with_exact_form(wire, role, content, form)
        results = (block.tool_use_id for block in content if isinstance(block, ToolResultBlock))
        metadata = _new_metadata(
            origin=self._origin,
            parent_tool_use_id=next(results, None),
            hints=cache_hints(wire, content),
            provider_raw=provider_raw_of(PROTOCOL, form),
        )
        self._drafts.append((role, content, metadata))


def _decode_blocks(wire: Wire, ids: CallIds, issuer: str) -> tuple[_Content, dict[str, Any]]:
    match wire.get("role"):
        case "assistant":
            return decode_assistant(wire, ids, issuer)
        case "tool" | "function":
            return _decode_result(wire, ids, issuer)
        case _:
            # A canonical message needs a block (M-123), so that empty content is an empty text.
            content, form = _decode_content(wire.get("content"), issuer)
            return content or (TextBlock(""),), form


def _decode_content(content: Any, issuer: str) -> tuple[_Content, dict[str, Any]]:
    if isinstance(content, list):
        blocks, original_parts = decode_parts(maybe_list(content), issuer)
        return tuple(blocks), {"parts": True, "blocks": original_parts}
    return ((TextBlock(content),) if isinstance(content, str) and content else ()), {}


def _decode_result(wire: Wire, ids: CallIds, issuer: str) -> tuple[_Content, dict[str, Any]]:
    content, form = _decode_content(wire.get("content"), issuer)
    if wire.get("role") == "function":
        # A result of the deprecated `function_call` refers to the call by name: it has no id.
        name = wire.get("name")
        form["function"] = {"name": name}
        tool_use_id = ids.of_result(str(name), is_id=False)
    else:
        wire_id = maybe_text(wire.get("tool_call_id")) or ""
        tool_use_id = ids.of_result(wire_id)
        form["ids"] = {tool_use_id: wire_id}
    return (ToolResultBlock(tool_use_id, content),), form


_PLAIN_KEYS = frozenset({"role", "content", "tool_calls"})
_CALL_FORMS = frozenset({"ids", "calls"})


def with_exact_form(
    wire: Wire, role: Role, content: _Content, form: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an original form that reproduces exactly this wire message from its blocks."""
    if role is Role.ASSISTANT and _is_plain_response(wire, content, form):
        keys = {key: value for key, value in wire.items() if key not in _PLAIN_KEYS}
        return {**form, "keys": keys, "absent": []}
    plain = _encode_blocks(role, content, form, wire_id_lookup(form))
    keys = {key: value for key, value in wire.items() if not (key in plain and plain[key] == value)}
    exact = {**form, "keys": keys, "absent": [key for key in plain if key not in wire]}
    if _apply_form(plain, exact) == wire:
        return exact
    # Keys alone do not reproduce it: the whole JSON is stored, valid for unchanged content.
    return {**form, "whole": {"wire": wire, "digest": content_digest(role, content)}}


def _is_plain_response(wire: Wire, content: _Content, form: Mapping[str, Any]) -> bool:
    """Whether encoding the blocks of a response, a text and calls, certainly gives the same JSON.

    A fast path for nearly all responses: encoding takes a fifth of the time of decoding.
    """
    text, calls = wire.get("content"), maybe_list(wire.get("tool_calls"))
    if type(text) is not str or not text or wire.get("role") != "assistant":
        return False
    if not calls and "tool_calls" in wire:
        return False
    if any(form[name] for name in form.keys() - _CALL_FORMS):
        return False
    first, *others = content
    if type(first) is not TextBlock or first.citations or first.text != text:
        return False
    # A call without an id, or of another type than a function, is encoded differently.
    return len(others) == len(calls) == sum(map(bool, form["ids"].values())) and all(
        type(block) is ToolUseBlock for block in others
    )


def _apply_form(wire: Wire, form: Mapping[str, Any]) -> Wire:
    """Add the stored keys of a wire message, and remove keys that it did not have.

    A key with a value from the blocks is not changed.
    """
    keys: Mapping[str, Any] = form.get("keys") or {}
    for key, value in keys.items():
        if not wire.get(key):
            wire[key] = value
    for key in form.get("absent") or ():
        if not wire.get(key):
            wire.pop(key, None)
    return wire


def encode_message(
    message: Message, form: Mapping[str, Any], wire_id_of: WireIdOf, *, is_response: bool = False
) -> Wire:
    """Encode one message: as part of a history, or as a response to a client."""
    is_replayed_response = "response" in form and not is_response
    original: Mapping[str, Any] = form.get("whole") or {}
    if original and not is_replayed_response and original["digest"] == message.content_digest():
        return original["wire"]
    plain = _encode_blocks(message.role, message.content, form, wire_id_of, is_response=is_response)
    wire = _apply_form(plain, form)
    if not is_replayed_response:
        return wire
    # Mistral and Fireworks reject response keys such as `refusal` in a history with 400 (T87).
    return {
        key: value
        for key, value in wire.items()
        if key in ("role", "content") or not is_empty(value)
    }


def _encode_blocks(
    role: Role,
    content: _Content,
    form: Mapping[str, Any],
    wire_id_of: WireIdOf,
    *,
    is_response: bool = False,
) -> Wire:
    if role is Role.ASSISTANT:
        return encode_assistant(content, form, wire_id_of, is_response=is_response)
    if role is Role.TOOL:
        return _encode_result(content, form, wire_id_of)
    return {"role": str(role), "content": _encode_content(content, form)}


def _encode_content(content: _Content, form: Mapping[str, Any]) -> Any:
    if not form.get("parts"):
        match content:
            case ():
                return ""
            case (TextBlock() as text,):
                return text.text
            case _:
                pass
    return encode_parts(content, form.get("blocks") or {})


def _encode_result(content: _Content, form: Mapping[str, Any], wire_id_of: WireIdOf) -> Wire:
    result = next((block for block in content if isinstance(block, ToolResultBlock)), None)
    if result is None:
        return {"role": "tool", "content": _encode_content(content, form)}
    inner = with_error_prefix(result.content) if result.is_error else result.content
    value = _encode_content(inner, form)
    if "function" in form:
        return {"role": "function", **form["function"], "content": value}
    return {"role": "tool", "tool_call_id": wire_id_of(result.tool_use_id), "content": value}


def wire_id_lookup(form: Mapping[str, Any]) -> WireIdOf:
    """Return a lookup in the wire ids of one message, which derives those that are missing."""
    wire_ids: Mapping[str, str] = form.get("ids") or {}

    def wire_id_of(tool_use_id: str) -> str:
        wire_id = wire_ids.get(tool_use_id)
        return derived_id(tool_use_id, WIRE_ID_PREFIX) if wire_id is None else wire_id

    return wire_id_of


class ChatHistoryEncoder(HistoryEncoder):
    """Encodes the messages of a conversation, each once, and request bodies with them."""

    wire_id_prefix = WIRE_ID_PREFIX

    def __init__(self) -> None:
        super().__init__("messages", write_json)

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are wire ids of calls."""
        self._wire_ids.update(ids)
        encoded: list[Any] = []
        for message in messages:
            form = original_form_of(message, PROTOCOL)
            if form:
                self._wire_ids.update(form.get("ids") or EMPTY)
            encoded.append(self._encode_message(message, form))
        self._encoded.add(encoded)

    def _encode_envelope(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        return encode_options(options, tools)

    def _wire_id(self, tool_use_id: str) -> str:
        # An empty id of a client remains empty, in the call and in its result.
        wire_id = self._wire_ids.get(tool_use_id)
        return derived_id(tool_use_id, WIRE_ID_PREFIX) if wire_id is None else wire_id

    def _encode_message(self, message: Message, form: Mapping[str, Any]) -> Any:
        wire = encode_message(message, form, self._wire_id)
        hints = message.metadata.hints
        return with_cache_marks(wire, message.content, hints) if hints else wire


def unmapped_keys(message: Message) -> Iterator[str]:
    """Yield the paths of keys that other protocols have no field for."""
    form = original_form_of(message, PROTOCOL)
    original = maybe_object(form.get("whole"))
    keys = maybe_object(original.get("wire")) or maybe_object(form.get("keys"))
    for key, value in keys.items():
        if key not in _MAPPED_KEYS and is_meaningful(key, value):
            yield f"$.{key}"
    for part in maybe_object(form.get("blocks")).values():
        block = decode_part(part)
        path = _path_of(block, message.content, "$.content")
        if path is not None:
            yield from unmapped_paths(part, encode_part(block), path)
    calls = maybe_object(form.get("calls"))
    for index, block in enumerate(message.content):
        if isinstance(block, ToolUseBlock) and block.id in calls:
            call = calls[block.id]
            if call_signature(call) is not None:
                # The thinking block before the call contains it.
                call = {key: value for key, value in call.items() if key != EXTRA_KEY}
            if not _has_only_mapped_keys(call):
                yield from unmapped_paths(call, encode_call(block, str), f"$.content[{index}]")


def _has_only_mapped_keys(call: Wire) -> bool:
    is_function = call.keys() == _CALL_KEYS
    return is_function and maybe_object(call["function"]).keys() == _FUNCTION_KEYS


def _path_of(block: ContentBlock, content: Sequence[ContentBlock], path: str) -> str | None:
    """Return the path of a block in a message or in one of its tool results; None if missing."""
    for index, candidate in enumerate(content):
        if candidate == block:
            return f"{path}[{index}]"
        if isinstance(candidate, ToolResultBlock):
            inner = _path_of(block, candidate.content, f"{path}[{index}].content")
            if inner is not None:
                return inner
    return None
