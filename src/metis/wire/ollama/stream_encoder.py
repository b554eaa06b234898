"""Streams of Ollama, written: events in, one JSON object a line out."""

from metis.canonical.blocks import ArtifactBlock
from metis.canonical.metadata import StopReason, Usage
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
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire
from metis.wire.ollama.blocks import write_json
from metis.wire.ollama.history import GENERATE_PATH
from metis.wire.ollama.response import encode_usage, timestamp, wire_model
from metis.wire.tool_ids import derived_id


class OllamaStreamEncoder:
    """Writes the stream of one answer; encode each event, then finish."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._is_completion = context.path == GENERATE_PATH
        self._head: Wire = {}
        self._before = b""
        self._names: dict[str, str] = {}
        self._usage: Usage | None = None
        self._image: Wire = {}

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes that say an event; empty if the protocol has no word for it."""
        match event:
            case TextDelta():
                return self._line(self._said(event.text)) if event.text else b""
            case ThinkingDelta():
                return self._line(self._said("", {"thinking": event.text})) if event.text else b""
            case ToolUseStart():
                self._names[event.tool_use_id] = event.tool_name
                return b""
            case ToolUseEnd():
                return self._call(event)
            case _:
                return self._encode_rest(event)

    def finish(self) -> bytes:
        """Nothing: the last line says that it is the last."""
        return b""

    def _encode_rest(
        self,
        event: MessageStart
        | ToolUseInputDelta
        | BlockAdded
        | UsageUpdate
        | MessageComplete
        | StreamError,
    ) -> bytes:
        match event:
            case MessageStart():
                self._start(event)
            case MessageComplete():
                return self._complete(event)
            case StreamError():
                return write_json({"error": event.text}) + b"\n"
            case UsageUpdate():
                self._usage = event.usage
            case BlockAdded(block=ArtifactBlock() as made) if made.source.kind == "base64":
                self._image = {"image": made.source.data}
            case BlockAdded() | ToolUseInputDelta():
                pass
        return b""

    def _start(self, event: MessageStart) -> None:
        self._head = {
            "created_at": timestamp(self._context),
            "model": wire_model(self._context.model or event.model),
        }
        # What stands before each delta is written once.
        self._before = write_json(self._head)[:-1] + b',"done":false,'

    def _said(self, text: str, rest: Wire | None = None) -> Wire:
        """What a line adds, in the words of a chat or of a completion."""
        if self._is_completion:
            return {"response": text, **(rest or {})}
        return {"message": {"role": "assistant", "content": text, **(rest or {})}}

    def _line(self, said: Wire) -> bytes:
        return self._before + write_json(said)[1:] + b"\n"

    def _call(self, event: ToolUseEnd) -> bytes:
        """A call, whole; a completion has no word for it."""
        if self._is_completion:
            return b""
        ours = event.tool_use_id
        function: Wire = {"name": self._names.get(ours, ""), "arguments": event.final_input}
        call: Wire = {"id": derived_id(ours, "call_"), "function": function}
        return self._line(self._said("", {"tool_calls": [call]}))

    def _complete(self, event: MessageComplete) -> bytes:
        usage = event.message.metadata.usage or self._usage
        last: Wire = {
            **self._head,
            **self._said("", self._image if self._is_completion else None),
            "done": True,
            "done_reason": "length" if event.stop_reason is StopReason.MAX_TOKENS else "stop",
            **encode_usage(usage),
        }
        return write_json(last) + b"\n"
