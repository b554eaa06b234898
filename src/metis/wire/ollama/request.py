"""Requests of Ollama: a chat, or a prompt that is completed.

A prompt with its system text becomes one or two messages of ours. It goes back as a prompt as long
as it is one; once it has been answered, the conversation is a chat.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from metis.canonical.blocks import ContentBlock, ImageBlock, TextBlock
from metis.canonical.errors import DecodeError
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.codec import Route
from metis.wire.functions import decode_functions
from metis.wire.ollama.assistant import joined_text
from metis.wire.ollama.messages import decode_messages, encode_messages
from metis.wire.ollama.options import decode_options, encode_options
from metis.wire.ollama.types import PROTOCOL, ChatBody, ChatMessage, read_body, write_json
from metis.wire.shape import Wire, list_at, read_object

CHAT, GENERATE = "/api/chat", "/api/generate"
_PROMPT_KEYS = ("prompt", "system", "images")
_PROMPT_OPTIONS = ("context", "height", "raw", "steps", "suffix", "template", "width")
"""Options that a chat has no place for."""
_REST = tuple(name for name in ChatBody.__struct_fields__ if name != "messages")


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    try:
        usual = read_body(body)
    except (msgspec.DecodeError, RecursionError):
        return _decode_odd(body, context)
    wire: Wire = {name: value for name in _REST if (value := getattr(usual, name)) is not UNSET}
    messages = decode_messages(usual.messages, context)
    return CanonicalRequest(messages, decode_functions(wire.get("tools")), decode_options(wire))


def _decode_odd(body: bytes, context: RequestContext) -> CanonicalRequest:
    wire = read_object(body, "request")
    if "messages" in wire:
        messages = decode_messages(list_at(wire.pop("messages"), "$.messages"), context)
    elif "prompt" in wire:
        messages = decode_messages(_prompt_messages(wire), context)
    else:
        raise DecodeError("a request has a list of messages, or a prompt", path="$.messages")
    return CanonicalRequest(messages, decode_functions(wire.get("tools")), decode_options(wire))


def _prompt_messages(wire: Wire) -> list[ChatMessage]:
    """The messages that say the same as a prompt."""
    system, prompt = (_text_at(wire, key) for key in ("system", "prompt"))
    images = _images_at(wire)
    asked = ChatMessage(role="user", content=prompt, images=images or UNSET)
    return [ChatMessage(role="system", content=system), asked] if system else [asked]


def _text_at(wire: Wire, key: str) -> str:
    text = wire.get(key)
    if not isinstance(text, str | None):
        raise DecodeError(f"the {key} is a string", path=f"$.{key}")
    return text or ""


def _images_at(wire: Wire) -> list[str]:
    images = wire.get("images")
    found = [] if images is None else list_at(images, "$.images")
    if not all(isinstance(data, str) for data in found):
        raise DecodeError("an image is a string of base64", path="$.images")
    return found


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    body = encode_options(options, tools)
    if _is_prompt(messages, tools, options):
        return write_json(_encode_prompt(body, messages))
    for key in (*_PROMPT_KEYS, *_PROMPT_OPTIONS) if "prompt" in body else ():
        body.pop(key, None)
    body["messages"] = encode_messages(messages)
    return write_json(body)


def route(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> Route:
    """Where a request goes; the options of a prompt are lost when it becomes a chat."""
    native = options.native.get(PROTOCOL, {})
    if "prompt" not in native:
        return Route(CHAT)
    if _is_prompt(messages, tools, options):
        return Route(GENERATE)
    return Route(CHAT, tuple(key for key in _PROMPT_OPTIONS if native.get(key)))


def _is_prompt(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bool:
    """Whether a request came as a prompt and can still be one."""
    if "prompt" not in options.native.get(PROTOCOL, {}) or tools:
        return False
    match [(message.role, message.content) for message in messages]:
        case [(Role.SYSTEM, (TextBlock(),)), (Role.USER, asked)] | [(Role.USER, asked)]:
            return _is_text_and_images(asked)
        case _:
            return False


def _is_text_and_images(content: Sequence[ContentBlock]) -> bool:
    texts = content[: bool(content) and isinstance(content[0], TextBlock)]
    return all(isinstance(block, ImageBlock) for block in content[len(texts) :])


def _encode_prompt(body: Wire, messages: Sequence[Message]) -> Wire:
    *leading, asked = messages
    (user,) = encode_messages([asked])
    said: Wire = msgspec.to_builtins(user)
    _say(body, "prompt", said.get("content") or "")
    _say(body, "images", said.get("images") or [])
    _say(body, "system", "".join(joined_text(message.content) for message in leading))
    return body


def _say(body: Wire, key: str, value: Any) -> None:
    """Set a key, unless what is spelled there says the same: nothing can be said in many ways."""
    if (body.get(key) or type(value)()) != value:
        body[key] = value
