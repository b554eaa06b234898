"""History of Gemini: canonical messages as the `contents` of a request.

Contents are encoded once and stored as bytes, so that the next request encodes only what is new.
The last one stays open: the results of one response share a content. System messages become the
instruction.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.wire.call import AdapterOptions
from metis.wire.gemini.fast import encode_common_parts, encode_text_result
from metis.wire.gemini.key_names import PROTOCOL, with_camel_keys, with_style
from metis.wire.gemini.options import encode_options
from metis.wire.gemini.parts import PartEncoder, has_same_text
from metis.wire.history import EncodedMessages
from metis.wire.json_access import Wire, maybe_object
from metis.wire.original_form import EMPTY, is_meaningful, original_form_of, unmapped_paths

_ASSISTANT, _SYSTEM, _TOOL = Role.ASSISTANT, Role.SYSTEM, Role.TOOL
# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
_write = msgspec.json.Encoder(order="deterministic").encode


class _Turn(Struct, gc=False):
    parts: list[Any]
    role: str


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    turns = GeminiHistoryEncoder()
    turns.add(messages)
    return turns.body(tools, options)


class GeminiHistoryEncoder:
    """The turns of a conversation, written once each."""

    def __init__(self) -> None:
        self._system: list[Message] = []
        self._closed = EncodedMessages("contents", _write)
        self._last: _Turn | Wire | None = None
        self._has_results = False
        """Whether the last turn holds results, so that others may join them."""
        self._is_single = False
        """Whether a client sent its only turn without a list around it."""
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        """The names of the tools by the ids of the calls."""
        self._places: dict[str, int] = {}
        """Where the calls stand among all of them, by their ids."""
        self._writer = PartEncoder(self._ids.get, self._names)

    def copy(self) -> "GeminiHistoryEncoder":
        """The same turns, to which others can be added."""
        other = GeminiHistoryEncoder()
        other._system, other._closed = [*self._system], self._closed.copy()
        other._last = _copied(self._last)
        other._has_results, other._is_single = self._has_results, self._is_single
        other._ids, other._names, other._writer = self._ids, self._names, self._writer
        other._places = self._places
        return other

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        if self._is_single:
            return _write({**self._around(options, tools), "contents": self._last})
        return self._closed.body(tools, options, self._around, self._last)

    def _around(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._system:
            key, instruction = _encode_system(self._system)
            wire[key] = instruction
        return wire

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are those of odd calls."""
        self._ids.update(ids)
        if self._last is None:
            messages = self._without_system(messages)
        turns: list[_Turn | Wire] = [] if self._last is None else [self._last]
        run: list[Message] = []
        for message in messages:
            raw = message.metadata.provider_raw
            spelling = EMPTY if raw is None else raw.get(PROTOCOL, EMPTY)
            role, content = message.role, message.content
            if role is _TOOL and not spelling:
                run.append(message)
                continue
            if run:
                self._take_results(run, turns)
                run = []
            if role is _ASSISTANT:
                self._note_calls(content)
            if spelling:
                self._take(message, spelling, turns)
                continue
            self._has_results = False
            parts = encode_common_parts(content, self._ids) or self._writer.encode(content)
            turns.append(_Turn(parts, "model" if role is _ASSISTANT else "user"))
        if run:
            self._take_results(run, turns)
        if turns:
            self._last = turns.pop()
        if turns:
            self._is_single = False
            self._closed.add(turns)

    def _note_calls(self, content: Sequence[ContentBlock]) -> None:
        for block in content:
            if type(block) is ToolUseBlock:
                self._names[block.id] = block.name
                self._places[block.id] = len(self._places)

    def _without_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        count = next((i for i, m in enumerate(messages) if m.role != _SYSTEM), len(messages))
        self._system += messages[:count]
        rest = messages[count:]
        self._is_single = bool(rest and original_form_of(rest[0], PROTOCOL).get("single"))
        return rest

    def _take_results(self, messages: list[Message], turns: list[_Turn | Wire]) -> None:
        """Take results in the order of their calls: without ids the order pairs them."""
        if len(messages) > 1:
            messages = sorted(messages, key=self._place)
        parts: list[Any] = []
        for message in messages:
            common = encode_text_result(message.content, self._ids, self._names)
            parts += self._writer.encode(message.content) if common is None else (common,)
        follows, self._has_results = self._has_results, True
        if not (follows and turns and _join(turns[-1], parts)):
            turns.append(_Turn(parts, "user"))

    def _place(self, message: Message) -> int:
        block = message.content[0] if message.content else None
        ours = block.tool_use_id if isinstance(block, ToolResultBlock) else ""
        return self._places.get(ours, 0)

    def _take(
        self, message: Message, spelling: Mapping[str, Any], turns: list[_Turn | Wire]
    ) -> None:
        """Take a message as it was spelled."""
        role = message.role
        self._ids.update(spelling.get("ids") or EMPTY)
        is_result = role is _TOOL
        follows = is_result and self._has_results and not spelling.get("apart")
        self._has_results = is_result
        parts = encode_parts(message, spelling, self._writer)
        if (follows or spelling.get("joined")) and turns and _join(turns[-1], parts):
            return
        turns.append(_turn(role, spelling, parts))


def _word(role: Role) -> str:
    return "model" if role is _ASSISTANT else "user"


def _copied(turn: _Turn | Wire | None) -> _Turn | Wire | None:
    """The same turn, to which parts can be added."""
    if isinstance(turn, _Turn):
        return _Turn([*turn.parts], turn.role)
    if turn is None or not isinstance(turn.get("parts"), list):
        return turn
    return {**turn, "parts": [*turn["parts"]]}


def _join(turn: _Turn | Wire, parts: list[Any]) -> bool:
    """Add parts to a turn; false if it has no list of them."""
    if isinstance(turn, _Turn):
        turn.parts += parts
    elif isinstance(turn.get("parts"), list):
        turn["parts"] += parts
    else:
        return False
    return True


def encode_parts(message: Message, spelling: Mapping[str, Any], writer: PartEncoder) -> list[Any]:
    """The parts of a message, as they came if it still says the same."""
    kept = spelling.get("parts")
    if kept is not None and spelling.get("digest") == message.content_digest():
        return kept
    parts = writer.encode(message.content)
    result = message.content[0] if message.content else None
    if "result" in spelling and isinstance(result, ToolResultBlock):
        response = spelling["result"]
        if has_same_text(response, result):
            parts[0]["functionResponse"]["response"] = response
    style = spelling.get("style")
    return with_style(parts, style) if style else parts


def _encode_system(messages: Sequence[Message]) -> tuple[str, Any]:
    """The key and the value of the system instruction."""
    spelling = original_form_of(messages[0], PROTOCOL)
    writer = PartEncoder(lambda _: None, EMPTY)
    parts = [
        part
        for message in messages
        for part in encode_parts(message, original_form_of(message, PROTOCOL), writer)
    ]
    key = spelling.get("key") or "systemInstruction"
    if spelling.get("plain") and len(parts) == 1:
        return key, maybe_object(parts[0]).get("text", "")
    return key, _with_parts(dict(spelling.get("keys") or {}), spelling, parts)


def _turn(role: Role, spelling: Mapping[str, Any], parts: list[Any]) -> Wire:
    keys = spelling.get("keys")
    if keys is None and not spelling.get("roleless"):
        keys = {"role": _word(role)}
    return _with_parts(dict(keys or {}), spelling, parts)


def _with_parts(wire: Wire, spelling: Mapping[str, Any], parts: list[Any]) -> Wire:
    bare = spelling.get("bare")
    if bare == "part" and len(parts) == 1:
        wire["parts"] = parts[0]
    elif bare != "nothing" or parts:
        # The list is our own to add to: a kept one belongs to the message.
        wire["parts"] = list(parts)
    return wire


def unmapped_keys(message: Message) -> Iterator[str]:
    """The paths of keys that another protocol is not told."""
    spelling = original_form_of(message, PROTOCOL)
    for key, value in maybe_object(spelling.get("keys")).items():
        if key != "role" and is_meaningful(key, value):
            yield f"$.{key}"
    kept = spelling.get("parts")
    if kept is None or spelling.get("digest") != message.content_digest():
        return
    writer = PartEncoder((spelling.get("ids") or EMPTY).get, EMPTY)
    blocks = (
        (index, block)
        for index, block in enumerate(message.content)
        if not (isinstance(block, ThinkingBlock) and block.format == SIGNATURE_ON_NEXT)
    )
    for (index, block), part in zip(blocks, kept, strict=False):
        if not isinstance(block, OpaqueBlock) and isinstance(part, dict):
            plain: Any = next(iter(writer.encode((block,))), None)
            yield from unmapped_paths(
                _without_told(part), _without_told(plain), f"$.content[{index}]"
            )


def _without_told(part: Any) -> Wire:
    """A part without what blocks speak for, however it is spelled: signatures and answers."""
    own = {
        key: value
        for key, value in with_camel_keys(maybe_object(part)).items()
        if key != "thoughtSignature"
    }
    answer = maybe_object(own.get("functionResponse"))
    if answer:
        own["functionResponse"] = {key: answer[key] for key in answer if key != "response"}
    return own
