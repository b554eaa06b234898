"""The law of edits: changing one block of a message leaves the others unchanged.

A message that came from a provider, or its client, goes back with every key, also after one of its
blocks was changed, removed or another was added. Requests are compared leaf by leaf: each key with
its value, of texts each character, because protocols join and divide texts.

The leaves of a block are those that a request loses if the block is removed. So no other edit may
lose more than the leaves of the block that it changes, and no leaf can belong to two blocks: the
removal of one would have taken a key of the other along. What is missing beyond that has a loss
that names the key, or the block which has it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters import Adapter, AdapterOptions, Loss, WireRequest
from metis.canonical.blocks import (
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.json_access import maybe_object
from metis.wire.original_form import write_sorted

_HISTORY_KEYS = ("messages", "contents", "input", "system", "systemInstruction", "instructions")
_MARK_KEYS = frozenset({"cache_control", "cachePoint", "prompt_cache_breakpoint"})
"""Cache marks are hints beside the content, whose places are the caller's choice."""
_FRAME_KEYS = frozenset({"role"})
"""Keys of the messages around parts, which are joined and divided as their neighbours change."""
_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "message"})
_TEXT_KEYS = frozenset({"content", "text", "thinking", "reasoning", "reasoning_content"})
"""Keys of texts that a protocol may hold as one string, or in parts."""
_decode = msgspec.json.Decoder().decode
_ADDED = TextBlock("added to this message")
_CHANGE, _REMOVAL, _ADDITION = "a change", "the removal", "an addition"
_BLOCK_PATH = re.compile(r"\$\.content\[(\d+)\]")

Leaf = tuple[str, bytes | str]
"""A key with its value, or a character of a text."""
Leaves = Counter[Leaf]


def edit_faults(
    adapter: Adapter,
    history: Sequence[Message],
    tools: Sequence[ToolDefinition] = (),
    options: AdapterOptions | None = None,
    places: range | None = None,
) -> Iterator[str]:
    """Yield which keys of a history a provider does not get back after one edit.

    `places` are the messages to edit, by default all of them.
    """
    options = options or AdapterOptions()
    try:
        before = adapter.preview(history, tools, options)
    except MetisError:
        return
    leaves = leaves_of(before)
    for place in places or range(len(history)):
        message = history[place]
        done: list[_Edit] = []
        for name, index, content in edits(message):
            edited = [*history]
            edited[place] = replace(message, content=content)
            try:
                after = adapter.preview(edited, tools, options)
            except MetisError as error:
                yield f"{name} of block {index} of message {place}: {error}"
                continue
            losses = _new_losses(before.losses, after.losses, message.id)
            done.append(_Edit(name, index, leaves - leaves_of(after), losses))
        faults = _faults(done, leaves, message.id)
        yield from (f"message {place}: {fault}" for fault in faults)


class _Edit(Struct, frozen=True):
    """One edit of a message, and what the request lacks after it."""

    name: str
    index: int
    missing: Leaves
    losses: list[Loss]

    def lost_blocks(self, message_id: str) -> Iterator[int]:
        """Yield the indexes, before the edit, of blocks that a loss says are gone or changed."""
        for loss in self.losses:
            match = _BLOCK_PATH.match(loss.path)
            if loss.message_id != message_id or match is None:
                continue
            index = int(match[1])
            if self.name == _REMOVAL and index >= self.index:
                index += 1
            elif self.name == _ADDITION and index > self.index:
                index -= 1
            yield index


def _faults(done: Sequence[_Edit], leaves: Leaves, message_id: str) -> Iterator[str]:
    """Yield the edits that lose more than the leaves of their block, with a key."""
    leaves_of_block = {edit.index: edit.missing for edit in done if edit.name == _REMOVAL}
    for edit in done:
        if edit.name == _REMOVAL:
            continue
        # The only block of a message cannot be removed; what an addition loses, it has not.
        allowed: Leaves = Counter()
        if edit.name == _CHANGE:
            allowed.update(leaves_of_block.get(edit.index, edit.missing))
        for index in edit.lost_blocks(message_id):
            allowed.update(leaves_of_block.get(index, {}))
        for fault in _unnamed(edit.missing - allowed, edit.losses, message_id):
            yield f"{fault} after {edit.name} of block {edit.index}"
    total: Leaves = Counter(leaves)
    losses: list[Loss] = []
    for edit in done:
        if edit.name == _REMOVAL:
            losses += edit.losses
            total.subtract(edit.missing)
            for index in edit.lost_blocks(message_id):
                total.update(leaves_of_block.get(index, {}))
    shared = Leaves({leaf: -count for leaf, count in total.items() if count < 0})
    for fault in _unnamed(shared, losses, message_id):
        yield f"{fault} after the removals of two blocks"


def _unnamed(leaves: Leaves, losses: Sequence[Loss], message_id: str) -> Iterator[str]:
    """Yield the leaves of which no loss has the key; those of another message are its losses."""
    if not leaves or any(loss.message_id != message_id for loss in losses):
        return
    names = {loss.path.rpartition(".")[2] for loss in losses}
    keys: dict[str, list[str]] = {}
    for key, value in leaves.elements():
        text = value if isinstance(value, str) else value.decode(errors="replace")
        keys.setdefault(key, []).append(text)
    for key, values in keys.items():
        if key not in names:
            yield f"{key} {''.join(values)[:80]} is missing"


def _new_losses(before: Sequence[Loss], after: Sequence[Loss], message_id: str) -> list[Loss]:
    """Return the losses of the edited message, whose blocks have moved, and new ones of others."""
    earlier = {(loss.message_id, loss.path, loss.reason) for loss in before}
    return [
        loss
        for loss in after
        if loss.message_id == message_id or (loss.message_id, loss.path, loss.reason) not in earlier
    ]


def edits(message: Message) -> Iterator[tuple[str, int, tuple[ContentBlock, ...]]]:
    """Yield every edit of one block: its name, the index, and the content after it."""
    content = message.content
    for index, block in enumerate(content):
        before, after = content[:index], content[index + 1 :]
        changed = _changed(block)
        if changed is not None:
            yield _CHANGE, index, (*before, changed, *after)
        if len(content) > 1:
            yield _REMOVAL, index, (*before, *after)
        if message.role is not Role.TOOL:
            yield _ADDITION, index, (*before, _ADDED, block, *after)
    if message.role is not Role.TOOL:
        yield _ADDITION, len(content), (*content, _ADDED)


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


def leaves_of(request: WireRequest) -> Leaves:
    """Return the leaves of a request's history: each key with its value, texts by character."""
    body = maybe_object(_decode(request.body))
    leaves: Leaves = Counter()
    for key in _HISTORY_KEYS:
        _add_leaves(leaves, "content", body.get(key))
    return leaves


def _add_leaves(leaves: Leaves, key: str, value: Any) -> None:
    if isinstance(value, dict):
        wire = cast("dict[str, Any]", value)
        for name, inner in wire.items():
            if name not in _MARK_KEYS and name not in _FRAME_KEYS:
                _add_leaves(leaves, name, inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            _add_leaves(leaves, key, inner)
    elif isinstance(value, str) and key in _TEXT_KEYS:
        leaves.update(("text", character) for character in value if not character.isspace())
    elif value is not None and not (key == "type" and value in _TEXT_TYPES):
        leaves[key, write_sorted(value)] += 1
