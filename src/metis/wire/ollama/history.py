"""History of an Ollama request, encoded: canonical messages become wire messages."""

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
from metis.wire.codec import HistoryEncoder, Route
from metis.wire.history import EncodedMessages
from metis.wire.json_access import Wire
from metis.wire.ollama.blocks import (
    PROTOCOL,
    ChatMessage,
    encode_assistant,
    join_paragraphs,
    write_json,
)
from metis.wire.ollama.fast import TextMessage, ToolMessage, encode_common
from metis.wire.ollama.options import encode_options
from metis.wire.ollama.request import original_message, result_keys
from metis.wire.original_form import EMPTY, original_form_of

CHAT_PATH, GENERATE_PATH = "/api/chat", "/api/generate"
_PROMPT_KEYS = ("prompt", "system", "images")
_PROMPT_OPTIONS = ("context", "height", "raw", "steps", "suffix", "template", "width")
"""Options that a chat has no place for."""
_MOST_OF_A_PROMPT = 2
_ERROR = "Error: "
_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL
_WORDS = {Role.ASSISTANT: "assistant", Role.USER: "user"}


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    turns = OllamaHistoryEncoder()
    turns.add(messages)
    return turns.body(tools, options)


def route(turns: HistoryEncoder, tools: Sequence[ToolDefinition], options: AdapterOptions) -> Route:
    """Where a request goes; the options of a prompt are lost when it becomes a chat."""
    native = options.native.get(PROTOCOL, {})
    if "prompt" not in native:
        return Route(CHAT_PATH)
    if isinstance(turns, OllamaHistoryEncoder) and turns.is_prompt(tools, options):
        return Route(GENERATE_PATH)
    return Route(CHAT_PATH, tuple(key for key in _PROMPT_OPTIONS if native.get(key)))


def is_prompt(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bool:
    """Whether a request came as a prompt and can still be one."""
    if "prompt" not in options.native.get(PROTOCOL, {}) or tools:
        return False
    match [(message.role, message.content) for message in messages]:
        case [(Role.SYSTEM, (TextBlock(),)), (Role.USER, asked)] | [(Role.USER, asked)]:
            return _is_text_and_images(asked)
        case _:
            return False


def _is_text_and_images(content: Sequence[ContentBlock]) -> bool:
    texts = content[: bool(content) and isinstance(content[0], TextBlock)]
    return all(isinstance(block, ImageBlock) for block in content[len(texts) :])


class OllamaHistoryEncoder:
    """The turns of a conversation, written once each."""

    def __init__(self, turns: EncodedMessages | None = None) -> None:
        self._turns = turns or EncodedMessages("messages", write_json)
        self._first: list[Message] = []
        self._known: dict[str, str] = {}
        self._calls: dict[str, tuple[int, str]] = {}

    def copy(self) -> "OllamaHistoryEncoder":
        """The same turns, to which others can be added."""
        other = OllamaHistoryEncoder(self._turns.copy())
        other._first = [*self._first]
        other._known, other._calls = self._known, self._calls
        return other

    def is_prompt(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bool:
        """Whether a request came as a prompt and can still be one."""
        return is_prompt(self._first, tools, options)

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        if self.is_prompt(tools, options):
            return write_json(_encode_prompt(encode_options(options, tools), self._first))
        return self._turns.body(tools, options, _encode_chat_options)

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are those of odd calls."""
        self._known.update(ids)
        if len(self._first) <= _MOST_OF_A_PROMPT:
            self._first += messages[: _MOST_OF_A_PROMPT + 1]
        self._turns.add(self._encode(messages))

    def _encode(self, messages: Sequence[Message]) -> list[Any]:
        turns: list[Any] = []
        results: list[Message] = []
        for message in messages:
            role, content = message.role, message.content
            if role is _TOOL:
                results.append(message)
                continue
            if results:
                turns += self._encode_results(results)
                results = []
            if role is _ASSISTANT:
                self._note_calls(content)
            if not original_form_of(message, PROTOCOL):
                if len(content) == 1 and type(only := content[0]) is TextBlock:
                    turns.append(TextMessage(only.text, _WORDS.get(role, "system")))
                    continue
                if role is _ASSISTANT and (asked := encode_common(content, self._known)):
                    turns.append(asked)
                    continue
            turns.append(self._encode_message(message))
        if results:
            turns += self._encode_results(results)
        return turns

    def _note_calls(self, content: Sequence[ContentBlock]) -> None:
        for block in content:
            if type(block) is ToolUseBlock:
                self._calls[block.id] = len(self._calls), block.name

    def _encode_message(self, message: Message) -> ChatMessage | Wire:
        """One message that is no result."""
        if message.role is not Role.ASSISTANT:
            return encode_prompt_message(message)
        spelling = original_form_of(message, PROTOCOL)
        self._known.update(spelling.get("ids") or {})
        return original_message(message) or encode_assistant(message.content, spelling, self._known)

    def _encode_results(self, messages: list[Message]) -> list[Any]:
        """The results of a turn: where only the order tells them apart, in that of the calls."""
        if len(messages) > 1:
            places = [*map(self._place, messages)]
            if places != sorted(places) and not any(map(_has_fixed_position, messages)):
                messages = sorted(messages, key=self._place)
        return [
            self._plain_result(message) or original_message(message) or self._encode_result(message)
            for message in messages
        ]

    def _place(self, message: Message) -> int:
        for block in message.content:
            if type(block) is ToolResultBlock:
                return self._calls.get(block.tool_use_id, (-1, ""))[0]
        return -1

    def _plain_result(self, message: Message) -> ToolMessage | None:
        """A result of one text that nobody spelled; None for all others."""
        result = message.content[0] if len(message.content) == 1 else None
        if type(result) is not ToolResultBlock or original_form_of(message, PROTOCOL):
            return None
        only = result.content[0] if len(result.content) == 1 else None
        if type(only) is not TextBlock or result.is_error:
            return None
        ours = result.tool_use_id
        _, name = self._calls.get(ours, (0, ""))
        return ToolMessage(only.text, "tool", self._known.get(ours) or UNSET, name or UNSET)

    def _encode_result(self, message: Message) -> ChatMessage:
        result = next((b for b in message.content if isinstance(b, ToolResultBlock)), None)
        if result is None:
            return ChatMessage(role="tool", content=join_paragraphs(message.content))
        ours = result.tool_use_id
        spelling = original_form_of(message, PROTOCOL)
        if spelling.get("is_spelled"):
            keys: Mapping[str, str] = spelling.get("result") or {}
        else:
            _, name = self._calls.get(ours, (0, ""))
            keys = result_keys(self._known.get(ours, ""), name)
        text = join_paragraphs(result.content)
        return ChatMessage(
            role="tool",
            content=_mark_failed(text) if result.is_error else text,
            images=_images(result.content) or UNSET,
            tool_call_id=keys.get("tool_call_id", UNSET),
            tool_name=keys.get("tool_name", UNSET),
        )


def _encode_chat_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    wire = encode_options(options, tools)
    if "prompt" in options.native.get(PROTOCOL, EMPTY):
        for key in (*_PROMPT_KEYS, *_PROMPT_OPTIONS):
            wire.pop(key, None)
    return wire


def _has_fixed_position(message: Message) -> bool:
    """Whether a client put a result where it stands, because it is told apart otherwise."""
    raw = message.metadata.provider_raw
    return raw is not None and bool(raw.get(PROTOCOL, EMPTY).get("is_placed"))


def encode_prompt_message(message: Message) -> ChatMessage | Wire:
    """A message of the user or of the system."""
    content = message.content
    role = "user" if message.role is Role.USER else "system"
    if not original_form_of(message, PROTOCOL):
        if len(content) == 1 and type(content[0]) is TextBlock:
            return ChatMessage(role=role, content=content[0].text)
    elif (odd := original_message(message)) is not None:
        return odd
    return ChatMessage(
        role=role, content=join_paragraphs(content), images=_images(content) or UNSET
    )


def _images(content: Sequence[ContentBlock]) -> list[str]:
    return [
        block.source.data
        for block in content
        if isinstance(block, ImageBlock) and block.source.kind == "base64"
    ]


def _mark_failed(text: str) -> str:
    """The result of a failed call, which the protocol has no flag for (T26)."""
    return text if text.startswith(_ERROR) else f"{_ERROR}{text}".strip()


def _encode_prompt(body: Wire, messages: Sequence[Message]) -> Wire:
    *leading, asked = messages
    said: Wire = msgspec.to_builtins(encode_prompt_message(asked))
    _set_unless_equal(body, "prompt", said.get("content") or "")
    _set_unless_equal(body, "images", said.get("images") or [])
    _set_unless_equal(
        body, "system", "".join(join_paragraphs(message.content) for message in leading)
    )
    return body


def _set_unless_equal(body: Wire, key: str, value: Any) -> None:
    """Set a key, unless what is spelled there says the same: nothing can be said in many ways."""
    if (body.get(key) or type(value)()) != value:
        body[key] = value
