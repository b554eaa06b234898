"""Streams of Chat Completions, encoded: stream events to bytes."""

from metis.canonical.errors import EncodeError, ProviderError
from metis.streaming.events import (
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
)
from metis.streaming.text_frames import encode_sse
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire
from metis.wire.openai_chat.assistant import encode_annotations
from metis.wire.openai_chat.blocks import PROTOCOL, write_json
from metis.wire.openai_chat.request import WIRE_ID_PREFIX
from metis.wire.openai_chat.response import encode_stop_reason, encode_usage
from metis.wire.openai_errors import encode_error
from metis.wire.response import model_name
from metis.wire.stream_encoder import BaseStreamEncoder


class ChatStreamEncoder(BaseStreamEncoder):
    """Encodes the stream of one response: encode each event, then finish."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._envelope: Wire = {}
        self._before_delta = self._after_delta = b""
        self._call_indexes: dict[str, int] = {}
        self._calls_with_arguments: set[str] = set()
        self._has_failed = False

    def encode(self, event: StreamEvent) -> bytes:
        """Encode an event; some events need no bytes."""
        if self._has_ended:
            return b""
        encode = self._encoders[type(event)]
        if self._envelope or isinstance(event, MessageStart | UsageUpdate | StreamError):
            return encode(event)
        # A client expects the role first, also of a stream that lacks the event for it.
        return self._message_start(MessageStart(event.message_id)) + encode(event)

    def finish(self) -> bytes:
        """Encode the mark of the end; a stream that failed or was cut off has none."""
        if not self._has_ended:
            return super().finish()
        return b"" if self._has_failed else encode_sse(b"[DONE]")

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        self._envelope = {
            "id": event.response_id or f"chatcmpl-{event.message_id}",
            "object": "chat.completion.chunk",
            "created": int(self._context.created_at.timestamp()),
            "model": model_name(self._context.model or event.model),
        }
        # Deltas differ in one value: the bytes around it are written once per stream.
        self._before_delta = write_json(self._envelope)[:-1] + b',"choices":[{"index":0,"delta":'
        self._after_delta = b',"logprobs":null,"finish_reason":null}]}'
        return self._delta({"role": "assistant", "content": ""})

    def _text(self, event: TextDelta) -> bytes:
        return self._delta({"content": event.text}) if event.text else b""

    def _thinking(self, event: ThinkingDelta) -> bytes:
        return self._delta({"reasoning_content": event.text}) if event.text else b""

    def _delta(self, delta: Wire) -> bytes:
        return encode_sse(self._before_delta + write_json(delta) + self._after_delta)

    def _call_delta(self, tool_use_id: str, keys: Wire) -> bytes:
        if tool_use_id not in self._call_indexes:
            raise EncodeError(f"the call {tool_use_id} has not begun in this stream")
        return self._delta({"tool_calls": [{"index": self._call_indexes[tool_use_id], **keys}]})

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._call_indexes[event.tool_use_id] = len(self._call_indexes)
        function: Wire = {"name": event.tool_name, "arguments": ""}
        keys: Wire = {"id": self._wire_id(event), "type": "function", "function": function}
        return self._call_delta(event.tool_use_id, keys)

    def _tool_input(self, event: ToolUseInputDelta) -> bytes:
        return self._arguments(event.tool_use_id, event.partial_json)

    def _arguments(self, tool_use_id: str, piece: str) -> bytes:
        self._calls_with_arguments.add(tool_use_id)
        return self._call_delta(tool_use_id, {"function": {"arguments": piece}})

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        if event.tool_use_id in self._calls_with_arguments:
            return b""
        invalid = event.invalid
        text = write_json(event.final_input).decode() if invalid is None else invalid.raw
        return self._arguments(event.tool_use_id, text)

    def _encode_end(self, event: MessageComplete) -> bytes:
        notes = encode_annotations(event.message.content)
        annotations = self._delta({"annotations": notes}) if notes else b""
        reason = encode_stop_reason(event.stop_reason)
        choice: Wire = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}
        end = annotations + encode_sse(write_json({**self._envelope, "choices": [choice]}))
        if self._usage is None:
            return end
        # As OpenAI does: usage has a chunk of its own, without choices.
        usage: Wire = {**self._envelope, "choices": [], "usage": encode_usage(self._usage)}
        return end + encode_sse(write_json(usage))

    def _encode_failure(self, error: ProviderError) -> bytes:
        self._has_failed = True
        _, body = encode_error(error)
        return encode_sse(body)
