"""Fast paths of Gemini: shortcuts with the same results as the general path.

- `decode_request` duplicates `request.decode_request` for contents of common parts.
- `FastGeminiHistoryEncoder` duplicates `parts.PartEncoder` for texts, calls and text results.
- `FastGeminiStreamDecoder` duplicates the handling of chunks that only continue a text.

The Structs forbid unknown keys: input with such a key is decoded by the general path.
`tests/wire/test_fast_paths.py` compares both.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from metis.canonical.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Role
from metis.canonical.value import raw_constructor
from metis.projection.blocks import SIGNATURE_ON_NEXT
from metis.streaming import StreamEvent
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.gemini import request
from metis.wire.gemini.history import GeminiHistoryEncoder
from metis.wire.gemini.parts import decode_result_text, encode_result_object
from metis.wire.gemini.stream_decoder import GeminiStreamDecoder
from metis.wire.json_access import Wire

_make_text = raw_constructor(TextBlock)
_make_result = raw_constructor(ToolResultBlock)


# Requests

_CONTENT_KEYS = 2
_RESULT_KEYS, _RESULT_KEYS_WITH_ID = 2, 3


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a request body; contents of common parts are not compared with their encoding."""
    return request.decode_request(body, context, _FastRequestDraft(context))


class _FastRequestDraft(request.GeminiRequestDraft):
    def add_all(self, contents: list[Any]) -> None:
        """Add the contents of a request, in order."""
        for index, content in enumerate(contents):
            wire: Wire = content
            if type(wire) is dict and len(wire) == _CONTENT_KEYS:
                parts: list[Wire] = wire.get("parts", ())
                if type(parts) is list and self._add_common(wire.get("role"), parts):
                    continue
            self.add(content, f"$.contents[{index}]")

    def _add_common(self, role: Any, parts: list[Wire]) -> bool:
        """Add a content of the model, a text, or common results; return False for any other."""
        # `_add_parts` checks the parts of the model one by one, so that they need not be common.
        if role == "model":
            self._pairing.begin_model_content()
            self._add_parts(Role.ASSISTANT, parts, {})
            return True
        if role != "user" or not parts:
            return False
        only = parts[0] if len(parts) == 1 else None
        if type(only) is dict and len(only) == 1 and type(text := only.get("text")) is str:
            self._pairing.begin_user_content()
            self._drafts.append((Role.USER, (_make_text(text),), self._bare_metadata))
            return True
        results = [result for part in parts if (result := _common_result(part)) is not None]
        if len(results) != len(parts):
            return False
        self._pairing.begin_user_content()
        for number, result in enumerate(results):
            form = {"joined": True} if number else {"apart": True}
            self._add_common_result(result, parts[number], form)
        return True

    def _add_common_result(self, result: Wire, part: Wire, form: dict[str, Any]) -> None:
        name, response, pairing = result["name"], result["response"], self._pairing
        tool_use_id = pairing.id_of_result(name, result.get("id"))
        content, is_error = decode_result_text(response)
        block = _make_result(tool_use_id, content, is_error=is_error)
        ids = pairing.take_new_wire_ids()
        # The encoder would add the missing id of the call, or use the name of the call.
        lacks_id = tool_use_id in pairing.wire_ids and not result.get("id")
        if lacks_id or pairing.tool_names.get(tool_use_id) != name:
            self._set_result_form([part], block, form)
        elif response != encode_result_object(block):
            form["result"] = response
        self._add_result_block(block, ids, form)


def _common_result(part: Wire) -> Wire | None:
    """Return the function response of a part with exactly the common keys; None otherwise."""
    if type(part) is not dict or len(part) != 1:
        return None
    result: Wire = part.get("functionResponse", ())
    if type(result) is not dict:
        return None
    wire_id = result.get("id")
    if len(result) != (_RESULT_KEYS_WITH_ID if wire_id else _RESULT_KEYS):
        return None
    if type(result.get("name")) is not str or type(result.get("response")) is not dict:
        return None
    return result if wire_id is None or type(wire_id) is str else None


# History

_Signature = str | UnsetType
_ON_NEXT = SIGNATURE_ON_NEXT


class _TextPart(Struct, gc=False, rename="camel"):
    text: str
    thought_signature: _Signature = UNSET


class _FunctionCall(Struct, gc=False):
    args: Mapping[str, Any]
    id: str | UnsetType
    name: str


class _CallPart(Struct, gc=False, rename="camel"):
    function_call: _FunctionCall
    thought_signature: _Signature = UNSET


class _Output(Struct, gc=False):
    output: str


class _FunctionResponse(Struct, gc=False):
    id: str | UnsetType
    name: str
    response: _Output


class _ResultPart(Struct, gc=False, rename="camel"):
    function_response: _FunctionResponse


class FastGeminiHistoryEncoder(GeminiHistoryEncoder):
    """A history encoder that encodes common blocks as Structs."""

    def _encode_parts(self, content: tuple[ContentBlock, ...]) -> list[Any]:
        only = content[0] if len(content) == 1 else None
        if type(only) is TextBlock:
            return [_TextPart(only.text)]
        if type(only) is ToolResultBlock and not only.is_error and len(only.content) == 1:
            text, call = only.content[0], only.tool_use_id
            if type(text) is TextBlock:
                wire_id, name = self._wire_ids.get(call, UNSET), self._tool_names.get(call, "")
                return [_ResultPart(_FunctionResponse(wire_id, name, _Output(text.text)))]
        return self._encode_common(content) or super()._encode_parts(content)

    def _encode_common(self, content: tuple[ContentBlock, ...]) -> list[Any] | None:
        """Encode texts and calls, signed or not; None if a block is of another kind."""
        wire_ids = self._wire_ids
        parts: list[Any] = []
        signature: _Signature = UNSET
        for block in content:
            if type(block) is TextBlock:
                if signature is not UNSET:
                    return None  # the signature may belong to a call after the text
                parts.append(_TextPart(block.text))
            elif type(block) is ToolUseBlock:
                call = _FunctionCall(block.input, wire_ids.get(block.id, UNSET), block.name)
                parts.append(_CallPart(call, signature))
            elif type(block) is ThinkingBlock and block.format == _ON_NEXT and block.signature:
                signature = block.signature
                continue
            else:
                return None
            signature = UNSET
        if signature is not UNSET:
            parts.append(_TextPart("", signature))
        return parts


# Streams


class _WireText(Struct, gc=False, forbid_unknown_fields=True):
    text: str


class _WireContent(Struct, gc=False, forbid_unknown_fields=True):
    parts: tuple[_WireText]
    role: Literal["model"]


class _WireCandidate(Struct, gc=False, forbid_unknown_fields=True):
    content: _WireContent
    index: Literal[0] | UnsetType = UNSET


class _TextChunk(Struct, gc=False, forbid_unknown_fields=True, rename="camel"):
    candidates: tuple[_WireCandidate]
    model_version: str
    response_id: str
    usage_metadata: Raw = Raw(b"")


_read_text_chunk = msgspec.json.Decoder(_TextChunk).decode


class FastGeminiStreamDecoder(GeminiStreamDecoder):
    """A stream decoder that reads chunks of text straight into Structs."""

    def _decode_chunk(self, data: bytes, events: list[StreamEvent]) -> None:
        if not self._pieces or self._end is not None:
            super()._decode_chunk(data, events)
            return
        try:
            chunk = _read_text_chunk(data)
        except (ValueError, RecursionError):
            super()._decode_chunk(data, events)
            return
        (candidate,) = chunk.candidates
        (part,) = candidate.content.parts
        if chunk.response_id != self._response_id or not self._is_open(None):
            super()._decode_chunk(data, events)
            return
        if candidate.index is not UNSET:
            self._candidate["index"] = 0
        self._body["modelVersion"] = chunk.model_version
        # Each usage replaces the one before, so that only the last one is parsed.
        self._usage_json = chunk.usage_metadata or self._usage_json
        self._add_text(part.text, events)
