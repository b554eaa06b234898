"""Streams of Ollama, encoded: stream events become one JSON object a line."""

from metis.canonical.blocks import ArtifactBlock
from metis.canonical.errors import ProviderError
from metis.streaming.events import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire
from metis.wire.ollama.blocks import GENERATE_PATH, PROTOCOL, write_json
from metis.wire.ollama.response import (
    WIRE_ID_PREFIX,
    encode_error,
    encode_stop_reason,
    encode_usage,
    timestamp,
)
from metis.wire.response import model_name
from metis.wire.stream_encoder import BaseStreamEncoder
from metis.wire.tool_ids import derived_id


class OllamaStreamEncoder(BaseStreamEncoder):
    """Encodes the stream of one response: encode each event, then finish."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._is_completion = context.path == GENERATE_PATH
        self._envelope: Wire = {}
        self._before_delta = b""
        self._tool_names: dict[str, str] = {}
        self._image: Wire = {}

    def _message_start(self, event: MessageStart) -> bytes:
        self._envelope = {
            "created_at": timestamp(self._context),
            "model": model_name(self._context.model or event.model),
        }
        # Deltas differ in one value: the bytes before it are written once per stream.
        self._before_delta = write_json(self._envelope)[:-1] + b',"done":false,'
        return b""

    def _text(self, event: TextDelta) -> bytes:
        return self._line(self._delta(event.text)) if event.text else b""

    def _thinking(self, event: ThinkingDelta) -> bytes:
        return self._line(self._delta("", {"thinking": event.text})) if event.text else b""

    def _delta(self, text: str, keys: Wire | None = None) -> Wire:
        """Return what a line adds, with the keys of a chat or of a completion."""
        if self._is_completion:
            return {"response": text, **(keys or {})}
        return {"message": {"role": "assistant", "content": text, **(keys or {})}}

    def _line(self, delta: Wire) -> bytes:
        return self._before_delta + write_json(delta)[1:] + b"\n"

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._tool_names[event.tool_use_id] = event.tool_name
        return b""

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        """Encode a call in one piece; a completion has no key for it."""
        if self._is_completion:
            return b""
        name = self._tool_names.get(event.tool_use_id, "")
        function: Wire = {"name": name, "arguments": event.final_input}
        # Only newer servers give ids; clients of older ones ignore the key.
        wire_id = derived_id(event.tool_use_id, WIRE_ID_PREFIX)
        return self._line(self._delta("", {"tool_calls": [{"id": wire_id, "function": function}]}))

    def _block(self, event: BlockAdded) -> bytes:
        block = event.block
        if isinstance(block, ArtifactBlock) and block.source.kind == "base64":
            self._image = {"image": block.source.data}
        return b""

    def _encode_end(self, event: MessageComplete) -> bytes:
        last: Wire = {
            **self._envelope,
            **self._delta("", self._image if self._is_completion else None),
            "done": True,
            "done_reason": encode_stop_reason(event.stop_reason),
            **encode_usage(self._usage),
        }
        return write_json(last) + b"\n"

    def _encode_failure(self, error: ProviderError) -> bytes:
        _, body = encode_error(error)
        return body + b"\n"
