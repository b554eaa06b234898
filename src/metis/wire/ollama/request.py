"""Requests of Ollama: a chat, or a prompt that is completed.

A prompt with its system text becomes one or two messages of ours.
"""

from msgspec import UNSET

from metis.canonical.errors import DecodeError
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.functions import decode_functions
from metis.wire.ollama.messages import decode_messages
from metis.wire.ollama.options import decode_options
from metis.wire.ollama.types import ChatBody, ChatMessage, read_body
from metis.wire.shape import Wire, list_at, read_object

_REST = tuple(name for name in ChatBody.__struct_fields__ if name != "messages")


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    try:
        usual = read_body(body)
    except (ValueError, RecursionError):
        return _decode_odd(body, context)
    wire: Wire = {name: value for name in _REST if (value := getattr(usual, name)) is not UNSET}
    messages = decode_messages(usual.messages, context)
    return CanonicalRequest(messages, decode_functions(wire.get("tools")), decode_options(wire))


def _decode_odd(body: bytes, context: RequestContext) -> CanonicalRequest:
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
