"""Fast paths of Ollama: shortcuts for the most frequent messages and lines.

Each duplicates rules of another module, for speed only; all other input takes the general path.

- `FastOllamaHistoryEncoder` duplicates the encoding of texts, calls and text results in `history`.
- `FastOllamaStreamDecoder` duplicates the decoding of lines in `stream_decoder`, once per token.

Only the codec uses this module. `tests/wire/test_fast_paths.py` compares both paths.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.streaming.events import StreamEvent, TextDelta
from metis.wire.ollama.blocks import PROTOCOL
from metis.wire.ollama.history import OllamaHistoryEncoder
from metis.wire.ollama.stream_decoder import OllamaStreamDecoder

_ROLE_NAMES = {Role.ASSISTANT: "assistant", Role.USER: "user"}
_OptionalText = str | UnsetType


class _TextMessage(Struct, gc=False):
    content: str
    role: str


class _ToolMessage(Struct, gc=False):
    content: str
    role: str
    tool_call_id: _OptionalText
    tool_name: _OptionalText


class _Function(Struct, gc=False):
    arguments: Mapping[str, Any]
    name: str


class _Call(Struct, gc=False):
    function: _Function
    id: _OptionalText


class _CallMessage(Struct, gc=False):
    content: str
    role: str
    tool_calls: list[_Call]


class FastOllamaHistoryEncoder(OllamaHistoryEncoder):
    """Encodes messages without an original form as small Structs."""

    def _encode_message(self, message: Message) -> Any:
        raw = message.metadata.provider_raw
        if raw is None or not raw.get(PROTOCOL):
            content, role = message.content, message.role
            if len(content) == 1 and type(text := content[0]) is TextBlock:
                return _TextMessage(text.text, _ROLE_NAMES.get(role, "system"))
            if role is Role.ASSISTANT:
                encoded = _encode_calls(content, self._wire_ids)
                if encoded is not None:
                    return encoded
        return super()._encode_message(message)

    def _encode_result(self, message: Message) -> Any:
        raw, content = message.metadata.provider_raw, message.content
        result = content[0] if len(content) == 1 else None
        if type(result) is ToolResultBlock and (raw is None or not raw.get(PROTOCOL)):
            text = result.content[0] if len(result.content) == 1 else None
            if type(text) is TextBlock and not result.is_error:
                wire_id = self._wire_ids.get(result.tool_use_id) or UNSET
                _, name = self._calls.get(result.tool_use_id, (0, ""))
                return _ToolMessage(text.text, "tool", wire_id, name or UNSET)
        return super()._encode_result(message)


def _encode_calls(
    content: Sequence[ContentBlock], wire_ids: Mapping[str, str]
) -> _CallMessage | None:
    """Encode at most one text followed by calls; return None for any other content."""
    text = ""
    calls: list[_Call] = []
    for block in content:
        if type(block) is ToolUseBlock:
            function = _Function(block.input, block.name)
            calls.append(_Call(function, wire_ids.get(block.id, UNSET)))
        elif type(block) is TextBlock and not text and not calls:
            text = block.text
        else:
            return None
    return _CallMessage(text, "assistant", calls) if calls else None


class _MessageDelta(Struct, gc=False, forbid_unknown_fields=True):
    content: str
    role: str
    thinking: str = ""


class _Line(Struct, gc=False, forbid_unknown_fields=True):
    """A line with only text or thinking: in `message` for a chat, else in `response`."""

    model: str
    created_at: str
    done: Literal[False]
    message: _MessageDelta | None = None
    response: str | None = None
    thinking: str = ""


_read_line = msgspec.json.Decoder(_Line).decode


class FastOllamaStreamDecoder(OllamaStreamDecoder):
    """Decodes lines that add text or thinking without building JSON objects."""

    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        if not self._has_started:
            self._store_head(chunk)
        for data in self._lines.feed(chunk):
            # `_decode_line` handles the first line, and lines after the end or an unreadable line.
            if not self._has_started or self._end is not None or self._unread_line is not None:
                self._decode_line(data, events)
                continue
            try:
                line = _read_line(data)
            except (ValueError, RecursionError):
                self._decode_line(data, events)
                continue
            message = line.message
            if message is not None:
                thinking, text = message.thinking, message.content
            else:
                thinking, text = line.thinking, line.response
            if thinking:
                self._add_thinking(thinking, events)
            if not text:
                continue
            self._texts.append(text)
            if self._open_kind is not TextDelta:
                self._open_block(TextDelta)
            events.append(TextDelta(self._message_id, self._index, text))
