"""History of Anthropic Messages: canonical messages as the `messages` of a request.

Wire messages are encoded once and stored as bytes, so that the next request of the same
conversation encodes only new messages. The last wire message stays open, because tool results are
added to it: Anthropic rejects results of one turn in several messages (T15).
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, Struct

from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.anthropic.blocks import (
    PROTOCOL,
    WIRE_ID_PREFIX,
    TextPart,
    ToolResultPart,
    add_cache_marks,
    decode_block,
    encode_block,
)
from metis.wire.anthropic.options import encode_options
from metis.wire.call import AdapterOptions
from metis.wire.history import HistoryEncoder
from metis.wire.json_access import Wire
from metis.wire.original_form import EMPTY, original_blocks, original_form_of

# Keys are sorted, so that the bytes do not change when a history is stored and loaded (T176).
_write = msgspec.json.Encoder(order="deterministic").encode
_RESPONSE_FORM = frozenset({"ids", "response"})
"""Keys of an original form that do not change how a message is encoded."""
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER


class _WireMessage(Struct, gc=False):
    content: Sequence[Any] | str
    role: str


class AnthropicHistoryEncoder(HistoryEncoder):
    """Encodes the messages of a conversation, each once."""

    wire_id_prefix = WIRE_ID_PREFIX
    _shared = ("_accepts_results", "_system")

    def __init__(self) -> None:
        super().__init__("messages", _write)
        self._accepts_results = False
        """Whether the open wire message contains tool results, so that further ones are added."""
        self._system: list[Message] = []

    def _encode_envelope(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._system:
            wire["system"] = self._encode_system()
        return wire

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are wire ids of some calls."""
        self._wire_ids.update(ids)
        if self._open is None:
            messages = self._without_system(messages)
        encoded: list[_WireMessage | Wire] = [] if self._open is None else [_reopened(self._open)]
        results = _blocks_of(encoded[0]) if self._accepts_results else None
        for message in messages:
            raw = message.metadata.provider_raw
            form = EMPTY if raw is None else raw.get(PROTOCOL, EMPTY)
            if form:
                self._wire_ids.update(form.get("ids", EMPTY))
            blocks, role = self._encode_blocks(message, form), message.role
            # A result with an original form joins the preceding message only if it is `joined`.
            if form and (role is _TOOL or not form.keys() <= _RESPONSE_FORM):
                results = _add_in_form(role, form, blocks, encoded, results)
            elif role is not _TOOL:
                results = None
                name = "assistant" if role is _ASSISTANT else _role_name(role)
                encoded.append(_WireMessage(blocks, name))
            elif results is None:
                results = [*blocks]
                encoded.append(_WireMessage(results, "user"))
            else:
                results += blocks
        self._accepts_results = results is not None
        if encoded:
            self._open = encoded.pop()
        self._encoded.add(encoded)

    def _without_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Move leading system messages to the key `system`, where the protocol expects them."""
        count = next((i for i, m in enumerate(messages) if not _is_prompt(m)), len(messages))
        self._system = [*self._system, *messages[:count]]
        return messages[count:]

    def _encode_blocks(self, message: Message, form: Mapping[str, Any]) -> Sequence[Any]:
        """Encode the blocks of a message, in their original form where it still applies."""
        hints = message.metadata.hints
        originals = EMPTY
        if "blocks" in form:
            originals = original_blocks(message, form, decode_block)
            if hints and originals is not form["blocks"]:
                # The blocks have moved. Their original JSON still contains the client's marks, so
                # that hints at their old indexes would set second marks on other blocks.
                hints = tuple(hint for hint in hints if str(hint.after) not in form["blocks"])
        parts = (
            originals.get(str(index)) or encode_block(block, self._wire_id)
            for index, block in enumerate(message.content)
        )
        blocks = [part for part in parts if part is not None]
        if message.role is _TOOL and form.get("plain"):
            for block in blocks:
                _make_plain(block)
        if hints:
            add_cache_marks(blocks, hints)
        return blocks

    def _encode_system(self) -> Any:
        forms = [original_form_of(message, PROTOCOL) for message in self._system]
        blocks = [
            block
            for message, form in zip(self._system, forms, strict=True)
            for block in AnthropicHistoryEncoder._encode_blocks(self, message, form)
        ]
        return blocks[0].text if forms[0].get("plain") and _is_one_text(blocks) else blocks


def _add_in_form(
    role: Role,
    form: Mapping[str, Any],
    blocks: Sequence[Any],
    encoded: list[_WireMessage | Wire],
    results: list[Any] | None,
) -> list[Any] | None:
    """Add a message in its original form; return the list that tool results join, if any."""
    name, is_result = _role_name(role), role is _TOOL
    if form.get("joined") and encoded and _role_of(encoded[-1]) == name:
        previous_blocks = _blocks_of(encoded[-1])
        if previous_blocks is not None:
            previous_blocks += blocks
            return results if is_result else None
    keys = form.get("keys")
    if form.get("bare") and not blocks:
        encoded.append({"role": name, **(keys or {})})
        return None
    is_plain = form.get("plain") and _is_one_text(blocks)
    content: Any = blocks[0].text if is_plain else [*blocks]
    encoded.append(
        {"role": name, "content": content, **keys} if keys else _WireMessage(content, name)
    )
    return content if is_result and not is_plain else None


def _role_name(role: Role) -> str:
    if role is _ASSISTANT:
        return "assistant"
    return "user" if role is _USER or role is _TOOL else str(role)


def _is_prompt(message: Message) -> bool:
    """Whether a leading message belongs to the key `system`, not to the message list."""
    return message.role is _SYSTEM and not original_form_of(message, PROTOCOL).get("turn")


def _role_of(wire: _WireMessage | Wire) -> str:
    return wire["role"] if isinstance(wire, dict) else wire.role


def _reopened(wire: _WireMessage | Wire) -> _WireMessage | Wire:
    """Copy a wire message and its list of blocks, because copies of this history share it."""
    blocks = _blocks_of(wire)
    if blocks is None:
        return wire
    if isinstance(wire, dict):
        return {**wire, "content": [*blocks]}
    return _WireMessage([*blocks], wire.role)


def _blocks_of(wire: _WireMessage | Wire) -> list[Any] | None:
    """Return the mutable list of blocks of a wire message; None if its content is not a list."""
    if isinstance(wire, dict):
        content = wire.get("content")
    else:
        content = wire.content
        if isinstance(content, tuple):
            wire.content = content = [*content]
    return cast("list[Any]", content) if isinstance(content, list) else None


def _is_one_text(blocks: Sequence[Any]) -> bool:
    """Whether blocks are a single text without a cache mark, which a string can replace."""
    return len(blocks) == 1 and type(blocks[0]) is TextPart and blocks[0].cache_control is UNSET


def _make_plain(result: Any) -> None:
    """Change the content of a result from a list with one text to a string."""
    match result:
        case ToolResultPart(content=[TextPart(text=str(text))]):
            result.content = text
        case _:
            pass
