"""Requests of OpenAI Responses, both directions."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.history import EncodedMessages
from metis.wire.json_access import Wire, maybe_list, maybe_text, object_at, read_object
from metis.wire.openai_responses.blocks import (
    PROTOCOL,
    decode_parts,
    encode_parts,
    opaque_block,
    write_json,
)
from metis.wire.openai_responses.items import (
    STRING_RUN,
    TYPED_FORM,
    ItemPurpose,
    OutputRun,
    encode_items,
)
from metis.wire.openai_responses.options import decode_options, decode_tools, encode_options
from metis.wire.openai_responses.tool_calls import (
    CUSTOM_OUTPUT,
    FUNCTION,
    FUNCTION_OUTPUT,
    CallIndex,
    decode_tool_output,
)
from metis.wire.original_form import EMPTY, original_form_of, provider_raw_of
from metis.wire.tool_ids import CallIds

_INPUT_ROLES: Mapping[str, Role] = {
    "user": Role.USER,
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
}
_SENT_BY_CLIENT = frozenset({"mcp_approval_response", "compaction_trigger"})
_OUTPUTS = (FUNCTION_OUTPUT, CUSTOM_OUTPUT)
_SYSTEM, _USER, _ASSISTANT, _TOOL = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL
_TYPE_KEY = {"type": "message"}
_KEYS_OF_SAID, _KEYS_OF_TYPED, _KEYS_OF_OUTPUT = 2, 3, 3

_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)
_make_text = raw_constructor(TextBlock)
_make_result = raw_constructor(ToolResultBlock)

_Content = tuple[ContentBlock, ...]


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    options = read_object(body, "request")
    draft = _HistoryDecoder(context)
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


def _is_assistant_text(wire: Wire) -> bool:
    """Whether a message is one of the model and a string."""
    return wire.get("role") == "assistant" and type(wire.get("content")) is str


class _HistoryDecoder:
    """The messages of a request while they are read."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._issuer = context.provider or PROTOCOL
        self._parts: list[tuple[Role, _Content, MessageMetadata]] = []
        self._ids = CallIds(context.session_id)
        self._run: OutputRun | None = None
        self._plain = _make_metadata(origin=self._issuer)
        self._easy = _make_metadata(origin=self._issuer, provider_raw={PROTOCOL: STRING_RUN})
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
            elif kind == "message" and size == _KEYS_OF_TYPED and _is_assistant_text(wire):
                self._open_run().say(wire["content"], TYPED_FORM)
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
        is_typed = keys == _TYPE_KEY
        shape = odd is not None, is_typed, role is _SYSTEM
        metadata = None if odd or (keys and not is_typed) else self._shared.get(shape)
        if metadata is None:
            # A system message that stands in the input has to be told from the instructions.
            listed = role is _SYSTEM
            known = {"parts": shape[0], "blocks": odd, "keys": keys, "listed": listed}
            raw = provider_raw_of(PROTOCOL, known)
            metadata = _make_metadata(origin=self._issuer, provider_raw=raw)
            if not odd and (not keys or is_typed):
                self._shared[shape] = metadata
        self._parts.append((role, blocks, metadata))

    def _take(self, wire: Wire, index: int) -> None:
        """Take an item of any kind."""
        kind, role = maybe_text(wire.get("type")), maybe_text(wire.get("role"))
        if kind == "message" or (kind is None and role):
            if role in _INPUT_ROLES:
                self._ask_any(_INPUT_ROLES[role or ""], wire)
                return
            if role != "assistant":
                raise DecodeError("a message has a role that we know", path=f"$.input[{index}]")
        found = decode_tool_output(wire, self._ids, self._issuer)
        if found is not None:
            result, spelling = found
            self._answer(result, {key: value for key, value in spelling.items() if value})
        elif role in _INPUT_ROLES or kind in _SENT_BY_CLIENT or kind in _OUTPUTS:
            self._close_run()
            sender = _INPUT_ROLES.get(role or "", Role.USER)
            self.add(sender, (opaque_block(wire, self._issuer),), {"item": True})
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
            self.add(role, (opaque_block(wire, self._issuer),), {"item": True})

    def _answer(self, result: ToolResultBlock, spelling: Mapping[str, Any]) -> None:
        self._close_run()
        metadata = _make_metadata(
            origin=self._issuer,
            parent_tool_use_id=result.tool_use_id,
            provider_raw={PROTOCOL: spelling},
        )
        self._parts.append((_TOOL, (result,), metadata))

    def _open_run(self) -> OutputRun:
        if self._run is None:
            self._run = OutputRun(self._ids, self._issuer)
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


_TURNS_ASSISTANT, _TURNS_TOOL, _TURNS_USER = Role.ASSISTANT, Role.TOOL, Role.USER
_ONLY_IDS = {"ids"}
_BETWEEN = "\n\n"


class _TextItem(Struct, gc=False):
    content: str
    role: str


class _AssistantItem(Struct, gc=False):
    content: str
    role: str = "assistant"
    type: str = "message"


class _OutputItem(Struct, gc=False):
    call_id: str
    output: str
    type: str = "function_call_output"


class _CallItem(Struct, gc=False):
    arguments: str
    call_id: str
    name: str
    type: str = "function_call"


def encode_request(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], options: AdapterOptions
) -> bytes:
    """The request body for messages that were projected for this protocol."""
    turns = ResponsesHistoryEncoder()
    turns.add(messages)
    return turns.body(tools, options)


class ResponsesHistoryEncoder:
    """The turns of a conversation, written once each."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._calls = CallIndex()
        self._instructions: str | None = None
        self._records: dict[bool, EncodedMessages] = {}
        """The items for a provider that keeps nothing, and for one that does."""
        self._counts: dict[bool, int] = {}

    def copy(self) -> "ResponsesHistoryEncoder":
        """The same turns, to which others can be added."""
        other = ResponsesHistoryEncoder()
        other._messages = [*self._messages]
        other._calls = self._calls
        other._instructions = self._instructions
        other._records = {key: record.copy() for key, record in self._records.items()}
        other._counts = dict(self._counts)
        return other

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are those of odd calls."""
        self._calls.learn({"ids": ids})
        if messages and not self._messages and self._instructions is None:
            first = messages[0]
            if _is_instructions(first):
                self._instructions = _text_of(first.content)
                messages = messages[1:]
        for message in messages:
            if message.metadata.provider_raw is not None:
                self._calls.learn(original_form_of(message, PROTOCOL))
        self._messages += messages

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """The request body with these turns."""
        given = options.native.get(PROTOCOL, EMPTY)
        previous = given.get("previous_response_id")
        is_stateless = given.get("store") is False
        known = 0 if previous is None else self._end_of(previous)
        bare = _string_input(self._messages, known)
        if bare is not None:
            return write_json({**self._around(options, tools), "input": bare})
        if known:
            # Only what is new follows an answer that the provider keeps (T67).
            record = EncodedMessages("input", write_json)
            record.add(self._items(self._messages[known:], is_stateless=is_stateless))
        else:
            record = self._all(is_stateless=is_stateless)
        if record.is_empty and PROTOCOL in options.native:
            # A client may leave the input out: a stored prompt or conversation has its own.
            return write_json(self._around(options, tools))
        return record.body(tools, options, self._around)

    def _around(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._instructions is not None:
            wire["instructions"] = self._instructions
        return wire

    def _all(self, *, is_stateless: bool) -> EncodedMessages:
        record = self._records.get(is_stateless)
        if record is None:
            record = self._records[is_stateless] = EncodedMessages("input", write_json)
        count = self._counts.get(is_stateless, 0)
        record.add(self._items(self._messages[count:], is_stateless=is_stateless))
        self._counts[is_stateless] = len(self._messages)
        return record

    def _end_of(self, previous: Any) -> int:
        """How many messages the provider keeps already, up to an answer of its own."""
        ends = (
            index + 1
            for index, message in enumerate(self._messages)
            if message.metadata.response_id == previous
        )
        return max(ends, default=0)

    def _items(self, messages: Sequence[Message], *, is_stateless: bool) -> list[Any]:
        items: list[Any] = []
        for message in messages:
            raw = message.metadata.provider_raw
            spelling = EMPTY if raw is None else raw.get(PROTOCOL, EMPTY)
            role, content = message.role, message.content
            is_plain = not spelling or (role is _TURNS_TOOL and spelling.keys() == _ONLY_IDS)
            if spelling == STRING_RUN and len(content) == 1 and type(content[0]) is TextBlock:
                items.append(_TextItem(content[0].text, "assistant"))
            elif not (is_plain and self._plain(role, content, items)):
                self._encode(message, spelling, items, is_stateless=is_stateless)
        return items

    def _plain(self, role: Role, content: Sequence[ContentBlock], items: list[Any]) -> bool:
        """Add the items of a message of texts and calls; false for all others."""
        if len(content) == 1:
            only = content[0]
            if type(only) is TextBlock and role is not _TURNS_TOOL and not only.citations:
                items.append(
                    _AssistantItem(only.text)
                    if role is _TURNS_ASSISTANT
                    else _TextItem(only.text, "user" if role is _TURNS_USER else str(role))
                )
                return True
            if type(only) is ToolResultBlock:
                return self._plain_result(only, items)
        if role is not _TURNS_ASSISTANT:
            return False
        found: list[Any] = []
        for block in content:
            if type(block) is ToolUseBlock:
                call_id = self._calls.wire_id(block.id)
                found.append(_CallItem(write_json(block.input).decode(), call_id, block.name))
            elif type(block) is TextBlock and not block.citations:
                found.append(_AssistantItem(block.text))
            else:
                return False
        items += found
        return True

    def _plain_result(self, result: ToolResultBlock, items: list[Any]) -> bool:
        ours, inner = result.tool_use_id, result.content
        if len(inner) != 1 or result.is_error or self._calls.is_special(ours):
            return False
        only = inner[0]
        if type(only) is not TextBlock:
            return False
        items.append(_OutputItem(self._calls.wire_id(ours), only.text))
        return True

    def _encode(
        self,
        message: Message,
        spelling: Mapping[str, Any],
        items: list[Any],
        *,
        is_stateless: bool,
    ) -> None:
        if message.role is _TURNS_ASSISTANT:
            form = _purpose_of(message, spelling, is_stateless=is_stateless)
            items += encode_items(message.content, spelling, self._calls, form)
        elif message.role is _TURNS_TOOL:
            items += (
                self._calls.encode_result(block, spelling)
                for block in message.content
                if isinstance(block, ToolResultBlock)
            )
        else:
            items.append(_encode_input_message(message, spelling))


def _is_instructions(message: Message) -> bool:
    """Whether a message stands beside the input; a client may have put it there, or in it."""
    spelling = original_form_of(message, PROTOCOL)
    return message.role is Role.SYSTEM and (not spelling or "instructions" in spelling)


def _string_input(messages: Sequence[Message], known: int) -> str | None:
    """The input of a client that asked with nothing but a text, behind what is known."""
    if len(messages) != known + 1 or not original_form_of(messages[-1], PROTOCOL).get("bare"):
        return None
    return _text_of(messages[-1].content)


def _text_of(content: Sequence[ContentBlock]) -> str:
    return _BETWEEN.join(block.text for block in content if isinstance(block, TextBlock))


def _purpose_of(
    message: Message, spelling: Mapping[str, Any], *, is_stateless: bool
) -> ItemPurpose:
    if "response" not in spelling:
        return "history"
    is_whole = message.metadata.status is MessageStatus.COMPLETE
    return "echo" if is_whole and not is_stateless else "stateless"


def _encode_input_message(message: Message, spelling: Mapping[str, Any]) -> Any:
    content = message.content
    if spelling.get("item") and len(content) == 1 and isinstance(content[0], OpaqueBlock):
        return content[0].raw
    wire: Wire = {"role": str(message.role), **(spelling.get("keys") or EMPTY)}
    if len(content) == 1 and type(content[0]) is TextBlock and not spelling.get("parts"):
        wire["content"] = content[0].text
    else:
        wire["content"] = encode_parts(content, spelling.get("blocks") or EMPTY)
    return wire
