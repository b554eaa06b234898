"""Outputs of the client's tools in OpenAI Responses, to and from our results."""

from collections.abc import Mapping
from typing import Any

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock
from metis.canonical.value import made
from metis.wire.failed_result import mark_failed
from metis.wire.openai_responses.client_tools import read_client_output
from metis.wire.openai_responses.parts import decode_parts, encode_parts
from metis.wire.shape import Wire, maybe_list
from metis.wire.tool_ids import CallIds

FUNCTION_OUTPUT = "function_call_output"
"""The kind of item that answers a function call."""
CUSTOM_OUTPUT = "custom_tool_call_output"
"""The kind of item that answers a custom tool call."""

_OWN_KEYS = frozenset({"type", "call_id", "output"})
_make_text = made(TextBlock)
_make_result = made(ToolResultBlock)

Spelled = dict[str, Any]


def decode_output(wire: Wire, ids: CallIds, issuer: str) -> tuple[ToolResultBlock, Spelled] | None:
    """A result, and how it was spelled; None if it is none that the client gives."""
    read = read_client_output(wire, issuer)
    if read is not None:
        theirs, content, is_error = read
        ours = ids.of_result(theirs)
        return ToolResultBlock(ours, content, is_error), {"wire": wire, "ids": {ours: theirs}}
    if wire.get("type") not in (FUNCTION_OUTPUT, CUSTOM_OUTPUT):
        return None
    theirs, output = wire.get("call_id"), wire.get("output")
    if not isinstance(theirs, str) or not isinstance(output, str | list | None):
        return None
    content, spelling = _decode_content("" if output is None else output, issuer)
    keys = {key: value for key, value in wire.items() if key not in _OWN_KEYS}
    if output is None and "output" in wire:
        keys["output"] = None
    ours = ids.of_result(theirs)
    spelling |= {"ids": {ours: theirs}, "keys": keys, "absent": "output" not in wire}
    if wire["type"] == CUSTOM_OUTPUT:
        spelling["type"] = CUSTOM_OUTPUT
    return ToolResultBlock(ours, content), spelling


def _decode_content(output: Any, issuer: str) -> tuple[tuple[ContentBlock, ...], Spelled]:
    if isinstance(output, str):
        return ((_make_text(output),) if output else ()), {}
    content, odd = decode_parts(maybe_list(output), issuer)
    return content, {"parts": True, "blocks": odd}


def encode_output(
    result: ToolResultBlock, spelling: Mapping[str, Any], call_id: str, *, is_custom: bool
) -> Wire:
    """The output item for a result."""
    whole: Wire | None = spelling.get("wire")
    if whole is not None and _says_the_same(whole, result):
        return {**whole, "call_id" if "call_id" in whole else "id": call_id}
    content = mark_failed(result.content) if result.is_error else result.content
    kind = spelling.get("type") or (CUSTOM_OUTPUT if is_custom else FUNCTION_OUTPUT)
    wire: Wire = {"type": kind, "call_id": call_id, "output": _encode_content(content, spelling)}
    if spelling.get("keys"):
        kept: Wire = spelling["keys"]
        wire |= kept if not content else {k: v for k, v in kept.items() if k != "output"}
    if spelling.get("absent") and not content:
        del wire["output"]
    return wire


def _says_the_same(whole: Wire, result: ToolResultBlock) -> bool:
    inner = result.content[0] if result.content else None
    read = read_client_output(whole, getattr(inner, "issuer", None) or "")
    return read is not None and read[1:] == (result.content, result.is_error)


def _encode_content(content: tuple[ContentBlock, ...], spelling: Mapping[str, Any]) -> Any:
    if not spelling.get("parts"):
        match content:
            case ():
                return ""
            case (TextBlock() as only,):
                return only.text
            case _:
                pass
    return encode_parts(content, spelling.get("blocks") or {})
