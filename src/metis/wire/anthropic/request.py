"""Requests of Anthropic Messages.

Decoding: a user message of the wire may hold results and text; each result becomes a tool message,
the rest user messages, and the borders between wire messages are remembered. The system prompt
becomes the first message. Everything that is neither message nor tool goes into the options.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import made
from metis.wire.anthropic.blocks import PROTOCOL, decode_block, encode_block, is_exact, is_result
from metis.wire.anthropic.options import decode_options, decode_tools, encode_options
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.shape import Wire, list_at, maybe_object, object_at, read_object, unknown_role
from metis.wire.spelling import NOTHING, spelled, spelled_blocks, spelling_of
from metis.wire.tool_ids import canonical_tool_id, derived_id

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
# Keys are sorted, so that a history gives the same bytes before and after it was stored (T176).
_write = msgspec.json.Encoder(order="deterministic").encode
_make_message = made(Message)
_make_metadata = made(MessageMetadata)


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    wire = read_object(body, "request")
    draft = _Draft(context)
    system = wire.pop("system", None)
    if system is not None:
        draft.take({"role": "system", "content": system}, "$.system")
    if "messages" not in wire:
        raise DecodeError("a request has a list of messages", path="$.messages")
    for index, message in enumerate(list_at(wire.pop("messages"), "$.messages")):
        path = f"$.messages[{index}]"
        draft.take(object_at(message, path), path)
    return CanonicalRequest(draft.messages(), decode_tools(wire.get("tools")), decode_options(wire))


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    body = encode_options(options, tools)
    system, rest = _split_system(messages)
    if system:
        body["system"] = _encode_system(system)
    body["messages"] = encode_messages(rest)
    return _write(body)


class _Draft:
    """The messages of a request while they are read."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._parts: list[tuple[Role, tuple[ContentBlock, ...], MessageMetadata]] = []
        self._answered: set[str] = set()
        self._occurrences: dict[str, int] = {}

    def messages(self) -> tuple[Message, ...]:
        ids = new_ulids(len(self._parts))
        return tuple(
            _make_message(
                id=one,
                session_id=self._context.session_id,
                role=role,
                content=content,
                metadata=metadata,
                created_at=self._context.created_at,
            )
            for one, (role, content, metadata) in zip(ids, self._parts, strict=True)
        )

    def take(self, wire: Wire, path: str) -> None:
        """Take one message of the wire: one or several of ours."""
        role = _ROLES.get(str(wire.get("role")))
        if role is None:
            raise unknown_role(wire.get("role"), path)
        content = wire.get("content")
        plain = isinstance(content, str)
        blocks = [{"type": "text", "text": content}] if plain else list_at(content, path)
        spare = {name: value for name, value in wire.items() if name not in ("role", "content")}
        groups = list(_groups(role, blocks)) or [(role, [])]
        for number, (own_role, own_blocks) in enumerate(groups):
            self._add(
                own_role,
                own_blocks,
                {
                    "joined": number > 0,
                    "plain": plain,
                    "keys": spare if number == 0 else None,
                },
            )

    def _add(self, role: Role, blocks: list[Any], spelling: dict[str, Any]) -> None:
        ids: dict[str, str] = {}
        odd: dict[str, Any] = {}
        content: list[ContentBlock] = []
        for index, wire in enumerate(blocks):
            block = decode_block(wire)
            if not is_exact(block, wire):
                odd[str(index)] = wire
            content.append(self._with_our_ids(block, ids))
        parent = next((b.tool_use_id for b in content if isinstance(b, ToolResultBlock)), None)
        metadata = _make_metadata(
            origin=self._context.provider or PROTOCOL,
            parent_tool_use_id=parent,
            provider_raw=spelled(
                PROTOCOL,
                {
                    **spelling,
                    "blocks": odd,
                    "digest": content_digest(role, content) if odd else None,
                    "ids": ids,
                },
            ),
        )
        self._parts.append((role, tuple(content), metadata))

    def _with_our_ids(self, block: ContentBlock, ids: dict[str, str]) -> ContentBlock:
        match block:
            case ToolUseBlock():
                if block.id in self._answered:
                    # The same id in a later turn is another call (T09).
                    self._occurrences[block.id] = self._occurrences.get(block.id, 0) + 1
                    self._answered.discard(block.id)
                ours = self._our_id(block.id)
                ids[ours] = block.id
                return replace(block, id=ours)
            case ToolResultBlock():
                self._answered.add(block.tool_use_id)
                ours = self._our_id(block.tool_use_id)
                ids[ours] = block.tool_use_id
                return replace(block, tool_use_id=ours)
            case _:
                return block

    def _our_id(self, theirs: str) -> str:
        occurrence = self._occurrences.get(theirs, 0)
        return canonical_tool_id(self._context.session_id, theirs, occurrence)


def _groups(role: Role, blocks: Iterable[Any]) -> Iterable[tuple[Role, list[Any]]]:
    """The blocks of a wire message by the messages of ours that they become, in order."""
    open_group: list[Any] = []
    for block in blocks:
        if role is Role.USER and is_result(block):
            if open_group:
                yield role, open_group
                open_group = []
            yield Role.TOOL, [block]
        else:
            open_group.append(block)
    if open_group:
        yield role, open_group


def encode_messages(messages: Sequence[Message]) -> list[Wire]:
    """The messages of the wire for ours."""
    known: dict[str, str] = {}

    def wire_id(ours: str) -> str:
        return known.get(ours) or derived_id(ours, "toolu_")

    turns: list[Wire] = []
    for message in messages:
        spelling = spelling_of(message, PROTOCOL)
        known.update(spelling.get("ids", {}))
        blocks = _encode_blocks(message, spelling, wire_id)
        role = "user" if message.role in (Role.USER, Role.TOOL) else str(message.role)
        if turns and turns[-1]["role"] == role and isinstance(turns[-1]["content"], list):
            follows = message.role is Role.TOOL and not spelling and _is_open(turns[-1])
            if spelling.get("joined") or follows:
                turns[-1]["content"] += blocks
                continue
        content: Any = blocks
        if spelling.get("plain") and len(blocks) == 1 and "text" in maybe_object(blocks[0]):
            content = blocks[0]["text"]
        turns.append({"role": role, "content": content, **(spelling.get("keys") or {})})
    return turns


def _is_open(turn: Wire) -> bool:
    """Whether a turn holds results only, so that more may join them (T15)."""
    content = turn["content"]
    return turn["role"] == "user" and all(
        isinstance(block, dict) and cast("Wire", block).get("type") == "tool_result"
        for block in content
    )


def _encode_blocks(
    message: Message, spelling: Mapping[str, Any], wire_id: Callable[[str], str]
) -> list[Any]:
    odd = spelled_blocks(message, spelling) if "blocks" in spelling else NOTHING
    blocks: list[Any] = []
    for index, block in enumerate(message.content):
        if odd and str(index) in odd:
            blocks.append(odd[str(index)])
        elif type(block) is TextBlock and not block.citations:
            blocks.append({"type": "text", "text": block.text})
        else:
            wire = encode_block(block, wire_id)
            if wire is not None:
                blocks.append(wire)
    return blocks


def _split_system(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    count = next((i for i, m in enumerate(messages) if m.role != Role.SYSTEM), len(messages))
    return messages[:count], messages[count:]


def _encode_system(messages: Sequence[Message]) -> Any:
    spelling = spelling_of(messages[0], PROTOCOL)
    blocks = [
        block
        for message in messages
        for block in _encode_blocks(message, spelling_of(message, PROTOCOL), str)
    ]
    return blocks[0]["text"] if spelling.get("plain") and len(blocks) == 1 else blocks
