"""Requests of OpenAI Responses, both directions.

A run of consecutive items of the model becomes one canonical message; each input message and each
tool output becomes a separate one. The instructions become the first message. All keys except input
and tools become options.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, OpaqueBlock, TextBlock, ToolResultBlock
from metis.canonical.errors import DecodeError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.history import EncodedMessages, HistoryEncoder
from metis.wire.json_access import (
    Wire,
    maybe_list,
    maybe_text,
    object_at,
    read_object,
    read_value,
    unknown_role,
)
from metis.wire.openai_responses.blocks import (
    PROTOCOL,
    OriginalForm,
    decode_parts,
    encode_parts,
    opaque_block,
    write_json,
)
from metis.wire.openai_responses.items import STRING_RUN, ItemPurpose, OutputRun, encode_items
from metis.wire.openai_responses.options import decode_options, decode_tools, encode_options
from metis.wire.openai_responses.tool_calls import (
    CUSTOM_OUTPUT,
    FUNCTION_OUTPUT,
    WIRE_ID_PREFIX,
    CallIndex,
    decode_tool_output,
)
from metis.wire.original_form import EMPTY, original_form_of
from metis.wire.request import RequestDraft, RequestSteps
from metis.wire.tool_ids import CallIds

_INPUT_ROLES: Mapping[str, Role] = {
    "user": Role.USER,
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
}
_CLIENT_ITEMS = frozenset(
    {"mcp_approval_response", "compaction_trigger", FUNCTION_OUTPUT, CUSTOM_OUTPUT}
)
"""The types of items that only clients create."""
_PARAGRAPH = "\n\n"

_new_metadata = raw_constructor(MessageMetadata)
_new_text = raw_constructor(TextBlock)
_Content = tuple[ContentBlock, ...]


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """Decode a request body."""
    return decode_with(InputDecoder(context), body)


def decode_with(decoder: "InputDecoder", body: bytes) -> CanonicalRequest:
    """Decode a request body; `decoder` decodes its input."""
    options = read_object(body, "request")
    _begin(decoder, options)
    value = options.get("input")
    if isinstance(value, str):
        decoder.add_text(Role.USER, value, {"bare": True})
    elif isinstance(value, list):
        decoder.add_items(maybe_list(value))
    elif value is not None:
        raise DecodeError("the input must be a string or a list of items", path="$.input")
    # An empty list or null remains an option, so that it is encoded again.
    if value or isinstance(value, str):
        del options["input"]
    tools = decode_tools(options.get("tools"))
    return CanonicalRequest(decoder.messages(), tools, decode_options(options))


def _begin(decoder: "InputDecoder", options: Wire) -> None:
    instructions = options.get("instructions")
    if isinstance(instructions, str):
        del options["instructions"]
        decoder.add_text(Role.SYSTEM, instructions, {"instructions": True})


def _add(decoder: "InputDecoder", item: Any, index: int) -> None:
    decoder.add_item(item, index)


def _add_json(decoder: "InputDecoder", data: bytes, index: int) -> None:
    _add(decoder, read_value(data), index)


def _end(options: Wire, _: RequestContext) -> tuple[tuple[ToolDefinition, ...], AdapterOptions]:
    return decode_tools(options.get("tools")), decode_options(options)


class InputDecoder(RequestDraft):
    """Decodes the input of one request."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context, PROTOCOL)
        self._ids = CallIds(context.call_scope)
        self._run: OutputRun | None = None
        self._string_run_metadata = _new_metadata(
            origin=self._origin, provider_raw={PROTOCOL: STRING_RUN}
        )

    def paused(self) -> Self | None:
        """Return a draft that continues after these items; None inside a run of the model."""
        return super().paused() if self._run is None else None

    def _detach(self) -> None:
        self._ids = self._ids.copy()

    def messages(self) -> tuple[Message, ...]:
        """Return all messages that were decoded."""
        self._close_run()
        return super().messages()

    def add_text(self, role: Role, text: str, form: Mapping[str, Any]) -> None:
        """Add a message with one text."""
        self._add(role, (_new_text(text),), form)

    def add_items(self, items: Sequence[Any]) -> None:
        """Decode items, in order."""
        for index, wire in enumerate(items):
            self.add_item(wire, index)

    def add_item(self, item: Any, index: int) -> None:
        """Decode an item of any type."""
        wire = object_at(item, f"$.input[{index}]")
        kind, role = maybe_text(wire.get("type")), maybe_text(wire.get("role"))
        if kind == "message" or (kind is None and role):
            if role in _INPUT_ROLES:
                self._add_input_message(_INPUT_ROLES[role or ""], wire)
                return
            if role != "assistant":
                raise unknown_role(wire.get("role"), f"$.input[{index}]")
        output = decode_tool_output(wire, self._ids, self._origin)
        if output is not None:
            result, form = output
            self._add_result(result, {key: value for key, value in form.items() if value})
        # Items of the client end the run; any other unknown item belongs to the model.
        elif role in _INPUT_ROLES or kind in _CLIENT_ITEMS:
            self._close_run()
            sender = _INPUT_ROLES.get(role or "", Role.USER)
            self._add(sender, (opaque_block(wire, self._origin),), {"item": True})
        else:
            self._open_run().add(wire)

    def _add_input_message(self, role: Role, wire: Wire) -> None:
        """Add a message of the user, system or developer."""
        content = wire.get("content")
        form: OriginalForm = {
            "keys": {key: value for key, value in wire.items() if key not in ("role", "content")},
            # Distinguishes a system message in the input from the instructions.
            "listed": role is Role.SYSTEM,
        }
        blocks: _Content = ()
        if isinstance(content, str):
            blocks = (_new_text(content),)
        elif isinstance(content, list):
            form["parts"] = True
            blocks, form["blocks"] = decode_parts(maybe_list(content), self._origin)
        else:
            blocks, form = (opaque_block(wire, self._origin),), {"item": True}
        self._close_run()
        self._add(role, blocks, {name: value for name, value in form.items() if value})

    def _add(self, role: Role, content: _Content, form: Mapping[str, Any]) -> None:
        metadata = self._bare_metadata
        if form:
            metadata = _new_metadata(origin=self._origin, provider_raw={PROTOCOL: form})
        self._drafts.append((role, content, metadata))

    def _add_result(self, result: ToolResultBlock, form: Mapping[str, Any]) -> None:
        self._close_run()
        metadata = _new_metadata(
            origin=self._origin,
            parent_tool_use_id=result.tool_use_id,
            provider_raw={PROTOCOL: form},
        )
        self._drafts.append((Role.TOOL, (result,), metadata))

    def _open_run(self) -> OutputRun:
        if self._run is None:
            self._run = OutputRun(self._ids, self._origin)
        return self._run

    def _close_run(self) -> None:
        run = self._run
        if run is None:
            return
        self._run = None
        content = tuple(run.blocks)
        # Most responses are one string: they share one metadata object.
        if len(content) == 1 and run.message_forms and not run.message_forms[0]:
            self._drafts.append((Role.ASSISTANT, content, self._string_run_metadata))
        else:
            self._add(Role.ASSISTANT, content, run.original_form())


class ResponsesHistoryEncoder(HistoryEncoder):
    """Encodes the messages of a conversation, each once, and request bodies with them."""

    wire_id_prefix = WIRE_ID_PREFIX
    _shared = (
        "_batches",
        "_calls",
        "_instructions",
        "_encoded_count",
        "_stateless",
        "_stateless_count",
    )

    def __init__(self) -> None:
        super().__init__("input", write_json)
        self._batches: tuple[tuple[Message, ...], ...] = ()
        """The messages in batches as they were added, so that a copy need not visit each one."""
        self._calls = CallIndex()
        self._instructions: str | None = None
        self._encoded_count = 0
        """How many batches are encoded for requests that store the response."""
        self._stateless: EncodedMessages | None = None
        """The items for requests with `store: false`."""
        self._stateless_count = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no input besides the instructions."""
        return not self._batches

    def add(self, messages: Sequence[Message], ids: Mapping[str, str] = EMPTY) -> None:
        """Add messages that were projected for this protocol; `ids` are wire ids of calls."""
        self._calls.add({"ids": ids})
        if messages and not self._batches and self._instructions is None:
            first = messages[0]
            if _is_instructions(first):
                self._instructions = _text_of(first.content)
                messages = messages[1:]
        # Calls are recorded before encoding: an output may be in another batch than its call.
        for message in messages:
            if message.metadata.provider_raw is not None:
                self._calls.add(original_form_of(message, PROTOCOL))
        if messages:
            self._batches += (tuple(messages),)

    def encode_waiting(self) -> None:
        """Encode all messages now, so that copies share the bytes."""
        self._all_messages(is_stateless=False).encode_waiting()

    def body(self, tools: Sequence[ToolDefinition], options: AdapterOptions) -> bytes:
        """Return the body of a request with these messages."""
        native = options.native.get(PROTOCOL, EMPTY)
        is_stateless = native.get("store") is False
        new_batches = self._batches
        previous_response_id = native.get("previous_response_id")
        if previous_response_id is not None:
            new_batches = self._batches_after(previous_response_id)
        text = _string_input(new_batches)
        if text is not None:
            return write_json({**self._encode_envelope(options, tools), "input": text})
        if new_batches is self._batches:
            record = self._all_messages(is_stateless=is_stateless)
        else:
            # OpenAI prepends the items of the previous response: sent again they would be
            # duplicates (T67).
            record = EncodedMessages("input", write_json)
            for messages in new_batches:
                record.add(self._encode_messages(messages, is_stateless=is_stateless))
        if record.is_empty and PROTOCOL in options.native:
            # A client may omit the input if it refers to a stored prompt or conversation.
            return write_json(self._encode_envelope(options, tools))
        return record.body(tools, options, self._encode_envelope)

    def _encode_envelope(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
        wire = encode_options(options, tools)
        if self._instructions is not None:
            wire["instructions"] = self._instructions
        return wire

    def _all_messages(self, *, is_stateless: bool) -> EncodedMessages:
        if is_stateless:
            record, count = self._stateless, self._stateless_count
            # A copy, because copies of this encoder share the record.
            record = EncodedMessages("input", write_json) if record is None else record.copy()
            self._stateless, self._stateless_count = record, len(self._batches)
        else:
            record, count = self._encoded, self._encoded_count
            self._encoded_count = len(self._batches)
        for messages in self._batches[count:]:
            record.add(self._encode_messages(messages, is_stateless=is_stateless))
        return record

    def _batches_after(self, response_id: Any) -> tuple[tuple[Message, ...], ...]:
        """Return the messages after a stored response; all messages if it is not among them."""
        for number, batch in reversed(list(enumerate(self._batches))):
            for index in reversed(range(len(batch))):
                if batch[index].metadata.response_id == response_id:
                    following = batch[index + 1 :]
                    return (*([following] if following else ()), *self._batches[number + 1 :])
        return self._batches

    def _encode_messages(self, messages: Sequence[Message], *, is_stateless: bool) -> list[Any]:
        items: list[Any] = []
        for message in messages:
            form = original_form_of(message, PROTOCOL)
            self._encode_message(message, form, items, is_stateless=is_stateless)
        return items

    def _encode_message(
        self, message: Message, form: Mapping[str, Any], items: list[Any], *, is_stateless: bool
    ) -> None:
        """Add the items of a message."""
        if message.role is Role.ASSISTANT:
            purpose = _purpose_of(message, form, is_stateless=is_stateless)
            items += encode_items(message.content, form, self._calls, purpose)
        elif message.role is Role.TOOL:
            items += (
                self._calls.encode_result(block, form)
                for block in message.content
                if isinstance(block, ToolResultBlock)
            )
        else:
            items += _encode_input(message, form)


def _is_instructions(message: Message) -> bool:
    """Whether a system message belongs to the key `instructions`, not to the input."""
    form = original_form_of(message, PROTOCOL)
    return message.role is Role.SYSTEM and (not form or "instructions" in form)


def _string_input(batches: Sequence[Sequence[Message]]) -> str | None:
    """Return the input as a string if a client sent it as a string; None otherwise."""
    if len(batches) != 1 or len(batches[0]) != 1:
        return None
    message = batches[0][0]
    is_string = original_form_of(message, PROTOCOL).get("bare")
    return _text_of(message.content) if is_string else None


def _text_of(content: Sequence[ContentBlock]) -> str:
    return _PARAGRAPH.join(block.text for block in content if isinstance(block, TextBlock))


def _purpose_of(message: Message, form: Mapping[str, Any], *, is_stateless: bool) -> ItemPurpose:
    if "response" not in form:
        return "history"
    # OpenAI does not store an incomplete response, and rejects the unknown ids of its items.
    is_complete = message.metadata.status is MessageStatus.COMPLETE
    return "echo" if is_complete and not is_stateless else "stateless"


def _encode_input(message: Message, form: Mapping[str, Any]) -> list[Any]:
    """Encode an input message; opaque items of the client are sent unchanged."""
    if not form.get("item"):
        return [_encode_input_message(message, form)]
    items: list[Any] = [block.raw for block in message.content if isinstance(block, OpaqueBlock)]
    others = tuple(block for block in message.content if not isinstance(block, OpaqueBlock))
    if others:
        items.append(_encode_input_message(replace(message, content=others), EMPTY))
    return items


def _encode_input_message(message: Message, form: Mapping[str, Any]) -> Any:
    content = message.content
    wire: Wire = {"role": str(message.role), **(form.get("keys") or EMPTY)}
    if len(content) == 1 and type(content[0]) is TextBlock and not form.get("parts"):
        wire["content"] = content[0].text
    else:
        wire["content"] = encode_parts(content, form.get("blocks") or EMPTY)
    return wire


STEPS = RequestSteps(
    key="input",
    response_mark=b'"type"',
    draft=InputDecoder,
    begin=_begin,
    add=_add_json,
    end=_end,
)
"""The steps of `decode_request`."""
