"""Streams of Chat Completions, written: events in, bytes out."""

from metis.canonical.errors import EncodeError, NetworkError, ProviderError
from metis.canonical.metadata import Usage
from metis.streaming.events import (
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
)
from metis.streaming.text_frames import encode_sse
from metis.wire.call import RequestContext
from metis.wire.errors import STREAM_CUT_OFF, error_of_event, failed_stop_error, is_failed_stop
from metis.wire.json_access import Wire
from metis.wire.openai_chat.assistant import encode_annotations
from metis.wire.openai_chat.blocks import PROTOCOL, write_json
from metis.wire.openai_chat.response import encode_stop_reason, encode_usage, wire_model
from metis.wire.openai_errors import encode_error
from metis.wire.tool_ids import derived_id


class ChatStreamEncoder:
    """Writes the stream of one answer; encode each event, then finish."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._envelope: Wire = {}
        self._before = self._after = b""
        self._calls: dict[str, int] = {}
        self._told: set[str] = set()
        self._usage: Usage | None = None
        self._has_own_ids = False
        self._is_over = self._has_failed = False

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes that say an event; empty if the protocol has no word for it."""
        if self._is_over:
            return b""
        if self._envelope or isinstance(event, MessageStart | UsageUpdate | StreamError):
            return self._encode(event)
        return self._start(MessageStart(event.message_id)) + self._encode(event)

    def finish(self) -> bytes:
        """The mark of the end; after an error, and after a stream that broke off, there is none."""
        if not self._is_over:
            return self._fail(NetworkError(STREAM_CUT_OFF))
        return b"" if self._has_failed else encode_sse(b"[DONE]")

    def _encode(self, event: StreamEvent) -> bytes:
        match event:
            case TextDelta() | ThinkingDelta():
                return self._say(event)
            case ToolUseStart():
                return self._start_call(event)
            case ToolUseInputDelta():
                return self._continue_call(event.tool_use_id, event.partial_json)
            case ToolUseEnd():
                return self._end_call(event)
            case MessageStart():
                return self._start(event)
            case _:
                return self._encode_rest(event)

    def _encode_rest(
        self, event: BlockAdded | UsageUpdate | MessageComplete | StreamError
    ) -> bytes:
        match event:
            case MessageComplete():
                return self._complete(event)
            case StreamError():
                return self._fail(error_of_event(event))
            case UsageUpdate():
                self._usage = event.usage
                return b""
            case BlockAdded():
                return b""

    def _start(self, event: MessageStart) -> bytes:
        self._has_own_ids = event.protocol == PROTOCOL
        self._envelope = {
            "id": event.response_id or f"chatcmpl-{event.message_id}",
            "object": "chat.completion.chunk",
            "created": int(self._context.created_at.timestamp()),
            "model": wire_model(self._context.model or event.model),
        }
        # What stands around each delta is written once.
        head = write_json(self._envelope)[:-1]
        self._before = head + b',"choices":[{"index":0,"delta":'
        self._after = b',"logprobs":null,"finish_reason":null}]}'
        return self._delta({"role": "assistant", "content": ""})

    def _say(self, event: TextDelta | ThinkingDelta) -> bytes:
        key = "content" if isinstance(event, TextDelta) else "reasoning_content"
        return self._delta({key: event.text}) if event.text else b""

    def _delta(self, delta: Wire) -> bytes:
        return encode_sse(self._before + write_json(delta) + self._after)

    def _call(self, ours: str, rest: Wire) -> bytes:
        if ours not in self._calls:
            raise EncodeError(f"the call {ours} has not begun in this stream")
        return self._delta({"tool_calls": [{"index": self._calls[ours], **rest}]})

    def _start_call(self, event: ToolUseStart) -> bytes:
        ours = event.tool_use_id
        self._calls[ours] = len(self._calls)
        function: Wire = {"name": event.tool_name, "arguments": ""}
        theirs = event.provider_id if self._has_own_ids else None
        wire_id = theirs or derived_id(ours, "call_")
        return self._call(ours, {"id": wire_id, "type": "function", "function": function})

    def _continue_call(self, ours: str, piece: str) -> bytes:
        self._told.add(ours)
        return self._call(ours, {"function": {"arguments": piece}})

    def _end_call(self, event: ToolUseEnd) -> bytes:
        """The arguments at once, if no delta told them."""
        if event.tool_use_id in self._told:
            return b""
        invalid = event.invalid
        whole = write_json(event.final_input).decode() if invalid is None else invalid.raw
        return self._continue_call(event.tool_use_id, whole)

    def _complete(self, event: MessageComplete) -> bytes:
        if is_failed_stop(event.stop_reason):
            return self._fail(failed_stop_error(event.stop_reason))
        self._is_over = True
        notes = encode_annotations(event.message.content)
        told = self._delta({"annotations": notes}) if notes else b""
        reason = encode_stop_reason(event.stop_reason)
        choice: Wire = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}
        end = told + encode_sse(write_json({**self._envelope, "choices": [choice]}))
        usage = event.message.metadata.usage or self._usage
        if usage is None:
            return end
        last: Wire = {**self._envelope, "choices": [], "usage": encode_usage(usage)}
        return end + encode_sse(write_json(last))

    def _fail(self, error: ProviderError) -> bytes:
        self._is_over = self._has_failed = True
        _, body = encode_error(error)
        return encode_sse(body)
