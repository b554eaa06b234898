"""A conversation in the form of ShareGPT: turns of `human` and `gpt`, calls and observations."""

from collections.abc import Iterator
from typing import Any

import msgspec

from metis.canonical.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.exports.written import Losses, Talk, Written

_FROM = {
    Role.SYSTEM: "system",
    Role.DEVELOPER: "system",
    Role.USER: "human",
    Role.ASSISTANT: "gpt",
    Role.TOOL: "observation",
}
_REASON = "this form holds only words, calls and results"


def write_sharegpt(talk: Talk) -> Written:
    """One line of JSON; what one speaker says in several messages is one turn."""
    losses = Losses("sharegpt")
    turns: list[dict[str, str]] = []
    for message in talk.messages:
        for speaker, value in _said(message, losses):
            if turns and turns[-1]["from"] == speaker and speaker != "function_call":
                turns[-1]["value"] += f"\n\n{value}"
            else:
                turns.append({"from": speaker, "value": value})
    document: dict[str, Any] = {"id": talk.session.id, "conversations": turns}
    return Written(msgspec.json.encode(document) + b"\n", tuple(losses.found))


def _said(message: Message, losses: Losses) -> Iterator[tuple[str, str]]:
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


def _result(message: Message, place: int, result: ToolResultBlock, losses: Losses) -> str:
    words = [block.text for block in result.content if isinstance(block, TextBlock)]
    for block in result.content:
        if not isinstance(block, TextBlock):
            losses.add(message, place, block, _REASON)
    return "\n".join(words)
