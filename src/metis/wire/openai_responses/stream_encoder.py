"""Streams of OpenAI Responses, encoded: stream events become the sequence that clients expect."""

from typing import Any

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from metis.canonical.errors import ProviderError
from metis.canonical.metadata import StopReason
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    encode_sse,
)
from metis.wire.call import RequestContext
from metis.wire.json_access import Wire
from metis.wire.openai_responses.blocks import (
    PROTOCOL,
    encode_foreign_thinking,
    encode_plain_thinking,
    write_json,
)
from metis.wire.openai_responses.items import encode_foreign_message, encode_image, new_item_id
from metis.wire.openai_responses.response import (
    empty_envelope,
    encode_output_items,
    encode_status,
    encode_usage,
)
from metis.wire.openai_responses.tool_calls import FUNCTION, WIRE_ID_PREFIX
from metis.wire.original_form import EMPTY
from metis.wire.response import model_name
from metis.wire.stream_encoder import BaseStreamEncoder
from metis.wire.tool_ids import derived_id

# Text comes in a delta per token, which differ in two values: the rest is written once.
_DELTA = b"response.output_text.delta"
_BEFORE_TEXT = b'event: %b\ndata: {"content_index":0,"delta":' % _DELTA
_SEQUENCE_KEY = b',"sequence_number":'
_AFTER_SEQUENCE = b',"type":"%b"}\n\n' % _DELTA


class ResponsesStreamEncoder(BaseStreamEncoder):
    """Encodes the stream of one response: encode each event, then finish."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._sequence = 0
        self._envelope: Wire = {}
        self._issuer: str | None = None
        self._output: list[Any] = []
        self._block_indexes: list[int] = []
        """The index of the block of each output item."""
        self._open_item: Wire | None = None
        self._open_type = ""
        self._open_index = -1
        self._pieces: list[str] = []
        self._signature: str | None = None
        self._content: tuple[ContentBlock, ...] = ()
        """The content of the message, known at its end."""
        self._after_text = b""
        """The bytes behind the text of a delta of the open message, up to its sequence number."""

    def finish(self) -> bytes:
        """Return the bytes that close a stream which no event has closed."""
        if self._has_ended or not self._envelope:
            return b""
        # Clients wait for a final event; without one they would report a broken connection.
        return self._close_item() + self._end("incomplete", {"status": "incomplete"})

    def _message_start(self, event: MessageStart) -> bytes:
        return self._start(event.message_id, event.response_id, event.model)

    def _start(self, message_id: str, response_id: str | None, model: str | None) -> bytes:
        model_id = self._context.model or model or ""
        # Thinking deltas do not name their issuer; the model id does.
        self._issuer = model_id.partition(":")[0] if ":" in model_id else None
        self._envelope = empty_envelope(
            response_id or f"resp_{message_id}",
            int(self._context.created_at.timestamp()),
            model_name(model_id),
        )
        return self._response_event("created") + self._response_event("in_progress")

    def _ensure_started(self, message_id: str) -> bytes:
        return b"" if self._envelope else self._start(message_id, None, None)

    def _response_event(self, name: str, changes: Wire | None = None) -> bytes:
        return self._event(f"response.{name}", response={**self._envelope, **(changes or {})})

    def _event(self, kind: str, **keys: Any) -> bytes:
        body = write_json({"type": kind, "sequence_number": self._sequence, **keys})
        self._sequence += 1
        return encode_sse(body, kind.encode())

    def _item_event(self, event_name: str, /, **keys: Any) -> bytes:
        """Encode an event about the open item."""
        item_id = (self._open_item or {}).get("id")
        index = len(self._output)
        return self._event(f"response.{event_name}", item_id=item_id, output_index=index, **keys)

    def _open(self, index: int, item: Wire) -> bytes:
        """Close the open item, and open another."""
        closed = self._close_item()
        self._open_item, self._open_index, self._open_type = item, index, item["type"]
        return closed + self._event(
            "response.output_item.added", output_index=len(self._output), item=item
        )

    def _text(self, event: TextDelta) -> bytes:
        encoded = b""
        if self._open_index != event.content_block_index or self._open_type != "message":
            encoded = self._open_message(event.message_id, event.content_block_index)
        self._pieces.append(event.text)
        number, self._sequence = self._sequence, self._sequence + 1
        text = write_json(event.text)
        return b"%b%b%b%b%d%b" % (
            encoded,
            _BEFORE_TEXT,
            text,
            self._after_text,
            number,
            _AFTER_SEQUENCE,
        )

    def _open_message(self, message_id: str, index: int) -> bytes:
        encoded = self._ensure_started(message_id)
        item_id = new_item_id("msg", message_id, index)
        item: Wire = {"type": "message", "id": item_id, "role": "assistant", "content": []}
        encoded += self._open(index, {**item, "status": "in_progress"})
        keys: Wire = {"item_id": item_id, "logprobs": [], "output_index": len(self._output)}
        self._after_text = b",%b%b" % (write_json(keys)[1:-1], _SEQUENCE_KEY)
        return encoded + self._item_event(
            "content_part.added", content_index=0, part=_text_part("")
        )

    def _thinking(self, event: ThinkingDelta) -> bytes:
        encoded = b""
        if self._open_index != event.content_block_index or self._open_type != "reasoning":
            encoded = self._ensure_started(event.message_id)
            item_id = new_item_id("rs", event.message_id, event.content_block_index)
            item: Wire = {"type": "reasoning", "id": item_id, "summary": []}
            encoded += self._open(event.content_block_index, item)
        if event.text:
            if not self._pieces:
                part: Wire = {"type": "summary_text", "text": ""}
                encoded += self._item_event(
                    "reasoning_summary_part.added", summary_index=0, part=part
                )
            self._pieces.append(event.text)
            encoded += self._item_event(
                "reasoning_summary_text.delta", summary_index=0, delta=event.text
            )
        self._signature = event.signature or self._signature
        return encoded

    def _tool_start(self, event: ToolUseStart) -> bytes:
        item: Wire = {
            "type": FUNCTION,
            "id": derived_id(event.tool_use_id, "fc_"),
            "call_id": derived_id(event.tool_use_id, WIRE_ID_PREFIX),
            "name": event.tool_name,
            "arguments": "",
            "status": "in_progress",
        }
        return self._ensure_started(event.message_id) + self._open(event.content_block_index, item)

    def _tool_input(self, event: ToolUseInputDelta) -> bytes:
        return self._arguments(event.partial_json)

    def _arguments(self, text: str) -> bytes:
        self._pieces.append(text)
        return self._item_event("function_call_arguments.delta", delta=text)

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        arguments = b""
        if not self._pieces:
            arguments = self._arguments(write_json(event.final_input).decode())
        return arguments + self._close_item()

    def _block(self, event: BlockAdded) -> bytes:
        start = self._ensure_started(event.message_id)
        index = event.content_block_index
        item = self._encode_block(event.block, new_item_id("rs", event.message_id, index))
        return start if item is None else start + self._close_item() + self._add_item(index, item)

    def _add_item(self, index: int, item: Any) -> bytes:
        """Encode an item that comes in one piece."""
        number = len(self._output)
        added = self._event("response.output_item.added", output_index=number, item=item)
        done = self._event("response.output_item.done", output_index=number, item=item)
        self._output.append(item)
        self._block_indexes.append(index)
        return added + done

    def _encode_block(self, block: ContentBlock, item_id: str) -> Any:
        """Return the item of a block that comes in one piece; None if the protocol has none."""
        match block:
            case OpaqueBlock() | RedactedThinkingBlock():
                is_native = block.issuer in (self._context.provider, PROTOCOL)
                if isinstance(block, OpaqueBlock):
                    return block.data if is_native else None
                if is_native:
                    return encode_plain_thinking(block)
                return encode_foreign_thinking(block, item_id)
            case ArtifactBlock():
                return encode_image(block, EMPTY, item_id)
            case _:
                return None

    def _close_item(self) -> bytes:
        """Close the open item with the events of its type."""
        item = self._open_item
        if item is None:
            return b""
        text = "".join(self._pieces)
        encoded = b""
        match item["type"]:
            case "message":
                part = self._message_part(item, text)
                encoded = self._item_event(
                    "output_text.done", content_index=0, text=text, logprobs=[]
                )
                encoded += self._item_event("content_part.done", content_index=0, part=part)
                item = {**item, "content": [part], "status": "completed"}
            case "reasoning":
                encoded = self._close_summary(text)
                thinking = ThinkingBlock(text, self._signature, issuer=self._issuer)
                item = self._encode_thinking(item["id"], thinking)
            case _:
                encoded = self._item_event(
                    "function_call_arguments.done", arguments=text, name=item["name"]
                )
                item = {**item, "arguments": text, "status": "completed"}
        number = len(self._output)
        encoded += self._event("response.output_item.done", output_index=number, item=item)
        self._output.append(item)
        self._block_indexes.append(self._open_index)
        self._open_item, self._open_type, self._pieces, self._signature = None, "", [], None
        return encoded

    def _message_part(self, item: Wire, text: str) -> Wire:
        """Return the part of a message; its citations are known if the response is at its end."""
        index = self._open_index
        block = self._content[index] if index < len(self._content) else None
        if isinstance(block, TextBlock) and block.citations and block.text == text:
            return encode_foreign_message(block, item["id"])["content"][0]
        return _text_part(text)

    def _close_summary(self, text: str) -> bytes:
        if not text:
            return b""
        part: Wire = {"type": "summary_text", "text": text}
        text_done = self._item_event("reasoning_summary_text.done", summary_index=0, text=text)
        part_done = self._item_event("reasoning_summary_part.done", summary_index=0, part=part)
        return text_done + part_done

    def _encode_thinking(self, item_id: str, thinking: ThinkingBlock) -> Wire:
        """Return the item of thinking: another provider's signature travels in an envelope."""
        if thinking.issuer is None:
            # An envelope without an issuer would be accepted as that of any provider.
            return encode_plain_thinking(ThinkingBlock(thinking.text, id=item_id))
        if thinking.issuer in (self._context.provider, PROTOCOL):
            return encode_plain_thinking(ThinkingBlock(thinking.text, thinking.signature, item_id))
        return encode_foreign_thinking(thinking, item_id)

    def _error(self, event: StreamError) -> bytes:
        return self._ensure_started(event.message_id) + super()._error(event)

    def _complete(self, event: MessageComplete) -> bytes:
        # No `_fail` here: this protocol has a status for a response that failed or was cancelled.
        self._usage = event.message.metadata.usage or self._usage
        return self._start_late(event) + self._encode_end(event)

    def _start_late(self, event: MessageComplete) -> bytes:
        message = event.message
        if self._envelope:
            return b""
        return self._start(message.id, message.metadata.response_id, message.metadata.model)

    def _encode_end(self, event: MessageComplete) -> bytes:
        self._content = event.message.content
        encoded = self._close_item()
        if not self._output:
            # No event has reported the content: it is encoded item by item.
            items = enumerate(encode_output_items(event.message, EMPTY))
            encoded += b"".join(self._add_item(index, item) for index, item in items)
        self._complete_output()
        status, details = encode_status(event.stop_reason)
        name = "completed" if status == "completed" else "incomplete"
        if event.stop_reason is StopReason.ERROR:
            name = "failed"
        return encoded + self._end(name, {"status": status, "incomplete_details": details})

    def _encode_failure(self, error: ProviderError) -> bytes:
        failure: Wire = {"code": "server_error", "message": error.text}
        return self._close_item() + self._end("failed", {"status": "failed", "error": failure})

    def _complete_output(self) -> None:
        """Add signatures and citations to the output: only the final message has their issuers."""
        for number, index in enumerate(self._block_indexes):
            item = self._output[number]
            block = self._content[index] if index < len(self._content) else None
            if isinstance(block, ThinkingBlock) and item.get("type") == "reasoning":
                self._output[number] = self._encode_thinking(item["id"], block)
            elif isinstance(block, TextBlock) and block.citations and item.get("type") == "message":
                part = encode_foreign_message(block, item["id"])["content"][0]
                self._output[number] = {**item, "content": [part]}

    def _end(self, name: str, changes: Wire) -> bytes:
        self._has_ended = True
        usage = None if self._usage is None else encode_usage(self._usage)
        return self._response_event(name, {"output": self._output, "usage": usage, **changes})


def _text_part(text: str) -> Wire:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
