"""Tool calls and tool outputs of OpenAI Responses, to and from canonical blocks.

A call has two ids: `call_id`, which its output refers to, and `id`, the id of the item (T05). The
original form of a call is stored by tool_use_id: keys without a canonical field, the arguments as
they were written, or the complete item if it is not a function call.

OpenAI defines some tools that the client runs: shells, patches, a computer, a tool search. Each has
its own item types for calls and outputs. They become ordinary canonical calls: the name is that of
the tool, the input is the action that the item contains.
"""

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
from metis.wire.declared_tools import CUSTOM_KIND, DeclaredTool
from metis.wire.function_tools import with_error_prefix
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.openai_responses.blocks import (
    OriginalForm,
    decode_part,
    decode_parts,
    encode_parts,
    opaque_block,
    read_json,
    write_json,
)
from metis.wire.openai_values import media_url
from metis.wire.original_form import EMPTY
from metis.wire.tool_ids import CallIds, derived_id

FUNCTION = "function_call"
"""The type of an item that calls a function of the client."""
CUSTOM = "custom_tool_call"
"""The type of an item that calls a tool of the client with free text."""
FUNCTION_OUTPUT = "function_call_output"
"""The type of an item with the output of a function."""
CUSTOM_OUTPUT = "custom_tool_call_output"
"""The type of an item with the output of a custom tool."""
WIRE_ID_PREFIX = "call_"
"""The prefix of wire ids that are derived from tool_use_ids."""

ToolCall = tuple[str, Mapping[str, Any], InvalidInput | None]
"""The name of a tool, the input, and the invalid input if it could not be parsed."""
Content = tuple[ContentBlock, ...]

_FUNCTION_KEYS = frozenset({"type", "call_id", "name", "arguments"})
_CALL_KEYS = {
    FUNCTION: _FUNCTION_KEYS,
    CUSTOM: frozenset({"type", "call_id", "name", "input"}),
}
_OUTPUT_KEYS = frozenset({"type", "call_id", "output"})
_new_text = raw_constructor(TextBlock)
_new_call = raw_constructor(ToolUseBlock)


class ClientTool(NamedTuple):
    """A tool that OpenAI defines and the client runs."""

    name: str
    call_type: str
    output_type: str
    input_key: str


_CLIENT_TOOLS = (
    ClientTool("local_shell", "local_shell_call", "local_shell_call_output", "action"),
    ClientTool("shell", "shell_call", "shell_call_output", "action"),
    ClientTool("apply_patch", "apply_patch_call", "apply_patch_call_output", "operation"),
    ClientTool("computer", "computer_call", "computer_call_output", "action"),
    ClientTool("tool_search", "tool_search_call", "tool_search_output", "arguments"),
)
_BY_NAME: Mapping[str, ClientTool] = {tool.name: tool for tool in _CLIENT_TOOLS}
_ID_PREFIXES = {
    "apply_patch": "apc",
    "computer": "cu",
    "local_shell": "lsh",
    "shell": "sh",
    "tool_search": "tsc",
}
_BY_CALL_TYPE: Mapping[str, ClientTool] = {tool.call_type: tool for tool in _CLIENT_TOOLS}
_BY_OUTPUT_TYPE: Mapping[str, ClientTool] = {tool.output_type: tool for tool in _CLIENT_TOOLS}


def decode_call(wire: Wire, ids: CallIds) -> tuple[ToolUseBlock, str, OriginalForm] | None:
    """Decode a call into a block, its wire id and its original form; None for other items."""
    function_call = _decode_function_call(wire, ids)
    if function_call is not None:
        return function_call
    call = read_call(wire)
    if call is None:
        return None
    call_id = maybe_text(wire.get("call_id"))
    wire_id = call_id or maybe_text(wire.get("id")) or ""
    block = _new_call(ids.of_call(wire_id), *call)
    # A function call at this point has no id, or arguments that are not a string.
    if wire["type"] != CUSTOM or not call_id:
        return block, wire_id, {"wire": wire}
    form = {key: value for key, value in wire.items() if key not in _CALL_KEYS[CUSTOM]}
    return block, wire_id, {**form, "type": CUSTOM}


def _decode_function_call(
    wire: Wire, ids: CallIds
) -> tuple[ToolUseBlock, str, OriginalForm] | None:
    """Decode a function call with an id and string arguments, the usual form; None for others."""
    wire_id, name, text = wire.get("call_id"), wire.get("name"), wire.get("arguments")
    if type(wire_id) is not str or type(name) is not str or type(text) is not str:
        return None
    if wire.get("type") != FUNCTION or not wire_id or not name:
        return None
    form: OriginalForm = {}
    if len(wire) > len(_FUNCTION_KEYS):
        form = {key: value for key, value in wire.items() if key not in _FUNCTION_KEYS}
    arguments, invalid, is_exact = parse_arguments_exactly(text)
    if not is_exact:
        form["arguments"] = text
    return _new_call(ids.of_call(wire_id), name, arguments, invalid), wire_id, form


def read_call(wire: Wire) -> ToolCall | None:
    """Return the name and the input of a call of any type; None for other items."""
    kind, name = maybe_text(wire.get("type")), wire.get("name")
    if kind not in _CALL_KEYS:
        return _read_client_call(wire)
    if not isinstance(name, str) or not name:
        return None
    if kind == CUSTOM:
        text = wire.get("input")
        return (name, {"input": text}, None) if isinstance(text, str) else None
    arguments = wire.get("arguments")
    if isinstance(arguments, dict):
        # Some servers send an object instead of a JSON string (T33).
        return name, maybe_object(arguments), None
    if not isinstance(arguments, str | None):
        return None
    return name, *parse_arguments(arguments or "")


def _read_client_call(wire: Wire) -> ToolCall | None:
    tool = _BY_CALL_TYPE.get(str(wire.get("type")))
    if tool is None or not _is_run_by_client(wire):
        return None
    # The newer computer tool sends a list of actions in one call.
    if tool.name == "computer" and isinstance(wire.get("actions"), list):
        return tool.name, {"actions": wire["actions"]}, None
    tool_input = wire.get(tool.input_key)
    return (tool.name, maybe_object(tool_input), None) if isinstance(tool_input, dict) else None


def _is_run_by_client(wire: Wire) -> bool:
    """Whether the client, not OpenAI, runs the tool of an item."""
    if wire.get("type") in ("tool_search_call", "tool_search_output"):
        return wire.get("execution") == "client" and isinstance(wire.get("call_id"), str)
    # In any other environment OpenAI runs the shell in a hosted container.
    return maybe_object(wire.get("environment")).get("type") in (None, "local")


def encode_call(block: ToolUseBlock, form: Mapping[str, Any], call_id: str) -> Wire:
    """Encode a call as an item; its original form is used if it has the same meaning."""
    original: Wire | None = form.get("wire")
    if original is not None:
        if read_call(original) == (block.name, block.input, block.invalid):
            # A call without a `call_id` is identified by the id of its item.
            has_id = isinstance(original.get("call_id"), str)
            return {**original, "call_id": call_id} if has_id else original
        form = {}
    wire: Wire = {"type": FUNCTION, "call_id": call_id, "name": block.name}
    text = block.input.get("input")
    if form.get("type") == CUSTOM and isinstance(text, str) and len(block.input) == 1:
        wire["input"] = text
    else:
        wire["arguments"] = _encode_arguments(block, form)
    if not form:
        return wire
    keys = {key: value for key, value in form.items() if key != "arguments"}
    if "arguments" in wire:
        keys.pop("type", None)
    return wire | keys


def _encode_arguments(block: ToolUseBlock, form: Mapping[str, Any]) -> Any:
    text = form.get("arguments")
    if "arguments" in form and parse_arguments(text or "") == (block.input, block.invalid):
        return text
    # Invalid arguments of another provider become an empty object: servers would reject every later
    # request that contains text which is not a JSON object (T32).
    return write_json(block.input).decode()


def encode_declared_call(block: ToolUseBlock, tool: DeclaredTool, call_id: str) -> Wire:
    """Encode a call of another provider's model as the kind that the client declared (T219)."""
    keys: Wire = {"namespace": tool.namespace} if tool.namespace else {}
    builtin, invalid = _BY_NAME.get(tool.kind), block.invalid
    # These item types cannot express truncated arguments, and such a call must not look
    # complete (T161).
    if builtin is not None and invalid is None:
        item_id = derived_id(block.id, f"{_ID_PREFIXES[builtin.name]}_")
        item: Wire = {"type": builtin.call_type, "id": item_id, "call_id": call_id}
        if builtin.name == "tool_search":
            item["execution"] = "client"
        return {**item, builtin.input_key: block.input, "status": "completed"}
    keys |= {"status": "completed" if invalid is None else "incomplete"}
    keys |= {"call_id": call_id, "name": tool.name}
    if tool.kind == CUSTOM_KIND:
        keys |= {"type": CUSTOM, "id": derived_id(block.id, "ctc_")}
        return {**keys, "input": declared_text(block, tool)}
    arguments = _encode_arguments(block, {}) if invalid is None else invalid.raw
    return {**keys, "type": FUNCTION, "id": derived_id(block.id, "fc_"), "arguments": arguments}


def declared_text(block: ToolUseBlock, tool: DeclaredTool) -> str:
    """Return the free text of a call; arguments with other fields are returned as JSON."""
    if block.invalid is not None:
        return block.invalid.raw
    text = tool.text_input(block.input)
    return write_json(block.input).decode() if text is None else text


def decode_tool_output(
    wire: Wire, ids: CallIds, issuer: str
) -> tuple[ToolResultBlock, OriginalForm] | None:
    """Decode a tool output into a result and its original form; None for other items."""
    output = _read_client_output(wire, issuer)
    if output is not None:
        wire_id, content, is_error = output
        tool_use_id = ids.of_result(wire_id)
        form: OriginalForm = {"wire": wire, "ids": {tool_use_id: wire_id}}
        return ToolResultBlock(tool_use_id, content, is_error), form
    if wire.get("type") not in (FUNCTION_OUTPUT, CUSTOM_OUTPUT):
        return None
    wire_id, value = wire.get("call_id"), wire.get("output")
    if not isinstance(wire_id, str) or not isinstance(value, str | list | None):
        return None
    content, form = _decode_output_content("" if value is None else value, issuer)
    keys = {key: value for key, value in wire.items() if key not in _OUTPUT_KEYS}
    # A null output, a missing output and an empty string are all empty results.
    if value is None and "output" in wire:
        keys["output"] = None
    tool_use_id = ids.of_result(wire_id)
    form |= {"ids": {tool_use_id: wire_id}, "keys": keys, "absent": "output" not in wire}
    if wire["type"] == CUSTOM_OUTPUT:
        form["type"] = CUSTOM_OUTPUT
    return ToolResultBlock(tool_use_id, content), form


def _decode_output_content(output: Any, issuer: str) -> tuple[Content, OriginalForm]:
    if isinstance(output, str):
        return ((_new_text(output),) if output else ()), {}
    content, original_parts = decode_parts(maybe_list(output), issuer)
    return content, {"parts": True, "blocks": original_parts}


def _encode_tool_output(
    result: ToolResultBlock, form: Mapping[str, Any], call_id: str, *, is_custom: bool
) -> Wire:
    """Encode a result as an output item; its original form is used if unchanged."""
    original: Wire | None = form.get("wire")
    if original is not None and _is_same_output(original, result):
        return {**original, "call_id" if "call_id" in original else "id": call_id}
    content = with_error_prefix(result.content) if result.is_error else result.content
    kind = form.get("type") or (CUSTOM_OUTPUT if is_custom else FUNCTION_OUTPUT)
    wire: Wire = {"type": kind, "call_id": call_id, "output": _encode_output_content(content, form)}
    if form.get("keys"):
        keys: Wire = form["keys"]
        wire |= {key: keys[key] for key in keys if key != "output"} if content else keys
    if form.get("absent") and not content:
        del wire["output"]
    return wire


def _is_same_output(original: Wire, result: ToolResultBlock) -> bool:
    inner = result.content[0] if result.content else None
    output = _read_client_output(original, getattr(inner, "issuer", None) or "")
    return output is not None and output[1:] == (result.content, result.is_error)


def _encode_output_content(content: Content, form: Mapping[str, Any]) -> Any:
    if not form.get("parts"):
        match content:
            case ():
                return ""
            case (TextBlock() as text,):
                return text.text
            case _:
                pass
    return encode_parts(content, form.get("blocks") or {})


class CallIndex:
    """The wire ids and the types of the calls in a history while it is encoded."""

    def __init__(self, declared: Mapping[str, DeclaredTool] = EMPTY) -> None:
        self._wire_ids: dict[str, str] = {}
        self._declared = declared
        """The client's tools that are not plain functions, by function name."""
        self._types: dict[str, str] = {}

    def add(self, form: Mapping[str, Any]) -> None:
        """Add the calls in the original form of a message."""
        if "ids" in form:
            self._wire_ids.update(form["ids"])
        if "calls" in form:
            for tool_use_id, call in form["calls"].items():
                kind = call.get("type") or maybe_object(call.get("wire")).get("type")
                if kind:
                    self._types[tool_use_id] = kind

    def wire_id(self, tool_use_id: str) -> str:
        """Return the wire id of a call; a missing one is derived from the tool_use_id."""
        return self._wire_ids.get(tool_use_id) or derived_id(tool_use_id, WIRE_ID_PREFIX)

    def encode_foreign_call(self, block: ToolUseBlock) -> Wire:
        """Encode a call of another provider's model for the client."""
        tool, call_id = self._declared.get(block.name), self.wire_id(block.id)
        if tool is not None:
            return encode_declared_call(block, tool, call_id)
        wire = encode_call(block, EMPTY, call_id)
        return {**wire, "id": derived_id(block.id, "fc_"), "status": "completed"}

    def has_output_type(self, tool_use_id: str) -> bool:
        """Whether a call has an item type with its own output type."""
        return tool_use_id in self._types

    def encode_result(self, result: ToolResultBlock, form: Mapping[str, Any]) -> Wire:
        """Encode a result as an output item of the type that belongs to its call."""
        call_id = self.wire_id(result.tool_use_id)
        kind = self._types.get(result.tool_use_id, "")
        tool = _BY_CALL_TYPE.get(kind)
        if tool is not None and not form:
            return {"type": tool.output_type, **_OUTPUT_ENCODERS[tool.name](call_id, result)}
        return _encode_tool_output(result, form, call_id, is_custom=kind == CUSTOM)


def _read_client_output(wire: Wire, issuer: str) -> tuple[str, Content, bool] | None:
    """Return the wire id, the content and the error flag of a client tool's output, or None."""
    tool = _BY_OUTPUT_TYPE.get(str(wire.get("type")))
    wire_id = wire.get("call_id", wire.get("id"))
    if tool is None or not isinstance(wire_id, str) or not _is_run_by_client(wire):
        return None
    output = _OUTPUT_DECODERS[tool.name](wire, issuer)
    return None if output is None else (wire_id, *output)


_Output = tuple[Content, bool]


def _decode_local_shell(wire: Wire, _: str) -> _Output | None:
    output = wire.get("output")
    return ((TextBlock(output),), False) if isinstance(output, str) else None


def _decode_shell(wire: Wire, _: str) -> _Output | None:
    chunks = wire.get("output")
    if not isinstance(chunks, list):
        return None
    text = "".join(_describe_command(maybe_object(chunk)) for chunk in maybe_list(chunks))
    return (TextBlock(text),), False


def _describe_command(chunk: Wire) -> str:
    """Return the output of a shell command, and its exit code or timeout if it failed."""
    text = f"{maybe_text(chunk.get('stdout')) or ''}{maybe_text(chunk.get('stderr')) or ''}"
    outcome = maybe_object(chunk.get("outcome"))
    code = outcome.get("exit_code")
    if outcome.get("type") == "timeout":
        return f"{text}[timed out]\n"
    return f"{text}[exit code {code}]\n" if code else text


def _decode_patch(wire: Wire, _: str) -> _Output | None:
    text = maybe_text(wire.get("output"))
    content = () if text is None else (TextBlock(text),)
    return content, wire.get("status") == "failed"


def _decode_screenshot(wire: Wire, issuer: str) -> _Output | None:
    screenshot = maybe_object(wire.get("output"))
    image = decode_part({**screenshot, "type": "input_image"}, issuer)
    return (image or opaque_block(screenshot, issuer),), False


def _decode_tool_search(wire: Wire, _: str) -> _Output | None:
    tools = wire.get("tools")
    return ((TextBlock(write_json(tools).decode()),), False) if isinstance(tools, list) else None


_OUTPUT_DECODERS: Mapping[str, Callable[[Wire, str], _Output | None]] = {
    "local_shell": _decode_local_shell,
    "shell": _decode_shell,
    "apply_patch": _decode_patch,
    "computer": _decode_screenshot,
    "tool_search": _decode_tool_search,
}


def _text_of(content: Content) -> str:
    return "\n".join(
        block.text if isinstance(block, TextBlock) else f"[{block.type}: not shown here]"
        for block in content
    )


def _encode_local_shell(call_id: str, result: ToolResultBlock) -> Wire:
    content = with_error_prefix(result.content) if result.is_error else result.content
    return {"id": call_id, "output": _text_of(content)}


def _encode_shell(call_id: str, result: ToolResultBlock) -> Wire:
    # A canonical result has an error flag but no exit code, so that a failure becomes 1.
    outcome: Wire = {"type": "exit", "exit_code": int(result.is_error)}
    chunk: Wire = {"stdout": _text_of(result.content), "stderr": "", "outcome": outcome}
    return {"call_id": call_id, "output": [chunk]}


def _encode_patch(call_id: str, result: ToolResultBlock) -> Wire:
    status = "failed" if result.is_error else "completed"
    return {"call_id": call_id, "status": status, "output": _text_of(result.content)}


def _encode_screenshot(call_id: str, result: ToolResultBlock) -> Wire:
    screenshot: Any = {"type": "computer_screenshot"}
    for block in result.content:
        if isinstance(block, ImageBlock):
            screenshot = {**screenshot, "image_url": media_url(block.source, block.media_type)}
        elif isinstance(block, OpaqueBlock):
            screenshot = block.raw
    return {"call_id": call_id, "output": screenshot}


def _encode_tool_search(call_id: str, result: ToolResultBlock) -> Wire:
    tools: list[Any] = []
    for block in result.content:
        tools += _tool_definitions(block)
    return {"call_id": call_id, "execution": "client", "status": "completed", "tools": tools}


def _tool_definitions(block: ContentBlock) -> list[Any]:
    """Return the tool definitions in a search result, which is a JSON list."""
    try:
        return maybe_list(read_json(block.text.encode())) if isinstance(block, TextBlock) else []
    except ValueError:
        return []


_OUTPUT_ENCODERS: Mapping[str, Callable[[str, ToolResultBlock], Wire]] = {
    "local_shell": _encode_local_shell,
    "shell": _encode_shell,
    "apply_patch": _encode_patch,
    "computer": _encode_screenshot,
    "tool_search": _encode_tool_search,
}
