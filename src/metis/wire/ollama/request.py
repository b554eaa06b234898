"""Decoding of Ollama requests: a chat (`/api/chat`) or a prompt to complete (`/api/generate`).

Each wire message becomes one canonical message. A message of the usual form, which `ChatMessage`
describes, needs no original form; of any other message the whole JSON is stored. A prompt becomes a
user message, after a system message if the request has a system text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.function_tools import decode_functions
from metis.wire.json_access import (
    Wire,
    list_at,
    maybe_list,
    maybe_object,
    maybe_text,
    object_at,
    read_object,
    unknown_role,
)
from metis.wire.ollama.blocks import (
    PROTOCOL,
    ChatMessage,
    Content,
    OriginalForm,
    PendingCalls,
    decode_any_call,
    decode_artifact,
    decode_assistant,
    decode_image,
    write_json,
)
from metis.wire.ollama.options import decode_options
from metis.wire.original_form import is_meaningful, original_form_of, provider_raw_of
from metis.wire.request import RequestDraft, RequestSteps

_ROLES = {
    "system": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER
_MAPPED_KEYS = frozenset(ChatMessage.__struct_fields__)
"""The keys of a wire message whose values become blocks."""
_new_metadata = raw_constructor(MessageMetadata)
_new_text = raw_constructor(TextBlock)
_new_result = raw_constructor(ToolResultBlock)


class _ChatRequest(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A request in which all messages have the usual form; its other keys are options."""

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


_read_message = msgspec.json.Decoder(ChatMessage).decode
_read_chat = msgspec.json.Decoder(_ChatRequest).decode
_OPTION_KEYS = tuple(name for name in _ChatRequest.__struct_fields__ if name != "messages")


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a request body."""
    try:
        chat = _read_chat(body)
    except (ValueError, RecursionError):
        return _decode_any_request(body, context)
    options = ((name, getattr(chat, name)) for name in _OPTION_KEYS)
    wire: Wire = {name: value for name, value in options if value is not UNSET}
    messages = _decode_messages(chat.messages, context)
    return CanonicalRequest(messages, decode_functions(wire.get("tools")), decode_options(wire))


def _decode_any_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a chat or a prompt in which a message or key is not of the usual form."""
    wire = read_object(body, "request")
    is_prompt = "messages" not in wire
    if not is_prompt:
        messages = list_at(wire.pop("messages"), "$.messages")
    elif "prompt" in wire:
        messages = _prompt_messages(wire)
    else:
        raise DecodeError("a request needs a list of messages or a prompt", path="$.messages")
    return CanonicalRequest(
        _decode_messages(messages, context),
        decode_functions(wire.get("tools")),
        decode_options(wire, is_prompt=is_prompt),
    )


def _prompt_messages(wire: Wire) -> list[ChatMessage]:
    """Return the wire messages that are equivalent to a prompt."""
    system, prompt = (_text_at(wire, key, "$") for key in ("system", "prompt"))
    images = _images_at(wire, "$")
    user = ChatMessage(role="user", content=prompt, images=images or UNSET)
    return [ChatMessage(role="system", content=system), user] if system else [user]


def _text_at(wire: Wire, key: str, path: str) -> str:
    text = wire.get(key)
    if not isinstance(text, str | None):
        raise DecodeError(f"the {key} is not a string", path=f"{path}.{key}")
    return text or ""


def _images_at(wire: Wire, path: str) -> list[str]:
    value = wire.get("images")
    images = [] if value is None else list_at(value, f"{path}.images")
    if not all(isinstance(image, str) for image in images):
        raise DecodeError("an image must be a base64 string", path=f"{path}.images")
    return images


def _decode_messages(wire: Sequence[Any], context: RequestContext) -> tuple[Message, ...]:
    draft = _HistoryDecoder(context)
    for index, message in enumerate(wire):
        draft.add(message, index)
    return draft.messages()


class _HistoryDecoder(RequestDraft):
    """Decodes the messages of one request, in order."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context, PROTOCOL)
        self._calls = PendingCalls(context.call_scope)
        self._last_role: Role | None = None

    def _detach(self) -> None:
        self._calls = self._calls.copy()

    def add(self, wire: Any, index: int) -> None:
        """Decode one wire message, as a Struct or as JSON."""
        if type(wire) is ChatMessage:
            if self._add_usual(wire):
                return
            wire = msgspec.to_builtins(wire)
        path = f"$.messages[{index}]"
        role = _ROLES.get(str(object_at(wire, path).get("role")))
        if role is None:
            raise unknown_role(wire.get("role"), path)
        self._enter(role)
        content, form = self._decode_any(role, wire, path)
        original = {"wire": wire, "digest": content_digest(role, content)}
        form = {**form, "ids": _wire_ids(content, wire), "whole": original}
        self._add_draft(role, content, form)

    def _add_usual(self, wire: ChatMessage) -> bool:
        """Decode a message of the usual form; return False if it has another form."""
        if wire.role == "tool":
            if not (wire.images is wire.thinking is wire.tool_calls is UNSET):
                return False
            self._enter(_TOOL)
            wire_id = "" if wire.tool_call_id is UNSET else wire.tool_call_id
            name = "" if wire.tool_name is UNSET else wire.tool_name
            inner: Content = (_new_text(wire.content),) if wire.content else ()
            self._add_draft(_TOOL, *self._decode_result(wire_id, name, inner))
            return True
        if not (wire.tool_name is wire.tool_call_id is UNSET):
            return False
        if wire.role == "assistant":
            return self._add_assistant(wire)
        return self._add_input(wire, _USER if wire.role == "user" else _SYSTEM)

    def _add_input(self, wire: ChatMessage, role: Role) -> bool:
        """Add a user or system message; return False if it is not of the usual form."""
        if not (wire.thinking is wire.tool_calls is UNSET):
            return False
        content: Content = (_new_text(wire.content),) if wire.content else ()
        if wire.images is not UNSET:
            # Encoding would not reproduce images of a system message or the prefix of data URLs.
            if role is _SYSTEM or any(image.startswith("data:") for image in wire.images):
                return False
            content = (*content, *map(decode_image, wire.images))
        elif not content and role is _USER:
            # A canonical message needs a block (M-123), so that empty content is an empty text.
            content = (_new_text(""),)
        self._last_role = role
        self._drafts.append((role, content, self._bare_metadata))
        return True

    def _add_assistant(self, wire: ChatMessage) -> bool:
        if wire.images is not UNSET:
            return False
        self._enter(_ASSISTANT)
        content, form = decode_assistant(wire, self._calls, self._origin)
        self._add_draft(_ASSISTANT, content, form)
        return True

    def _enter(self, role: Role) -> None:
        """Record the role of the next message; a new turn ends the wait for results without ids."""
        is_new_turn = self._last_role is not _ASSISTANT and self._last_role is not _TOOL
        if role is _ASSISTANT and is_new_turn:
            # After a user message, a result without an id belongs to the calls of the new turn.
            self._calls.drop_without_id()
        self._last_role = role

    def _add_draft(self, role: Role, content: Content, form: OriginalForm) -> None:
        metadata = self._bare_metadata
        if form or role is _TOOL:
            result = content[0] if role is _TOOL else None
            metadata = _new_metadata(
                origin=self._origin,
                parent_tool_use_id=result.tool_use_id if type(result) is ToolResultBlock else None,
                provider_raw=provider_raw_of(PROTOCOL, form) if form else None,
            )
        self._drafts.append((role, content, metadata))

    def _decode_result(
        self, wire_id: str, name: str, inner: Content
    ) -> tuple[Content, OriginalForm]:
        call, is_oldest = self._calls.of_result(wire_id, name)
        form: OriginalForm = {}
        if call.wire_id != wire_id or call.name != name:
            form = {"result": result_keys(wire_id, name), "is_spelled": True}
        if not is_oldest:
            # The order of results differs from that of the calls; it must not be changed.
            form["is_placed"] = True
        return (_new_result(call.tool_use_id, inner),), form

    def _decode_any(self, role: Role, wire: Wire, path: str) -> tuple[Content, OriginalForm]:
        """Decode the blocks of a message of any form."""
        if role is _ASSISTANT:
            return decode_any_assistant(wire, self._calls, self._origin, path), {}
        text, images = _text_at(wire, "content", path), _images_at(wire, path)
        texts: Content = (TextBlock(text),) if text else ()
        if role is _SYSTEM:
            # Canonical system messages have no images: as an opaque block only Ollama gets them.
            opaque = OpaqueBlock(PROTOCOL, Raw(write_json(images)), "images")
            return (*texts, opaque) if images else texts, {}
        content: Content = (*texts, *map(decode_image, images))
        if role is _USER:
            return content or (TextBlock(""),), {}
        name = maybe_text(wire.get("tool_name")) or maybe_text(wire.get("name")) or ""
        return self._decode_result(maybe_text(wire.get("tool_call_id")) or "", name, content)


def _begin(_draft: _HistoryDecoder, _wire: Wire) -> None:
    """Do nothing: chat requests have no content outside of the message list."""


def _add(draft: _HistoryDecoder, data: bytes, index: int) -> None:
    draft.add(_read_message(data), index)


def _end(wire: Wire, _: RequestContext) -> tuple[tuple[ToolDefinition, ...], AdapterOptions]:
    # `decode_request` decodes all messages of such a request by the general path. The error makes
    # the reader of these steps do the same.
    if not wire.keys() <= set(_OPTION_KEYS):
        raise DecodeError("the request has keys besides those of a chat request")
    return decode_functions(wire.get("tools")), decode_options(wire)


STEPS = RequestSteps(
    key="messages",
    response_mark=b'"assistant"',
    draft=_HistoryDecoder,
    begin=_begin,
    add=_add,
    end=_end,
)
"""The steps of `decode_request`."""


def decode_any_assistant(wire: Wire, calls: PendingCalls, issuer: str, path: str) -> Content:
    """Decode the blocks of an assistant message of any form."""
    text, images = _text_at(wire, "content", f"{path}.content"), _images_at(wire, f"{path}.images")
    thinking = maybe_text(wire.get("thinking"))
    blocks: list[ContentBlock] = [ThinkingBlock(thinking, issuer=issuer)] if thinking else []
    blocks += (TextBlock(text),) if text else ()
    blocks += map(decode_artifact, images)
    blocks += (decode_any_call(call, calls) for call in maybe_list(wire.get("tool_calls")))
    return tuple(blocks)


def decode_response_message(
    wire: Wire, calls: PendingCalls, issuer: str
) -> tuple[Content, OriginalForm]:
    """Decode the message of a response into its blocks and their original form."""
    try:
        message = msgspec.convert(wire, ChatMessage)
    except (ValueError, RecursionError):
        message = None
    if message is not None and message.role == "assistant":
        is_usual = message.images is message.tool_name is message.tool_call_id is UNSET
        if is_usual:
            return decode_assistant(message, calls, issuer)
    content = decode_any_assistant(wire, calls, issuer, "$.message")
    original = {"wire": wire, "digest": content_digest(_ASSISTANT, content)}
    return content, {"ids": _wire_ids(content, wire), "whole": original}


def _wire_ids(content: Content, wire: Wire) -> dict[str, str]:
    """Return the wire ids of the calls in a message of any form, by tool_use_id."""
    calls = maybe_list(wire.get("tool_calls"))
    blocks = content[len(content) - len(calls) :] if len(content) >= len(calls) else ()
    return {
        block.id: wire_id
        for block, call in zip(blocks, calls, strict=False)
        if isinstance(block, ToolUseBlock) and (wire_id := maybe_text(maybe_object(call).get("id")))
    }


def result_keys(wire_id: str, name: str) -> Wire:
    """Return the keys by which a result refers to its call; an empty id or name is left out."""
    keys: Wire = {"tool_call_id": wire_id} if wire_id else {}
    return {**keys, "tool_name": name} if name else keys


def original_message(message: Message) -> Wire | None:
    """Return the stored JSON of a wire message; None if there is none or the content changed."""
    original: Mapping[str, Any] = original_form_of(message, PROTOCOL).get("whole") or {}
    if original and original["digest"] == message.content_digest():
        return original["wire"]
    return None


def unmapped_keys(message: Message) -> Iterator[str]:
    """Yield the paths of keys that other protocols have no field for."""
    for key, value in (original_message(message) or {}).items():
        if key not in _MAPPED_KEYS and is_meaningful(key, value):
            yield f"$.{key}"
