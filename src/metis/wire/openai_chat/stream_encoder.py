"""Streams of Chat Completions, encoded: stream events to bytes.

Deltas say what events carry. The last chunks say the rest of what a plain response would: keys of
the host, log probabilities, annotations, typed reasoning, other choices.
"""

from typing import Any

from metis.canonical.errors import EncodeError, ProviderError
from metis.canonical.message import Message
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
from metis.wire.declared_tools import CUSTOM_KIND, DeclaredTool
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text, read_object
from metis.wire.openai_chat.assistant import DETAILS_KEY
from metis.wire.openai_chat.blocks import PROTOCOL, write_json
from metis.wire.openai_chat.request import WIRE_ID_PREFIX
from metis.wire.openai_chat.response import encode_response
from metis.wire.openai_errors import encode_error
from metis.wire.response import model_name
from metis.wire.stream_encoder import BaseStreamEncoder

_CHUNK = "chat.completion.chunk"
_THINKING_KEYS = {"reasoning_content": ""}
"""Where thinking of other protocols goes."""


class _Call:
    """One call of the stream, and what was written of it."""

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.has_arguments = False
        self.keys: Wire = {}
        self.tool: DeclaredTool | None = None
        """The custom tool that the client declared, if a model called it as a function."""


class ChatStreamEncoder(BaseStreamEncoder):
    """Encodes the stream of one response: encode each event, then finish."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX
    encode_response = staticmethod(encode_response)

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._envelope: Wire = {}
        self._before_delta = self._after_delta = b""
        self._calls: dict[str, _Call] = {}
        self._text_keys: Wire = {}
        """How the text of the open block is spelled, if not as a string in `content`."""
        self._text_index = -1
        self._written: dict[str, list[str]] = {}
        """The pieces that were written of each key of the message."""
        self._detail_lengths: dict[str, int] = {}
        self._has_failed = False

    def encode(self, event: StreamEvent) -> bytes:
        """Encode an event; some events need no bytes."""
        if self._has_ended:
            return b""
        encode = self._encoders[type(event)]
        if self._envelope or isinstance(event, MessageStart | UsageUpdate | StreamError):
            return encode(self, event)
        # A client expects the role first, also of a stream that lacks the event for it.
        return self._message_start(MessageStart(event.message_id)) + encode(self, event)

    def finish(self) -> bytes:
        """Encode the mark of the end; a stream that failed or was cut off has none."""
        if not self._has_ended:
            return super().finish()
        return b"" if self._has_failed else encode_sse(b"[DONE]")

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        made_id = "" if self._is_native else f"chatcmpl-{event.message_id}"
        self._envelope = {
            "id": event.response_id or made_id,
            "object": _CHUNK,
            "created": int(self._context.created_at.timestamp()),
            "model": model_name(self._context.model or event.model),
        }
        if self._is_native and event.original_form is not None:
            self._envelope = {**event.original_form, "object": _CHUNK}
        # Deltas differ in one value: the bytes around it are written once per stream.
        self._before_delta = write_json(self._envelope)[:-1] + b',"choices":[{"index":0,"delta":'
        self._after_delta = b',"logprobs":null,"finish_reason":null}]}'
        return self._delta({"role": "assistant", "content": ""})

    def _text(self, event: TextDelta) -> bytes:
        text, index = event.text, event.content_block_index
        if index != self._text_index or event.original_form is not None:
            self._text_index = index
            self._text_keys = dict((self._is_native and event.original_form) or {})
        if self._text_keys:
            return self._spelled(self._text_keys, text)
        if not text:
            return b""
        self._written.setdefault("content", []).append(text)
        return self._delta({"content": text})

    def _thinking(self, event: ThinkingDelta) -> bytes:
        text, index = event.text, event.content_block_index
        if index != self._text_index or event.original_form is not None:
            self._text_index = index
            # Without them the end of the message says which keys its host uses for thinking.
            keys = event.original_form if self._is_native else _THINKING_KEYS
            self._text_keys = dict(keys or {})
        return self._spelled(self._text_keys, text) if self._text_keys else b""

    def _block(self, event: BlockAdded) -> bytes:
        """Encode a part of the content as it came; of others the end of the message says more."""
        self._text_index = -1
        form = event.original_form
        if not self._is_native or form is None or "content" not in form:
            return b""
        self._written.setdefault("content", [])
        return self._delta(dict(form))

    def _spelled(self, keys: Wire, text: str) -> bytes:
        """Encode text under the keys that its provider uses for it."""
        delta: Wire = {}
        for key, form in keys.items():
            if not text and (isinstance(form, str) or key == DETAILS_KEY):
                continue
            if key == DETAILS_KEY:
                identity = _identity(form)
                self._detail_lengths[identity] = self._detail_lengths.get(identity, 0) + len(text)
                text_key = "summary" if form.get("type") == "reasoning.summary" else "text"
                delta[key] = [{**form, text_key: text}]
                continue
            self._written.setdefault(key, []).append(text)
            delta[key] = text if isinstance(form, str) else [_part(form[0], text)]
        return self._delta(delta) if delta else b""

    def _delta(self, delta: Wire) -> bytes:
        return encode_sse(self._before_delta + write_json(delta) + self._after_delta)

    def _call(self, tool_use_id: str) -> _Call:
        if tool_use_id not in self._calls:
            raise EncodeError(f"the call {tool_use_id} has not begun in this stream")
        return self._calls[tool_use_id]

    def _tool_start(self, event: ToolUseStart) -> bytes:
        form = dict((self._is_native and event.original_form) or {})
        if "function_call" in form:
            self._calls[event.tool_use_id] = _Call(-1, "function_call")
            return self._delta({"function_call": {"name": event.tool_name, "arguments": ""}})
        tool = None if self._is_native else self._context.declared_tools.get(event.tool_name)
        is_custom = tool is not None and tool.kind == CUSTOM_KIND
        kind = "custom" if is_custom or form.get("type") == "custom" else "function"
        number = sum(call.index >= 0 for call in self._calls.values())
        call = self._calls[event.tool_use_id] = _Call(number, kind)
        call.tool = tool if is_custom else None
        # A host that gives no ids to calls gets none.
        wire_id = event.provider_id if self._is_native else self._wire_id(event)
        keys: Wire = {"id": wire_id} if wire_id else {}
        call.keys = {"type": kind, **form}
        name = event.tool_name if tool is None else tool.name
        content = {"name": name, "input" if kind == "custom" else "arguments": ""}
        return self._delta({"tool_calls": [{"index": number, **keys, **call.keys, kind: content}]})

    def _tool_input(self, event: ToolUseInputDelta) -> bytes:
        call = self._call(event.tool_use_id)
        # The text of a custom tool is within JSON here, and known when that is complete.
        return b"" if call.tool is not None else self._arguments(call, event.partial_json)

    def _arguments(self, call: _Call, piece: str) -> bytes:
        call.has_arguments = True
        if call.index < 0:
            return self._delta({"function_call": {"arguments": piece}})
        key = "input" if call.kind == "custom" else "arguments"
        return self._delta({"tool_calls": [{"index": call.index, call.kind: {key: piece}}]})

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        call = self._call(event.tool_use_id)
        # The end of the message has the arguments in their original form.
        if call.has_arguments or self._is_native:
            return b""
        invalid = event.invalid
        text = write_json(event.final_input).decode() if invalid is None else invalid.raw
        if call.tool is not None and invalid is None:
            stated = call.tool.text_input(event.final_input)
            text = text if stated is None else stated
        return self._arguments(call, text)

    def _encode_end(self, event: MessageComplete) -> bytes:
        body = self._plain_body(event)
        choices = [maybe_object(choice) for choice in maybe_list(body.pop("choices", None))]
        usage = body.pop("usage", None)
        if not self._context.include_usage:
            usage = None  # clients that did not ask for it may fail at a chunk without choices
        if self._is_native:
            self._envelope |= body
            self._envelope["object"] = _CHUNK
        elif not self._envelope["model"]:
            self._envelope["model"] = body["model"]
        first, *others = choices or [{}]
        delta = self._remaining(maybe_object(first.get("message")))
        chunks: list[Wire] = [{"choices": [_chunk_choice(first, delta)]}]
        chunks += ({"choices": [_chunk_choice(other, _whole(other))]} for other in others)
        if usage is not None and first.get("finish_reason") is None:
            # A chunk without a finish reason must not look like one of the deltas.
            chunks[-1]["usage"] = usage
        elif usage is not None:
            # As OpenAI does: usage has a chunk of its own, without choices.
            chunks.append({"choices": [], "usage": usage})
        return b"".join(encode_sse(write_json({**self._envelope, **chunk})) for chunk in chunks)

    def _remaining(self, message: Wire) -> Wire:
        """Return what no delta has said of a message."""
        delta: Wire = {}
        for key, value in message.items():
            if key == "tool_calls":
                delta[key] = self._remaining_calls(maybe_list(value))
            elif key == "function_call":
                delta[key] = self._remaining_legacy(maybe_object(value))
            elif key == DETAILS_KEY:
                delta[key] = [self._remaining_detail(maybe_object(each)) for each in value or ()]
            elif key in self._written:
                text = "".join(self._written[key])
                if isinstance(value, str) and value != text and value.startswith(text):
                    delta[key] = value[len(text) :]
            elif key != "role":
                delta[key] = value
        return {key: value for key, value in delta.items() if value not in (None, "", [], {})}

    def _remaining_calls(self, calls: list[Any]) -> list[Wire]:
        by_index = {call.index: call for call in self._calls.values()}
        fragments: list[Wire] = []
        for index, wire in enumerate(map(maybe_object, calls)):
            call = by_index.get(index)
            if call is None:
                fragments.append({**wire, "index": index})
                continue
            keys = {
                key: value
                for key, value in wire.items()
                if key not in ("id", "index", call.kind) and call.keys.get(key) != value
            }
            content = maybe_object(wire.get(call.kind))
            key = "input" if call.kind == "custom" else "arguments"
            rest = {name: value for name, value in content.items() if name not in ("name", key)}
            if not call.has_arguments and content.get(key):
                rest[key] = content[key]
            if rest:
                keys[call.kind] = rest
            if keys:
                fragments.append({"index": index, **keys})
        return fragments

    def _remaining_legacy(self, wire: Wire) -> Wire:
        call = next((call for call in self._calls.values() if call.index < 0), None)
        if call is None:
            return wire
        arguments = maybe_text(wire.get("arguments"))
        return {} if call.has_arguments or not arguments else {"arguments": arguments}

    def _remaining_detail(self, detail: Wire) -> Wire:
        length = self._detail_lengths.get(_identity(detail), 0)
        key = "summary" if "summary" in detail else "text"
        text = maybe_text(detail.get(key))
        return {**detail, key: text[length:]} if length and text is not None else detail

    def _encode_rest(self, message: Message, /) -> bytes:
        if not self._envelope:
            return b""
        body = read_object(self.encode_response(message, self._context), "response")
        choice = maybe_object(next(iter(maybe_list(body.get("choices"))), None))
        delta = self._remaining(maybe_object(choice.get("message")))
        return self._delta(delta) if delta else b""

    def _encode_failure(self, error: ProviderError) -> bytes:
        self._has_failed = True
        _, body = encode_error(error)
        return encode_sse(body)


def _identity(detail: Wire) -> str:
    """Return what makes fragments parts of one detail; an id may come later than the text."""
    return f"{detail.get('type')} {detail.get('index')}"


def _part(form: Wire, text: str) -> Wire:
    """Return a piece of a content part, as Mistral sends them."""
    if form.get("type") != "thinking":
        return {**form, "text": text}
    chunks = [{"type": "text", "text": text}] if text else maybe_list(form.get("thinking"))
    return {**form, "thinking": chunks}


def _chunk_choice(choice: Wire, delta: Wire) -> Wire:
    keys = {key: value for key, value in choice.items() if key != "message"}
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **keys}


def _whole(choice: Wire) -> Wire:
    """Return the message of a choice as one delta."""
    message = dict(maybe_object(choice.get("message")))
    calls = maybe_list(message.get("tool_calls"))
    if calls:
        numbered = enumerate(map(maybe_object, calls))
        message["tool_calls"] = [{**call, "index": index} for index, call in numbered]
    return message
