"""Requests of OpenAI Responses.

Decoding: a run of items of the model becomes one message, each question and each output of a tool
one of its own, in their places. The instructions become the first message. Everything that is
neither item nor tool goes into the options.
"""

from collections.abc import Mapping
from typing import Any, cast

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import made
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.openai_responses.calls import FUNCTION
from metis.wire.openai_responses.items import EASY_RUN, Run
from metis.wire.openai_responses.options import (
    decode_options,
    decode_tools,
)
from metis.wire.openai_responses.output import (
    CUSTOM_OUTPUT,
    FUNCTION_OUTPUT,
    decode_output,
)
from metis.wire.openai_responses.parts import PROTOCOL, decode_parts, opaque
from metis.wire.openai_responses.said import TYPED
from metis.wire.shape import Wire, maybe_list, maybe_text, object_at, read_object
from metis.wire.spelling import spelled
from metis.wire.tool_ids import CallIds

_ASKING: Mapping[str, Role] = {
    "user": Role.USER,
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
}
_SENT_BY_CLIENT = frozenset({"mcp_approval_response", "compaction_trigger"})
_OUTPUTS = (FUNCTION_OUTPUT, CUSTOM_OUTPUT)
_SYSTEM, _USER, _ASSISTANT, _TOOL = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL
_TYPED = {"type": "message"}
_KEYS_OF_SAID, _KEYS_OF_TYPED, _KEYS_OF_OUTPUT = 2, 3, 3

_make_message = made(Message)
_make_metadata = made(MessageMetadata)
_make_text = made(TextBlock)
_make_result = made(ToolResultBlock)

_Content = tuple[ContentBlock, ...]


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    options = read_object(body, "request")
    draft = _Draft(context)
    instructions = options.get("instructions")
    if isinstance(instructions, str):
        del options["instructions"]
        draft.add(_SYSTEM, (_make_text(instructions),), {"instructions": True})
    asked = options.get("input")
    if isinstance(asked, str):
        draft.add(_USER, (_make_text(asked),), {"bare": True})
    elif isinstance(asked, list):
        draft.take_all(cast("list[Wire]", asked))
    elif asked is not None:
        raise DecodeError("the input is a text or a list of items", path="$.input")
    if asked or isinstance(asked, str):
        del options["input"]
    return CanonicalRequest(
        draft.messages(), decode_tools(options.get("tools")), decode_options(options)
    )


def _is_answer(wire: Wire) -> bool:
    """Whether a message is one of the model and a string."""
    return wire.get("role") == "assistant" and type(wire.get("content")) is str


class _Draft:
    """The messages of a request while they are read."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._issuer = context.provider or PROTOCOL
        self._parts: list[tuple[Role, _Content, MessageMetadata]] = []
        self._ids = CallIds(context.session_id)
        self._run: Run | None = None
        self._plain = _make_metadata(origin=self._issuer)
        self._easy = _make_metadata(origin=self._issuer, provider_raw={PROTOCOL: EASY_RUN})
        self._shared: dict[tuple[bool, bool, bool], MessageMetadata] = {}

    def messages(self) -> tuple[Message, ...]:
        """All messages that were read."""
        self._close_run()
        session, created = self._context.session_id, self._context.created_at
        return tuple(
            [
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
            ]
        )

    def add(self, role: Role, content: _Content, spelling: Mapping[str, Any]) -> None:
        """Add a message that was spelled like this."""
        metadata = self._plain
        if spelling:
            metadata = _make_metadata(origin=self._issuer, provider_raw={PROTOCOL: spelling})
        self._parts.append((role, content, metadata))

    def take_all(self, items: list[Wire]) -> None:
        """Take all items, in order."""
        plain, parts = self._plain, self._parts
        for index, wire in enumerate(items):
            if type(wire) is not dict:
                object_at(wire, f"$.input[{index}]")
            kind, size = wire.get("type"), len(wire)
            if size == _KEYS_OF_SAID and type(words := wire.get("content")) is str:
                # Most messages are a role and a string.
                role = wire.get("role")
                if role == "user":
                    if self._run is not None:
                        self._close_run()
                    parts.append((_USER, (_make_text(words),), plain))
                    continue
                if role == "assistant":
                    self._open_run().say(words)
                    continue
            if kind == FUNCTION and "role" not in wire:
                self._open_run().take(wire)
            elif kind == "message" and size == _KEYS_OF_TYPED and _is_answer(wire):
                self._open_run().say(wire["content"], TYPED)
            elif not (kind == FUNCTION_OUTPUT and self._take_words(wire, size)):
                self._take(wire, index)

    def _take_words(self, wire: Wire, size: int) -> bool:
        """Take an output that is a string; false if it is anything else."""
        theirs, words = wire.get("call_id"), wire.get("output")
        if size != _KEYS_OF_OUTPUT or type(theirs) is not str or type(words) is not str:
            return False
        ours = self._ids.of_result(theirs)
        content = (_make_text(words),) if words else ()
        self._answer(_make_result(ours, content), {"ids": {ours: theirs}})
        return True

    def _add_asked(
        self, role: Role, blocks: _Content, keys: Wire, odd: Mapping[str, Any] | None
    ) -> None:
        """Add a question; those that are spelled alike share what is known of them."""
        is_typed = keys == _TYPED
        shape = odd is not None, is_typed, role is _SYSTEM
        metadata = None if odd or (keys and not is_typed) else self._shared.get(shape)
        if metadata is None:
            # A system message that stands in the input has to be told from the instructions.
            listed = role is _SYSTEM
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
            result, spelling = found
            self._answer(result, {key: value for key, value in spelling.items() if value})
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

    def _answer(self, result: ToolResultBlock, spelling: Mapping[str, Any]) -> None:
        self._close_run()
        metadata = _make_metadata(
            origin=self._issuer,
            parent_tool_use_id=result.tool_use_id,
            provider_raw={PROTOCOL: spelling},
        )
        self._parts.append((_TOOL, (result,), metadata))

    def _open_run(self) -> Run:
        if self._run is None:
            self._run = Run(self._ids, self._issuer)
        return self._run

    def _close_run(self) -> None:
        run = self._run
        if run is not None:
            self._run = None
            content = tuple(run.blocks)
            if len(content) == 1 and run.texts and not run.texts[0]:
                self._parts.append((_ASSISTANT, content, self._easy))
            else:
                self.add(_ASSISTANT, content, run.spelling())
