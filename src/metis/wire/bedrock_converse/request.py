"""Decoding of Bedrock Converse requests.

A wire message with the role `user` may contain tool results and other blocks: each result becomes a
tool message, the blocks between results become user messages. A cache point becomes a hint on the
block before it. The system prompt becomes the first message. All keys except messages and tools
become options. The model is not in the body: it is part of the path and of the context.
"""

from collections.abc import Iterator
from typing import Any, cast

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.message import Role
from metis.canonical.metadata import CacheHint, MessageMetadata
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.bedrock_converse.blocks import (
    PROTOCOL,
    cache_hint,
    decode_block,
    decode_result,
    encode_alone,
    is_exact,
    is_plain_call,
    is_result,
    plain_result_text,
)
from metis.wire.bedrock_converse.options import decode_options, decode_tools
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.json_access import (
    Wire,
    list_at,
    maybe_object,
    object_at,
    read_object,
    read_value,
    unknown_role,
)
from metis.wire.request import RequestDraft, RequestSteps
from metis.wire.tool_ids import CallIds

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_ASSISTANT, _SYSTEM, _TOOL, _USER = Role.ASSISTANT, Role.SYSTEM, Role.TOOL, Role.USER
_MESSAGE_KEYS = frozenset({"role", "content"})
_make_text = raw_constructor(TextBlock)
_make_call = raw_constructor(ToolUseBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_metadata = raw_constructor(MessageMetadata)


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a request body."""
    wire = read_object(body, "request")
    draft = _RequestDraft(context)
    try:
        _begin(draft, wire)
        if "messages" not in wire:
            raise DecodeError("a request needs a list of messages", path="$.messages")
        for index, message in enumerate(list_at(wire.pop("messages"), "$.messages")):
            _add(draft, message, index)
        tools, options = _end(wire, context)
    except RecursionError:
        raise DecodeError("the request is nested too deeply") from None
    return CanonicalRequest(draft.messages(), tools, options)


def _begin(draft: "_RequestDraft", wire: Wire) -> None:
    if wire.get("system"):
        draft.add_blocks(_SYSTEM, list_at(wire.pop("system"), "$.system"), {})


def _add(draft: "_RequestDraft", message: Any, index: int) -> None:
    draft.add(object_at(message, f"$.messages[{index}]"), f"$.messages[{index}]")


def _add_json(draft: "_RequestDraft", data: bytes, index: int) -> None:
    _add(draft, read_value(data), index)


def _end(wire: Wire, context: RequestContext) -> tuple[tuple[ToolDefinition, ...], AdapterOptions]:
    return decode_tools(wire), decode_options(wire, context.model)


class _RequestDraft(RequestDraft):
    def __init__(self, context: RequestContext) -> None:
        super().__init__(context, PROTOCOL)
        self._ids = CallIds(context.call_scope)
        self._last_role: Role | None = None

    def _detach(self) -> None:
        self._ids = self._ids.copy()

    def add(self, wire: Wire, path: str) -> None:
        """Add one wire message as one or several canonical messages."""
        name = wire.get("role")
        role = _ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise unknown_role(name, path)
        parts = list_at(wire.get("content"), f"{path}.content")
        form: Wire = {}
        # By default the history encoder merges adjacent messages of one role.
        if role is self._last_role:
            form["apart"] = True
        if wire.keys() != _MESSAGE_KEYS:
            form["keys"] = {k: v for k, v in wire.items() if k not in _MESSAGE_KEYS}
        if role is _SYSTEM and (self._last_role is None or self._last_role is _SYSTEM):
            form["turn"] = True
        self._last_role = role
        if role is not _USER or not any(map(is_result, parts)):
            self.add_blocks(role, parts, form)
            return
        for number, (has_result, group) in enumerate(_groups(parts)):
            group_form = {} if number else form
            if has_result:
                self._add_result(group, group_form)
            else:
                self.add_blocks(role, group, group_form)

    def add_blocks(self, role: Role, parts: list[Any], form: Wire) -> None:
        """Add one canonical message."""
        content: list[ContentBlock] = []
        ids: dict[str, str] = {}
        inexact: Wire = {}
        hints: list[CacheHint] = []
        for part in parts:
            wire = maybe_object(part)
            if len(wire) == 1:
                # Fast path: texts and calls with exactly the usual keys are exact, so that encoding
                # and comparing is skipped. The laws of tests/wire compare both paths.
                text = wire.get("text")
                if type(text) is str:
                    content.append(_make_text(text))
                    continue
                call = wire.get("toolUse")
                if type(call) is dict and is_plain_call(call := cast("Wire", call)):
                    tool_use_id = self._new_id(call["toolUseId"], ids)
                    content.append(_make_call(tool_use_id, call["name"], call["input"]))
                    continue
                if "cachePoint" in wire and (hint := cache_hint(wire, len(content) - 1)):
                    hints.append(hint)
                    continue
            block = decode_block(part, is_response=role is _ASSISTANT)
            if isinstance(block, ToolUseBlock):
                block = replace(block, id=self._new_id(block.id, ids))
            if not is_exact(block, part, lambda call: ids.get(call, call)):
                inexact[str(len(content))] = part
            content.append(block)
        self._add_draft(role, content, _with_parts(form, ids, inexact), tuple(hints))

    def _new_id(self, wire_id: str, ids: dict[str, str]) -> str:
        tool_use_id = self._ids.of_call(wire_id)
        ids[tool_use_id] = wire_id
        return tool_use_id

    def _add_result(self, parts: list[Any], form: Wire) -> None:
        """Add a tool message for one result and the cache points after it."""
        wire = parts[0]
        result = maybe_object(maybe_object(wire).get("toolResult"))
        wire_id, status = result["toolUseId"], result.get("status")
        tool_use_id = self._ids.of_result(wire_id)
        ids, inexact = {tool_use_id: wire_id}, Wire()
        if status == "success":
            form["success"] = True
        # Fast path: a result with one text is exact, so that encoding and comparing is skipped.
        text = plain_result_text(result) if len(wire) == 1 else None
        if text is not None:
            is_error = status == "error"
            block = _make_result(tool_use_id, (_make_text(text),), is_error=is_error)
        else:
            block = decode_result(wire, tool_use_id)
            plain = encode_alone(block, ids.__getitem__)
            if status == "success":
                plain["toolResult"]["status"] = status
            if plain != wire:
                inexact["0"] = wire
        hints = (cache_hint(part, 0) for part in parts[1:])
        result_hints = tuple(hint for hint in hints if hint is not None)
        self._add_draft(_TOOL, [block], _with_parts(form, ids, inexact), result_hints)

    def _add_draft(
        self, role: Role, content: list[ContentBlock], form: Wire, hints: tuple[CacheHint, ...]
    ) -> None:
        """Add a canonical message with its original form and cache hints."""
        if "blocks" in form:
            form["digest"] = content_digest(role, content)
        metadata = self._bare_metadata
        if form or hints:
            metadata = _make_metadata(
                origin=self._origin,
                hints=hints,
                parent_tool_use_id=next(iter(form["ids"])) if role is _TOOL else None,
                provider_raw={PROTOCOL: form} if form else None,
            )
        self._drafts.append((role, tuple(content), metadata))


def _with_parts(form: Wire, ids: Wire, inexact: Wire) -> Wire:
    """Add the wire ids of calls to an original form, and the parts that are not exact."""
    if ids:
        form["ids"] = ids
    if inexact:
        form["blocks"] = inexact
    return form


def _groups(parts: list[Any]) -> Iterator[tuple[bool, list[Any]]]:
    """Split the parts of a user message into those of canonical messages.

    Yields whether the group is a tool result, and its parts. A cache point directly after a result
    belongs to the result.
    """
    group: list[Any] = []
    has_result = False
    for part in parts:
        if is_result(part):
            if group:
                yield has_result, group
            group, has_result = [part], True
        elif has_result and cache_hint(part, 0) is None:
            yield True, group
            group, has_result = [part], False
        else:
            group.append(part)
    if group:
        yield has_result, group


STEPS = RequestSteps(
    key="messages",
    response_mark=b'"assistant"',
    draft=_RequestDraft,
    begin=_begin,
    add=_add_json,
    end=_end,
)
"""The steps of `decode_request`."""
