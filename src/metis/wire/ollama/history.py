"""Encoding of the history of an Ollama request: each canonical message becomes one wire message.

A request that a client sent to `/api/generate` is encoded for that path as long as it has a single
prompt; with a response in the history it is encoded for `/api/chat`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions
from metis.wire.codec import Route
from metis.wire.function_tools import with_error_prefix
from metis.wire.history import HistoryEncoder
from metis.wire.json_access import Wire
from metis.wire.ollama.blocks import (
    CHAT_PATH,
    GENERATE_PATH,
    PROTOCOL,
    ChatMessage,
    encode_assistant,
    join_paragraphs,
    write_json,
)
from metis.wire.ollama.options import encode_options
from metis.wire.ollama.request import original_message, result_keys
from metis.wire.original_form import EMPTY, original_form_of

_PROMPT_KEYS = ("prompt", "system", "images")
_PROMPT_OPTIONS = ("context", "height", "raw", "steps", "suffix", "template", "width")
"""Options of `/api/generate` that `/api/chat` does not have."""
_MAX_PROMPT_MESSAGES = 2
_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL


def route(
    history: HistoryEncoder, tools: Sequence[ToolDefinition], options: AdapterOptions
) -> Route:
    """Return the path of a request; for `/api/chat`, also the prompt options that are lost."""
    native = options.native.get(PROTOCOL, {})
    if "prompt" not in native:
        return Route(CHAT_PATH)
    if isinstance(history, OllamaHistoryEncoder) and history.is_prompt(tools, options):
        return Route(GENERATE_PATH)
    return Route(CHAT_PATH, tuple(key for key in _PROMPT_OPTIONS if native.get(key)))


class OllamaHistoryEncoder(HistoryEncoder):
    """Encodes the messages of a conversation, each once, and request bodies with them."""

    _shared = ("_first_messages", "_calls")

    def __init__(self) -> None:
        super().__init__("messages", write_json)
        self._first_messages: list[Message] = []
        self._calls: dict[str, tuple[int, str]] = {}
        """The position and the tool name of each call, by tool_use_id."""

    def is_prompt(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bool:
        """Whether a client sent a prompt that can still be encoded for `/api/generate`."""
        if "prompt" not in options.native.get(PROTOCOL, {}) or tools:
            return False
        # `/api/generate` accepts at most one system text, one prompt text and images.
        match [(message.role, message.content) for message in self._first_messages]:
            case [(Role.SYSTEM, (TextBlock(),)), (Role.USER, prompt)] | [(Role.USER, prompt)]:
                return _is_text_and_images(prompt)
            case _:
                return False

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """Return the body of a request with these messages."""
        if self.is_prompt(tools, options):
            wire = encode_options(options, tools)
            return write_json(_encode_prompt(wire, self._first_messages))
        return super().body(tools, options)

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are wire ids of calls."""
        self._wire_ids.update(ids)
        if len(self._first_messages) <= _MAX_PROMPT_MESSAGES:
            # A new list: copies of this encoder share the old one.
            self._first_messages = [
                *self._first_messages,
                *messages[: _MAX_PROMPT_MESSAGES + 1],
            ]
        encoded: list[Any] = []
        results: list[Message] = []
        for message in messages:
            if message.role is _TOOL:
                results.append(message)
                continue
            if results:
                encoded += self._encode_results(results)
                results = []
            if message.role is _ASSISTANT:
                for block in message.content:
                    if type(block) is ToolUseBlock:
                        self._calls[block.id] = len(self._calls), block.name
            encoded.append(self._encode_message(message))
        if results:
            encoded += self._encode_results(results)
        self._encoded.add(encoded)

    def _encode_envelope(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if "prompt" in options.native.get(PROTOCOL, EMPTY):
            for key in (*_PROMPT_KEYS, *_PROMPT_OPTIONS):
                wire.pop(key, None)
        return wire

    def _encode_message(self, message: Message) -> Any:
        """Encode a message other than a tool result."""
        if message.role is not _ASSISTANT:
            return _encode_input(message)
        form = original_form_of(message, PROTOCOL)
        self._wire_ids.update(form.get("ids") or {})
        return original_message(message) or encode_assistant(message.content, form, self._wire_ids)

    def _encode_results(self, messages: list[Message]) -> list[Any]:
        """Encode the results of one response, in the order of its calls."""
        # Without ids the server matches results with calls by order. The order of a client that
        # sent ids is not changed.
        if len(messages) > 1:
            positions = [*map(self._call_position, messages)]
            if positions != sorted(positions) and not any(map(_has_fixed_position, messages)):
                messages = sorted(messages, key=self._call_position)
        return [*map(self._encode_result, messages)]

    def _call_position(self, message: Message) -> int:
        for block in message.content:
            if type(block) is ToolResultBlock:
                return self._calls.get(block.tool_use_id, (-1, ""))[0]
        return -1

    def _encode_result(self, message: Message) -> Any:
        """Encode a tool message, with the keys by which the server finds its call."""
        original = original_message(message)
        if original is not None:
            return original
        result = next((b for b in message.content if isinstance(b, ToolResultBlock)), None)
        if result is None:
            return ChatMessage(role="tool", content=join_paragraphs(message.content))
        form = original_form_of(message, PROTOCOL)
        if form.get("is_spelled"):  # the client's keys differ from the default ones
            keys: Mapping[str, str] = form.get("result") or {}
        else:
            _, name = self._calls.get(result.tool_use_id, (0, ""))
            keys = result_keys(self._wire_ids.get(result.tool_use_id, ""), name)
        # Ollama has no flag for a failed call, so that its text gets a prefix (T26).
        content = with_error_prefix(result.content) if result.is_error else result.content
        return ChatMessage(
            role="tool",
            content=join_paragraphs(content),
            images=_images(result.content) or UNSET,
            tool_call_id=keys.get("tool_call_id", UNSET),
            tool_name=keys.get("tool_name", UNSET),
        )


def _is_text_and_images(content: Sequence[ContentBlock]) -> bool:
    texts = content[: bool(content) and isinstance(content[0], TextBlock)]
    return all(isinstance(block, ImageBlock) for block in content[len(texts) :])


def _has_fixed_position(message: Message) -> bool:
    """Whether a client sent a result with an id out of the order of the calls."""
    return bool(original_form_of(message, PROTOCOL).get("is_placed"))


def _encode_input(message: Message) -> ChatMessage | Wire:
    """Encode a user or a system message."""
    original = original_message(message)
    if original is not None:
        return original
    content = message.content
    return ChatMessage(
        role="user" if message.role is Role.USER else "system",
        content=join_paragraphs(content),
        images=_images(content) or UNSET,
    )


def _images(content: Sequence[ContentBlock]) -> list[str]:
    return [
        block.source.data
        for block in content
        if isinstance(block, ImageBlock) and block.source.kind == "base64"
    ]


def _encode_prompt(body: Wire, messages: Sequence[Message]) -> Wire:
    *leading, last = messages
    message: Wire = msgspec.to_builtins(_encode_input(last))
    _set_unless_equal(body, "prompt", message.get("content") or "")
    _set_unless_equal(body, "images", message.get("images") or [])
    system = "".join(join_paragraphs(message.content) for message in leading)
    _set_unless_equal(body, "system", system)
    return body


def _set_unless_equal(body: Wire, key: str, value: Any) -> None:
    """Set a key unless it has an equal value; a missing key, null and an empty value are equal."""
    if (body.get(key) or type(value)()) != value:
        body[key] = value
