"""The provider interface of gpt2099: its five functions, implemented over one of our adapters."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec
from msgspec.structs import replace

from metis import adapters
from metis.canonical.blocks import (
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from metis.canonical.errors import NetworkError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint, Usage
from metis.canonical.tools import ToolDefinition
from metis.catalog.tables import catalog
from metis.interchange.conversion import ConversionContext
from metis.interchange.document import convert_to
from metis.interchange.gpt2099.turns import SYSTEM, encode_turn
from metis.interchange.gpt2099.types import Options
from metis.interchange.gpt2099.windows import Gpt2099Context
from metis.store.threads import merged_options
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    StreamError,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.streaming.events import provider_error
from metis.wire.call import AdapterOptions, RequestContext, WireRequest
from metis.wire.json_access import Wire, maybe_object


def encode_response(message: Message) -> Wire:
    """An answer as `{message: {role, content, model, stop_reason, usage?}}`."""
    metadata = message.metadata
    response: Wire = {
        "role": "assistant",
        "content": [wire for block in message.content for wire in _record(message, block)],
        "model": (metadata.model or "").partition(":")[2],
        "stop_reason": str(metadata.stop_reason or "unknown"),
    }
    if metadata.usage is not None:
        response["usage"] = _usage(metadata.usage)
    return {"message": response}


def _record(message: Message, block: ContentBlock) -> Iterator[Wire]:
    """A block; what turns have no word for is told as the provider of it tells it."""
    match block:
        case TextBlock() if block.citations:
            cited: Any = msgspec.to_builtins(block.citations)
            yield {"type": "text", "text": block.text, "citations": cited}
        case ThinkingBlock():
            seal = {} if block.signature is None else {"signature": block.signature}
            yield {"type": "thinking", "thinking": block.text, **seal}
        case RedactedThinkingBlock():
            yield {"type": "redacted_thinking", "data": block.data}
        case OpaqueBlock():
            yield maybe_object(block.data)
        case _:
            desk = ConversionContext(SYSTEM, SYSTEM, RequestContext(session_id=message.session_id))
            alone = msgspec.structs.replace(message, content=(block,))
            yield from encode_turn([alone], desk)


def _usage(usage: Usage) -> Wire:
    told: Wire = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    if usage.cache_creation_input_tokens:
        told["cache_creation_input_tokens"] = usage.cache_creation_input_tokens
    if usage.cached_input_tokens:
        told["cache_read_input_tokens"] = usage.cached_input_tokens
    return told


_write = msgspec.json.Encoder().encode


class Streamer:
    """Knows which block was shown last, so that a new one is told once."""

    def __init__(self) -> None:
        self._shown: int | None = None
        self._spelled: set[str] = set()
        """The calls of which some arguments were shown."""

    def records_for(self, event: StreamEvent) -> Iterator[Wire]:
        """What an event adds: the start of a block, more of its content, or nothing."""
        match event:
            case TextDelta():
                yield from self._begun(event.content_block_index, {"type": "text"})
                yield from _added(event.text)
            case ThinkingDelta():
                yield from self._begun(event.content_block_index, {"type": "thinking"})
                yield from _added(event.text)
            case ToolUseStart():
                start = {"type": "tool_use", "name": event.tool_name}
                yield from self._begun(event.content_block_index, start)
            case ToolUseInputDelta():
                self._spelled.add(event.tool_use_id)
                yield from _added(event.partial_json)
            case ToolUseEnd() if event.tool_use_id not in self._spelled:
                # Some providers give a call as a whole.
                yield from _added(_write(event.final_input).decode())
            case BlockAdded():
                yield from self._begun(event.content_block_index, {"type": event.block.type})
            case _:
                return

    def _begun(self, index: int, start: Wire) -> Iterator[Wire]:
        if index != self._shown:
            self._shown = index
            yield start


def _added(text: str) -> Iterator[Wire]:
    if text:
        yield {"content": text}


SEPARATOR = "\n\n----\n\n"
"""What stands between the system messages of a window where they become one text."""

_JOINING = frozenset({"anthropic"})
"""The protocols for which gpt2099 makes one text of them; others have a part for each."""

Send = Callable[[WireRequest], Iterable[bytes]]
"""Sends a request and gives the bytes of the answer as they come."""


class Provider:
    """A provider by the name of its adapter, called as scripts of gpt2099 call theirs."""

    def __init__(self, name: str) -> None:
        self._adapter = adapters.get(name)

    def models(self) -> list[str]:
        """The names of the models that are known of it."""
        profile = self._adapter.profile
        listed = catalog().models(profile.catalog_provider or profile.name)
        return [model.wire_name for model in listed]

    def prepare_request(
        self,
        window: bytes | str | Mapping[str, Any],
        tools: Sequence[ToolDefinition] = (),
        *,
        model: str,
    ) -> WireRequest:
        """The request for a context window, `{messages, options}`; what it loses is on its list.

        Raises:
            ForeignDocumentError: this is no context window.
            InvalidValueError: an option that the provider refuses.
        """
        data = window if isinstance(window, bytes | str) else json.dumps(window)
        # Ids of calls are made from that of the session: the same window is the same request.
        loaded = Gpt2099Context().load(data, RequestContext(session_id=SYSTEM))
        messages = loaded.messages
        said = convert_to(Options, merged_options(messages), "$.options")
        if self._adapter.profile.protocol in _JOINING:
            messages = join_system_messages(messages)
        options = AdapterOptions(
            model=model, stream=True, search=said.search, tool_mode=said.tool_mode
        )
        request = self._adapter.to_wire(messages, tools, options)
        return replace(request, losses=[*loaded.losses, *request.losses])

    def call(
        self,
        request: WireRequest,
        send: Send,
        tools: Sequence[ToolDefinition] = (),
        *,
        model: str | None = None,
    ) -> Iterator[StreamEvent]:
        """The events of an answer as they come; `tools` and `model` are those of the request."""
        names = tuple(tool.name for tool in tools)
        asked = None if model is None else f"{self._adapter.name}:{self._adapter.wire_model(model)}"
        decoder = self._adapter.stream_decoder(RequestContext(tools=names, model=asked))
        for chunk in send(request):
            yield from decoder.feed(chunk)
        yield from decoder.finish()

    def response_stream_streamer(self, events: Iterable[StreamEvent]) -> Iterator[Wire]:
        """What a screen shows of events: `{type, name?}` for a new block, `{content}` for more."""
        streamer = Streamer()
        for event in events:
            yield from streamer.records_for(event)

    def response_stream_aggregate(self, events: Iterable[StreamEvent]) -> Wire:
        """The whole answer of events, as `{message}`.

        Raises:
            ProviderError: the answer failed or did not end.
        """
        for event in events:
            if isinstance(event, MessageComplete):
                return encode_response(event.message)
            if isinstance(event, StreamError):
                raise provider_error(event, self._adapter.name)
        raise NetworkError("the answer did not end", provider=self._adapter.name)


def join_system_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages with those of the system at the start as one, its texts visibly apart."""
    lead = list(takewhile(lambda message: message.role is Role.SYSTEM, messages))
    blocks: list[ContentBlock] = [block for message in lead for block in message.content]
    if len(lead) < 2 or not all(isinstance(block, TextBlock) for block in blocks):  # noqa: PLR2004 - nothing to join
        return list(messages)
    texts = ["\n".join(_texts(message)) for message in lead]
    hints = (CacheHint(after=0),) if any(message.metadata.hints for message in lead) else ()
    metadata = replace(lead[0].metadata, hints=hints)
    first = replace(lead[0], content=(TextBlock(SEPARATOR.join(texts)),), metadata=metadata)
    return [first, *messages[len(lead) :]]


def _texts(message: Message) -> Iterator[str]:
    return (block.text for block in message.content if isinstance(block, TextBlock))
