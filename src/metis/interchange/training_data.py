"""Conversations as training data: OpenAI fine-tuning examples and ShareGPT."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from metis import adapters
from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.errors import EncodeError
from metis.canonical.message import Message, Role
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.interchange.export import Conversation, ExportedFile, ExportLosses
from metis.projection.loss import Change
from metis.wire.call import AdapterOptions

_FINETUNE = "openai-finetune"
# A model that can be fine-tuned: what it accepts is what an example may contain.
_FINETUNE_MODEL = "openai:gpt-4.1"
_SHAREGPT_ROLES = {
    Role.SYSTEM: "system",
    Role.DEVELOPER: "system",
    Role.USER: "human",
    Role.ASSISTANT: "gpt",
    Role.TOOL: "observation",
}
_TEXT_ONLY = "ShareGPT holds only text, calls and results"


def write_finetune(conversation: Conversation) -> ExportedFile:
    """Write one example for fine-tuning by OpenAI: a line with `messages` and `tools`.

    Raises:
        EncodeError: there is no response to learn from.
    """
    losses = ExportLosses(_FINETUNE)
    messages = [_adapted(message, losses) for message in _until_response(conversation.messages)]
    messages = [message for message in messages if message.content]
    if not messages:
        raise EncodeError("this session has no response, so there is no example to write")
    tools = list(_called_tools(messages, conversation.tools, losses))
    request = adapters.get("openai").to_wire(messages, tools, AdapterOptions(model=_FINETUNE_MODEL))
    body = msgspec.json.decode(request.body, type=dict[str, Raw])
    example: dict[str, Any] = {"messages": body["messages"]}
    if tools:
        example["tools"] = body["tools"]
    wire_losses = [replace(loss, adapter=_FINETUNE) for loss in request.losses]
    return ExportedFile(msgspec.json.encode(example) + b"\n", (*losses.losses, *wire_losses))


def _until_response(messages: Iterable[Message]) -> list[Message]:
    """Return the messages up to the last response: later ones teach nothing."""
    example = list(messages)
    while example and example[-1].role is not Role.ASSISTANT:
        example.pop()
    return example


def _adapted(message: Message, losses: ExportLosses) -> Message:
    """Return a message as examples may contain it: no developer role, no media but images."""
    # Fine-tuning examples of OpenAI have no developer role.
    role = Role.SYSTEM if message.role is Role.DEVELOPER else message.role
    content: list[ContentBlock] = []
    for index, block in enumerate(message.content):
        if block.type in ("document", "audio", "video"):
            losses.add(message, index, block, "an example holds only text and images")
            continue
        content.append(block)
    return replace(message, role=role, content=tuple(content))


def _called_tools(
    messages: Iterable[Message], definitions: Sequence[ToolDefinition], losses: ExportLosses
) -> Iterator[ToolDefinition]:
    """Yield the definitions of the tools that were called; unknown ones follow from their calls."""
    by_name = {definition.name: definition for definition in definitions}
    called: set[str] = set()
    for message in messages:
        for index, block in enumerate(message.content):
            if not isinstance(block, ToolUseBlock) or block.name in called:
                continue
            called.add(block.name)
            if block.name in by_name:
                yield by_name[block.name]
                continue
            reason = "the store has no definition of this tool; one was derived from its calls"
            losses.add(message, index, block, reason, Change.SYNTHESISED)
            yield _derived_definition(block)


def _derived_definition(call: ToolUseBlock) -> ToolDefinition:
    properties: dict[str, Any] = {
        name: {"type": _json_type(value)} for name, value in call.input.items()
    }
    schema = {"type": "object", "properties": properties}
    # The most cautious side effects, since the tool is unknown.
    return ToolDefinition(call.name, f"The tool {call.name}.", schema, SideEffects.EXECUTE)


def _json_type(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    return "array" if isinstance(value, list | tuple) else "object"


def write_sharegpt(conversation: Conversation) -> ExportedFile:
    """Write one line of JSON with `human` and `gpt` turns; turns of one speaker are joined."""
    losses = ExportLosses("sharegpt")
    turns: list[tuple[str, list[str]]] = []
    for message in conversation.messages:
        for speaker, value in _sharegpt_turns(message, losses):
            # Readers of ShareGPT expect alternating speakers; only calls may follow one another.
            if turns and turns[-1][0] == speaker and speaker != "function_call":
                turns[-1][1].append(value)
            else:
                turns.append((speaker, [value]))
    document: dict[str, Any] = {
        "id": conversation.session.id,
        "conversations": [
            # Joined once: adding each value to the last would copy a long turn every time.
            {"from": speaker, "value": "\n\n".join(values)}
            for speaker, values in turns
        ],
    }
    return ExportedFile(msgspec.json.encode(document) + b"\n", tuple(losses.losses))


def _sharegpt_turns(message: Message, losses: ExportLosses) -> Iterator[tuple[str, str]]:
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                yield _SHAREGPT_ROLES.get(message.role, "human"), block.text
            case ToolUseBlock():
                call = {"name": block.name, "arguments": block.input}
                yield "function_call", msgspec.json.encode(call).decode()
            case ToolResultBlock():
                yield "observation", _result_text(message, index, block, losses)
            case _:
                losses.add(message, index, block, _TEXT_ONLY)


def _result_text(
    message: Message, index: int, result: ToolResultBlock, losses: ExportLosses
) -> str:
    for block in result.content:
        if not isinstance(block, TextBlock):
            losses.add(message, index, block, _TEXT_ONLY)
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))
