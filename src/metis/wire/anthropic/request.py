"""Requests of Anthropic Messages, as they are read.

A user message of the wire may hold results and text; each result becomes a tool message, the rest
user messages, and the borders between wire messages are remembered. The system prompt becomes the
first message. Everything that is neither message nor tool goes into the options.

There are two roads. Requests of common parts are read into Structs; all others as plain JSON.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, to_builtins

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, MessageMetadata
from metis.canonical.value import raw_constructor
from metis.wire.anthropic.blocks import (
    PROTOCOL,
    Part,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
    cache_hints,
    decode_block,
    decode_non_result,
    decode_part,
    is_exact,
    is_exact_part,
    is_result,
    opaque_block,
    with_id,
)
from metis.wire.anthropic.options import decode_options, decode_tools
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.json_access import Wire, list_at, object_at, read_object, unknown_role
from metis.wire.original_form import provider_raw_of
from metis.wire.tool_ids import CallIds

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_USER, _TOOL, _SYSTEM = Role.USER, Role.TOOL, Role.SYSTEM
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)


class _Turn(Struct, forbid_unknown_fields=True):
    content: str | list[Part]
    role: str


class _Body(Struct, forbid_unknown_fields=True):
    messages: list[_Turn]
    system: str | list[TextPart | ThinkingPart] | msgspec.UnsetType = UNSET  # a union wants a tag
    anthropic_beta: Any = UNSET
    cache_control: Any = UNSET
    container: Any = UNSET
    context_management: Any = UNSET
    inference_geo: Any = UNSET
    max_tokens: Any = UNSET
    mcp_servers: Any = UNSET
    metadata: Any = UNSET
    model: Any = UNSET
    output_config: Any = UNSET
    output_format: Any = UNSET
    service_tier: Any = UNSET
    speed: Any = UNSET
    stop_sequences: Any = UNSET
    stream: Any = UNSET
    temperature: Any = UNSET
    thinking: Any = UNSET
    tool_choice: Any = UNSET
    tools: Any = UNSET
    top_k: Any = UNSET
    top_p: Any = UNSET


_OPTIONS = _Body.__struct_fields__[2:]
_read_body = msgspec.json.Decoder(_Body).decode


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    draft = _Draft(context)
    try:
        found = _read_body(body)
    except (ValueError, RecursionError):
        wire = _take_plain(read_object(body, "request"), draft)
    else:
        wire = _take_parts(found, draft)
    return CanonicalRequest(draft.messages(), decode_tools(wire.get("tools")), decode_options(wire))


def _take_parts(body: _Body, draft: "_Draft") -> Wire:
    """Take the messages; the rest is for the options."""
    if body.system is not UNSET:
        draft.take_turn(_SYSTEM, body.system)
    for index, turn in enumerate(body.messages):
        role = _ROLES.get(turn.role)
        if role is None:
            raise DecodeError(f"unknown role {turn.role!r}", path=f"$.messages[{index}].role")
        if role is _SYSTEM and draft.is_leading:
            draft.take(to_builtins(turn), f"$.messages[{index}]")
            continue
        draft.take_turn(role, turn.content)
    stated = ((name, getattr(body, name)) for name in _OPTIONS)
    return {name: value for name, value in stated if value is not UNSET}


def _take_plain(wire: Wire, draft: "_Draft") -> Wire:
    """The same for plain JSON."""
    if wire.get("system") is not None:
        draft.take({"role": "system", "content": wire.pop("system")}, "$.system")
    if "messages" not in wire:
        raise DecodeError("a request has a list of messages", path="$.messages")
    for index, message in enumerate(list_at(wire.pop("messages"), "$.messages")):
        path = f"$.messages[{index}]"
        draft.take(object_at(message, path), path)
    return wire


class _Draft:
    """The messages of a request while they are read."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._origin = context.provider or PROTOCOL
        self._read: list[tuple[Role, tuple[ContentBlock, ...], MessageMetadata]] = []
        self._ids = CallIds(context.session_id)
        self._bare = _make_metadata(origin=self._origin)
        self._plain = _make_metadata(
            origin=self._origin, provider_raw=provider_raw_of(PROTOCOL, {"plain": True})
        )

    def messages(self) -> tuple[Message, ...]:
        session_id, moment = self._context.session_id, self._context.created_at
        return tuple(
            [
                _make_message(
                    id=one,
                    session_id=session_id,
                    role=role,
                    content=content,
                    metadata=metadata,
                    created_at=moment,
                )
                for one, (role, content, metadata) in zip(
                    new_ulids(len(self._read)), self._read, strict=True
                )
            ]
        )

    @property
    def is_leading(self) -> bool:
        """Whether nothing but instructions was read so far."""
        return not self._read or self._read[-1][0] is _SYSTEM

    def take_turn(self, role: Role, content: str | Sequence[Part]) -> None:
        """Take one message of the wire: one or several of ours."""
        if isinstance(content, str):
            self._read.append((role, (_make_text(content),), self._plain))
            return
        group: list[Part] = []
        is_joined = False
        for part in content:
            if type(part) is ToolResultPart and role is _USER:
                if group:
                    self._add(role, group, is_joined=is_joined)
                    group, is_joined = [], True
                self._add_result(part, is_joined=is_joined)
                is_joined = True
            else:
                group.append(part)
        if group or not is_joined:
            self._add(role, group, is_joined=is_joined)

    def _add(self, role: Role, parts: list[Part], *, is_joined: bool) -> None:
        content: list[ContentBlock] = []
        spelling: dict[str, Any] = {"joined": True} if is_joined else {}
        odd: dict[str, Any] | None = None
        for index, part in enumerate(parts):
            if type(part) is TextPart and part.cache_control is UNSET and part.citations is UNSET:
                content.append(_make_text(part.text))
                continue
            if type(part) is ToolUsePart:
                theirs = part.id
                ours = self._ids.of_call(theirs)
                spelling.setdefault("ids", {})[ours] = theirs
                content.append(_make_call(ours, part.name, part.input))
                if part.cache_control is UNSET:
                    continue
            elif type(part) is ToolResultPart:
                content.append(opaque_block(to_builtins(part), "tool_result"))
                continue
            else:
                content.append(decode_part(part))
                if is_exact_part(part):
                    continue
            odd = odd or {}
            odd[str(index)] = to_builtins(part)
        if odd:
            spelling["blocks"], spelling["digest"] = odd, content_digest(role, content)
        metadata = self._bare
        if spelling:
            hints = cache_hints(odd) if odd else ()
            metadata = _make_metadata(
                origin=self._origin, hints=hints, provider_raw={PROTOCOL: spelling}
            )
        self._read.append((role, tuple(content), metadata))

    def _add_result(self, part: ToolResultPart, *, is_joined: bool) -> None:
        theirs, inner = part.tool_use_id, part.content
        ours = self._ids.of_result(theirs)
        spelling: dict[str, Any] = {"ids": {ours: theirs}}
        hints: tuple[CacheHint, ...] = ()
        if is_joined:
            spelling["joined"] = True
        text = _only_text(part)
        if text is not None:
            content = (_make_result(ours, (_make_text(text),)),)
        else:
            content = (decode_part(part, ours),)
            if type(inner) is str:
                spelling["plain"] = True
            if not is_exact_part(part):
                odd = {"0": to_builtins(part)}
                spelling["blocks"], spelling["digest"] = odd, content_digest(_TOOL, content)
                hints = cache_hints(odd)
        metadata = _make_metadata(
            origin=self._origin,
            hints=hints,
            parent_tool_use_id=ours,
            provider_raw={PROTOCOL: spelling},
        )
        self._read.append((_TOOL, content, metadata))

    def take(self, wire: Wire, path: str) -> None:
        """Take one message of the wire in plain JSON."""
        role = _ROLES.get(str(wire.get("role")))
        if role is None:
            raise unknown_role(wire.get("role"), path)
        # A system message among the turns may hold settings only.
        is_bare = role is _SYSTEM and "content" not in wire
        content: Any = [] if is_bare else wire.get("content")
        plain = isinstance(content, str)
        is_turn = role is _SYSTEM and path != "$.system" and self.is_leading
        blocks = [{"type": "text", "text": content}] if plain else list_at(content, path)
        spare = {name: value for name, value in wire.items() if name not in ("role", "content")}
        groups = list(_groups(role, blocks)) or [(role, [])]
        for number, (own_role, own_blocks) in enumerate(groups):
            self._add_plain(
                own_role,
                own_blocks,
                {
                    "joined": number > 0,
                    "plain": plain,
                    "bare": is_bare,
                    "turn": is_turn,
                    "keys": spare if number == 0 else None,
                },
            )

    def _add_plain(self, role: Role, blocks: list[Any], spelling: dict[str, Any]) -> None:
        ids: dict[str, str] = {}
        odd: dict[str, Any] = {}
        content: list[ContentBlock] = []
        parent = None
        for index, wire in enumerate(blocks):
            block = decode_block(wire) if role is _TOOL else decode_non_result(wire)
            if not is_exact(block, wire):
                odd[str(index)] = wire
            if isinstance(block, ToolUseBlock):
                ours = self._ids.of_call(block.id)
                ids[ours] = block.id
                block = with_id(block, ours)
            elif isinstance(block, ToolResultBlock):
                ours = parent = self._ids.of_result(block.tool_use_id)
                ids[ours] = block.tool_use_id
                block = with_id(block, ours)
            content.append(block)
        digest = content_digest(role, content) if odd else None
        spelling |= {"blocks": odd, "digest": digest, "ids": ids}
        metadata = _make_metadata(
            origin=self._origin,
            hints=cache_hints(odd) if odd else (),
            parent_tool_use_id=parent,
            provider_raw=provider_raw_of(PROTOCOL, spelling),
        )
        self._read.append((role, tuple(content), metadata))


def _only_text(part: ToolResultPart) -> str | None:
    """The text of a result that is nothing else: the common case."""
    inner = part.content
    if type(inner) is not list or len(inner) != 1:
        return None
    only = inner[0]
    if type(only) is not TextPart or only.cache_control is not UNSET or only.citations is not UNSET:
        return None
    is_bare = part.cache_control is UNSET and part.is_error is UNSET
    return only.text if is_bare else None


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
