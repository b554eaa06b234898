"""Streams of OpenAI Responses, from events to bytes: the whole sequence that clients wait for."""

from typing import Any

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason, Usage
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
from metis.wire.json_access import Wire
from metis.wire.openai_responses.blocks import (
    PROTOCOL,
    encode_foreign_thinking,
    encode_plain_thinking,
    write_json,
)
from metis.wire.openai_responses.items import encode_foreign_message, encode_image, item_id
from metis.wire.openai_responses.response import (
    bare_envelope,
    encode_output_items,
    encode_status,
    encode_usage,
    wire_model,
)
from metis.wire.original_form import EMPTY
from metis.wire.tool_ids import derived_id

# Text comes word by word: what is the same in all its deltas is written once.
_DELTA = b"response.output_text.delta"
_BEFORE_DELTA = b'event: %b\ndata: {"content_index":0,"delta":' % _DELTA
_NUMBER = b',"sequence_number":'
_AFTER_DELTA = b',"type":"%b"}\n\n' % _DELTA


class ResponsesStreamEncoder:
    """Writes the stream of one answer; encode each event, then finish."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._sequence = 0
        self._envelope: Wire = {}
        self._issuer: str | None = None
        self._output: list[Any] = []
        self._places: list[int] = []
        """The index of the block behind each output item."""
        self._open: Wire | None = None
        self._kind = ""
        self._index = -1
        self._pieces: list[str] = []
        self._signature: str | None = None
        self._usage: Usage | None = None
        self._is_over = False
        self._said: tuple[ContentBlock, ...] = ()
        """The whole answer, once it is known."""
        self._behind = b""
        """What stands behind the text of a delta of the open message, up to its number."""

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes that say an event; some events need none."""
        match event:
            case TextDelta():
                return self._say(event)
            case ThinkingDelta():
                return self._think(event)
            case ToolUseStart() | ToolUseInputDelta() | ToolUseEnd():
                return self._call(event)
            case MessageStart():
                return self._start(event.message_id, event.response_id, event.model)
            case BlockAdded():
                return self._begin(event.message_id) + self._add(event)
            case _:
                return self._encode_rest(event)

    def finish(self) -> bytes:
        """The bytes that close a stream which no event has closed."""
        if self._is_over or not self._envelope:
            return b""
        return self._close() + self._end("incomplete", {"status": "incomplete"})

    def _encode_rest(self, event: UsageUpdate | MessageComplete | StreamError) -> bytes:
        match event:
            case UsageUpdate():
                self._usage = event.usage
                return b""
            case MessageComplete():
                return self._complete(event)
            case StreamError():
                error: Wire = {"code": "server_error", "message": event.text}
                start = self._begin(event.message_id) + self._close()
                return start + self._end("failed", {"status": "failed", "error": error})

    def _start(self, message_id: str, response_id: str | None, model: str | None) -> bytes:
        known = self._context.model or model or ""
        self._issuer = known.partition(":")[0] if ":" in known else None
        self._envelope = bare_envelope(
            response_id or f"resp_{message_id}",
            int(self._context.created_at.timestamp()),
            wire_model(known),
        )
        return self._respond("created") + self._respond("in_progress")

    def _begin(self, message_id: str) -> bytes:
        return b"" if self._envelope else self._start(message_id, None, None)

    def _respond(self, name: str, changes: Wire | None = None) -> bytes:
        return self._event(f"response.{name}", response={**self._envelope, **(changes or {})})

    def _event(self, kind: str, **keys: Any) -> bytes:
        body = write_json({"type": kind, "sequence_number": self._sequence, **keys})
        self._sequence += 1
        return encode_sse(body, kind.encode())

    def _about(self, kind: str, **keys: Any) -> bytes:
        """An event about the open item."""
        item = self._open or {}
        place = len(self._output)
        return self._event(f"response.{kind}", item_id=item.get("id"), output_index=place, **keys)

    def _open_item(self, index: int, item: Wire) -> bytes:
        """Close the open item, and open another."""
        closed = self._close()
        self._open, self._index, self._kind = item, index, item["type"]
        return closed + self._event(
            "response.output_item.added", output_index=len(self._output), item=item
        )

    def _say(self, event: TextDelta) -> bytes:
        written = b""
        if self._index != event.content_block_index or self._kind != "message":
            written = self._begin(event.message_id)
            name = item_id("msg", event.message_id, event.content_block_index)
            item: Wire = {"type": "message", "id": name, "role": "assistant", "content": []}
            written += self._open_item(event.content_block_index, {**item, "status": "in_progress"})
            written += self._about("content_part.added", content_index=0, part=_text_part(""))
            behind: Wire = {"item_id": name, "logprobs": [], "output_index": len(self._output)}
            self._behind = b",%b%b" % (write_json(behind)[1:-1], _NUMBER)
        self._pieces.append(event.text)
        number, self._sequence = self._sequence, self._sequence + 1
        text = write_json(event.text)
        return b"%b%b%b%b%d%b" % (written, _BEFORE_DELTA, text, self._behind, number, _AFTER_DELTA)

    def _think(self, event: ThinkingDelta) -> bytes:
        written = b""
        if self._index != event.content_block_index or self._kind != "reasoning":
            written = self._begin(event.message_id)
            name = item_id("rs", event.message_id, event.content_block_index)
            written += self._open_item(
                event.content_block_index, {"type": "reasoning", "id": name, "summary": []}
            )
        if event.text:
            if not self._pieces:
                part: Wire = {"type": "summary_text", "text": ""}
                written += self._about("reasoning_summary_part.added", summary_index=0, part=part)
            self._pieces.append(event.text)
            written += self._about(
                "reasoning_summary_text.delta", summary_index=0, delta=event.text
            )
        self._signature = event.signature or self._signature
        return written

    def _call(self, event: ToolUseStart | ToolUseInputDelta | ToolUseEnd) -> bytes:
        match event:
            case ToolUseStart():
                item: Wire = {
                    "type": "function_call",
                    "id": derived_id(event.tool_use_id, "fc_"),
                    "call_id": derived_id(event.tool_use_id, "call_"),
                    "name": event.tool_name,
                    "arguments": "",
                    "status": "in_progress",
                }
                start = self._begin(event.message_id)
                return start + self._open_item(event.content_block_index, item)
            case ToolUseInputDelta():
                self._pieces.append(event.partial_json)
                return self._about("function_call_arguments.delta", delta=event.partial_json)
            case ToolUseEnd():
                return self._end_call(event)

    def _end_call(self, event: ToolUseEnd) -> bytes:
        """The arguments at once, if no delta told them."""
        written = b""
        if not self._pieces:
            text = write_json(event.final_input).decode()
            self._pieces.append(text)
            written = self._about("function_call_arguments.delta", delta=text)
        return written + self._close()

    def _add(self, event: BlockAdded) -> bytes:
        item = self._whole(event.block, item_id("rs", event.message_id, event.content_block_index))
        if item is None:
            return b""
        return self._close() + self._give(event.content_block_index, item)

    def _give(self, index: int, item: Any) -> bytes:
        """An item that comes whole."""
        written = b""
        for name in ("added", "done"):
            written += self._event(
                f"response.output_item.{name}", output_index=len(self._output), item=item
            )
        self._output.append(item)
        self._places.append(index)
        return written

    def _whole(self, block: ContentBlock, name: str) -> Any:
        """The item for a block that comes whole; None if this protocol has no place for it."""
        match block:
            case OpaqueBlock() | RedactedThinkingBlock():
                is_own = block.issuer in (self._context.provider, PROTOCOL)
                if isinstance(block, OpaqueBlock):
                    return block.data if is_own else None
                return (
                    encode_plain_thinking(block) if is_own else encode_foreign_thinking(block, name)
                )
            case ArtifactBlock():
                return encode_image(block, EMPTY, name)
            case _:
                return None

    def _close(self) -> bytes:
        """Close the open item with the events of its kind."""
        item = self._open
        if item is None:
            return b""
        text = "".join(self._pieces)
        written = b""
        match item["type"]:
            case "message":
                part = self._cited(item, text)
                written = self._about("output_text.done", content_index=0, text=text, logprobs=[])
                written += self._about("content_part.done", content_index=0, part=part)
                item = {**item, "content": [part], "status": "completed"}
            case "reasoning":
                written = self._close_summary(text)
                item = self._sealed(item, ThinkingBlock(text, self._signature, issuer=self._issuer))
            case "function_call":
                written = self._about(
                    "function_call_arguments.done", arguments=text, name=item["name"]
                )
                item = {**item, "arguments": text, "status": "completed"}
            case _:
                pass
        written += self._event(
            "response.output_item.done", output_index=len(self._output), item=item
        )
        self._output.append(item)
        self._places.append(self._index)
        self._open, self._kind, self._pieces, self._signature = None, "", [], None
        return written

    def _cited(self, item: Wire, text: str) -> Wire:
        """The part of a message; what it cites is known if the answer is at its end."""
        block = self._said[self._index] if self._index < len(self._said) else None
        if isinstance(block, TextBlock) and block.citations and block.text == text:
            return encode_foreign_message(block, item["id"])["content"][0]
        return _text_part(text)

    def _close_summary(self, text: str) -> bytes:
        if not text:
            return b""
        part: Wire = {"type": "summary_text", "text": text}
        return self._about("reasoning_summary_text.done", summary_index=0, text=text) + self._about(
            "reasoning_summary_part.done", summary_index=0, part=part
        )

    def _sealed(self, item: Wire, thought: ThinkingBlock) -> Wire:
        """A thought with its seal: as it is if it is ours, else in an envelope with its issuer."""
        name: str = item["id"]
        if thought.issuer is None:
            # An envelope without an issuer could be opened by anybody.
            return encode_plain_thinking(ThinkingBlock(thought.text, id=name))
        if thought.issuer in (self._context.provider, PROTOCOL):
            return encode_plain_thinking(ThinkingBlock(thought.text, thought.signature, name))
        return encode_foreign_thinking(thought, name)

    def _complete(self, event: MessageComplete) -> bytes:
        message = event.message
        metadata = message.metadata
        start = b""
        if not self._envelope:
            start = self._start(message.id, metadata.response_id, metadata.model)
        self._said = message.content
        start += self._close()
        if not self._output:
            start += self._tell(message)
        self._usage = metadata.usage or self._usage
        status, details = encode_status(event.stop_reason)
        self._reseal(message)
        name = "completed" if status == "completed" else "incomplete"
        if event.stop_reason is StopReason.ERROR:
            name = "failed"
        return start + self._end(name, {"status": status, "incomplete_details": details})

    def _tell(self, message: Message) -> bytes:
        """An answer of which no event has told."""
        items = encode_output_items(message, EMPTY)
        return b"".join(self._give(index, item) for index, item in enumerate(items))

    def _reseal(self, message: Message) -> None:
        """Seal the thoughts of the final response and cite: only the message knows whom."""
        for number, (item, place) in enumerate(zip(self._output, self._places, strict=True)):
            block = message.content[place] if place < len(message.content) else None
            if isinstance(block, ThinkingBlock) and item.get("type") == "reasoning":
                self._output[number] = self._sealed(item, block)
            elif isinstance(block, TextBlock) and block.citations and item.get("type") == "message":
                part = encode_foreign_message(block, item["id"])["content"][0]
                self._output[number] = {**item, "content": [part]}

    def _end(self, name: str, changes: Wire) -> bytes:
        self._is_over = True
        usage = None if self._usage is None else encode_usage(self._usage)
        return self._respond(name, {"output": self._output, "usage": usage, **changes})


def _text_part(text: str) -> Wire:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
