"""Requests of Ollama, decoded: a chat, or a prompt to complete."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

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
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import raw_constructor
from metis.wire.call import CanonicalRequest, RequestContext
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
    CallIds,
    ChatBody,
    ChatMessage,
    OriginalForm,
    decode_any_call,
    decode_artifact,
    decode_assistant,
    decode_image,
    encode_assistant,
    read_chat_body,
    write_json,
)
from metis.wire.ollama.options import decode_options
from metis.wire.original_form import is_meaningful, original_form_of, provider_raw_of

_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
_make_text = raw_constructor(TextBlock)
_make_result = raw_constructor(ToolResultBlock)
_ROLES = {
    "system": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}

Content = tuple[ContentBlock, ...]
Decoded = tuple[Content, OriginalForm]
_DecodedMessage = tuple[Role, Content, MessageMetadata]
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


class _MessageDecoder:
    """Reads the messages of one request, in order."""

    def __init__(self, context: RequestContext) -> None:
        self._issuer = context.provider or PROTOCOL
        self._ids = CallIds(context.session_id)
        self._plain = _make_metadata(origin=self._issuer)
        self._before: Role | None = None

    def read(self, wire: ChatMessage | Any, place: int) -> _DecodedMessage:
        """What one message of the wire is of ours."""
        if type(wire) is ChatMessage:
            usual = self._typed(wire)
            if usual is not None:
                return usual
        odd: Any = msgspec.to_builtins(wire) if isinstance(wire, ChatMessage) else wire
        path = f"$.messages[{place}]"
        role = _role_of(object_at(odd, path), path)
        self._enter(role)
        content, spelling = self._odd(role, odd, path)
        return self._spelled(role, content, provider_raw_of(PROTOCOL, spelling))

    def _typed(self, wire: ChatMessage) -> _DecodedMessage | None:
        """The same for a message of the usual form; None for all others."""
        word = wire.role
        if word == "tool":
            if not (wire.images is wire.thinking is wire.tool_calls is UNSET):
                return None
            self._enter(_TOOL)
            return self._result(wire)
        if not (wire.tool_name is wire.tool_call_id is UNSET):
            return None
        if word == "assistant":
            return self._said(wire)
        return self._asked(wire, _USER if word == "user" else _SYSTEM)

    def _asked(self, wire: ChatMessage, role: Role) -> _DecodedMessage | None:
        if not (wire.thinking is wire.tool_calls is UNSET):
            return None
        text: Content = (_make_text(wire.content),) if wire.content else ()
        if wire.images is not UNSET:
            if role is _SYSTEM or any(data[:5] == "data:" for data in wire.images):
                return None
            text = (*text, *map(decode_image, wire.images))
        elif not text and role is _USER:
            # Somebody who says nothing says an empty text: a message has a block (M-123).
            text = (_make_text(""),)
        self._before = role
        return role, text, self._plain

    def _said(self, wire: ChatMessage) -> _DecodedMessage | None:
        if wire.images is not UNSET:
            return None
        self._enter(_ASSISTANT)
        if wire.tool_calls is wire.thinking is UNSET:
            content = (_make_text(wire.content),) if wire.content else ()
            return _ASSISTANT, content, self._plain
        content, spelling = decode_assistant(wire, self._ids, self._issuer)
        return self._spelled(_ASSISTANT, content, {PROTOCOL: spelling} if spelling else None)

    def _enter(self, role: Role) -> None:
        """Go on to a message; results that only their order tells are not looked for any more."""
        if role is _ASSISTANT and self._before is not _ASSISTANT and self._before is not _TOOL:
            self._ids.forget()
        self._before = role

    def _spelled(
        self, role: Role, content: Content, raw: Mapping[str, Any] | None
    ) -> _DecodedMessage:
        if role is _TOOL:
            results = (b.tool_use_id for b in content if isinstance(b, ToolResultBlock))
            metadata = _make_metadata(
                origin=self._issuer, parent_tool_use_id=next(results, None), provider_raw=raw
            )
        elif raw is not None:
            metadata = _make_metadata(origin=self._issuer, provider_raw=raw)
        else:
            metadata = self._plain
        return role, content, metadata

    def _result(self, wire: ChatMessage) -> _DecodedMessage:
        theirs = "" if wire.tool_call_id is UNSET else wire.tool_call_id
        name = "" if wire.tool_name is UNSET else wire.tool_name
        inner: Content = (_make_text(wire.content),) if wire.content else ()
        content, spelling = self._answer(theirs, name, inner)
        return self._spelled(_TOOL, content, {PROTOCOL: spelling} if spelling else None)

    def _answer(self, theirs: str, name: str, inner: Content) -> Decoded:
        call, is_next = self._ids.of_result(theirs, name)
        spelling: OriginalForm = {}
        if call.theirs != theirs or call.name != name:
            spelling = {"result": result_keys(theirs, name), "is_spelled": True}
        if not is_next:
            spelling["is_placed"] = True
        return (_make_result(call.ours, inner),), spelling

    def _odd(self, role: Role, wire: Wire, path: str) -> Decoded:
        """Any other message, remembered as it came."""
        content, spelling = self._blocks(role, wire, path)
        whole = {"wire": wire, "digest": content_digest(role, content)}
        return content, {**spelling, "ids": _wire_ids(content, wire), "whole": whole}

    def _blocks(self, role: Role, wire: Wire, path: str) -> Decoded:
        text, images = _content_at(wire, f"{path}.content"), _message_images(wire, f"{path}.images")
        said: Content = (TextBlock(text),) if text else ()
        if role is Role.ASSISTANT:
            return decode_any_assistant(wire, said, images, self._ids, self._issuer), {}
        if role is Role.SYSTEM:
            return (*said, *_opaque_images(images)), {}
        shown: Content = tuple(decode_image(data) for data in images)
        if role is Role.USER:
            return (*said, *shown) or (TextBlock(""),), {}
        theirs = maybe_text(wire.get("tool_call_id")) or ""
        name = maybe_text(wire.get("tool_name")) or maybe_text(wire.get("name")) or ""
        return self._answer(theirs, name, (*said, *shown))


def decode_messages(wire: Sequence[Any], context: RequestContext) -> tuple[Message, ...]:
    """Our messages for those of the wire, typed or as plain JSON."""
    reader = _MessageDecoder(context)
    read = [reader.read(message, place) for place, message in enumerate(wire)]
    session_id, created_at = context.session_id, context.created_at
    return tuple(
        [
            _make_message(
                id=one,
                session_id=session_id,
                role=role,
                content=content,
                metadata=metadata,
                created_at=created_at,
            )
            for one, (role, content, metadata) in zip(new_ulids(len(read)), read, strict=True)
        ]
    )


def _role_of(wire: Wire, path: str) -> Role:
    role = _ROLES.get(str(wire.get("role")))
    if role is None:
        raise unknown_role(wire.get("role"), path)
    return role


def _content_at(wire: Wire, path: str) -> str:
    text = wire.get("content")
    if not isinstance(text, str | None):
        raise DecodeError("the content of a message is a string", path=path)
    return text or ""


def _message_images(wire: Wire, path: str) -> list[str]:
    images = wire.get("images")
    found = [] if images is None else list_at(images, path)
    if not all(isinstance(data, str) for data in found):
        raise DecodeError("an image is a string of base64", path=path)
    return found


def _opaque_images(images: list[str]) -> Content:
    return (OpaqueBlock(PROTOCOL, Raw(write_json(images)), "images"),) if images else ()


def decode_any_assistant(
    wire: Wire, said: Content, images: list[str], ids: CallIds, issuer: str
) -> Content:
    """The blocks of any assistant message."""
    thought = maybe_text(wire.get("thinking"))
    blocks: list[ContentBlock] = [ThinkingBlock(thought, issuer=issuer)] if thought else []
    blocks += said
    blocks += (decode_artifact(data) for data in images)
    blocks += (decode_any_call(call, ids) for call in maybe_list(wire.get("tool_calls")))
    return tuple(blocks)


def decode_any_response(wire: Wire, ids: CallIds, issuer: str) -> Decoded:
    """The blocks of an answer of an unusual form, remembered as it came."""
    text = _content_at(wire, "$.message.content")
    images = _message_images(wire, "$.message.images")
    content = decode_any_assistant(wire, (TextBlock(text),) if text else (), images, ids, issuer)
    whole = {"wire": wire, "digest": content_digest(Role.ASSISTANT, content)}
    return content, {"ids": _wire_ids(content, wire), "whole": whole}


def _wire_ids(content: Content, wire: Wire) -> dict[str, str]:
    """The server's ids of the calls in an odd message."""
    calls = maybe_list(wire.get("tool_calls"))
    blocks = content[len(content) - len(calls) :] if len(content) >= len(calls) else ()
    return {
        block.id: theirs
        for block, call in zip(blocks, calls, strict=False)
        if isinstance(block, ToolUseBlock) and (theirs := maybe_text(maybe_object(call).get("id")))
    }


def result_keys(theirs: str, name: str) -> Wire:
    """How a result names the call that it answers: by id, by tool, by both, or not at all."""
    keys: Wire = {"tool_call_id": theirs} if theirs else {}
    return {**keys, "tool_name": name} if name else keys


def encode_response_message(
    message: Message, ids: Mapping[str, str] | None = None
) -> ChatMessage | Wire:
    """An assistant message by itself; `ids` are those to give to calls that have none here."""
    spelling = original_form_of(message, PROTOCOL)
    known: Mapping[str, str] = {**(ids or {}), **(spelling.get("ids") or {})}
    kept = original_message(message)
    return encode_assistant(message.content, spelling, known) if kept is None else kept


def original_message(message: Message) -> Wire | None:
    """A message as it came, if it still says the same."""
    whole: Mapping[str, Any] = original_form_of(message, PROTOCOL).get("whole") or {}
    return whole["wire"] if whole and whole["digest"] == message.content_digest() else None


_REST = tuple(name for name in ChatBody.__struct_fields__ if name != "messages")


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    try:
        usual = read_chat_body(body)
    except (ValueError, RecursionError):
        return _decode_any(body, context)
    wire: Wire = {name: value for name in _REST if (value := getattr(usual, name)) is not UNSET}
    messages = decode_messages(usual.messages, context)
    return CanonicalRequest(messages, decode_functions(wire.get("tools")), decode_options(wire))


def _decode_any(body: bytes, context: RequestContext) -> CanonicalRequest:
    wire = read_object(body, "request")
    is_prompt = "messages" not in wire
    if not is_prompt:
        messages = decode_messages(list_at(wire.pop("messages"), "$.messages"), context)
    elif "prompt" in wire:
        messages = decode_messages(_prompt_messages(wire), context)
    else:
        raise DecodeError("a request has a list of messages, or a prompt", path="$.messages")
    options = decode_options(wire, is_prompt=is_prompt)
    return CanonicalRequest(messages, decode_functions(wire.get("tools")), options)


def _prompt_messages(wire: Wire) -> list[ChatMessage]:
    """The messages that say the same as a prompt."""
    system, prompt = (_prompt_text(wire, key) for key in ("system", "prompt"))
    images = _prompt_images(wire)
    asked = ChatMessage(role="user", content=prompt, images=images or UNSET)
    return [ChatMessage(role="system", content=system), asked] if system else [asked]


def _prompt_text(wire: Wire, key: str) -> str:
    text = wire.get(key)
    if not isinstance(text, str | None):
        raise DecodeError(f"the {key} is a string", path=f"$.{key}")
    return text or ""


def _prompt_images(wire: Wire) -> list[str]:
    images = wire.get("images")
    found = [] if images is None else list_at(images, "$.images")
    if not all(isinstance(data, str) for data in found):
        raise DecodeError("an image is a string of base64", path="$.images")
    return found


_MAPPED_KEYS = frozenset(ChatMessage.__struct_fields__)
"""Keys that blocks speak for, however they are spelled."""


def unmapped_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    for key, value in (original_message(message) or {}).items():
        if key not in _MAPPED_KEYS and is_meaningful(key, value):
            yield f"$.{key}"
