"""History of Gemini: canonical messages as the `contents` of a request.

Contents (wire messages) are encoded once and stored as bytes, so that the next request encodes only
new messages. The last content stays open, because the results of one response share a content.
System messages become the system instruction.
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
from metis.wire.gemini.key_names import PROTOCOL, with_camel_keys, with_style
from metis.wire.gemini.options import encode_options
from metis.wire.gemini.original_parts import original_parts, with_signatures_at_carriers
from metis.wire.gemini.parts import (
    PartEncoder,
    has_same_text,
)
from metis.wire.history import HistoryEncoder
from metis.wire.json_access import Wire, maybe_object
from metis.wire.original_form import EMPTY, is_meaningful, original_form_of, unmapped_paths

_ASSISTANT, _SYSTEM, _TOOL = Role.ASSISTANT, Role.SYSTEM, Role.TOOL
# Keys are sorted, so that the bytes do not change when a history is stored and loaded (T176).
_write = msgspec.json.Encoder(order="deterministic").encode


class _Content(Struct, gc=False):
    parts: list[Any]
    role: str


class GeminiHistoryEncoder(HistoryEncoder):
    """Encodes the messages of a conversation, each once."""

    _shared = (
        "_system",
        "_accepts_results",
        "_is_single",
        "_tool_names",
        "_call_order",
        "_part_encoder",
    )

    def __init__(self) -> None:
        super().__init__("contents", _write)
        self._system: list[Message] = []
        self._accepts_results = False
        """Whether the open content contains results, so that further ones are added to it."""
        self._is_single = False
        """Whether a client sent one content as an object instead of a list."""
        self._tool_names: dict[str, str] = {}
        self._call_order: dict[str, int] = {}
        self._part_encoder = PartEncoder(self._wire_ids.get, self._tool_names)

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """Return the request body with this history."""
        if self._is_single:
            return _write({**self._encode_envelope(options, tools), "contents": self._open})
        return super().body(tools, options)

    def _encode_envelope(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._system:
            key, instruction = _encode_system(self._system)
            wire[key] = instruction
        return wire

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are wire ids of some calls."""
        self._wire_ids.update(ids)
        if self._open is None:
            messages = self._without_system(messages)
        encoded: list[_Content | Wire] = [] if self._open is None else [_reopened(self._open)]
        results: list[Message] = []
        for message in messages:
            raw = message.metadata.provider_raw
            form = EMPTY if raw is None else raw.get(PROTOCOL, EMPTY)
            role, content = message.role, message.content
            if role is _TOOL and not form:
                results.append(message)
                continue
            if results:
                self._add_results(results, encoded)
                results = []
            if role is _ASSISTANT:
                self._record_calls(content)
            if form:
                self._add_in_form(message, form, encoded)
                continue
            self._accepts_results = False
            parts = self._encode_parts(content)
            encoded.append(_Content(parts, "model" if role is _ASSISTANT else "user"))
        if results:
            self._add_results(results, encoded)
        if encoded:
            self._open = encoded.pop()
        if encoded:
            self._is_single = False
            self._encoded.add(encoded)

    def _encode_parts(self, content: tuple[ContentBlock, ...]) -> list[Any]:
        """Encode the blocks of a message that has no original form."""
        return self._part_encoder.encode(content)

    def _record_calls(self, content: Sequence[ContentBlock]) -> None:
        for block in content:
            if type(block) is ToolUseBlock:
                self._tool_names[block.id] = block.name
                self._call_order[block.id] = len(self._call_order)

    def _without_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Remove leading system messages, which become the system instruction."""
        count = next((i for i, m in enumerate(messages) if m.role != _SYSTEM), len(messages))
        self._system = [*self._system, *messages[:count]]
        others = messages[count:]
        self._is_single = bool(others and original_form_of(others[0], PROTOCOL).get("single"))
        return others

    def _add_results(self, messages: list[Message], encoded: list[_Content | Wire]) -> None:
        """Add results in the order of their calls, by which Gemini matches results without ids."""
        if len(messages) > 1:
            messages = sorted(messages, key=self._position_of_call)
        parts: list[Any] = []
        for message in messages:
            parts += self._encode_parts(message.content)
        joins, self._accepts_results = self._accepts_results, True
        # Gemini rejects results of one response in several contents.
        if not (joins and encoded and _extend(encoded[-1], parts)):
            encoded.append(_Content(parts, "user"))

    def _position_of_call(self, message: Message) -> int:
        block = message.content[0] if message.content else None
        call = block.tool_use_id if isinstance(block, ToolResultBlock) else ""
        return self._call_order.get(call, 0)

    def _add_in_form(
        self, message: Message, form: Mapping[str, Any], encoded: list[_Content | Wire]
    ) -> None:
        """Add a message in its original form."""
        self._wire_ids.update(form.get("ids") or EMPTY)
        is_result = message.role is _TOOL
        joins = is_result and self._accepts_results and not form.get("apart")
        self._accepts_results = is_result
        parts = encode_parts(message, form, self._part_encoder)
        if (joins or form.get("joined")) and encoded and _extend(encoded[-1], parts):
            return
        keys = form.get("keys")
        if keys is None and not form.get("roleless"):
            keys = {"role": "model" if message.role is _ASSISTANT else "user"}
        encoded.append(_with_parts(dict(keys or {}), form, parts))


def _reopened(content: _Content | Wire) -> _Content | Wire:
    """Copy a content and its list of parts, because copies of this history share it."""
    if isinstance(content, _Content):
        return _Content([*content.parts], content.role)
    if not isinstance(content.get("parts"), list):
        return content
    return {**content, "parts": [*content["parts"]]}


def _extend(content: _Content | Wire, parts: list[Any]) -> bool:
    """Add parts to a content; return False if it has no list of parts."""
    if isinstance(content, _Content):
        content.parts += parts
    elif isinstance(content.get("parts"), list):
        content["parts"] += parts
    else:
        return False
    return True


def encode_parts(message: Message, form: Mapping[str, Any], encoder: PartEncoder) -> list[Any]:
    """Encode the parts of a message; unchanged content keeps its original form."""
    original = form.get("parts")
    if original is not None and form.get("digest") == message.content_digest():
        return original
    content = message.content
    if "carriers" in form:
        content = with_signatures_at_carriers(content, form["carriers"])
    parts = encoder.encode(content)
    if original is not None:
        return original_parts(original, parts, is_model=message.role is _ASSISTANT)
    result = message.content[0] if message.content else None
    if "result" in form and isinstance(result, ToolResultBlock):
        response = form["result"]
        if has_same_text(response, result):
            parts[0]["functionResponse"]["response"] = response
    style = form.get("style")
    return with_style(parts, style) if style else parts


def _encode_system(messages: Sequence[Message]) -> tuple[str, Any]:
    """Encode the system instruction; return its key and its value."""
    forms = [original_form_of(message, PROTOCOL) for message in messages]
    encoder = PartEncoder(lambda _: None, EMPTY)
    parts = [
        part
        for message, form in zip(messages, forms, strict=True)
        for part in encode_parts(message, form, encoder)
    ]
    first = forms[0]
    key = first.get("key") or "systemInstruction"
    if first.get("plain") and len(parts) == 1:
        return key, maybe_object(parts[0]).get("text", "")
    return key, _with_parts(dict(first.get("keys") or {}), first, parts)


def _with_parts(wire: Wire, form: Mapping[str, Any], parts: list[Any]) -> Wire:
    bare = form.get("bare")
    if bare == "part" and len(parts) == 1:
        wire["parts"] = parts[0]
    elif bare != "nothing" or parts:
        # A copy, because results may be added to it and the list belongs to the stored message.
        wire["parts"] = list(parts)
    return wire


def unmapped_keys(message: Message) -> Iterator[str]:
    """Yield the paths of keys that other protocols have no field for."""
    form = original_form_of(message, PROTOCOL)
    for key, value in maybe_object(form.get("keys")).items():
        if key != "role" and is_meaningful(key, value):
            yield f"$.{key}"
    original = form.get("parts")
    if original is None or form.get("digest") != message.content_digest():
        return
    encoder = PartEncoder((form.get("ids") or EMPTY).get, EMPTY)
    blocks = (
        (index, block)
        for index, block in enumerate(message.content)
        if not (isinstance(block, ThinkingBlock) and block.format == SIGNATURE_ON_NEXT)
    )
    for (index, block), part in zip(blocks, original, strict=False):
        if not isinstance(block, OpaqueBlock) and isinstance(part, dict):
            plain: Any = next(iter(encoder.encode((block,))), None)
            path = f"$.content[{index}]"
            yield from unmapped_paths(_unmapped_part(part), _unmapped_part(plain), path)


def _unmapped_part(part: Any) -> Wire:
    """Return a part with camelCase keys and without the keys that always have a block field."""
    wire = with_camel_keys(maybe_object(part))
    wire.pop("thoughtSignature", None)
    response = maybe_object(wire.get("functionResponse"))
    if response:
        wire["functionResponse"] = {key: response[key] for key in response if key != "response"}
    return wire
