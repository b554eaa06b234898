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

SEPARATOR = "\n\n----\n\n"
"""The text between system messages that are joined into one."""

# gpt2099 joins the system messages for these protocols; others get a part for each (GX-10).
_JOINED_SYSTEM_PROTOCOLS = frozenset({"anthropic"})

Send = Callable[[WireRequest], Iterable[bytes]]
"""Sends a request and returns the bytes of the response as they come."""

_write_json = msgspec.json.Encoder().encode


class Provider:
    """A provider by the name of its adapter, with the five functions that gpt2099 calls."""

    def __init__(self, name: str) -> None:
        self._adapter = adapters.get(name)

    def models(self) -> list[str]:
        """Return the names of its models in the catalog."""
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
        """Return the request for a context window, `{messages, options}`, with its losses.

        Raises:
            ForeignDocumentError: this is not a context window.
            InvalidValueError: the provider refuses an option.
        """
        data = window if isinstance(window, bytes | str) else json.dumps(window)
        # Tool ids derive from the session id; a fixed one gives the same request every time.
        loaded = Gpt2099Context().load(data, RequestContext(session_id=SYSTEM))
        messages = loaded.messages
        window_options = convert_to(Options, merged_options(messages), "$.options")
        if self._adapter.profile.protocol in _JOINED_SYSTEM_PROTOCOLS:
            messages = join_system_messages(messages)
        options = AdapterOptions(
            model=model,
            stream=True,
            search=window_options.search,
            tool_mode=window_options.tool_mode,
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
        """Yield the events of a response; `tools` and `model` are those of the request."""
        # Wire names may differ from ours; with the tools the decoder can map them back.
        names = tuple(tool.name for tool in tools)
        wire_model = None if model is None else self._adapter.wire_model(model)
        model_id = None if model is None else f"{self._adapter.name}:{wire_model}"
        decoder = self._adapter.stream_decoder(RequestContext(tools=names, model=model_id))
        for chunk in send(request):
            yield from decoder.feed(chunk)
        yield from decoder.finish()

    def response_stream_streamer(self, events: Iterable[StreamEvent]) -> Iterator[Wire]:
        """Yield display records: `{type, name?}` for a new block, `{content}` for more of it."""
        streamer = _Streamer()
        for event in events:
            yield from streamer.records_for(event)

    def response_stream_aggregate(self, events: Iterable[StreamEvent]) -> Wire:
        """Return the complete response of events as `{message}`.

        Raises:
            ProviderError: the response failed or did not end.
        """
        for event in events:
            if isinstance(event, MessageComplete):
                return _encode_response(event.message)
            if isinstance(event, StreamError):
                raise provider_error(event, self._adapter.name)
        raise NetworkError(
            "the response did not end", provider=self._adapter.name, response_began=True
        )


def join_system_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the system messages at the start joined into one."""
    lead = list(takewhile(lambda message: message.role is Role.SYSTEM, messages))
    blocks: list[ContentBlock] = [block for message in lead for block in message.content]
    # A single message keeps its blocks, and blocks that are not text cannot be joined.
    if len(lead) < 2 or not all(isinstance(block, TextBlock) for block in blocks):  # noqa: PLR2004 - nothing to join
        return list(messages)
    texts = ["\n".join(_texts(message)) for message in lead]
    hints = (CacheHint(after=0),) if any(message.metadata.hints for message in lead) else ()
    metadata = replace(lead[0].metadata, hints=hints)
    first = replace(lead[0], content=(TextBlock(SEPARATOR.join(texts)),), metadata=metadata)
    return [first, *messages[len(lead) :]]


def _texts(message: Message) -> Iterator[str]:
    return (block.text for block in message.content if isinstance(block, TextBlock))


class _Streamer:
    """Turns stream events into gpt2099's display records."""

    def __init__(self) -> None:
        self._current_block: int | None = None
        self._calls_with_arguments: set[str] = set()

    def records_for(self, event: StreamEvent) -> Iterator[Wire]:
        """Yield the start of a block, more of its content, or nothing."""
        match event:
            case TextDelta():
                yield from self._start(event.content_block_index, {"type": "text"})
                yield from _content(event.text)
            case ThinkingDelta():
                yield from self._start(event.content_block_index, {"type": "thinking"})
                yield from _content(event.text)
            case ToolUseStart():
                start = {"type": "tool_use", "name": event.tool_name}
                yield from self._start(event.content_block_index, start)
            case ToolUseInputDelta():
                self._calls_with_arguments.add(event.tool_use_id)
                yield from _content(event.partial_json)
            case ToolUseEnd() if event.tool_use_id not in self._calls_with_arguments:
                # Gemini and Ollama send a call in one piece, without argument deltas.
                yield from _content(_write_json(event.final_input).decode())
            case BlockAdded():
                yield from self._start(event.content_block_index, {"type": event.block.type})
            case _:
                return

    def _start(self, index: int, record: Wire) -> Iterator[Wire]:
        if index != self._current_block:
            self._current_block = index
            yield record


def _content(text: str) -> Iterator[Wire]:
    if text:
        yield {"content": text}


def _encode_response(message: Message) -> Wire:
    """Return a response as `{message: {role, content, model, stop_reason, usage?}}`."""
    metadata = message.metadata
    response: Wire = {
        "role": "assistant",
        "content": [wire for block in message.content for wire in _encode_block(message, block)],
        "model": (metadata.model or "").partition(":")[2],
        "stop_reason": str(metadata.stop_reason or "unknown"),
    }
    if metadata.usage is not None:
        response["usage"] = _encode_usage(metadata.usage)
    return {"message": response}


def _encode_block(message: Message, block: ContentBlock) -> Iterator[Wire]:
    """Yield a block of a response, which may hold more kinds of blocks than a stored turn."""
    match block:
        case TextBlock() if block.citations:
            citations: Any = msgspec.to_builtins(block.citations)
            yield {"type": "text", "text": block.text, "citations": citations}
        case ThinkingBlock():
            signature = {} if block.signature is None else {"signature": block.signature}
            # gpt2099 uses Anthropic's names for blocks that its turns do not have.
            yield {"type": "thinking", "thinking": block.text, **signature}
        case RedactedThinkingBlock():
            yield {"type": "redacted_thinking", "data": block.data}
        case OpaqueBlock():
            yield maybe_object(block.data)
        case _:
            context = RequestContext(session_id=message.session_id)
            conversion = ConversionContext(SYSTEM, SYSTEM, context)
            yield from encode_turn([replace(message, content=(block,))], conversion)


def _encode_usage(usage: Usage) -> Wire:
    counts: Wire = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    if usage.cache_creation_input_tokens:
        counts["cache_creation_input_tokens"] = usage.cache_creation_input_tokens
    if usage.cached_input_tokens:
        counts["cache_read_input_tokens"] = usage.cached_input_tokens
    return counts
