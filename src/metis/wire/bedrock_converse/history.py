"""History of Bedrock Converse: canonical messages as the `messages` of a request.

Roles must alternate in this protocol, so that adjacent messages of one role share a wire message:
tool results and the user message after them. Wire messages are encoded once and stored as bytes, so
that the next request of the same conversation encodes only new messages; the last one stays open.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.blocks import ContentBlock, ToolResultBlock
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.bedrock_converse.blocks import (
    PROTOCOL,
    WIRE_ID_PREFIX,
    ToolResultPart,
    decode_part,
    encode_block,
    with_cache_points,
)
from metis.wire.bedrock_converse.options import encode_options
from metis.wire.call import AdapterOptions
from metis.wire.history import HistoryEncoder
from metis.wire.json_access import Wire
from metis.wire.original_form import EMPTY, original_blocks, original_form_of

# Keys are sorted, so that the bytes do not change when a history is stored and loaded (T176).
_write = msgspec.json.Encoder(order="deterministic").encode
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


class _WireMessage(Struct, gc=False):
    content: list[Any]
    role: str


class ConverseHistoryEncoder(HistoryEncoder):
    """Encodes the messages of a conversation, each once."""

    wire_id_prefix = WIRE_ID_PREFIX
    _shared = ("_system",)

    def __init__(self) -> None:
        super().__init__("messages", _write)
        self._system: list[Message] = []

    def _encode_envelope(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._system:
            wire["system"] = [
                part
                for message in self._system
                for part in self._encode_parts(message, original_form_of(message, PROTOCOL))
            ]
        return wire

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are wire ids of some calls."""
        self._wire_ids.update(ids)
        if self._open is None:
            messages = self._without_system(messages)
        encoded: list[_WireMessage | Wire] = [] if self._open is None else [_reopened(self._open)]
        for message in messages:
            form = original_form_of(message, PROTOCOL)
            if "ids" in form:
                self._wire_ids.update(form["ids"])
            parts, role = self._encode_parts(message, form), _role_name(message.role)
            previous = encoded[-1] if encoded else None
            if previous is not None and _role_of(previous) == role and "apart" not in form:
                _content_of(previous).extend(parts)
            elif "keys" in form:
                encoded.append({"role": role, "content": parts, **form["keys"]})
            else:
                encoded.append(_WireMessage(parts, role))
        if encoded:
            self._open = encoded.pop()
        self._encoded.add(encoded)

    def _without_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Move leading system messages to the key `system`, where the protocol expects them."""
        count = next((i for i, m in enumerate(messages) if not _is_prompt(m)), len(messages))
        self._system = [*self._system, *messages[:count]]
        return messages[count:]

    def _encode_parts(self, message: Message, form: Mapping[str, Any]) -> list[Any]:
        """Encode the blocks of a message, in their original form where it still applies."""
        originals = EMPTY
        if "blocks" in form:
            decode = partial(decode_part, is_response=message.role is _ASSISTANT)
            originals = original_blocks(message, form, decode)
        parts: list[Any] = []
        for index, block in enumerate(message.content):
            part = originals.get(str(index)) or encode_block(block, self._wire_id)
            if type(part) is ToolResultPart and "success" in form and not _is_failed(block):
                part.tool_result.status = "success"
            parts.append(part)
        return with_cache_points(parts, message.metadata.hints)


def _role_name(role: Role) -> str:
    if role is _ASSISTANT:
        return "assistant"
    return "user" if role is _USER or role is _TOOL else str(role)


def _is_failed(block: ContentBlock) -> bool:
    return isinstance(block, ToolResultBlock) and block.is_error


def _is_prompt(message: Message) -> bool:
    """Whether a leading message belongs to the key `system`, not to the message list."""
    return message.role is _SYSTEM and "turn" not in original_form_of(message, PROTOCOL)


def _role_of(wire: _WireMessage | Wire) -> str:
    return wire["role"] if isinstance(wire, dict) else wire.role


def _content_of(wire: _WireMessage | Wire) -> list[Any]:
    return wire["content"] if isinstance(wire, dict) else wire.content


def _reopened(wire: _WireMessage | Wire) -> _WireMessage | Wire:
    """Copy a wire message and its list of parts, because copies of this history share it."""
    content = [*_content_of(wire)]
    if isinstance(wire, dict):
        return {**wire, "content": content}
    return _WireMessage(content, wire.role)
