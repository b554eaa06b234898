"""Streams of Gemini, from events to bytes."""

from typing import Any, Literal

import msgspec

from metis.canonical.blocks import ContentBlock, ThinkingBlock
from metis.canonical.errors import ServerError
from metis.canonical.metadata import StopReason, Usage
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
    encode_sse,
)
from metis.wire.call import RequestContext
from metis.wire.gemini.key_names import HOSTS, PROTOCOL
from metis.wire.gemini.parts import PartEncoder
from metis.wire.gemini.response import encode_error, encode_stop_reason, encode_usage
from metis.wire.json_access import Wire
from metis.wire.tool_ids import derived_id

_write = msgspec.json.Encoder().encode
Framing = Literal["sse", "array"]
"""How chunks are sent: as server-sent events (`alt=sse`), or as one JSON array."""


_BEFORE_TEXT = b'{"candidates":[{"content":{"parts":[{"text":'
_BEHIND_TEXT = b'}],"role":"model"},"index":0}],'


class GeminiStreamEncoder:
    """Writes the events of an answer as this protocol streams them."""

    def __init__(self, context: RequestContext, framing: Framing = "sse") -> None:
        self._context = context
        self._framing = framing
        self._envelope: Wire = {}
        self._names: dict[str, str] = {}
        self._signature: str | None = None
        self._usage: Usage | None = None
        self._is_over = False
        self._is_foreign = False
        """Whether another provider answers, whose signatures are no business of the client."""
        self._is_begun = False
        self._behind = b""
        """What stands behind the text in a chunk that holds nothing else."""
        self._writer = PartEncoder(lambda ours: derived_id(ours, "call_"), {})

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes for one event; some events need none."""
        match event:
            case TextDelta():
                return self._say(event)
            case ThinkingDelta():
                return self._part(event.message_id, self._thought(event))
            case ToolUseEnd():
                return self._part(event.message_id, self._call(event))
            case BlockAdded():
                return self._block(event.message_id, event.block)
            case MessageComplete() | StreamError():
                return self._end(event)
            case _:
                self._note(event)  # calls are sent whole, usage with the end
                return b""

    def finish(self) -> bytes:
        """The bytes that close a stream which no event has closed."""
        closing = b"" if self._is_over or not self._is_begun else self._close(None)
        if self._framing == "sse":
            return closing
        return closing + (b"]" if self._is_begun else b"[]")

    def _note(self, event: MessageStart | ToolUseStart | ToolUseInputDelta | UsageUpdate) -> None:
        match event:
            case MessageStart():
                host, _, _ = (event.model or "").partition(":")
                self._is_foreign = event.protocol != PROTOCOL and host not in HOSTS
                self._start(event.message_id, event.response_id, event.model)
            case ToolUseStart():
                self._names[event.tool_use_id] = event.tool_name
            case UsageUpdate():
                self._usage = event.usage
            case ToolUseInputDelta():
                pass

    def _end(self, event: MessageComplete | StreamError) -> bytes:
        if isinstance(event, StreamError):
            self._is_over = True
            _, body = encode_error(ServerError(event.text))
            return self._frame(body)
        metadata = event.message.metadata
        self._start(event.message_id, metadata.response_id, metadata.model)
        self._usage = metadata.usage or self._usage
        return self._close(event.stop_reason)

    def _start(self, message_id: str, response_id: str | None, model: str | None) -> None:
        if not self._envelope:
            name = self._context.model or model or ""
            self._envelope = {
                "modelVersion": name.partition(":")[2] or name,
                "responseId": response_id or message_id,
            }

    def _say(self, event: TextDelta) -> bytes:
        """More text; what is the same in all its chunks is written once."""
        if self._signature is not None:
            return self._part(event.message_id, {"text": event.text})
        if not self._behind:
            self._start(event.message_id, None, None)
            self._behind = _BEHIND_TEXT + _write(self._envelope)[1:]
        body = b"%b%b%b" % (_BEFORE_TEXT, _write(event.text), self._behind)
        return self._frame(body)

    def _part(self, message_id: str, part: Any) -> bytes:
        self._start(message_id, None, None)
        if self._signature is not None and isinstance(part, dict):
            part["thoughtSignature"], self._signature = self._signature, None
        return self._chunk({"content": {"parts": [part], "role": "model"}, "index": 0})

    def _thought(self, event: ThinkingDelta) -> Wire:
        part: Wire = {"text": event.text, "thought": True}
        if event.signature is not None and not self._is_foreign:
            part["thoughtSignature"] = event.signature
        return part

    def _block(self, message_id: str, block: ContentBlock) -> bytes:
        if isinstance(block, ThinkingBlock) and block.format == SIGNATURE_ON_NEXT:
            self._signature = block.signature
            return b""
        return b"".join(self._part(message_id, part) for part in self._writer.encode((block,)))

    def _call(self, event: ToolUseEnd) -> Wire:
        ours = event.tool_use_id
        name = self._names.get(ours, "")
        call = {"args": event.final_input, "id": derived_id(ours, "call_"), "name": name}
        return {"functionCall": call}

    def _close(self, reason: StopReason | None) -> bytes:
        self._is_over = True
        last: Wire = {"text": ""}
        if self._signature is not None:
            last["thoughtSignature"] = self._signature
        candidate = {
            "content": {"parts": [last], "role": "model"},
            "finishReason": encode_stop_reason(reason),
            "index": 0,
        }
        usage = encode_usage(self._usage)
        return self._chunk(candidate, {} if usage is None else {"usageMetadata": usage})

    def _chunk(self, candidate: Wire, more: Wire | None = None) -> bytes:
        return self._frame(_write({"candidates": [candidate], **self._envelope, **(more or {})}))

    def _frame(self, body: bytes) -> bytes:
        is_first, self._is_begun = not self._is_begun, True
        if self._framing == "sse":
            return encode_sse(body)
        return (b"[" if is_first else b",\r\n") + body
