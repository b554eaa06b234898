"""Tool calls and tool outputs of OpenAI Responses, to and from canonical blocks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    InvalidInput,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.value import raw_constructor
from metis.streaming.arguments import parse_arguments, parse_arguments_exactly
from metis.wire.function_tools import with_error_prefix
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.openai_responses.blocks import (
    data_url,
    decode_part,
    decode_parts,
    encode_parts,
    opaque_block,
    part_of,
    read_json,
    write_json,
)
from metis.wire.tool_ids import CallIds, derived_id

Content = tuple[ContentBlock, ...]


class ClientTool(NamedTuple):
    """One tool: its name here, the kinds of its items, and the key that says what is asked for."""

    name: str
    call: str
    output: str
    key: str


_TOOLS = (
    ClientTool("local_shell", "local_shell_call", "local_shell_call_output", "action"),
    ClientTool("shell", "shell_call", "shell_call_output", "action"),
    ClientTool("apply_patch", "apply_patch_call", "apply_patch_call_output", "operation"),
    ClientTool("computer", "computer_call", "computer_call_output", "action"),
    ClientTool("tool_search", "tool_search_call", "tool_search_output", "arguments"),
)
CLIENT_TOOLS_BY_CALL: Mapping[str, ClientTool] = {tool.call: tool for tool in _TOOLS}
"""The tools by the kinds of their calls."""
_BY_OUTPUT: Mapping[str, ClientTool] = {tool.output: tool for tool in _TOOLS}


def read_client_call(wire: Wire) -> tuple[str, Wire] | None:
    """Name and input of a call; None if it is none, or if the provider runs it itself."""
    tool = CLIENT_TOOLS_BY_CALL.get(str(wire.get("type")))
    if tool is None or not _is_for_client(wire):
        return None
    if tool.name == "computer" and isinstance(wire.get("actions"), list):
        return tool.name, {"actions": wire["actions"]}
    asked = wire.get(tool.key)
    return (tool.name, maybe_object(asked)) if isinstance(asked, dict) else None


def _is_for_client(wire: Wire) -> bool:
    if wire.get("type") in ("tool_search_call", "tool_search_output"):
        return wire.get("execution") == "client" and isinstance(wire.get("call_id"), str)
    place = maybe_object(wire.get("environment")).get("type")
    return place in (None, "local")


def read_client_output(wire: Wire, issuer: str) -> tuple[str, Content, bool] | None:
    """The provider's id of the call, what came out, and whether it failed; None if it is none."""
    tool = _BY_OUTPUT.get(str(wire.get("type")))
    theirs = wire.get("call_id", wire.get("id"))
    if tool is None or not isinstance(theirs, str) or not _is_for_client(wire):
        return None
    read = _READERS[tool.name](wire, issuer)
    return None if read is None else (theirs, *read)


_Read = tuple[Content, bool]


def _read_text(wire: Wire, _: str) -> _Read | None:
    output = wire.get("output")
    return ((TextBlock(output),), False) if isinstance(output, str) else None


def _read_shell(wire: Wire, _: str) -> _Read | None:
    chunks = wire.get("output")
    if not isinstance(chunks, list):
        return None
    told = "".join(_describe_command(maybe_object(chunk)) for chunk in maybe_list(chunks))
    return (TextBlock(told),), False


def _describe_command(chunk: Wire) -> str:
    """One command of a shell in words: what it wrote, and how it ended if not well."""
    text = f"{maybe_text(chunk.get('stdout')) or ''}{maybe_text(chunk.get('stderr')) or ''}"
    outcome = maybe_object(chunk.get("outcome"))
    code = outcome.get("exit_code")
    if outcome.get("type") == "timeout":
        return f"{text}[timed out]\n"
    return f"{text}[exit code {code}]\n" if code else text


def _read_patch(wire: Wire, _: str) -> _Read | None:
    text = maybe_text(wire.get("output"))
    content = () if text is None else (TextBlock(text),)
    return content, wire.get("status") == "failed"


def _read_screen(wire: Wire, issuer: str) -> _Read | None:
    shot = maybe_object(wire.get("output"))
    part = part_of({**shot, "type": "input_image"})
    shown = None if part is None else decode_part(part, issuer)
    return (shown or opaque_block(shot, issuer),), False


def _read_tools(wire: Wire, _: str) -> _Read | None:
    tools = wire.get("tools")
    return ((TextBlock(write_json(tools).decode()),), False) if isinstance(tools, list) else None


_READERS: Mapping[str, Callable[[Wire, str], _Read | None]] = {
    "local_shell": _read_text,
    "shell": _read_shell,
    "apply_patch": _read_patch,
    "computer": _read_screen,
    "tool_search": _read_tools,
}


def encode_client_output(tool: ClientTool, call_id: str, result: ToolResultBlock) -> Wire:
    """The output of such a call for a result that was born elsewhere."""
    return {"type": tool.output, **_WRITERS[tool.name](call_id, result)}


def _text_for_tool(content: Content) -> str:
    return "\n".join(
        block.text if isinstance(block, TextBlock) else f"[{block.type}: not shown here]"
        for block in content
    )


def _write_text(call_id: str, result: ToolResultBlock) -> Wire:
    content = with_error_prefix(result.content) if result.is_error else result.content
    return {"id": call_id, "output": _text_for_tool(content)}


def _write_shell(call_id: str, result: ToolResultBlock) -> Wire:
    outcome: Wire = {"type": "exit", "exit_code": int(result.is_error)}
    chunk: Wire = {"stdout": _text_for_tool(result.content), "stderr": "", "outcome": outcome}
    return {"call_id": call_id, "output": [chunk]}


def _write_patch(call_id: str, result: ToolResultBlock) -> Wire:
    status = "failed" if result.is_error else "completed"
    return {"call_id": call_id, "status": status, "output": _text_for_tool(result.content)}


def _write_screen(call_id: str, result: ToolResultBlock) -> Wire:
    shot: Any = {"type": "computer_screenshot"}
    for block in result.content:
        if isinstance(block, ImageBlock):
            shot = {**shot, "image_url": data_url(block.source, block.media_type)}
        elif isinstance(block, OpaqueBlock):
            shot = block.raw
    return {"call_id": call_id, "output": shot}


def _write_tools(call_id: str, result: ToolResultBlock) -> Wire:
    tools: list[Any] = []
    for block in result.content:
        tools += _definitions_in(block)
    return {"call_id": call_id, "execution": "client", "status": "completed", "tools": tools}


def _definitions_in(block: ContentBlock) -> list[Any]:
    """The tools that a result names: a JSON list of their definitions."""
    if not isinstance(block, TextBlock):
        return []
    try:
        return maybe_list(read_json(block.text.encode()))
    except ValueError:
        return []


_WRITERS: Mapping[str, Callable[[str, ToolResultBlock], Wire]] = {
    "local_shell": _write_text,
    "shell": _write_shell,
    "apply_patch": _write_patch,
    "computer": _write_screen,
    "tool_search": _write_tools,
}


FUNCTION_OUTPUT = "function_call_output"
"""The kind of item that answers a function call."""
CUSTOM_OUTPUT = "custom_tool_call_output"
"""The kind of item that answers a custom tool call."""

_OUTPUT_KEYS = frozenset({"type", "call_id", "output"})
_make_text = raw_constructor(TextBlock)
_make_result = raw_constructor(ToolResultBlock)

OriginalForm = dict[str, Any]


def decode_tool_output(
    wire: Wire, ids: CallIds, issuer: str
) -> tuple[ToolResultBlock, OriginalForm] | None:
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
    content, spelling = _decode_output_content("" if output is None else output, issuer)
    keys = {key: value for key, value in wire.items() if key not in _OUTPUT_KEYS}
    if output is None and "output" in wire:
        keys["output"] = None
    ours = ids.of_result(theirs)
    spelling |= {"ids": {ours: theirs}, "keys": keys, "absent": "output" not in wire}
    if wire["type"] == CUSTOM_OUTPUT:
        spelling["type"] = CUSTOM_OUTPUT
    return ToolResultBlock(ours, content), spelling


def _decode_output_content(
    output: Any, issuer: str
) -> tuple[tuple[ContentBlock, ...], OriginalForm]:
    if isinstance(output, str):
        return ((_make_text(output),) if output else ()), {}
    content, odd = decode_parts(maybe_list(output), issuer)
    return content, {"parts": True, "blocks": odd}


def encode_tool_output(
    result: ToolResultBlock, spelling: Mapping[str, Any], call_id: str, *, is_custom: bool
) -> Wire:
    """The output item for a result."""
    whole: Wire | None = spelling.get("wire")
    if whole is not None and _is_same_output(whole, result):
        return {**whole, "call_id" if "call_id" in whole else "id": call_id}
    content = with_error_prefix(result.content) if result.is_error else result.content
    kind = spelling.get("type") or (CUSTOM_OUTPUT if is_custom else FUNCTION_OUTPUT)
    wire: Wire = {
        "type": kind,
        "call_id": call_id,
        "output": _encode_output_content(content, spelling),
    }
    if spelling.get("keys"):
        kept: Wire = spelling["keys"]
        wire |= kept if not content else {k: v for k, v in kept.items() if k != "output"}
    if spelling.get("absent") and not content:
        del wire["output"]
    return wire


def _is_same_output(whole: Wire, result: ToolResultBlock) -> bool:
    inner = result.content[0] if result.content else None
    read = read_client_output(whole, getattr(inner, "issuer", None) or "")
    return read is not None and read[1:] == (result.content, result.is_error)


def _encode_output_content(content: tuple[ContentBlock, ...], spelling: Mapping[str, Any]) -> Any:
    if not spelling.get("parts"):
        match content:
            case ():
                return ""
            case (TextBlock() as only,):
                return only.text
            case _:
                pass
    return encode_parts(content, spelling.get("blocks") or {})


FUNCTION = "function_call"
"""The kind of item that calls a function of the client."""
CUSTOM = "custom_tool_call"
"""The kind of item that calls a tool of the client which takes free text."""

CallForm = dict[str, Any]
"""What an item says beyond its blocks."""
ToolCall = tuple[str, Mapping[str, Any], InvalidInput | None]
"""The name of a tool, the input, and what is wrong with it."""

_CALL_KEYS = {
    FUNCTION: frozenset({"type", "call_id", "name", "arguments"}),
    CUSTOM: frozenset({"type", "call_id", "name", "input"}),
}
_KEYS_OF_CALL = len(_CALL_KEYS[FUNCTION])
_make_call = raw_constructor(ToolUseBlock)


def decode_call(wire: Wire, ids: CallIds) -> tuple[ToolUseBlock, str, CallForm] | None:
    """Our block for a call, the provider's id, and what is left to keep; None if it is no call."""
    common = _decode_function_call(wire, ids)
    if common is not None:
        return common
    read = read_call(wire)
    if read is None:
        return None
    stated = maybe_text(wire.get("call_id"))
    theirs = stated or maybe_text(wire.get("id")) or ""
    block = _make_call(ids.of_call(theirs), *read)
    kind = wire["type"]
    is_odd = kind == FUNCTION and not isinstance(wire.get("arguments"), str)
    if kind not in _CALL_KEYS or not stated or is_odd:
        return block, theirs, {"wire": wire}
    extra = {key: value for key, value in wire.items() if key not in _CALL_KEYS[kind]}
    if kind == CUSTOM:
        extra["type"] = CUSTOM
    elif wire.get("arguments") != write_json(block.input).decode():
        extra["arguments"] = wire.get("arguments")
    return block, theirs, extra


def _decode_function_call(wire: Wire, ids: CallIds) -> tuple[ToolUseBlock, str, CallForm] | None:
    """The same for a function and its arguments as a string, which most calls are."""
    theirs, name, text = wire.get("call_id"), wire.get("name"), wire.get("arguments")
    if type(theirs) is not str or type(name) is not str or type(text) is not str:
        return None
    if wire.get("type") != FUNCTION or not theirs or not name:
        return None
    extra: CallForm = {}
    if len(wire) > _KEYS_OF_CALL:
        extra = {key: value for key, value in wire.items() if key not in _CALL_KEYS[FUNCTION]}
    arguments, invalid, is_exact = parse_arguments_exactly(text)
    if not is_exact:
        extra["arguments"] = text
    return _make_call(ids.of_call(theirs), name, arguments, invalid), theirs, extra


def read_call(wire: Wire) -> ToolCall | None:
    """What a call says, whatever its kind."""
    kind, name = maybe_text(wire.get("type")), wire.get("name")
    if kind not in _CALL_KEYS:
        found = read_client_call(wire)
        return None if found is None else (*found, None)
    if not isinstance(name, str) or not name:
        return None
    if kind == CUSTOM:
        text = wire.get("input")
        return (name, {"input": text}, None) if isinstance(text, str) else None
    arguments = wire.get("arguments")
    if isinstance(arguments, dict):
        # Some hosts send the object where a string is due (T33).
        return name, maybe_object(arguments), None
    if not isinstance(arguments, str | None):
        return None
    return name, *parse_arguments(arguments or "")


def encode_call(block: ToolUseBlock, extra: Mapping[str, Any], call_id: str) -> Wire:
    """The item for a call; what was kept of it is used while it says the same."""
    whole: Wire | None = extra.get("wire")
    if whole is not None:
        if read_call(whole) == (block.name, block.input, block.invalid):
            has_id = isinstance(whole.get("call_id"), str)
            return {**whole, "call_id": call_id} if has_id else whole
        extra = {}
    wire: Wire = {"type": FUNCTION, "call_id": call_id, "name": block.name}
    text = block.input.get("input")
    if extra.get("type") == CUSTOM and isinstance(text, str) and len(block.input) == 1:
        wire["input"] = text
    else:
        wire["arguments"] = _encode_arguments(block, extra)
    if not extra:
        return wire
    kept = {key: value for key, value in extra.items() if key != "arguments"}
    if "arguments" in wire:
        kept.pop("type", None)
    return wire | kept


def _encode_arguments(block: ToolUseBlock, extra: Mapping[str, Any]) -> Any:
    """The arguments as they came; invalid ones of another provider are left empty (T32)."""
    if "arguments" in extra:
        text = extra["arguments"]
        if parse_arguments(text or "") == (block.input, block.invalid):
            return text
    return write_json(block.input).decode()


class CallIndex:
    """The calls of a conversation while it is written: their ids here, and their kinds."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._kinds: dict[str, str] = {}

    def learn(self, spelling: Mapping[str, Any]) -> None:
        """Take note of the calls that a message spells out."""
        if "ids" in spelling:
            self._ids.update(spelling["ids"])
        if "calls" in spelling:
            for ours, extra in spelling["calls"].items():
                kind = extra.get("type") or maybe_object(extra.get("wire")).get("type")
                if kind:
                    self._kinds[ours] = kind

    def wire_id(self, ours: str) -> str:
        """The protocol's id for one of ours."""
        return self._ids.get(ours) or derived_id(ours, "call_")

    def tool(self, ours: str) -> ClientTool | None:
        """The tool that a call was for, if it is one that OpenAI defines."""
        return CLIENT_TOOLS_BY_CALL.get(self._kinds.get(ours, ""))

    def is_special(self, ours: str) -> bool:
        """Whether a call was of a kind that asks for an output of its own kind."""
        return ours in self._kinds

    def encode_result(self, result: ToolResultBlock, spelling: Mapping[str, Any]) -> Wire:
        """The output item for a result, of the kind that its call asks for."""
        call_id = self.wire_id(result.tool_use_id)
        tool = self.tool(result.tool_use_id)
        if tool is not None and not spelling:
            return encode_client_output(tool, call_id, result)
        is_custom = self._kinds.get(result.tool_use_id) == CUSTOM
        return encode_tool_output(result, spelling, call_id, is_custom=is_custom)
