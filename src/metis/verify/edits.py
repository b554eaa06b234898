"""The law of edits: changing one block of a message leaves the others unchanged.

A message of a provider or its client is sent back with all its keys, even after a block of it was
changed, removed or added. Requests are compared by leaves: each key with its value, and each
character of a text, because protocols join and split texts.

The leaves of a block are those that a request loses if the block is removed. Another edit may lose
at most the leaves of the edited block. No leaf may belong to two blocks: then the removal of one
block would have removed a key of the other. A loss must name each other missing leaf, by its key or
by its block.
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
"""The keys of cache marks, which are not part of the content."""
_FRAME_KEYS = frozenset({"role"})
"""Keys of messages, which may be joined and split after an edit."""
_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "message"})
_TEXT_KEYS = frozenset({"content", "text", "thinking", "reasoning", "reasoning_content"})
"""Keys of texts that a protocol may have as one string or as parts."""
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
    """Yield the keys of a history that are missing in the request after an edit of one block.

    `places` are the indexes of the messages to edit, by default all of them.
    """
    options = options or AdapterOptions()
    try:
        before = adapter.preview(history, tools, options)
    except MetisError:
        return
    leaves = leaves_of(before)
    for place in places or range(len(history)):
        message = history[place]
        message_edits: list[_Edit] = []
        for name, index, content in edits(message):
            edited = [*history]
            edited[place] = replace(message, content=content)
            try:
                after = adapter.preview(edited, tools, options)
            except MetisError as error:
                yield f"{name} of block {index} of message {place}: {error}"
                continue
            losses = _new_losses(before.losses, after.losses, message.id)
            message_edits.append(_Edit(name, index, leaves - leaves_of(after), losses))
        faults = _faults(message_edits, leaves, message.id)
        yield from (f"message {place}: {fault}" for fault in faults)


class _Edit(Struct, frozen=True):
    """One edit of a message, and the leaves that are missing in the request after it."""

    name: str
    index: int
    missing: Leaves
    losses: list[Loss]

    def lost_blocks(self, message_id: str) -> Iterator[int]:
        """Yield the original indexes of blocks for which there is a loss."""
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


def _faults(message_edits: Sequence[_Edit], leaves: Leaves, message_id: str) -> Iterator[str]:
    """Yield the edits that lose more than the leaves of their block, with a missing key."""
    leaves_of_block = {edit.index: edit.missing for edit in message_edits if edit.name == _REMOVAL}
    for edit in message_edits:
        if edit.name == _REMOVAL:
            continue
        # An addition may lose nothing. The leaves of an only block are unknown, because it cannot
        # be removed: a change of it may lose anything.
        allowed: Leaves = Counter()
        if edit.name == _CHANGE:
            allowed.update(leaves_of_block.get(edit.index, edit.missing))
        for index in edit.lost_blocks(message_id):
            allowed.update(leaves_of_block.get(index, {}))
        for fault in _unnamed(edit.missing - allowed, edit.losses, message_id):
            yield f"{fault} after {edit.name} of block {edit.index}"
    total: Leaves = Counter(leaves)
    losses: list[Loss] = []
    for edit in message_edits:
        if edit.name == _REMOVAL:
            losses += edit.losses
            total.subtract(edit.missing)
            for index in edit.lost_blocks(message_id):
                total.update(leaves_of_block.get(index, {}))
    shared = Leaves({leaf: -count for leaf, count in total.items() if count < 0})
    for fault in _unnamed(shared, losses, message_id):
        yield f"{fault} after the removals of two blocks"


def _unnamed(leaves: Leaves, losses: Sequence[Loss], message_id: str) -> Iterator[str]:
    """Yield the leaves whose key no loss names; none if there are losses of another message."""
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
    """Return all losses of the edited message, and the new losses of other messages."""
    earlier = {(loss.message_id, loss.path, loss.reason) for loss in before}
    return [
        loss
        for loss in after
        if loss.message_id == message_id or (loss.message_id, loss.path, loss.reason) not in earlier
    ]


def edits(message: Message) -> Iterator[tuple[str, int, tuple[ContentBlock, ...]]]:
    """Yield every edit of one block: its name, the index, and the edited content."""
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
    """Return the leaves of a request's history: keys with values, and characters of texts."""
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
