"""Fast paths of OpenAI Responses: shortcuts for the most frequent items and deltas.

Each duplicates rules of another module, for speed only; all other input takes the general path.

- `decode_request` and `FastInputDecoder` duplicate the decoding of strings, calls and outputs in
  `request`: a client sends its whole history with every request, and a gateway decodes it.
- `FastResponsesHistoryEncoder` duplicates the encoding of texts, calls and results in `request`.
- `FastResponsesStreamDecoder` duplicates the decoding of deltas in `stream_decoder`, for every
  token.

Only the codec uses this module. `tests/wire/test_fast_paths.py` compares both paths.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.value import raw_constructor
from metis.streaming import StreamEvent, TextDelta
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.json_access import Wire
from metis.wire.openai_responses.blocks import PROTOCOL, write_json
from metis.wire.openai_responses.items import STRING_RUN
from metis.wire.openai_responses.message_forms import TYPED_FORM
from metis.wire.openai_responses.request import (
    InputDecoder,
    ResponsesHistoryEncoder,
    decode_with,
)
from metis.wire.openai_responses.stream_decoder import ResponsesStreamDecoder
from metis.wire.openai_responses.tool_calls import FUNCTION, FUNCTION_OUTPUT
from metis.wire.original_form import EMPTY

_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_MESSAGE_KEY_COUNT, _TYPED_KEY_COUNT, _OUTPUT_KEY_COUNT = 2, 3, 3
_ONLY_IDS = {"ids"}
_new_text = raw_constructor(TextBlock)
_new_result = raw_constructor(ToolResultBlock)


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a request body, with shortcuts for common items."""
    return decode_with(FastInputDecoder(context), body)


class FastInputDecoder(InputDecoder):
    """Decodes string messages, string outputs and function calls without general item decoding."""

    def add_items(self, items: Sequence[Any]) -> None:
        """Decode items, in order."""
        for index, wire in enumerate(cast("Sequence[Wire]", items)):
            if type(wire) is not dict:
                self.add_item(wire, index)
                continue
            kind, size = wire.get("type"), len(wire)
            if size == _MESSAGE_KEY_COUNT and type(text := wire.get("content")) is str:
                role = wire.get("role")
                if role == "user":
                    if self._run is not None:
                        self._close_run()
                    self._drafts.append((_USER, (_new_text(text),), self._bare_metadata))
                    continue
                if role == "assistant":
                    self._open_run().add_text(text)
                    continue
            if kind == FUNCTION and "role" not in wire:
                self._open_run().add(wire)
            elif not (
                (kind == FUNCTION_OUTPUT and self._add_string_output(wire, size))
                or (kind == "message" and self._add_typed_text(wire, size))
            ):
                self.add_item(wire, index)

    def _add_typed_text(self, wire: Wire, size: int) -> bool:
        text = wire.get("content")
        if size != _TYPED_KEY_COUNT or type(text) is not str or wire.get("role") != "assistant":
            return False
        self._open_run().add_text(text, TYPED_FORM)
        return True

    def _add_string_output(self, wire: Wire, size: int) -> bool:
        wire_id, text = wire.get("call_id"), wire.get("output")
        if size != _OUTPUT_KEY_COUNT or type(wire_id) is not str or type(text) is not str:
            return False
        tool_use_id = self._ids.of_result(wire_id)
        content = (_new_text(text),) if text else ()
        self._add_result(_new_result(tool_use_id, content), {"ids": {tool_use_id: wire_id}})
        return True


# Encoding: the fields of these Structs are in alphabetical order, so that the JSON has sorted keys.


class _MessageItem(Struct, gc=False):
    content: str
    role: str


class _OutputMessageItem(Struct, gc=False):
    content: str
    role: str = "assistant"
    type: str = "message"


class _CallItem(Struct, gc=False):
    arguments: str
    call_id: str
    name: str
    type: str = "function_call"


class _OutputItem(Struct, gc=False):
    call_id: str
    output: str
    type: str = "function_call_output"


class FastResponsesHistoryEncoder(ResponsesHistoryEncoder):
    """Encodes messages of texts, calls and text results as small Structs."""

    def _encode_messages(self, messages: Sequence[Message], *, is_stateless: bool) -> list[Any]:
        items: list[Any] = []
        for message in messages:
            raw = message.metadata.provider_raw
            form = EMPTY if raw is None else raw.get(PROTOCOL, EMPTY)
            role, content = message.role, message.content
            # The wire ids of a result are in `self._calls`, so that the form is not needed.
            is_plain = not form or (role is _TOOL and form.keys() == _ONLY_IDS)
            if form == STRING_RUN and len(content) == 1 and type(text := content[0]) is TextBlock:
                items.append(_MessageItem(text.text, "assistant"))
            elif not (is_plain and self._encode_plain(role, content, items)):
                self._encode_message(message, form, items, is_stateless=is_stateless)
        return items

    def _encode_plain(self, role: Role, content: Sequence[ContentBlock], items: list[Any]) -> bool:
        """Add the items of a message of texts and calls; return False for any other message."""
        if len(content) == 1:
            block = content[0]
            if type(block) is TextBlock and role is not _TOOL and not block.citations:
                if role is _ASSISTANT:
                    items.append(_OutputMessageItem(block.text))
                else:
                    items.append(_MessageItem(block.text, "user" if role is _USER else str(role)))
                return True
            if type(block) is ToolResultBlock:
                return self._encode_plain_result(block, items)
        return role is _ASSISTANT and self._encode_texts_and_calls(content, items)

    def _encode_texts_and_calls(self, content: Sequence[ContentBlock], items: list[Any]) -> bool:
        encoded: list[Any] = []
        for block in content:
            if type(block) is ToolUseBlock:
                call_id = self._calls.wire_id(block.id)
                encoded.append(_CallItem(write_json(block.input).decode(), call_id, block.name))
            elif type(block) is TextBlock and not block.citations:
                encoded.append(_OutputMessageItem(block.text))
            else:
                return False
        items += encoded
        return True

    def _encode_plain_result(self, result: ToolResultBlock, items: list[Any]) -> bool:
        tool_use_id, content = result.tool_use_id, result.content
        if len(content) != 1 or result.is_error or self._calls.has_output_type(tool_use_id):
            return False
        text = content[0]
        if type(text) is not TextBlock:
            return False
        items.append(_OutputItem(self._calls.wire_id(tool_use_id), text.text))
        return True


class _TextDelta(Struct, tag="response.output_text.delta", gc=False, forbid_unknown_fields=True):
    delta: str
    output_index: int
    content_index: int = 0
    item_id: Any = None
    logprobs: Any = None
    obfuscation: Any = None
    sequence_number: Any = None


class _ArgumentsDelta(
    Struct, tag="response.function_call_arguments.delta", gc=False, forbid_unknown_fields=True
):
    delta: str
    output_index: int
    item_id: Any = None
    obfuscation: Any = None
    sequence_number: Any = None


_read_delta = msgspec.json.Decoder(_TextDelta | _ArgumentsDelta).decode


class FastResponsesStreamDecoder(ResponsesStreamDecoder):
    """Decodes deltas of text and of arguments without building JSON objects."""

    def _decode_bytes(self, chunk: bytes, events: list[StreamEvent]) -> None:
        if not self._has_started:
            self._store_head(chunk)
        for name, data in self._frames.feed(chunk):
            try:
                delta = _read_delta(data)
            except (ValueError, RecursionError):
                self._decode_frame(name, data, events)
                continue
            item, reporter = self._by_index.get(delta.output_index), self._reporter
            if item is None or reporter is None or self._end is not None or item.is_done:
                self._decode_event(data, events)
            elif type(delta) is _TextDelta:
                pieces = item.text_pieces.get(delta.content_index)
                if pieces is not None and item is reporter.current:
                    pieces.append(delta.delta)
                    index = item.first_index + delta.content_index
                    events.append(TextDelta(self._message_id, index, delta.delta))
                else:
                    reporter.add_text(item, delta.content_index, delta.delta, events)
            else:
                self._meter.add_arguments(item, len(delta.delta))
                reporter.add_arguments(item, delta.delta, events)
