"""Adapter: a codec bound to a provider; the one door for conversations, out and in."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.profile import Profile
from metis.canonical.errors import CatalogError, DecodeError
from metis.canonical.json_value import json_fault
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.catalog.load import catalog
from metis.catalog.models import AdapterCapabilities
from metis.projection.loss import Change, Loss
from metis.projection.project import project
from metis.streaming import StreamEvent
from metis.wire.call import (
    AdapterOptions,
    CanonicalRequest,
    RequestContext,
    ToolChoice,
    WireRequest,
)
from metis.wire.codec import StreamReader, StreamWriter
from metis.wire.shape import maybe_list, maybe_object

log = logging.getLogger("metis.adapters")

_Lost = list[tuple[str, str]]
"""Options that are not sent, each with the reason."""

_UNSAID: tuple[Any, ...] = (None, "", [], {})
"""Values of an option that say nothing."""


class Adapter:
    """Speaks to one provider, in both directions: as its client, and in its place."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.name = profile.name
        self._codec = CODECS[profile.protocol]

    def capabilities(self, model: str) -> AdapterCapabilities:
        """What a model can do; a model that the catalogue does not know has the provider's rest."""
        try:
            return catalog().capabilities(f"{self.profile.vendor}:{self.wire_model(model)}")
        except CatalogError:
            return self.profile.defaults

    def wire_model(self, model: str | None) -> str:
        """The name of a model as this provider spells it."""
        name = (model or self.profile.default_model).removeprefix(f"{self.name}:")
        return name.removeprefix(f"{self.profile.vendor}:")

    def to_wire(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        options: AdapterOptions = AdapterOptions(),  # noqa: B008 - an immutable value
    ) -> WireRequest:
        """The request that carries a conversation to this provider, and what is lost on the way.

        Raises:
            CriticalLossError: a block that is marked critical cannot be carried.
        """
        model = self.wire_model(options.model)
        capabilities = self.capabilities(model)
        projection = project(messages, self.profile.target(capabilities))
        asked, lost = self._project_options(options, tools)
        sent = tools
        if tools and not capabilities.supports_tools:
            sent, asked = (), replace(asked, tool_choice=None, parallel_tool_calls=None)
            lost += [("tools", f"{model} takes no tools: {tool.name}") for tool in tools]
        path = self.profile.path
        if self._codec.route is not None:
            route = self._codec.route(projection.messages, sent, asked)
            path = route.path
            lost += [(key, f"{path} has no place for the option {key!r}") for key in route.lost]
        body = self._codec.encode_request(projection.messages, sent, asked)
        session = messages[0].session_id if messages else ""
        losses = [*projection.losses, *(self._option_loss(session, *each) for each in lost)]
        for loss in losses:
            log.warning("%s", loss, extra=_fields(loss))
        return WireRequest(
            path=path,
            headers={"content-type": "application/json", **self.profile.headers},
            body=body,
            losses=losses,
        )

    def from_wire_response(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> Message:
        """The message of a response; an error body raises the error that it stands for."""
        return self._codec.decode_response(_checked(body), self._context(context))

    async def stream_response(
        self, chunks: AsyncIterable[bytes], context: RequestContext | None = None
    ) -> AsyncIterator[StreamEvent]:
        """The events of a streamed response, as they come."""
        decoder = self.stream_decoder(context)
        async for chunk in chunks:
            for event in decoder.feed(chunk):
                yield event
        for event in decoder.finish():
            yield event

    def stream_decoder(self, context: RequestContext | None = None) -> StreamReader:
        """A decoder that is fed the bytes of a streamed response."""
        return self._codec.stream_reader(self._context(context))

    def from_wire_request(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> CanonicalRequest:
        """The canonical request of a client that speaks this provider's protocol."""
        body = _checked(body)
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self._codec.decode_request(data, self._context(context))

    def to_wire_response(self, message: Message, context: RequestContext | None = None) -> bytes:
        """The response body with which this provider would have given the message."""
        return self._codec.encode_response(message, self._context(context))

    def stream_encoder(self, context: RequestContext | None = None) -> StreamWriter:
        """An encoder that writes events as this provider streams them."""
        return self._codec.stream_writer(self._context(context))

    async def stream_to_wire(
        self, events: AsyncIterable[StreamEvent], context: RequestContext | None = None
    ) -> AsyncIterator[bytes]:
        """The bytes of a streamed response, as events come."""
        encoder = self.stream_encoder(context)
        async for event in events:
            data = encoder.encode(event)
            if data:
                yield data
        data = encoder.finish()
        if data:
            yield data

    def _context(self, context: RequestContext | None) -> RequestContext:
        context = context or RequestContext()
        return context if context.provider else replace(context, provider=self.name)

    def _project_options(
        self, options: AdapterOptions, tools: Sequence[ToolDefinition]
    ) -> tuple[AdapterOptions, _Lost]:
        """The options that this provider takes, and those that have no place here."""
        own = self.profile.protocol
        lost = [
            (key, f"the option {key!r} of {protocol} has no place here")
            for protocol, keys in options.native.items()
            if protocol != own
            for key, value in keys.items()
            if value not in _UNSAID and key not in _shared_keys(protocol)
        ]
        lost += [
            each
            for protocol, keys in options.native.items()
            if protocol != own
            for each in _lost_tools(protocol, keys, tools)
        ]
        if own in options.native:
            if options.model is None:
                return options, lost
            return replace(options, model=self.wire_model(options.model)), lost
        refused = [
            name
            for name in sorted(self.profile.refused_options)
            if getattr(options, name) is not None
        ]
        lost += [
            (name, f"{self.name} takes no {name}")
            for name in refused
            if not _is_usual(getattr(options, name))
        ]
        changes: dict[str, Any] = dict.fromkeys(refused)
        return replace(options, model=self.wire_model(options.model), **changes), lost

    def _option_loss(self, session_id: str, key: str, reason: str) -> Loss:
        return Loss(
            session_id=session_id,
            message_id="",
            block_type="option",
            adapter=self.name,
            reason=reason,
            change=Change.DROPPED,
            path=f"$.{key}",
        )


def _is_usual(value: Any) -> bool:
    """Whether an option asks for what happens anyway."""
    return value is True or value == ToolChoice("auto")


def _lost_tools(
    protocol: str, keys: Mapping[str, Any], tools: Sequence[ToolDefinition]
) -> Iterator[tuple[str, str]]:
    """Tools of another protocol that are none of the client's own, such as server-side ones."""
    names = {tool.name for tool in tools}
    for index, tool in enumerate(maybe_list(keys.get("tools"))):
        own = maybe_object(tool)
        name = own.get("name") or maybe_object(own.get("function")).get("name")
        if name not in names:
            kind = own.get("type") or name
            yield f"tools[{index}]", f"the tool {kind!r} of {protocol} has no place here"


def _shared_keys(protocol: str) -> frozenset[str]:
    codec = CODECS.get(protocol)
    return frozenset() if codec is None else codec.shared_keys


def _checked(body: bytes | dict[str, Any]) -> bytes | dict[str, Any]:
    """A body that is JSON; objects that were made by hand may hold what JSON has no place for."""
    if isinstance(body, dict):
        fault = json_fault(body)
        if fault:
            raise DecodeError(fault[1], path=fault[0])
    return body


def _fields(loss: Loss) -> dict[str, str]:
    return {
        "session_id": loss.session_id,
        "message_id": loss.message_id,
        "block_type": loss.block_type,
        "adapter": loss.adapter,
        "reason": loss.reason,
    }
