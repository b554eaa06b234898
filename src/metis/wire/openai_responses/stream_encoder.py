"""Stream encoder of OpenAI Responses: stream events in, server-sent events out."""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolUseBlock,
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
from metis.wire.declared_tools import CUSTOM_KIND, FUNCTION_KIND, DeclaredTool
from metis.wire.json_access import Wire, maybe_list, maybe_object
from metis.wire.openai_errors import stream_failure
from metis.wire.openai_responses.blocks import (
    PROTOCOL,
    encode_foreign_thinking,
    encode_plain_thinking,
    write_json,
)
from metis.wire.openai_responses.items import encode_image, new_item_id
from metis.wire.openai_responses.response import (
    empty_envelope,
    encode_response,
    encode_status,
    encode_usage,
)
from metis.wire.openai_responses.tool_calls import (
    CUSTOM,
    FUNCTION,
    WIRE_ID_PREFIX,
    declared_text,
    encode_declared_call,
)
from metis.wire.original_form import EMPTY
from metis.wire.response import model_name
from metis.wire.stream_encoder import BaseStreamEncoder
from metis.wire.tool_ids import derived_id

# A text delta per token differs only in text and sequence number: the other bytes are encoded once.
_DELTA = b"response.output_text.delta"
_BEFORE_TEXT = b'event: %b\ndata: {"delta":' % _DELTA
_SEQUENCE_KEY = b',"sequence_number":'
_TEXT = "output_text"
_START_KEYS = ("id", "created_at", "model")
"""The keys of the first event that the last event must repeat unchanged."""
_AFTER_SEQUENCE = b',"type":"%b"}\n\n' % _DELTA


class ResponsesStreamEncoder(BaseStreamEncoder):
    """Turns the events of one response into the bytes of a stream."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX
    encode_response = staticmethod(encode_response)

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._sequence = 0
        self._envelope: Wire = {}
        self._output: list[Any] = []
        self._open_item: Wire | None = None
        self._open_type = ""
        self._open_index = -1
        self._pieces: list[str] = []
        self._signature: str | None = None
        self._is_broken = False
        """Whether the arguments of the open call are not a JSON object."""
        self._final_form: Wire = {}
        self._declared: DeclaredTool | None = None
        """The tool of the open call, if the client did not declare it as a plain function."""
        self._declared_id = ""
        self._parts: list[Wire] = []
        """The closed parts of the open message."""
        self._part_type = _TEXT
        self._after_text = b""
        """The bytes between the text and the sequence number in a delta of the open message."""

    def finish(self) -> bytes:
        """Return the bytes that close a stream without a final event."""
        if self._has_ended or not self._envelope:
            return b""
        # Clients wait for a final event; without one they would report a broken connection.
        return self._close_item() + self._end("incomplete", {"status": "incomplete"})

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        original = dict((self._is_native and event.original_form) or {})
        return self._start(event.message_id, event.response_id, event.model, original)

    def _start(
        self,
        message_id: str,
        response_id: str | None,
        model: str | None,
        original: Wire | None = None,
    ) -> bytes:
        """Encode the events for the start of a response, and set the envelope of later ones."""
        model_id = self._context.model or model or ""
        self._envelope = empty_envelope(
            response_id or f"resp_{message_id}",
            int(self._context.created_at.timestamp()),
            model_name(model_id),
        )
        if original:
            # Only the keys of the provider: hosts other than OpenAI omit empty ones.
            self._envelope = {**original, "output": [], "status": "in_progress"}
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
        """Encode a piece of text or of a refusal, after the start of its part if needed."""
        encoded = b""
        if self._open_index != event.content_block_index or self._open_type != "message":
            stated = dict((self._is_native and event.original_form) or {})
            encoded = self._open_text(event.message_id, event.content_block_index, stated)
        form = event.original_form
        self._final_form = {} if form is None else self._final(form)
        if self._final_form and not event.text:
            return encoded + self._close_item()
        self._pieces.append(event.text)
        if self._part_type == "refusal":
            index = len(self._parts)
            delta = self._item_event("refusal.delta", content_index=index, delta=event.text)
            return encoded + delta
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

    def _final(self, form: Mapping[str, Any] | None) -> Wire:
        """Return the final JSON of an item, which the last delta of a native stream carries."""
        return maybe_object(form.get("item")) if self._is_native and form is not None else {}

    def _open_text(self, message_id: str, index: int, form: Wire) -> bytes:
        """Open a text part: in the open message if the form has its id, else in a new message."""
        item_id = form.get("id") or new_item_id("msg", message_id, index)
        open_id = (self._open_item or {}).get("id")
        if self._open_type == "message" and form.get("id") == open_id:
            encoded = self._close_part()
            self._open_index = index
        else:
            item: Wire = {"type": "message", "id": item_id, "role": "assistant", "content": []}
            encoded = self._ensure_started(message_id)
            encoded += self._open(index, {**item, "status": "in_progress"})
        self._part_type = form.get("part") or _TEXT
        number = len(self._parts)
        keys: Wire = {
            "content_index": number,
            "item_id": item_id,
            "logprobs": [],
            "output_index": len(self._output),
        }
        self._after_text = b",%b%b" % (write_json(keys)[1:-1], _SEQUENCE_KEY)
        part = self._text_part("")
        return encoded + self._item_event("content_part.added", content_index=number, part=part)

    def _text_part(self, text: str) -> Wire:
        if self._part_type == "refusal":
            return {"type": "refusal", "refusal": text}
        return {"type": _TEXT, "text": text, "annotations": [], "logprobs": []}

    def _close_part(self) -> bytes:
        text, number = "".join(self._pieces), len(self._parts)
        part = self._text_part(text)
        if self._part_type == "refusal":
            done = self._item_event("refusal.done", content_index=number, refusal=text)
        else:
            done = self._item_event(
                "output_text.done", content_index=number, text=text, logprobs=[]
            )
        done += self._item_event("content_part.done", content_index=number, part=part)
        self._parts.append(part)
        self._pieces = []
        return done

    def _thinking(self, event: ThinkingDelta) -> bytes:
        """Encode a piece of thinking as a summary of a reasoning item."""
        encoded = b""
        if self._open_index != event.content_block_index or self._open_type != "reasoning":
            encoded = self._ensure_started(event.message_id)
            form = (self._is_native and event.original_form) or EMPTY
            default_id = new_item_id("rs", event.message_id, event.content_block_index)
            item_id = form.get("id") or default_id
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
        self._final_form = self._final(event.original_form)
        return encoded + (self._close_item() if self._final_form else b"")

    def _tool_start(self, event: ToolUseStart) -> bytes:
        """Open the item of a call; a native call without deltas is encoded completely."""
        item: Wire = {
            "type": FUNCTION,
            "id": derived_id(event.tool_use_id, "fc_"),
            "call_id": self._wire_id(event),
            "name": event.tool_name,
            "arguments": "",
            "status": "in_progress",
        }
        start = self._ensure_started(event.message_id)
        original = dict((self._is_native and event.original_form) or {})
        self._declared = self._declared_tool(event)
        if self._declared is not None:
            return start + self._declared_start(event, self._declared)
        kind = original.get("type")
        if original and kind not in (FUNCTION, CUSTOM):
            # A call of an OpenAI tool is one complete item without deltas.
            return start + self._close_item() + self._add_item(original)
        if original:
            argument_key = "input" if kind == CUSTOM else "arguments"
            item = {**original, argument_key: "", "status": "in_progress"}
        return start + self._open(event.content_block_index, item)

    def _declared_tool(self, event: ToolUseStart) -> DeclaredTool | None:
        return None if self._is_native else self._context.declared_tools.get(event.tool_name)

    def _declared_start(self, event: ToolUseStart, tool: DeclaredTool) -> bytes:
        """Open the item of a call whose tool the client did not declare as a plain function."""
        self._declared_id = self._wire_id(event)
        if tool.kind not in (CUSTOM_KIND, FUNCTION_KIND):
            return self._close_item()  # items of these kinds have no deltas
        call = ToolUseBlock(event.tool_use_id, event.tool_name, {})
        item = encode_declared_call(call, tool, self._declared_id)
        key = "input" if tool.kind == CUSTOM_KIND else "arguments"
        return self._open(event.content_block_index, {**item, key: "", "status": "in_progress"})

    def _declared_end(self, event: ToolUseEnd, tool: DeclaredTool) -> bytes:
        call = ToolUseBlock(event.tool_use_id, tool.name, event.final_input, event.invalid)
        if tool.kind not in (CUSTOM_KIND, FUNCTION_KIND):
            return self._add_item(encode_declared_call(call, tool, self._declared_id))
        arguments = b""
        if tool.kind == CUSTOM_KIND:
            arguments = self._arguments(declared_text(call, tool))
        elif not self._pieces:
            text = write_json(event.final_input).decode()
            arguments = self._arguments(text if event.invalid is None else event.invalid.raw)
        self._is_broken = event.invalid is not None
        return arguments + self._close_item()

    def _tool_input(self, event: ToolUseInputDelta) -> bytes:
        # The text of a custom tool is a field of the JSON, which can be read only when complete.
        if self._declared is not None and self._declared.kind != FUNCTION_KIND:
            return b""
        return self._arguments(event.partial_json)

    def _arguments(self, text: str) -> bytes:
        if self._open_item is None:
            return b""
        self._pieces.append(text)
        is_custom = self._open_type == CUSTOM
        name = "custom_tool_call_input" if is_custom else "function_call_arguments"
        return self._item_event(f"{name}.delta", delta=text)

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        if self._declared is not None:
            return self._declared_end(event, self._declared)
        arguments = b""
        self._is_broken = event.invalid is not None
        self._final_form = dict((self._is_native and event.original_form) or {})
        if not self._pieces:
            text = write_json(event.final_input).decode()
            if event.invalid is not None:
                text = event.invalid.raw
            elif self._open_type == CUSTOM:
                text = str(event.final_input.get("input", ""))
            arguments = self._arguments(text)
        return arguments + self._close_item()

    def _block(self, event: BlockAdded) -> bytes:
        start = self._ensure_started(event.message_id)
        index = event.content_block_index
        if self._is_native and event.original_form is not None:
            return start + self._close_item() + self._add_item(event.original_form)
        item = self._encode_block(event.block, new_item_id("rs", event.message_id, index))
        return start if item is None else start + self._close_item() + self._add_item(item)

    def _add_item(self, item: Any) -> bytes:
        """Encode a complete item without deltas."""
        number = len(self._output)
        added = self._event("response.output_item.added", output_index=number, item=item)
        done = self._event("response.output_item.done", output_index=number, item=item)
        self._output.append(item)
        return added + done

    def _encode_block(self, block: ContentBlock, item_id: str) -> Any:
        """Return the item of a complete block; None if the protocol has no such item."""
        match block:
            case OpaqueBlock() | RedactedThinkingBlock():
                is_native = block.issuer in (self._context.provider, PROTOCOL)
                if isinstance(block, OpaqueBlock):
                    return block.data if is_native else None
                if is_native:
                    return encode_plain_thinking(block)
                return encode_foreign_thinking(block, item_id)
            case ThinkingBlock():
                return self._encode_thinking(item_id, block)
            case ArtifactBlock():
                return encode_image(block, EMPTY, None if self._is_native else item_id)
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
                encoded = self._close_part()
                item = {**item, "content": self._parts, "status": "completed"}
            case "reasoning":
                encoded = self._close_summary(text)
                thinking = ThinkingBlock(text, self._signature)
                item = self._encode_thinking(item["id"], thinking)
            case "custom_tool_call":
                encoded = self._item_event("custom_tool_call_input.done", input=text)
                status = "incomplete" if self._is_broken else "completed"
                item = {**item, "input": text, "status": status}
            case _:
                encoded = self._item_event(
                    "function_call_arguments.done", arguments=text, name=item["name"]
                )
                status = "incomplete" if self._is_broken else "completed"
                item = {**item, "arguments": text, "status": status}
        item = self._final_form or item
        number = len(self._output)
        encoded += self._event("response.output_item.done", output_index=number, item=item)
        self._output.append(item)
        self._open_item, self._open_type, self._pieces, self._signature = None, "", [], None
        self._parts, self._part_type, self._is_broken = [], _TEXT, False
        self._final_form = {}
        return encoded

    def _close_summary(self, text: str) -> bytes:
        if not text:
            return b""
        part: Wire = {"type": "summary_text", "text": text}
        text_done = self._item_event("reasoning_summary_text.done", summary_index=0, text=text)
        part_done = self._item_event("reasoning_summary_part.done", summary_index=0, part=part)
        return text_done + part_done

    def _encode_thinking(self, item_id: str, thinking: ThinkingBlock) -> Wire:
        """Return the reasoning item of thinking; a foreign signature is already an envelope."""
        return encode_foreign_thinking(thinking, item_id)

    def _error(self, event: StreamError) -> bytes:
        return self._ensure_started(event.message_id) + super()._error(event)

    def _complete(self, event: MessageComplete) -> bytes:
        # The protocol has a status for failed and cancelled responses, so that no error is sent.
        self._usage = event.message.metadata.usage or self._usage
        return self._start_late(event) + self._encode_end(event)

    def _start_late(self, event: MessageComplete) -> bytes:
        message = event.message
        if self._envelope:
            return b""
        return self._start(message.id, message.metadata.response_id, message.metadata.model)

    def _encode_end(self, event: MessageComplete) -> bytes:
        """Encode items without events, late annotations, and the final response."""
        body = self._plain_body(event)
        items = maybe_list(body.get("output"))
        # Items without events are encoded completely.
        encoded = self._close_item()
        encoded += b"".join(map(self._add_item, items[len(self._output) :]))
        status, _ = encode_status(event.stop_reason)
        name = "completed" if status == "completed" else "incomplete"
        if event.stop_reason is StopReason.ERROR:
            name = "failed"
        self._has_ended = True
        for number, (sent, item) in enumerate(zip(self._output, items, strict=False)):
            encoded += self._late_annotations(number, maybe_object(sent), maybe_object(item))
        if not self._is_native:
            items = [
                _as_sent(maybe_object(sent), item)
                for sent, item in zip(self._output, items, strict=False)
            ]
            start = {key: self._envelope[key] for key in _START_KEYS if self._envelope.get(key)}
            body |= {**start, "output": items}
        return encoded + self._event(f"response.{name}", response=body)

    def _late_annotations(self, number: int, sent: Wire, item: Wire) -> bytes:
        """Encode annotations that arrived after their message was closed."""
        parts = zip(maybe_list(sent.get("content")), maybe_list(item.get("content")), strict=False)
        encoded = b""
        for content_index, (sent_part, final_part) in enumerate(parts):
            annotations = maybe_list(maybe_object(final_part).get("annotations"))
            if sent.get("type") != "message" or maybe_object(sent_part).get("annotations"):
                continue
            for index, annotation in enumerate(annotations):
                encoded += self._event(
                    "response.output_text.annotation.added",
                    item_id=sent.get("id"),
                    output_index=number,
                    content_index=content_index,
                    annotation_index=index,
                    annotation=annotation,
                )
        return encoded

    def _encode_failure(self, error: ProviderError) -> bytes:
        failed = {"status": "failed", "error": stream_failure(error)}
        return self._close_item() + self._end("failed", failed)

    def _end(self, name: str, changes: Wire) -> bytes:
        self._has_ended = True
        usage = None if self._usage is None else encode_usage(self._usage)
        return self._response_event(name, {"output": self._output, "usage": usage, **changes})


def _as_sent(sent: Wire, item: Any) -> Any:
    """Return an item of the final response with the id, and the seal, of the encoded events."""
    final = maybe_object(item)
    if sent.get("type") != final.get("type") or "id" not in sent or "id" not in final:
        return item
    return sent if sent["type"] == "reasoning" else {**final, "id": sent["id"]}
