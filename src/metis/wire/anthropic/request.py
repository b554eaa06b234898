"""Decoding of Anthropic Messages requests.

A wire message with the role `user` may contain tool results and other blocks: each result becomes a
tool message, the blocks between results become user messages, and the original form stores which of
them shared a wire message. The system prompt becomes the first message. All keys except messages
and tools become options.
"""

from collections.abc import Iterable
from typing import Any

from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.message import Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.anthropic.blocks import (
    PROTOCOL,
    cache_hints,
    decode_block,
    decode_non_result,
    is_exact,
    is_result,
    with_id,
)
from metis.wire.anthropic.options import decode_options, decode_tools
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.json_access import Wire, list_at, object_at, read_object, unknown_role
from metis.wire.original_form import provider_raw_of
from metis.wire.request import RequestDraft
from metis.wire.tool_ids import CallIds

ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
"""The canonical roles by their names in the protocol."""
_make_metadata = raw_constructor(MessageMetadata)


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a request body; blocks of unknown types become opaque blocks."""
    wire = read_object(body, "request")
    draft = AnthropicRequestDraft(context)
    begin_request(draft, wire)
    if "messages" not in wire:
        raise DecodeError("a request needs a list of messages", path="$.messages")
    for index, message in enumerate(list_at(wire.pop("messages"), "$.messages")):
        path = f"$.messages[{index}]"
        draft.add(object_at(message, path), path)
    return CanonicalRequest(draft.messages(), *end_request(wire, context))


def begin_request(draft: "AnthropicRequestDraft", wire: Wire) -> None:
    """Add the system prompt, which has a key outside of the message list, and remove its key."""
    if wire.get("system") is not None:
        draft.add({"role": "system", "content": wire.pop("system")}, "$.system")


def end_request(wire: Wire, _: RequestContext) -> tuple[tuple[ToolDefinition, ...], AdapterOptions]:
    """Decode the tools and the options from the other keys of a request."""
    return decode_tools(wire.get("tools")), decode_options(wire)


class AnthropicRequestDraft(RequestDraft):
    """The messages of a request while they are decoded."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context, PROTOCOL)
        self._ids = CallIds(context.call_scope)

    def _detach(self) -> None:
        self._ids = self._ids.copy()

    @property
    def is_leading(self) -> bool:
        """Whether only system messages were added so far."""
        return not self._drafts or self._drafts[-1][0] is Role.SYSTEM

    def add(self, wire: Wire, path: str) -> None:
        """Add one wire message as one or several canonical messages."""
        role = ROLES.get(str(wire.get("role")))
        if role is None:
            raise unknown_role(wire.get("role"), path)
        # A system message within the list may contain only settings, without content.
        is_bare = role is Role.SYSTEM and "content" not in wire
        content: Any = [] if is_bare else wire.get("content")
        is_plain = isinstance(content, str)
        is_leading_in_list = role is Role.SYSTEM and path != "$.system" and self.is_leading
        blocks = [{"type": "text", "text": content}] if is_plain else list_at(content, path)
        extra = {name: value for name, value in wire.items() if name not in ("role", "content")}
        # Empty content is a message, too, and must be encoded as one again.
        groups = list(_groups(role, blocks)) or [(role, [])]
        for number, (group_role, group) in enumerate(groups):
            form: Wire = {
                "joined": number > 0,
                "plain": is_plain,
                "bare": is_bare,
                "turn": is_leading_in_list,
                "keys": extra if number == 0 else None,
            }
            self._add_blocks(group_role, group, form)

    def _add_blocks(self, role: Role, blocks: list[Any], form: Wire) -> None:
        """Decode the wire blocks of one canonical message, and add it with its original form."""
        ids: dict[str, str] = {}
        inexact: Wire = {}
        content: list[ContentBlock] = []
        parent = None
        for index, wire in enumerate(blocks):
            block = decode_block(wire) if role is Role.TOOL else decode_non_result(wire)
            if not is_exact(block, wire):
                inexact[str(index)] = wire
            if isinstance(block, ToolUseBlock):
                tool_use_id = self._ids.of_call(block.id)
                ids[tool_use_id] = block.id
                block = with_id(block, tool_use_id)
            elif isinstance(block, ToolResultBlock):
                tool_use_id = parent = self._ids.of_result(block.tool_use_id)
                ids[tool_use_id] = block.tool_use_id
                block = with_id(block, tool_use_id)
            content.append(block)
        digest = content_digest(role, content) if inexact else None
        form |= {"blocks": inexact, "digest": digest, "ids": ids}
        metadata = _make_metadata(
            origin=self._origin,
            hints=cache_hints(inexact) if inexact else (),
            parent_tool_use_id=parent,
            provider_raw=provider_raw_of(PROTOCOL, form),
        )
        self._drafts.append((role, tuple(content), metadata))


def _groups(role: Role, blocks: Iterable[Any]) -> Iterable[tuple[Role, list[Any]]]:
    """Split the blocks of a wire message into those of the canonical messages, in order."""
    group: list[Any] = []
    for block in blocks:
        if role is Role.USER and is_result(block):
            if group:
                yield role, group
                group = []
            yield Role.TOOL, [block]
        else:
            group.append(block)
    if group:
        yield role, group
