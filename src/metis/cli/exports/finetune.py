"""A conversation as one example for fine-tuning by OpenAI: a line of chat messages and tools."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.canonical.blocks import ContentBlock, ToolUseBlock
from metis.canonical.errors import EncodeError
from metis.canonical.message import Message, Role
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.cli.exports.written import Losses, Talk, Written
from metis.projection.loss import Change
from metis.tools.builtin import BUILTINS
from metis.wire.call import AdapterOptions

_MODEL = "openai:gpt-4.1"
"""A model that can be fine-tuned: what it takes is what an example may hold."""
_FORM = "openai-finetune"


def write_finetune(talk: Talk) -> Written:
    """One line of JSON: `messages`, and `tools` if there were calls.

    Raises:
        EncodeError: no model has answered, so that there is nothing to learn from.
    """
    losses = Losses(_FORM)
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
    return Written(msgspec.json.encode(example) + b"\n", (*losses.found, *told))


def _until_answer(messages: Iterable[Message]) -> list[Message]:
    """The messages up to the last answer: what comes after it teaches nothing."""
    found = list(messages)
    while found and found[-1].role is not Role.ASSISTANT:
        found.pop()
    return found


def _fitting(message: Message, losses: Losses) -> Message:
    """The message as an example may hold it: instructions are of the system, media are pictures."""
    role = Role.SYSTEM if message.role is Role.DEVELOPER else message.role
    content: list[ContentBlock] = []
    for place, block in enumerate(message.content):
        if block.type in ("document", "audio", "video"):
            losses.add(message, place, block, "an example holds only words and pictures")
            continue
        content.append(block)
    return replace(message, role=role, content=tuple(content))


def _tools(messages: Iterable[Message], losses: Losses) -> Iterable[ToolDefinition]:
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
