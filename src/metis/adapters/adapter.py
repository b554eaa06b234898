"""Adapter: a codec bound to a provider; the one door for conversations, out and in."""

import logging
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.adapters.answer_calls import CallReader, CallReading
from metis.adapters.codecs import CODECS
from metis.adapters.options import Asked, project_options
from metis.adapters.profile import Profile
from metis.canonical.errors import CatalogError, DecodeError, InvalidValueError
from metis.canonical.json_value import json_fault
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.catalog.load import catalog
from metis.catalog.models import AdapterCapabilities
from metis.projection.cache import LONG
from metis.projection.loss import Loss
from metis.projection.project import project
from metis.projection.target import Target
from metis.streaming import StreamEvent
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext, WireRequest
from metis.wire.codec import StreamReader, StreamWriter
from metis.wire.shape import maybe_list, maybe_object
from metis.wire.spelling import without_ids

log = logging.getLogger("metis.adapters")
_ID = re.compile(r"[a-zA-Z0-9_-]+")


class Adapter:
    """Speaks to one provider, in both directions: as its client, and in its place."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.name = profile.name
        self._codec = CODECS[profile.protocol]

    def capabilities(self, model: str) -> AdapterCapabilities:
        """What a model can do; a model that the catalogue does not know has the provider's rest."""
        try:
            return catalog().capabilities(f"{self.name}:{self.wire_model(model)}")
        except CatalogError:
            return self.profile.defaults

    def wire_model(self, model: str | None) -> str:
        """The name of a model as this provider spells it."""
        if not _is_name(model):
            raise InvalidValueError(f"a model is named by a string, not {model!r}", path="$.model")
        return (model or self.profile.default_model).removeprefix(f"{self.name}:")

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
        asked = project_options(
            self.profile, options, tools, model=model, takes_tools=capabilities.supports_tools
        )
        projection = project(messages, self._target(capabilities, asked))
        sent = self._with_fitting_ids(projection.messages)
        body = self._codec.encode_request(sent, asked.tools, asked.options)
        losses = [
            *projection.losses,
            *self._unsaid(messages),
            *self._option_losses(messages, asked),
        ]
        for loss in losses:
            log.warning("%s", loss, extra=_fields(loss))
        return WireRequest(
            path=self.profile.path,
            headers={"content-type": "application/json", **self.profile.headers},
            body=body,
            losses=losses,
        )

    def from_wire_response(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> Message:
        """The message of a response; an error body raises the error that it stands for."""
        context = self._context(context)
        message = self._codec.decode_response(_bytes_of(body), context)
        return self._reading(context).read(message)

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
        context = self._context(context)
        return CallReader(self._codec.stream_reader(context), self._reading(context))

    def from_wire_request(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> CanonicalRequest:
        """The canonical request of a client that speaks this provider's protocol."""
        return self._codec.decode_request(_bytes_of(body), self._context(context))

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

    def _target(self, capabilities: AdapterCapabilities, asked: Asked) -> Target:
        """What the model can carry; marks that the client set on tools are counted (T170, T171)."""
        target = self.profile.target(capabilities)
        own = asked.options.native.get(self.profile.protocol)
        if not target.cache_marks or own is None:
            return target
        marks = [
            mark
            for part in (own, *map(maybe_object, maybe_list(own.get("tools"))))
            if (mark := maybe_object(part.get("cache_control")))
        ]
        is_long = all(mark.get("ttl") == LONG for mark in marks)
        left = max(0, target.cache_marks - len(marks))
        return replace(target, cache_marks=left, takes_long_marks=is_long) if marks else target

    def _with_fitting_ids(self, messages: Sequence[Message]) -> list[Message]:
        """Messages with ids that this provider takes; its own go back as they came (T01-T03)."""
        name, protocol = self.name, self.profile.protocol
        return [
            message
            if (about := message.metadata).provider_raw is None or about.origin == name
            else without_ids(message, protocol, self._fits)
            for message in messages
        ]

    def _fits(self, theirs: str) -> bool:
        return 0 < len(theirs) <= self.profile.tool_id_length and _ID.fullmatch(theirs) is not None

    def _unsaid(self, messages: Sequence[Message]) -> Iterator[Loss]:
        """What messages say in the words of another protocol only."""
        own = self.profile.protocol
        spelled = [
            (message, raw)
            for message in messages
            if (raw := message.metadata.provider_raw) is not None
            and (own not in raw or len(raw) > 1)
        ]
        for message, raw in spelled:
            for protocol in raw:
                if protocol == own or protocol not in CODECS:
                    continue
                for path in CODECS[protocol].unsaid(message):
                    reason = f"only {protocol} knows {path.rpartition('.')[2]!r}"
                    yield self._loss(message, "key", path, reason)

    def _option_losses(self, messages: Sequence[Message], asked: Asked) -> Iterator[Loss]:
        session = messages[0].session_id if messages else ""
        for loss in asked.losses:
            yield Loss(
                session_id=session,
                message_id="",
                block_type="option",
                adapter=self.name,
                reason=loss.reason,
                change=loss.change,
                path=loss.path,
            )

    def _loss(self, message: Message, kind: str, path: str, reason: str) -> Loss:
        return Loss(
            session_id=message.session_id,
            message_id=message.id,
            block_type=kind,
            adapter=self.name,
            reason=reason,
            path=path,
        )

    def _reading(self, context: RequestContext) -> CallReading:
        return CallReading(context.tools, self.profile.tool_name_length)


def _is_name(model: object) -> bool:
    return isinstance(model, str | None)


def _bytes_of(body: object) -> bytes:
    """The JSON of a body; objects that were made by hand may hold what JSON has no place for.

    An object is written and read again, so that nobody can change a message through it.
    """
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(cast("bytearray", body))
    if not isinstance(body, dict):
        raise DecodeError(f"a body is bytes or an object, got {type(body).__name__}")
    wire = cast("dict[str, Any]", body)
    fault = json_fault(wire)
    if fault:
        raise DecodeError(fault[1], path=fault[0])
    try:
        return msgspec.json.encode(wire)
    except (ValueError, OverflowError, RecursionError) as error:
        raise DecodeError(f"the body cannot be written as JSON: {error}") from None


def _fields(loss: Loss) -> dict[str, str]:
    return {
        "session_id": loss.session_id,
        "message_id": loss.message_id,
        "block_type": loss.block_type,
        "adapter": loss.adapter,
        "reason": loss.reason,
    }
