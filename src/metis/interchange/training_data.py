"""Conversations as training data: OpenAI fine-tuning examples and ShareGPT."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import EncodeError
from metis.canonical.message import Message, Role
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.interchange.export import Conversation, ExportedFile, ExportLosses
from metis.projection.loss import Change
from metis.tools.builtin import BUILTINS
from metis.wire.call import AdapterOptions

_MODEL = "openai:gpt-4.1"
"""A model that can be fine-tuned: what it takes is what an example may hold."""
_FORM = "openai-finetune"


def write_finetune(talk: Conversation) -> ExportedFile:
    """One line of JSON: `messages`, and `tools` if there were calls.

    Raises:
        EncodeError: no model has answered, so that there is nothing to learn from.
    """
    losses = ExportLosses(_FORM)
    messages = [_fitting(message, losses) for message in _until_answer(talk.messages)]
    messages = [message for message in messages if message.content]
    if not messages:
        raise EncodeError("no model has answered in this session, so there is no example to write")
    tools = list(_tools(messages, losses))
    options = AdapterOptions(model=_MODEL)
    request = adapters.get("openai").to_wire(messages, tools, options)
    body = msgspec.json.decode(request.body)
    example: dict[str, Any] = {"messages": body["messages"]}
    if tools:
        example["tools"] = body["tools"]
    told = [replace(loss, adapter=_FORM) for loss in request.losses]
    return ExportedFile(msgspec.json.encode(example) + b"\n", (*losses.losses, *told))


def _until_answer(messages: Iterable[Message]) -> list[Message]:
    """The messages up to the last answer: what comes after it teaches nothing."""
    found = list(messages)
    while found and found[-1].role is not Role.ASSISTANT:
        found.pop()
    return found


def _fitting(message: Message, losses: ExportLosses) -> Message:
    """The message as an example may hold it: instructions are of the system, media are pictures."""
    role = Role.SYSTEM if message.role is Role.DEVELOPER else message.role
    content: list[ContentBlock] = []
    for place, block in enumerate(message.content):
        if block.type in ("document", "audio", "video"):
            losses.add(message, place, block, "an example holds only words and pictures")
            continue
        content.append(block)
    return replace(message, role=role, content=tuple(content))


def _tools(messages: Iterable[Message], losses: ExportLosses) -> Iterable[ToolDefinition]:
    """The tools that were called: the built-in ones as they are, others as far as calls tell."""
    known = {tool().definition.name: tool().definition for tool in BUILTINS}
    seen: set[str] = set()
    for message in messages:
        for place, block in enumerate(message.content):
            if not isinstance(block, ToolUseBlock) or block.name in seen:
                continue
            seen.add(block.name)
            if block.name in known:
                yield known[block.name]
                continue
            reason = "the store keeps no definition of this tool; one was made of its calls"
            losses.add(message, place, block, reason, Change.SYNTHESISED)
            yield _made_up(block)


def _made_up(call: ToolUseBlock) -> ToolDefinition:
    properties: dict[str, Any] = {name: {"type": _type(each)} for name, each in call.input.items()}
    schema = {"type": "object", "properties": properties}
    return ToolDefinition(call.name, f"The tool {call.name}.", schema, SideEffects.EXECUTE)


def _type(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "array" if isinstance(value, list | tuple) else "object"


_FROM = {
    Role.SYSTEM: "system",
    Role.DEVELOPER: "system",
    Role.USER: "human",
    Role.ASSISTANT: "gpt",
    Role.TOOL: "observation",
}
_REASON = "this form holds only words, calls and results"


def write_sharegpt(talk: Conversation) -> ExportedFile:
    """One line of JSON; what one speaker says in several messages is one turn."""
    losses = ExportLosses("sharegpt")
    turns: list[dict[str, str]] = []
    for message in talk.messages:
        for speaker, value in _said(message, losses):
            if turns and turns[-1]["from"] == speaker and speaker != "function_call":
                turns[-1]["value"] += f"\n\n{value}"
            else:
                turns.append({"from": speaker, "value": value})
    document: dict[str, Any] = {"id": talk.session.id, "conversations": turns}
    return ExportedFile(msgspec.json.encode(document) + b"\n", tuple(losses.losses))


def _said(message: Message, losses: ExportLosses) -> Iterator[tuple[str, str]]:
    for place, block in enumerate(message.content):
        match block:
            case TextBlock():
                yield _FROM.get(message.role, "human"), block.text
            case ToolUseBlock():
                call = {"name": block.name, "arguments": block.input}
                yield "function_call", msgspec.json.encode(call).decode()
            case ToolResultBlock():
                yield "observation", _result(message, place, block, losses)
            case _:
                losses.add(message, place, block, _REASON)


def _result(message: Message, place: int, result: ToolResultBlock, losses: ExportLosses) -> str:
    words = [block.text for block in result.content if isinstance(block, TextBlock)]
    for block in result.content:
        if not isinstance(block, TextBlock):
            losses.add(message, place, block, _REASON)
    return "\n".join(words)
