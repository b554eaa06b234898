"""Stream encoder of Chat Completions: stream events in, chunks as server-sent events out.

Deltas carry the content of events. The last chunks carry the remaining keys of a plain response:
keys of the host, log probabilities, annotations, typed reasoning, other choices.
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
from metis.wire.openai_chat.assistant import DETAILS_KEY, TEXT_KEYS
from metis.wire.openai_chat.blocks import PROTOCOL, write_json
from metis.wire.openai_chat.request import WIRE_ID_PREFIX
from metis.wire.openai_chat.response import encode_response
from metis.wire.openai_errors import encode_error
from metis.wire.response import model_name
from metis.wire.stream_encoder import BaseStreamEncoder

_CHUNK = "chat.completion.chunk"
_CONTENT_KEYS = frozenset(
    {"content", "refusal", "tool_calls", "function_call", "audio", DETAILS_KEY, *TEXT_KEYS}
)
"""The keys of a message that a delta leaves out if they have no value."""
_THINKING_KEYS = {"reasoning_content": ""}
"""The key for thinking of other protocols, with an empty text as its form."""


class _Call:
    """One call of the stream, and the state of its encoding."""

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.has_arguments = False
        self.length = 0
        """How many characters of the arguments were written."""
        self.keys: Wire = {}
        self.tool: DeclaredTool | None = None
        """The custom tool that the client declared, if a model called it as a function."""


class ChatStreamEncoder(BaseStreamEncoder):
    """Turns the events of one response into the bytes of a stream."""

    protocol = PROTOCOL
    wire_id_prefix = WIRE_ID_PREFIX
    encode_response = staticmethod(encode_response)

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context)
        self._envelope: Wire = {}
        self._before_delta = self._after_delta = b""
        self._calls: dict[str, _Call] = {}
        self._text_keys: Wire = {}
        """The original keys for text of the open block, if it is not a string in `content`."""
        self._text_index = -1
        self._written: dict[str, list[str]] = {}
        """The pieces of text that were encoded for each key of the message."""
        self._detail_lengths: dict[str, int] = {}
        self._has_failed = False

    def encode(self, event: StreamEvent) -> bytes:
        """Encode one event; returns no bytes for some events and for any event after the end."""
        if self._has_ended:
            return b""
        encode = self._encoders[type(event)]
        if self._envelope or isinstance(event, MessageStart | UsageUpdate | StreamError):
            return encode(self, event)
        # Clients expect a first chunk with the role, even if there is no message_start event.
        return self._message_start(MessageStart(event.message_id)) + encode(self, event)

    def finish(self) -> bytes:
        """Return `[DONE]`, or an error for a stream without a final event; nothing if it failed."""
        if not self._has_ended:
            return super().finish()
        return b"" if self._has_failed else encode_sse(b"[DONE]")

    def _message_start(self, event: MessageStart) -> bytes:
        super()._message_start(event)
        default_id = "" if self._is_native else f"chatcmpl-{event.message_id}"
        self._envelope = {
            "id": event.response_id or default_id,
            "object": _CHUNK,
            "created": int(self._context.created_at.timestamp()),
            "model": model_name(self._context.model or event.model),
        }
        if self._is_native and event.original_form is not None:
            self._envelope = {**event.original_form, "object": _CHUNK}
        # Chunks differ only in the delta, so that the bytes around it are encoded once per stream.
        self._before_delta = write_json(self._envelope)[:-1] + b',"choices":[{"index":0,"delta":'
        self._after_delta = b',"logprobs":null,"finish_reason":null}]}'
        return self._delta({"role": "assistant", "content": ""})

    def _text(self, event: TextDelta) -> bytes:
        text, index = event.text, event.content_block_index
        if index != self._text_index or event.original_form is not None:
            self._text_index = index
            self._text_keys = dict((self._is_native and event.original_form) or {})
        if self._text_keys:
            return self._encode_text(self._text_keys, text)
        if not text:
            return b""
        self._written.setdefault("content", []).append(text)
        return self._delta({"content": text})

    def _thinking(self, event: ThinkingDelta) -> bytes:
        text, index = event.text, event.content_block_index
        if index != self._text_index or event.original_form is not None:
            self._text_index = index
            # Without keys the thinking is encoded with the end of the message, under the keys of
            # its original form.
            keys = event.original_form if self._is_native else _THINKING_KEYS
            self._text_keys = dict(keys or {})
        return self._encode_text(self._text_keys, text) if self._text_keys else b""

    def _block(self, event: BlockAdded) -> bytes:
        """Encode a native content part; other blocks are encoded with the end of the message."""
        self._text_index = -1
        form = event.original_form
        if not self._is_native or form is None or "content" not in form:
            return b""
        self._written.setdefault("content", [])
        return self._delta(dict(form))

    def _encode_text(self, keys: Wire, text: str) -> bytes:
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
            fault = f"the call {tool_use_id} is not open: encode its tool_use_start first"
            raise EncodeError(fault)
        return self._calls[tool_use_id]

    def _tool_start(self, event: ToolUseStart) -> bytes:
        """Encode the start of a call of a function or custom tool, or in the deprecated form."""
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
        # Calls of a host without ids are encoded without ids.
        wire_id = event.provider_id if self._is_native else self._wire_id(event)
        keys: Wire = {"id": wire_id} if wire_id else {}
        call.keys = {"type": kind, **form}
        name = event.tool_name if tool is None else tool.name
        content = {"name": name, "input" if kind == "custom" else "arguments": ""}
        return self._delta({"tool_calls": [{"index": number, **keys, **call.keys, kind: content}]})

    def _tool_input(self, event: ToolUseInputDelta) -> bytes:
        call = self._call(event.tool_use_id)
        # The text of a custom tool is a field of the JSON, which can be read only when complete.
        return b"" if call.tool is not None else self._arguments(call, event.partial_json)

    def _arguments(self, call: _Call, piece: str) -> bytes:
        call.has_arguments = True
        call.length += len(piece)
        if call.index < 0:
            return self._delta({"function_call": {"arguments": piece}})
        key = "input" if call.kind == "custom" else "arguments"
        return self._delta({"tool_calls": [{"index": call.index, call.kind: {key: piece}}]})

    def _tool_end(self, event: ToolUseEnd) -> bytes:
        call = self._call(event.tool_use_id)
        # The end of a native message contains the arguments in their original form.
        if call.has_arguments or self._is_native:
            return b""
        invalid = event.invalid
        text = write_json(event.final_input).decode() if invalid is None else invalid.raw
        if call.tool is not None and invalid is None:
            free_text = call.tool.text_input(event.final_input)
            text = text if free_text is None else free_text
        return self._arguments(call, text)

    def _encode_end(self, event: MessageComplete) -> bytes:
        """Encode the last chunks: the remaining delta, other choices and the usage."""
        body = self._plain_body(event)
        choices = [maybe_object(choice) for choice in maybe_list(body.pop("choices", None))]
        usage = body.pop("usage", None)
        if not self._context.include_usage:
            usage = None  # clients that did not request it may fail on a chunk without choices
        if self._is_native:
            self._envelope |= body
            self._envelope["object"] = _CHUNK
        elif not self._envelope["model"]:
            self._envelope["model"] = body["model"]
        first, *others = choices or [{}]
        delta = self._remaining(maybe_object(first.get("message")))
        chunks: list[Wire] = [{"choices": [_chunk_choice(first, delta)]}]
        chunks += ({"choices": [_chunk_choice(other, _complete_delta(other))]} for other in others)
        if usage is not None and first.get("finish_reason") is None:
            # Without a finish reason the usage marks this chunk as the last one.
            chunks[-1]["usage"] = usage
        elif usage is not None:
            # OpenAI sends the usage in a separate chunk without choices.
            chunks.append({"choices": [], "usage": usage})
        return b"".join(encode_sse(write_json({**self._envelope, **chunk})) for chunk in chunks)

    def _remaining(self, message: Wire) -> Wire:
        """Return the delta with everything of a message that earlier deltas do not contain."""
        delta: Wire = {}
        for key, value in message.items():
            if key == "tool_calls":
                delta[key] = self._remaining_calls(maybe_list(value))
            elif key == "function_call":
                delta[key] = self._remaining_legacy(maybe_object(value))
            elif key == DETAILS_KEY:
                details = map(maybe_object, value or ())
                delta[key] = [self._remaining_detail(detail) for detail in details]
            elif key in self._written:
                text = "".join(self._written[key])
                if isinstance(value, str) and value != text and value.startswith(text):
                    delta[key] = value[len(text) :]
            elif key != "role" and (value or key not in _CONTENT_KEYS):
                delta[key] = value
        is_empty: tuple[Any, ...] = (None,) if self._is_native else (None, "", [], {})
        return {
            key: value
            for key, value in delta.items()
            if value or (key not in _CONTENT_KEYS and value not in is_empty)
        }

    def _remaining_calls(self, calls: list[Any]) -> list[Wire]:
        """Return fragments with the keys of calls that earlier deltas do not contain."""
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
            unsent = {name: value for name, value in content.items() if name not in ("name", key)}
            arguments = maybe_text(content.get(key)) or ""
            # Some hosts send fragments of a call after the next call started: no event has them.
            if (self._is_native or not call.has_arguments) and arguments[call.length :]:
                unsent[key] = arguments[call.length :]
            if unsent:
                keys[call.kind] = unsent
            if keys:
                # SDKs of OpenAI, LangChain and Vercel fail on a fragment without its function.
                keys.setdefault(call.kind, {key: ""})
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

    def _encode_unsent(self, message: Message, /) -> bytes:
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
    """Return the key of a detail; ids are not part of it, because they may follow the text."""
    return f"{detail.get('type')} {detail.get('index')}"


def _part(form: Wire, text: str) -> Wire:
    """Return a content part with a piece of text, which only Mistral has in streams."""
    if form.get("type") != "thinking":
        return {**form, "text": text}
    chunks = [{"type": "text", "text": text}] if text else maybe_list(form.get("thinking"))
    return {**form, "thinking": chunks}


def _chunk_choice(choice: Wire, delta: Wire) -> Wire:
    keys = {key: value for key, value in choice.items() if key != "message"}
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **keys}


def _complete_delta(choice: Wire) -> Wire:
    """Return the message of a choice as one delta."""
    message = dict(maybe_object(choice.get("message")))
    calls = maybe_list(message.get("tool_calls"))
    if calls:
        numbered = enumerate(map(maybe_object, calls))
        message["tool_calls"] = [{**call, "index": index} for index, call in numbered]
    return message
