"""Provider: what gpt2099 asks of a provider, five functions, over one of our adapters."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from metis import adapters
from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import NetworkError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint
from metis.canonical.tools import ToolDefinition
from metis.catalog.load import catalog
from metis.interchange.document import shaped
from metis.interchange.gpt2099.blocks import SYSTEM
from metis.interchange.gpt2099.context import Gpt2099Context
from metis.interchange.gpt2099.response import response_of
from metis.interchange.gpt2099.streamer import Streamer
from metis.interchange.gpt2099.types import Options
from metis.store.threads import merged_options
from metis.streaming import MessageComplete, StreamError, StreamEvent
from metis.streaming.failure import failure_of
from metis.wire.call import AdapterOptions, RequestContext, WireRequest
from metis.wire.shape import Wire

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
        listed = catalog().models(profile.catalogued or profile.name)
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
        said = shaped(Options, merged_options(messages), "$.options")
        if self._adapter.profile.protocol in _JOINING:
            messages = joined(messages)
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
            yield from streamer.take(event)

    def response_stream_aggregate(self, events: Iterable[StreamEvent]) -> Wire:
        """The whole answer of events, as `{message}`.

        Raises:
            ProviderError: the answer failed or did not end.
        """
        for event in events:
            if isinstance(event, MessageComplete):
                return response_of(event.message)
            if isinstance(event, StreamError):
                raise failure_of(event, self._adapter.name)
        raise NetworkError("the answer did not end", provider=self._adapter.name)


def joined(messages: Sequence[Message]) -> list[Message]:
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
