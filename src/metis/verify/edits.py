"""The law of edits: to change one block of a message leaves its neighbours as they came.

A message that came from a provider, or its client, goes back with every key, also after one of its
blocks was changed, removed or another was added. Requests are compared by their smallest parts: the
parts of messages, calls, items. One part may differ, that of the block; others only with a loss.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.adapters import Adapter, AdapterOptions, WireRequest
from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.json_access import Wire, maybe_list, maybe_object
from metis.wire.original_form import write_sorted

_HISTORY_KEYS = ("messages", "contents", "input", "system", "systemInstruction", "instructions")
_MARK_KEYS = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Cache marks are hints beside the content, whose places are the caller's choice."""
_THINKING_KEYS = frozenset({"reasoning", "reasoning_content", "thinking"})
"""Keys in which Chat Completions and Ollama repeat the text of thinking."""
_MESSAGE_KEYS = frozenset({"role", "content", "parts"})
_decode = msgspec.json.Decoder().decode
_CALL_PARTS = 3
"""The parts of a call and its result; that of Chat Completions has its id as a key."""
_ADDED = TextBlock("added to this message")

Part = tuple[str, bytes]


def edit_faults(
    adapter: Adapter,
    history: Sequence[Message],
    tools: Sequence[ToolDefinition] = (),
    options: AdapterOptions | None = None,
    places: range | None = None,
) -> Iterator[str]:
    """Yield which parts of a history a provider does not get back after one edit.

    `places` are the messages to edit, by default all of them.
    """
    try:
        before = adapter.preview(history, tools, options or AdapterOptions())
    except MetisError:
        return
    parts = parts_of(before)
    for place in places or range(len(history)):
        message = history[place]
        for name, block, content in edits(message):
            edited = [*history]
            edited[place] = replace(message, content=content)
            try:
                after = adapter.preview(edited, tools, options or AdapterOptions())
            except MetisError as error:
                yield f"{name} of message {place}: {error}"
                continue
            allowed = _own_parts(name, block) + max(0, len(after.losses) - len(before.losses))
            missing = [part for part in _missing(parts, after) if not _is_of_thinking(part, block)]
            if len(missing) > allowed:
                key, value = missing[-1]
                yield f"{name} of message {place}: {key} {value[:80].decode(errors='replace')}"


def edits(message: Message) -> Iterator[tuple[str, ContentBlock | None, tuple[ContentBlock, ...]]]:
    """Yield every edit of one block: its name, the block, and the content after it."""
    content = message.content
    for index, block in enumerate(content):
        before, after = content[:index], content[index + 1 :]
        changed = _changed(block)
        if changed is not None:
            yield f"a change of block {index}", block, (*before, changed, *after)
        if len(content) > 1:
            yield f"the removal of block {index}", block, (*before, *after)
        if message.role is not Role.TOOL:
            yield f"an addition before block {index}", None, (*before, _ADDED, block, *after)
    if message.role is not Role.TOOL:
        yield "an addition at the end", None, (*content, _ADDED)


def _changed(block: ContentBlock) -> ContentBlock | None:
    match block:
        case TextBlock():
            return TextBlock(f"{block.text} changed")
        case ToolUseBlock():
            return replace(block, input={**block.input, "changed": True}, invalid=None)
        case ThinkingBlock():
            return replace(block, text=f"{block.text} changed")
        case ToolResultBlock():
            return replace(block, content=(*block.content, _ADDED))
        case _:
            return None


def _own_parts(name: str, block: ContentBlock | None) -> int:
    """Return how many parts may differ: a call that is removed takes its result along."""
    if block is None:
        return 0
    is_removed = type(block) is ToolUseBlock and name.startswith("the removal")
    return _CALL_PARTS if is_removed else 1


def _is_of_thinking(part: Part, block: ContentBlock | None) -> bool:
    is_thinking = isinstance(block, ThinkingBlock | RedactedThinkingBlock)
    return is_thinking and part[0] in _THINKING_KEYS


def _missing(parts: Counter[Part], after: WireRequest) -> list[Part]:
    """Return the parts that a request no longer has; a text may be a string or a part."""
    text = after.body
    missing = parts - parts_of(after)
    return [
        part
        for part in missing.elements()
        if part[0] != "text" or msgspec.json.encode(part[1].decode())[1:-1] not in text
    ]


def parts_of(request: WireRequest) -> Counter[Part]:
    """Return the smallest parts of a request's history, each with its key."""
    body = maybe_object(_decode(request.body))
    parts: Counter[Part] = Counter()
    for key in _HISTORY_KEYS:
        value = body.get(key)
        for item in cast("list[Any]", value) if isinstance(value, list) else [value]:
            parts.update(_parts_of_item(item))
    return parts


def _parts_of_item(item: Any) -> Iterator[Part]:
    if isinstance(item, str):
        yield "text", item.encode(errors="surrogatepass")
        return
    wire = maybe_object(item)
    kind = wire.get("type")
    is_message = kind in (None, "message") and not wire.keys().isdisjoint(_MESSAGE_KEYS)
    if kind == "message" and isinstance(wire.get("content"), list):
        # Its keys belong to each of its parts, which OpenAI Responses sends one by one.
        keys = {key: value for key, value in wire.items() if key != "content"}
        for part in maybe_list(wire["content"]):
            yield "part", write_sorted([_without_marks(part), keys])
    elif is_message:
        for key, value in wire.items():
            yield from _parts_of_key(key, value)
    elif wire:
        yield "item", write_sorted(_without_marks(wire))


def _parts_of_key(key: str, value: Any) -> Iterator[Part]:
    if isinstance(value, list):
        for part in maybe_list(value):
            if {*maybe_object(part)} != {"cachePoint"}:
                yield "part", write_sorted(_without_marks(part))
    elif key == "content" and isinstance(value, str):
        yield "text", value.encode(errors="surrogatepass")
    elif key not in ("role", "content"):
        yield key, write_sorted(value)


def _without_marks(part: Any) -> Any:
    wire: Wire = maybe_object(part)
    if not wire:
        return part
    return {key: value for key, value in wire.items() if key not in _MARK_KEYS}
