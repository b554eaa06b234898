"""Stream encoder of Ollama: stream events in, lines of JSON objects out."""

from metis.canonical.blocks import ArtifactBlock
from metis.canonical.errors import ProviderError
from metis.projection.loss import Loss
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
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.ollama.blocks import GENERATE_PATH, PARAGRAPH, PROTOCOL, write_json
from metis.wire.ollama.response import (
    WIRE_ID_PREFIX,
    encode_error,
    encode_response,
    timestamp,
)
from metis.wire.response import model_name
from metis.wire.stream_encoder import BaseStreamEncoder


class OllamaStreamEncoder(BaseStreamEncoder):
    """Turns the events of one response into the bytes of a stream."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX

    encode_response = staticmethod(encode_response)

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._is_completion = context.path == GENERATE_PATH
        self._before_delta = b""
        self._calls: dict[str, Wire] = {}
        """The wire form of calls whose end event has not been encoded, without arguments."""
        self._written_calls = 0
        self._written_images = 0
        self._has_thinking = self._has_text = self._follows_text = False

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        original = event.original_form if self._is_native else None
        if original is not None:
            self._is_completion = "response" in original
        envelope = {
            "created_at": timestamp(self._context),
            "model": model_name(self._context.model or event.model),
        }
        if original is not None:
            envelope = {key: value for key, value in original.items() if value is not None}
        # The lines of a stream differ only in the delta, so that the bytes before it are encoded
        # once per stream.
        self._before_delta = write_json({**envelope, "done": False})[:-1] + b","
        return b""

    def _text(self, event: TextDelta) -> bytes:
        text = event.text
        if not text:
            return b""
        # A plain response of Ollama joins the texts around thinking without a separator.
        if self._has_text and not self._follows_text and not self._is_native:
            text = PARAGRAPH + text
        self._has_text = self._follows_text = True
        return self._line(self._delta(text))

    def _thinking(self, event: ThinkingDelta) -> bytes:
        self._follows_text = False
        if not event.text:
            return b""
        self._has_thinking = True
        return self._line(self._delta("", {"thinking": event.text}))

    def _delta(self, text: str, keys: Wire | None = None) -> Wire:
        """Return the delta of a line, with the keys of a chat or of a completion."""
        message: Wire = {"role": "assistant", "content": text}
        if self._is_completion:
            message = {"response": text}
        if keys:
            message |= keys
        return message if self._is_completion else {"message": message}

    def _line(self, delta: Wire) -> bytes:
        return self._before_delta + write_json(delta)[1:] + b"\n"

    def _tool_start(self, event: ToolUseStart) -> bytes:
        self._follows_text = False
        original = event.original_form if self._is_native else None
        if original is not None:
            self._calls[event.tool_use_id] = dict(original)
            return b""
        # Only newer servers send ids; clients of older ones ignore the key.
        wire_id = event.provider_id if self._is_native else self._wire_id(event)
        call: Wire = {"id": wire_id} if wire_id else {}
        self._calls[event.tool_use_id] = {**call, "function": {"name": event.tool_name}}
        return b""

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        """Encode a complete call; a completion has no key for calls, so that there it is lost."""
        call = self._calls.pop(event.tool_use_id, {})
        if self._is_completion:
            self._lose(event.message_id, event.content_block_index)
            return b""
        function = maybe_object(call.get("function"))
        is_as_it_came = self._is_native and not (event.final_input or event.invalid)
        if "arguments" not in function and not is_as_it_came:
            arguments = event.final_input if event.invalid is None else event.invalid.raw
            call = {**call, "function": {**function, "arguments": arguments}}
        self._written_calls += 1
        return self._line(self._delta("", {"tool_calls": [call]}))

    def _block(self, event: BlockAdded) -> bytes:
        """Encode an image of a chat; that of a completion is part of the last line."""
        block = event.block
        if self._is_native and event.original_form is not None and not self._is_completion:
            self._written_calls += 1
            return self._line(self._delta("", dict(event.original_form)))
        if type(block) is not ArtifactBlock or self._is_completion:
            return b""
        if block.source.kind != "base64":
            return b""
        self._follows_text = False
        self._written_images += 1
        return self._line(self._delta("", {"images": [block.source.data]}))

    def _lose(self, message_id: str, index: int) -> None:
        self.losses.append(
            Loss(
                session_id=self._context.session_id,
                message_id=message_id,
                block_type="tool_use",
                adapter=self._context.provider or PROTOCOL,
                reason="completions of a prompt have no tool_use",
                path=f"$.content[{index}]",
            )
        )

    def _encode_end(self, event: MessageComplete) -> bytes:
        """Encode the last line, with `done`, the usage and everything that is not yet encoded."""
        body = self._plain_body(event)
        message = maybe_object(body.pop("message", None))
        keys = ("response", "thinking", "image")
        completion = {key: body.pop(key) for key in keys if key in body}
        remaining = {
            key: value
            for key, value in (message or completion).items()
            if (value is not None or self._is_native) and not self._is_written(key)
        }
        text = maybe_text(remaining.pop("response", None) or remaining.pop("content", None)) or ""
        images = maybe_list(message.get("images"))[self._written_images :]
        if images and not self._is_completion:
            remaining["images"] = images
        calls = maybe_list(message.get("tool_calls"))[self._written_calls :]
        if calls and not self._is_completion:
            remaining["tool_calls"] = calls
        last: Wire = {**body, **self._delta(text, remaining), "done": True}
        return write_json(last) + b"\n"

    def _is_written(self, key: str) -> bool:
        """Whether earlier lines contain the whole value of a key of the message."""
        if key in ("content", "response"):
            return self._has_text
        return key in ("images", "tool_calls") or (key == "thinking" and self._has_thinking)

    def _encode_failure(self, error: ProviderError) -> bytes:
        _, body = encode_error(error)
        return body + b"\n"
