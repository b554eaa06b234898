"""Contents of Gemini: our messages as turns of the wire."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.wire.gemini.names import PROTOCOL, in_style
from metis.wire.gemini.parts import PartWriter
from metis.wire.gemini.results import is_said_by
from metis.wire.shape import Wire, maybe_object
from metis.wire.spelling import NOTHING, spelling_of


def encode_contents(messages: Sequence[Message]) -> Any:
    """The contents for messages."""
    ids: dict[str, str] = {}
    names: dict[str, str] = {}
    writer = PartWriter(ids.get, names)
    turns: list[Wire] = []
    is_open = False
    for message in _in_order(messages):
        spelling = spelling_of(message, PROTOCOL)
        ids.update(spelling.get("ids", NOTHING))
        names.update(_called(message))
        parts = encode_parts(message, spelling, writer)
        is_result = message.role is Role.TOOL
        follows = is_result and is_open and not spelling.get("apart")
        if follows or (spelling.get("joined") and turns and "parts" in turns[-1]):
            turns[-1]["parts"] += parts
        else:
            turns.append(_turn(message, spelling, parts))
        is_open = is_result
    if len(turns) == 1 and messages and spelling_of(messages[0], PROTOCOL).get("single"):
        return turns[0]
    return turns


def encode_parts(message: Message, spelling: Mapping[str, Any], writer: PartWriter) -> list[Any]:
    """The parts of a message, as they came if it still says the same."""
    kept = spelling.get("parts")
    if kept is not None and spelling.get("digest") == message.content_digest():
        return kept
    parts = writer.write(message.content)
    result = message.content[0] if message.content else None
    if "result" in spelling and isinstance(result, ToolResultBlock):
        response = spelling["result"]
        if is_said_by(response, result):
            parts[0]["functionResponse"]["response"] = response
    style = spelling.get("style")
    return in_style(parts, style) if style else parts


def encode_system(messages: Sequence[Message]) -> tuple[str, Any]:
    """The key and the value of the system instruction."""
    spelling = spelling_of(messages[0], PROTOCOL)
    writer = PartWriter(lambda _: None, NOTHING)
    parts = [
        part
        for message in messages
        for part in encode_parts(message, spelling_of(message, PROTOCOL), writer)
    ]
    key = spelling.get("key") or "systemInstruction"
    if spelling.get("plain") and len(parts) == 1:
        return key, maybe_object(parts[0]).get("text", "")
    return key, _with_parts(dict(spelling.get("keys") or {}), spelling, parts)


def _turn(message: Message, spelling: Mapping[str, Any], parts: list[Any]) -> Wire:
    keys = spelling.get("keys")
    if keys is None and not spelling.get("roleless"):
        keys = {"role": "model" if message.role is Role.ASSISTANT else "user"}
    return _with_parts(dict(keys or {}), spelling, parts)


def _with_parts(wire: Wire, spelling: Mapping[str, Any], parts: list[Any]) -> Wire:
    bare = spelling.get("bare")
    if bare == "part" and len(parts) == 1:
        wire["parts"] = parts[0]
    elif bare != "nothing" or parts:
        # The list is our own to add to: a kept one belongs to the message.
        wire["parts"] = list(parts)
    return wire


def _called(message: Message) -> Mapping[str, str]:
    if message.role is not Role.ASSISTANT:
        return NOTHING
    return {block.id: block.name for block in message.content if type(block) is ToolUseBlock}


def _in_order(messages: Sequence[Message]) -> Iterable[Message]:
    """The same messages, results in the order of their calls: without ids the order pairs them."""
    order: dict[str, int] = {}
    run: list[Message] = []
    for message in messages:
        if message.role is Role.TOOL and not spelling_of(message, PROTOCOL):
            run.append(message)
            continue
        if run:
            yield from sorted(run, key=lambda each: order.get(_answered(each), 0))
            run = []
        for ours in _called(message):
            order[ours] = len(order)
        yield message
    yield from sorted(run, key=lambda each: order.get(_answered(each), 0))


def _answered(message: Message) -> str:
    block = message.content[0] if message.content else None
    return block.tool_use_id if isinstance(block, ToolResultBlock) else ""
