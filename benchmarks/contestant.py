"""Ours as a contestant of a workload that others made; `beside.py` says where it comes from.

`CASES` has one factory for each task. It gives the work of one round, and what shows that the work
was done. The module is started with the project's own interpreter and its source on the path.
"""

import importlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from metis import adapters
from metis.adapters import Adapter
from metis.canonical import (
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
    decode_trusted,
    encode,
)
from metis.canonical.ids import new_ulid
from metis.canonical.tools import SideEffects
from metis.wire.call import AdapterOptions, RequestContext

logging.disable(logging.WARNING)  # losses are counted, not printed
_workload: Any = importlib.import_module("workload")
_TALK: dict[str, Any] = _workload.conversation()
_CONTEXT = RequestContext(session_id="sess_bench")
_NOW = datetime(2026, 5, 8, tzinfo=UTC)
_MODELS = {
    "anthropic": _workload.MODEL_A,
    "openai": _workload.MODEL_O,
    "openai-responses": _workload.MODEL_O,
}
_KINDS = {"anthropic": "anthropic", "openai": "openai", "openai-responses": "responses"}
"""What the workload calls the protocols of our adapters."""
Case = Callable[[], tuple[Callable[[], Any], Callable[[Any], object]]]


def _said(turn: dict[str, Any]) -> Message:
    """A turn of the workload as one of our messages."""
    parent, text = None, TextBlock(turn["text"])
    blocks: list[Any] = [text]
    if turn["role"] == "tool":
        parent = turn["call_id"]
        blocks = [ToolResultBlock(turn["call_id"], (text,))]
    blocks += (
        ToolUseBlock(call["id"], call["name"], call["args"]) for call in turn.get("calls", ())
    )
    if "image" in turn:
        blocks.append(ImageBlock(ImageSource("base64", turn["image"]), turn["media_type"]))
    return Message(
        id=new_ulid(),
        session_id="sess_bench",
        role=Role(turn["role"]),
        content=tuple(blocks),
        created_at=_NOW,
        metadata=MessageMetadata(parent_tool_use_id=parent),
    )


def _messages() -> list[Message]:
    return [
        _said(turn) for turn in ({"role": "system", "text": _TALK["system"]}, *_TALK["messages"])
    ]


_TOOLS = tuple(
    ToolDefinition(
        name=tool["name"],
        description=tool["description"],
        input_schema=tool["schema"],
        side_effects=SideEffects.READ,
    )
    for tool in _TALK["tools"]
)


def _to_wire(name: str, *, is_first: bool) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    profile, messages = adapters.get(name).profile, _messages()
    asked = AdapterOptions(model=_MODELS[name], max_output_tokens=4096)
    before = Adapter(profile)
    before.to_wire(messages[:-1], _TOOLS, asked)

    def first() -> bytes:
        return Adapter(profile).to_wire(messages, _TOOLS, asked).body

    def again() -> bytes:
        return before.to_wire(messages, _TOOLS, asked).body

    return first if is_first else again, lambda body: _workload.check_body(
        _KINDS[name], body, _TALK
    )


def _from_wire(name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    adapter, body = adapters.get(name), getattr(_workload, f"{name}_response")()
    return partial(adapter.from_wire_response, body, _CONTEXT), _blocks


def _stream(name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    adapter, chunks = adapters.get(name), getattr(_workload, f"{name}_stream")()

    def read() -> Message:
        decoder = adapter.stream_decoder(_CONTEXT)
        for chunk in chunks:
            decoder.feed(chunk)
        decoder.finish()
        return decoder.message

    return read, _blocks


def _translate(source: str, target: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    one, other = adapters.get(source), adapters.get(target)
    chunks = getattr(_workload, f"{source}_stream")()

    def translate() -> bytes:
        decoder, encoder = one.stream_decoder(_CONTEXT), other.stream_encoder(_CONTEXT)
        out = [encoder.encode(event) for chunk in chunks for event in decoder.feed(chunk)]
        out += [encoder.encode(event) for event in decoder.finish()]
        return b"".join([*out, encoder.finish()])

    return translate, lambda body: {"bytes": len(body)}


def _history(*, is_load: bool) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    messages = _messages()
    rows = [encode(message) for message in messages]
    if is_load:
        return lambda: [decode_trusted(row) for row in rows], lambda read: {"messages": len(read)}
    return lambda: [encode(each) for each in messages], lambda out: {"bytes": sum(map(len, out))}


def _blocks(message: Message) -> object:
    return {"blocks": len(message.content)}


CASES: dict[str, Case] = {
    "history.dump": partial(_history, is_load=False),
    "history.load": partial(_history, is_load=True),
    "xlate.a2o": partial(_translate, "anthropic", "openai"),
    "xlate.o2a": partial(_translate, "openai", "anthropic"),
}
for _name, _kind in _KINDS.items():
    CASES[f"to_wire.{_kind}"] = partial(_to_wire, _name, is_first=True)
    CASES[f"to_wire.{_kind}.again"] = partial(_to_wire, _name, is_first=False)
for _name in ("anthropic", "openai"):
    CASES[f"from_wire.{_name}"] = partial(_from_wire, _name)
    CASES[f"stream.{_name}"] = partial(_stream, _name)
