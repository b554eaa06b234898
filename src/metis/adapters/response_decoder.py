"""Conversion of decoded responses: issuers of sealed parts, our tool names, one block per call.

Each step exists as a function on messages and as a wrapper around a stream decoder; a stream and a
plain response give the same message.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.errors import MetisError
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.canonical.metadata import StopReason
from metis.projection import are_identical, wire_tool_name
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamError,
    StreamEvent,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    UsageUpdate,
)
from metis.streaming.arguments import split_joined_objects
from metis.wire.codec import StreamDecoder
from metis.wire.json_access import maybe_list, maybe_object, maybe_text

OUTPUT_TOOL: Final = "metis_answer"
"""The tool whose arguments are the response, where a model is forced to call one (T116)."""

MAX_ADDED_CALLS: Final = 128
"""How many calls splitting may add to a response; OpenAI allows as many parallel calls."""

_WRAPPER_TOOLS = frozenset({"multi_tool_use.parallel", "multi_tool_use", "parallel"})
"""Undefined tools that GPT models call with several calls as arguments (T140)."""
_CALL_EVENTS = frozenset({ToolUseStart, ToolUseEnd, MessageComplete, StreamError})
_SEALED = (ThinkingBlock, RedactedThinkingBlock, OpaqueBlock)
_Issuers = Mapping[str | None, str]


class DecoderWrapper(ABC):
    """A stream decoder that converts the events of another one."""

    def __init__(self, decoder: StreamDecoder) -> None:
        self._decoder = decoder

    @property
    @abstractmethod
    def message(self) -> Message:
        """The message as far as it has been decoded."""

    @abstractmethod
    def _convert(self, events: list[StreamEvent]) -> list[StreamEvent]:
        """Return the converted events of one chunk."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that are complete with this chunk."""
        return self._convert(self._decoder.feed(chunk))

    def finish(self) -> list[StreamEvent]:
        """Return the last events."""
        return self._convert(self._decoder.finish())


def with_issuer(message: Message, profile: Profile) -> Message:
    """Return a response whose sealed parts name the host and account that can read them.

    Codecs name the provider or the protocol as the issuer. That is right for a provider at its
    usual host. Another host, a Vertex location or a named account is another issuer, because none
    of them can read what another one sealed (T203).
    """
    return _with_issuers(message, _response_issuers(profile))


def for_issuer(messages: Sequence[Message], profile: Profile) -> Sequence[Message]:
    """Return messages whose sealed parts name issuers as the codec of this host expects them.

    Parts that this host or account sealed get the name of the provider. Parts that the same
    provider sealed at another host or for another account get another name, so that the projection
    drops them.
    """
    usual = f"{profile.name}@{profile.usual_host}"
    issuers: dict[str | None, str] = dict.fromkeys((profile.name, *profile.issuers), usual)
    # Codecs of some protocols name the protocol as the issuer, not the provider.
    is_usual_name = profile.protocol not in profile.issuers
    issuers[profile.issuer] = profile.name if is_usual_name else profile.protocol
    # A part without an issuer belongs to the provider of the response.
    with_default = {**issuers, None: usual}
    renamed = [
        message
        if message.role is not Role.ASSISTANT
        else _with_issuers(
            message, with_default if message.metadata.provider == profile.name else issuers
        )
        for message in messages
    ]
    return messages if all(map(is_, renamed, messages)) else renamed


def _response_issuers(profile: Profile) -> _Issuers:
    return dict.fromkeys((None, profile.name, *profile.issuers), profile.issuer)


def _with_issuers(message: Message, issuers: _Issuers) -> Message:
    for block in message.content:
        if type(block) in _SEALED or type(block) is ArtifactBlock:
            content = tuple(_block_with_issuer(block, issuers) for block in message.content)
            return replace(message, content=content)
    return message


def _block_with_issuer(block: ContentBlock, issuers: _Issuers) -> ContentBlock:
    if isinstance(block, _SEALED):
        issuer = issuers.get(block.issuer)
        return block if issuer is None else replace(block, issuer=issuer)
    if isinstance(block, ArtifactBlock) and block.source.issuer is not None:
        issuer = issuers.get(block.source.issuer)
        if issuer is not None:
            return replace(block, source=replace(block.source, issuer=issuer))
    return block


class IssuerDecoder(DecoderWrapper):
    """A stream decoder whose sealed parts name the host and account that can read them."""

    def __init__(self, decoder: StreamDecoder, profile: Profile) -> None:
        super().__init__(decoder)
        self._profile = profile

    @property
    def message(self) -> Message:
        """The message as far as it has been decoded."""
        return with_issuer(self._decoder.message, self._profile)

    def _convert(self, events: list[StreamEvent]) -> list[StreamEvent]:
        return [self._convert_event(event) for event in events]

    def _convert_event(self, event: StreamEvent) -> StreamEvent:
        match event:
            case MessageComplete():
                return replace(event, message=with_issuer(event.message, self._profile))
            case StreamError() if event.message is not None:
                return replace(event, message=with_issuer(event.message, self._profile))
            case MessageStart():
                return replace(event, issuer=self._profile.issuer)
            case BlockAdded():
                block = _block_with_issuer(event.block, _response_issuers(self._profile))
                return replace(event, block=block)
            case _:
                return event


def replayed_events(
    message: Message, decoder: StreamDecoder, body: bytes
) -> list[StreamEvent] | None:
    """Return the events of a plain response, with the original form of each part.

    `body` is fed to a stream decoder. Decoders accept a plain body in place of a stream, because
    some hosts answer a request for a stream with one. None if the decoder fails, or reads a
    different message.
    """
    try:
        events = [*decoder.feed(body), *decoder.finish()]
    except MetisError:
        return None
    end = events[-1] if events else None
    if not isinstance(end, MessageComplete):
        return None
    if _comparable(end.message) != _comparable(message):
        return None
    call_ids = [
        [block.id for block in response.content if type(block) is ToolUseBlock]
        for response in (end.message, message)
    ]
    our_ids = dict(zip(*call_ids, strict=True))
    return [_with_ids_of(event, message, our_ids) for event in events]


def _comparable(message: Message) -> str:
    """Return a digest of the content that does not depend on the texts of call errors."""
    content = tuple(
        replace(block, invalid=replace(block.invalid, error=""))
        if type(block) is ToolUseBlock and block.invalid is not None
        else block
        for block in message.content
    )
    is_same = are_identical(content, message.content)
    return (message if is_same else replace(message, content=content)).content_digest()


def _with_ids_of(event: StreamEvent, message: Message, our_ids: Mapping[str, str]) -> StreamEvent:
    match event:
        case ToolUseStart() | ToolUseInputDelta() | ToolUseEnd():
            call = our_ids.get(event.tool_use_id, event.tool_use_id)
            return replace(event, message_id=message.id, tool_use_id=call)
        case MessageComplete():
            return replace(event, message_id=message.id, message=message)
        case MessageStart():
            return replace(event, message_id=message.id, model=message.metadata.model)
        case UsageUpdate():
            return replace(event, message_id=message.id, usage=message.metadata.usage)
        case _:
            return replace(event, message_id=message.id)


class ToolCallRules:
    """Normalises the tool calls of a response, given the tools of the request.

    A name that was changed for the provider is restored (T111). Calls that a model joined into one
    string (T35) or wrapped in one call (T140) become several, each with its own id. A call of the
    output tool becomes text (T116).
    """

    def __init__(self, tools: Sequence[str], max_name_length: int) -> None:
        self._our_names = {wire_tool_name(name, max_name_length): name for name in tools}

    def normalise(self, message: Message) -> Message:
        """Return the message with one block per call, under our tool names."""
        if not self._our_names and not any(map(_is_unusual_call, message.content)):
            return message
        content: list[ContentBlock] = []
        has_output = False
        remaining = MAX_ADDED_CALLS
        for block in message.content:
            if not isinstance(block, ToolUseBlock):
                content.append(block)
            elif self.is_output_tool(block.name):
                has_output = True
                content.append(TextBlock(_output_text(block)))
            else:
                calls = self.split_call(block, remaining)
                remaining -= len(calls) - 1
                content += calls
        if has_output:
            return _with_output(message, tuple(content))
        is_same = are_identical(content, message.content)
        return message if is_same else replace(message, content=tuple(content))

    def split_call(self, call: ToolUseBlock, remaining: int) -> list[ToolUseBlock]:
        """Return the calls that one call contains; usually only itself.

        `remaining` is how many calls may be added; a call with more of them is not split.
        """
        calls: list[tuple[str, dict[str, object]]] = []
        if call.invalid is not None:
            name = self.our_name(call.name)
            calls = [(name, arguments) for arguments in split_joined_objects(call.invalid.raw)]
        elif self.is_wrapper(call.name):
            calls = self._wrapped_calls(call)
        # A hostile response could hold thousands of objects in one string.
        if not calls or len(calls) - 1 > remaining:
            name = self.our_name(call.name)
            return [call if name == call.name else replace(call, name=name)]
        return [
            ToolUseBlock(hashed_tool_id(call.id, str(n)) if n else call.id, name, arguments)
            for n, (name, arguments) in enumerate(calls)
        ]

    def our_name(self, wire_name: str) -> str:
        """Return our name of a tool, by the name that was sent to the provider."""
        return self._our_names.get(wire_name, wire_name)

    def is_output_tool(self, name: str) -> bool:
        """Whether a call of that name is the response: the caller defined no such tool."""
        return name == OUTPUT_TOOL and OUTPUT_TOOL not in self._our_names

    def is_wrapper(self, name: str) -> bool:
        """Whether a call of that name may contain others: the caller defined no such tool."""
        return bool(self._our_names) and name in _WRAPPER_TOOLS and name not in self._our_names

    def _wrapped_calls(self, call: ToolUseBlock) -> list[tuple[str, dict[str, object]]]:
        uses = [maybe_object(use) for use in maybe_list(call.input.get("tool_uses"))]
        names = [(maybe_text(use.get("recipient_name")) or "").rpartition(".")[2] for use in uses]
        if not all(name in self._our_names for name in names):
            return []
        return [
            (self.our_name(name), maybe_object(use.get("parameters")))
            for name, use in zip(names, uses, strict=True)
        ]


def _is_unusual_call(block: ContentBlock) -> bool:
    return type(block) is ToolUseBlock and (block.invalid is not None or block.name == OUTPUT_TOOL)


def _output_text(call: ToolUseBlock) -> str:
    return call.invalid.raw if call.invalid else msgspec.json.encode(call.input).decode()


def _with_output(message: Message, content: tuple[ContentBlock, ...]) -> Message:
    # Only the ids of the original form stay: its other keys describe the call that became text.
    metadata = message.metadata
    if metadata.provider_raw is not None:
        metadata = replace(metadata, provider_raw=_only_ids(metadata.provider_raw))
    has_calls = any(isinstance(block, ToolUseBlock) for block in content)
    if metadata.stop_reason is StopReason.TOOL_USE and not has_calls:
        metadata = replace(metadata, stop_reason=StopReason.END_TURN)
    return replace(message, content=content, metadata=metadata)


def _only_ids(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return {
        protocol: {"ids": ids}
        for protocol, form in raw.items()
        if (ids := maybe_object(form).get("ids"))
    } or None


class ToolCallDecoder(DecoderWrapper):
    """A stream decoder that applies `ToolCallRules` to the calls of a stream."""

    def __init__(self, decoder: StreamDecoder, rules: ToolCallRules) -> None:
        super().__init__(decoder)
        self._rules = rules
        self._names: dict[str, str] = {}
        self._pending: list[StreamEvent] = []
        """The events of a call that may contain others, until it is complete."""
        self._index_shift = 0
        self._remaining = MAX_ADDED_CALLS

    @property
    def message(self) -> Message:
        """The message as far as it has been decoded."""
        return self._rules.normalise(self._decoder.message)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that are complete with this chunk."""
        events = self._decoder.feed(chunk)
        # Nearly all events are text deltas, which pass through as they are.
        if not (self._index_shift or self._pending):
            for event in events:
                if type(event) in _CALL_EVENTS:
                    break
            else:
                return events
        return self._convert(events)

    def _convert(self, events: list[StreamEvent]) -> list[StreamEvent]:
        return [converted for event in events for converted in self._convert_event(event)]

    def _convert_event(self, event: StreamEvent) -> list[StreamEvent]:
        index = getattr(event, "content_block_index", None)
        if self._index_shift and index is not None:
            event = replace(event, content_block_index=index + self._index_shift)
        match event:
            case ToolUseStart():
                return self._start(event)
            case ToolUseInputDelta() if self._pending:
                self._pending.append(event)
                return []
            case ToolUseEnd():
                return self._end(event)
            case MessageComplete():
                message = self._rules.normalise(event.message)
                reason = message.metadata.stop_reason or event.stop_reason
                return [replace(event, message=message, stop_reason=reason)]
            case StreamError() if event.message is not None:
                pending, self._pending = self._pending, []
                if pending and self._starts_output(pending[0]):
                    pending = []
                return [*pending, replace(event, message=self._rules.normalise(event.message))]
            case _:
                return [event]

    def _start(self, event: ToolUseStart) -> list[StreamEvent]:
        self._names[event.tool_use_id] = event.tool_name
        # What these calls become is clear only when their arguments are complete.
        if self._rules.is_wrapper(event.tool_name) or self._starts_output(event):
            self._pending = [event]
            return []
        return [replace(event, tool_name=self._rules.our_name(event.tool_name))]

    def _starts_output(self, event: StreamEvent) -> bool:
        return type(event) is ToolUseStart and self._rules.is_output_tool(event.tool_name)

    def _end(self, event: ToolUseEnd) -> list[StreamEvent]:
        pending, self._pending = self._pending, []
        name = self._names.get(event.tool_use_id, "")
        call = ToolUseBlock(event.tool_use_id, name, event.final_input, event.invalid)
        if self._rules.is_output_tool(name):
            return [TextDelta(event.message_id, event.content_block_index, _output_text(call))]
        first, *others = self._rules.split_call(call, self._remaining)
        self._remaining -= len(others)
        if not others and first.name == self._rules.our_name(name):
            return [*pending, event]
        events: list[StreamEvent] = []
        for n, part in enumerate((first, *others)):
            index = event.content_block_index + n
            if n or pending:
                events.append(ToolUseStart(event.message_id, index, part.id, part.name))
            events.append(ToolUseEnd(event.message_id, index, part.id, part.input))
        self._index_shift += len(others)
        return events
