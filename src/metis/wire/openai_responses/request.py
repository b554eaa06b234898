"""Requests of OpenAI Responses.

Decoding: a run of items of the model becomes one message, each question and each output of a tool
one of its own, in their places. The instructions become the first message. Everything that is
neither item nor tool goes into the options.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import made
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.openai_responses.items import Run
from metis.wire.openai_responses.options import (
    decode_options,
    decode_tools,
)
from metis.wire.openai_responses.output import (
    CUSTOM_OUTPUT,
    FUNCTION_OUTPUT,
    decode_item_output,
    decode_output,
)
from metis.wire.openai_responses.parts import PROTOCOL, decode_parts, opaque
from metis.wire.openai_responses.types import Item
from metis.wire.shape import Wire, maybe_list, maybe_text, object_at
from metis.wire.spelling import spelled
from metis.wire.tool_ids import CallIds

_ASKING: Mapping[str, Role] = {
    "user": Role.USER,
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
}
_SENT_BY_CLIENT = frozenset({"mcp_approval_response", "compaction_trigger"})
_OUTPUTS = (FUNCTION_OUTPUT, CUSTOM_OUTPUT)
_MESSAGE = (UNSET, "message")
_USER = Role.USER
_TYPED = {"type": "message"}
_ITEM_KEYS = ("type", "id", "status", "phase")

_read_body = msgspec.json.Decoder(dict[str, Raw]).decode
_read_input = msgspec.json.Decoder(str | list[Item] | None).decode
_read_items = msgspec.json.Decoder(list[Raw]).decode
_read_item = msgspec.json.Decoder(Item).decode
_read_any = msgspec.json.Decoder().decode
_make_message = made(Message)
_make_metadata = made(MessageMetadata)
_make_text = made(TextBlock)

_Content = tuple[ContentBlock, ...]


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    try:
        raw = _read_body(body)
        asked = raw.pop("input", None)
        options: Wire = {key: _read_any(value) for key, value in raw.items()}
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"a request is a JSON object: {error}") from None
    draft = _Draft(context)
    instructions = options.get("instructions")
    if isinstance(instructions, str):
        del options["instructions"]
        draft.add(Role.SYSTEM, (_make_text(instructions),), {"instructions": True})
    if asked is not None:
        _take_input(asked, draft, options)
    return CanonicalRequest(
        draft.messages(), decode_tools(options.get("tools")), decode_options(options)
    )


def _take_input(asked: Raw, draft: "_Draft", options: Wire) -> None:
    try:
        found = _read_input(asked)
    except (ValueError, RecursionError):
        draft.take_all(_items(asked))
        return
    if isinstance(found, str):
        draft.add(Role.USER, (_make_text(found),), {"bare": True})
    elif not found:
        options["input"] = found
    else:
        draft.take_items(found, asked)


def _items(asked: Raw) -> list[Raw]:
    try:
        return _read_items(asked)
    except (ValueError, RecursionError):
        raise DecodeError("the input is a text or a list of items", path="$.input") from None


class _Draft:
    """The messages of a request while they are read."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._issuer = context.provider or PROTOCOL
        self._parts: list[tuple[Role, _Content, MessageMetadata]] = []
        self._ids = CallIds(context.session_id)
        self._run: Run | None = None
        self._plain = _make_metadata(origin=self._issuer)
        self._shared: dict[tuple[bool, bool, bool], MessageMetadata] = {}

    def messages(self) -> tuple[Message, ...]:
        """All messages that were read."""
        self._close_run()
        session, created = self._context.session_id, self._context.created_at
        return tuple(
            _make_message(
                id=one,
                session_id=session,
                role=role,
                content=content,
                metadata=metadata,
                created_at=created,
            )
            for one, (role, content, metadata) in zip(
                new_ulids(len(self._parts)), self._parts, strict=True
            )
        )

    def add(self, role: Role, content: _Content, spelling: Mapping[str, Any]) -> None:
        """Add a message that was spelled like this."""
        metadata = self._plain
        if spelling:
            metadata = _make_metadata(origin=self._issuer, provider_raw={PROTOCOL: spelling})
        self._parts.append((role, content, metadata))

    def take_items(self, items: list[Item], asked: Raw) -> None:
        """Take items that all have the usual form; those that surprise are read again."""
        again: list[Raw] | None = None
        plain, parts = self._plain, self._parts
        for index, item in enumerate(items):
            if item.type is UNSET and _NOT_PLAIN(item) == _ALL_UNSET:
                # Most messages are a role and a string.
                role, content = item.role, item.content
                if type(content) is str:
                    if role == "user":
                        if self._run is not None:
                            self._close_run()
                        parts.append((_USER, (_make_text(content),), plain))
                        continue
                    if role == "assistant":
                        self._open_run().say(content)
                        continue
            if not self._take_item(item):
                again = again or _items(asked)
                self._take(object_at(_read_any(again[index]), f"$.input[{index}]"), index)

    def take_all(self, items: list[Raw]) -> None:
        """Take items one by one, whatever their form."""
        for index, raw in enumerate(items):
            try:
                item = _read_item(raw)
            except (ValueError, RecursionError):
                item = None
            if item is None or not self._take_item(item):
                self._take(object_at(_any(raw, index), f"$.input[{index}]"), index)

    def _take_item(self, item: Item) -> bool:
        kind = item.type
        others = _OTHERS.get(kind)
        if others is None or others[0](item) != others[1]:
            return False
        if kind in _MESSAGE:
            role = _ASKING.get(str(item.role))
            if role is not None:
                return self._ask(role, item)
            if item.role != "assistant":
                return False
        elif kind in _OUTPUTS:
            found = decode_item_output(item, self._ids, self._issuer)
            return found is not None and self._answer(*found)
        return self._open_run().take_item(item)

    def _ask(self, role: Role, item: Item) -> bool:
        content = item.content
        if type(content) is str:
            blocks: _Content = (_make_text(content),)
            odd = None
        elif isinstance(content, list):
            blocks, odd = decode_parts(content, self._issuer)
        else:
            return False
        self._close_run()
        keys = {k: v for k in _ITEM_KEYS if (v := getattr(item, k)) is not UNSET}
        self._add_asked(role, blocks, keys, odd)
        return True

    def _add_asked(
        self, role: Role, blocks: _Content, keys: Wire, odd: Mapping[str, Any] | None
    ) -> None:
        """Add a question; those that are spelled alike share what is known of them."""
        is_typed = keys == _TYPED
        shape = odd is not None, is_typed, role is Role.SYSTEM
        metadata = None if odd or (keys and not is_typed) else self._shared.get(shape)
        if metadata is None:
            # A system message that stands in the input has to be told from the instructions.
            listed = role is Role.SYSTEM
            known = {"parts": shape[0], "blocks": odd, "keys": keys, "listed": listed}
            raw = spelled(PROTOCOL, known)
            metadata = _make_metadata(origin=self._issuer, provider_raw=raw)
            if not odd and (not keys or is_typed):
                self._shared[shape] = metadata
        self._parts.append((role, blocks, metadata))

    def _take(self, wire: Wire, index: int) -> None:
        """Take an item of any kind."""
        kind, role = maybe_text(wire.get("type")), maybe_text(wire.get("role"))
        if kind == "message" or (kind is None and role):
            if role in _ASKING:
                self._ask_any(_ASKING[role or ""], wire)
                return
            if role != "assistant":
                raise DecodeError("a message has a role that we know", path=f"$.input[{index}]")
        found = decode_output(wire, self._ids, self._issuer)
        if found is not None:
            self._answer(*found)
        elif role in _ASKING or kind in _SENT_BY_CLIENT or kind in _OUTPUTS:
            self._close_run()
            sender = _ASKING.get(role or "", Role.USER)
            self.add(sender, (opaque(wire, self._issuer),), {"item": True})
        else:
            self._open_run().take(wire)

    def _ask_any(self, role: Role, wire: Wire) -> None:
        content = wire.get("content")
        keys = {key: value for key, value in wire.items() if key not in ("role", "content")}
        self._close_run()
        if isinstance(content, str):
            self._add_asked(role, (_make_text(content),), keys, None)
        elif isinstance(content, list):
            blocks, odd = decode_parts(maybe_list(content), self._issuer)
            self._add_asked(role, blocks, keys, odd)
        else:
            self.add(role, (opaque(wire, self._issuer),), {"item": True})

    def _answer(self, result: ToolResultBlock, spelling: Mapping[str, Any]) -> bool:
        self._close_run()
        metadata = _make_metadata(
            origin=self._issuer,
            parent_tool_use_id=result.tool_use_id,
            provider_raw={PROTOCOL: {key: value for key, value in spelling.items() if value}},
        )
        self._parts.append((Role.TOOL, (result,), metadata))
        return True

    def _open_run(self) -> Run:
        if self._run is None:
            self._run = Run(self._ids, self._issuer)
        return self._run

    def _close_run(self) -> None:
        run = self._run
        if run is not None:
            self._run = None
            self.add(Role.ASSISTANT, tuple(run.blocks), run.spelling())


def _any(raw: Raw, index: int) -> Any:
    try:
        return _read_any(raw)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}", path=f"$.input[{index}]") from None


_Others = tuple[Callable[[Item], Any], tuple[Any, ...]]


def _without(*names: str) -> _Others:
    """What reads the fields of an item that a kind must not have, and what they have to be."""
    others = [name for name in Item.__struct_fields__ if name not in names]
    return attrgetter(*others), (UNSET,) * len(others)


_NOT_PLAIN, _ALL_UNSET = _without("type", "role", "content")
_SAID = _without("type", "role", "content", "id", "status", "phase")
_OUTPUT = _without("type", "call_id", "output", "id", "status", "name", "namespace")
_OTHERS: Mapping[Any, _Others] = {
    UNSET: _without("role", "content", "phase"),
    "message": _SAID,
    "function_call": _without("type", "call_id", "name", "arguments", "id", "status", "namespace"),
    "custom_tool_call": _without("type", "call_id", "name", "input", "id", "status", "namespace"),
    "reasoning": _without("type", "id", "summary", "content", "encrypted_content", "status"),
    FUNCTION_OUTPUT: _OUTPUT,
    CUSTOM_OUTPUT: _OUTPUT,
}
"""The kinds of items that are read as such, each with the keys that it has."""
