"""Tools that OpenAI defines and the client runs: shells, patches, a computer, a search for tools.

Each has a kind of call and a kind of output of its own. Here they are calls like any other: the
name is that of the tool, the input is what the call asks for.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
)
from metis.wire.failed_result import mark_failed
from metis.wire.openai_responses.parts import (
    data_url,
    decode_part,
    opaque,
    part_of,
    read_json,
    write_json,
)
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

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
BY_CALL: Mapping[str, ClientTool] = {tool.call: tool for tool in _TOOLS}
"""The tools by the kinds of their calls."""
_BY_OUTPUT: Mapping[str, ClientTool] = {tool.output: tool for tool in _TOOLS}


def read_client_call(wire: Wire) -> tuple[str, Wire] | None:
    """Name and input of a call; None if it is none, or if the provider runs it itself."""
    tool = BY_CALL.get(str(wire.get("type")))
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
    told = "".join(_told(maybe_object(chunk)) for chunk in maybe_list(chunks))
    return (TextBlock(told),), False


def _told(chunk: Wire) -> str:
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
    return (shown or opaque(shot, issuer),), False


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


def _text_of(content: Content) -> str:
    return "\n".join(
        block.text if isinstance(block, TextBlock) else f"[{block.type}: not shown here]"
        for block in content
    )


def _write_text(call_id: str, result: ToolResultBlock) -> Wire:
    content = mark_failed(result.content) if result.is_error else result.content
    return {"id": call_id, "output": _text_of(content)}


def _write_shell(call_id: str, result: ToolResultBlock) -> Wire:
    outcome: Wire = {"type": "exit", "exit_code": int(result.is_error)}
    chunk: Wire = {"stdout": _text_of(result.content), "stderr": "", "outcome": outcome}
    return {"call_id": call_id, "output": [chunk]}


def _write_patch(call_id: str, result: ToolResultBlock) -> Wire:
    status = "failed" if result.is_error else "completed"
    return {"call_id": call_id, "status": status, "output": _text_of(result.content)}


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
        tools += _listed(block)
    return {"call_id": call_id, "execution": "client", "status": "completed", "tools": tools}


def _listed(block: ContentBlock) -> list[Any]:
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
