"""Adapter: a codec bound to a provider; the one door for conversations, out and in."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.adapters.asked import Asked, LostOption, is_own
from metis.adapters.codecs import CODECS
from metis.adapters.dialect import Dialect
from metis.adapters.memory import Memory, Sent
from metis.adapters.model import Model, model_of
from metis.adapters.naming import wire_model
from metis.adapters.profile import Profile
from metis.canonical.errors import DecodeError
from metis.canonical.json_value import json_fault
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.catalog.models import AdapterCapabilities
from metis.projection.loss import Loss
from metis.projection.project import project, project_more
from metis.projection.target import Target
from metis.streaming import StreamEvent
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext, WireRequest
from metis.wire.codec import StreamReader, StreamWriter, TurnWriter
from metis.wire.spelling import has_foreign_spelling, without_spelling

log = logging.getLogger("metis.adapters")

_MODELS_KEPT = 1000


class Adapter:
    """Speaks to one provider, in both directions: as its client, and in its place."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.name = profile.name
        self._codec = CODECS[profile.protocol]
        self._memory = Memory()
        self._models: dict[str, Model] = {}
        self._fits: dict[Target, Target] = {}

    def capabilities(self, model: str) -> AdapterCapabilities:
        """What a model can do; a model that the catalogue does not know has the provider's rest."""
        return self._model(self.wire_model(model)).capabilities

    def wire_model(self, model: str | None) -> str:
        """The name of a model as this provider spells it.

        Raises:
            WrongProviderError: the model is one of another provider.
        """
        return wire_model(model, self.profile)

    def to_wire(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        options: AdapterOptions = AdapterOptions(),  # noqa: B008 - an immutable value
    ) -> WireRequest:
        """The request that carries a conversation to this provider, and what is lost on the way.

        Raises:
            CriticalLossError: a block that is marked critical cannot be carried.
            WrongProviderError: the model is one of another provider.
        """
        model = self._asked_model(options)
        turns, losses = self._turns(messages, self._fitted(model, options))
        asked = Asked(self.profile, model)
        taken = asked.project(options, tools)
        if tools and not model.capabilities.supports_tools:
            taken = replace(taken, tool_choice=None, parallel_tool_calls=None)
            reason = f"{model.name} takes no tools: "
            asked.lost += [LostOption("tools", reason + tool.name) for tool in tools]
            tools = ()
        body = turns.body(tools, taken)
        session = messages[0].session_id if messages else ""
        losses = [*losses, *(self._option_loss(session, each) for each in asked.lost)]
        for loss in losses:
            log.warning("%s", loss, extra=_fields(loss))
        return WireRequest(
            path=self.profile.path,
            headers={"content-type": "application/json", **self.profile.headers},
            body=body,
            losses=losses,
        )

    def _fitted(self, model: Model, options: AdapterOptions) -> Model:
        """The model as the options of a request make it; the same facts are the same target."""
        if self._codec.fit is None:
            return model
        fitted = self._codec.fit(model.target, options)
        if fitted is model.target:
            return model
        return replace(model, target=self._fits.setdefault(fitted, fitted))

    def _turns(self, messages: Sequence[Message], model: Model) -> tuple[TurnWriter, list[Loss]]:
        """The turns of a conversation for a model, and what was lost; what was sent is reused."""
        target = model.target
        sent = self._memory.find(messages, target)
        more = None
        if sent is not None:
            more = project_more(messages[len(sent.messages) :], target, sent.calls)
        if sent is None or more is None:
            more = project(messages, target)
            sent = Sent((), target, set(), Dialect(self.profile, model), [], self._codec.turns())
        turns, dialect = sent.turns.copy(), sent.dialect
        own, unsaid = dialect.spell(more.messages)
        turns.add(own)
        losses = [*sent.losses, *more.losses, *unsaid]
        if more.calls is not None and not _is_begun(messages):
            calls = sent.calls | more.calls if more.calls else sent.calls
            self._memory.keep(Sent(tuple(messages), target, calls, dialect, losses, turns))
        return turns, losses

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
        request = self._codec.decode_request(data, self._context(context))
        return replace(request, options=replace(request.options, origin=self.name))

    def to_wire_response(self, message: Message, context: RequestContext | None = None) -> bytes:
        """The response body with which this provider would have given the message."""
        if has_foreign_spelling(message, self.profile.protocol, self.name):
            message = without_spelling(message)
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

    def _asked_model(self, options: AdapterOptions) -> Model:
        """The model of a request; a name that a client of this provider spelled stays."""
        if is_own(options, self.profile) and options.model:
            spelled = options.native[self.profile.protocol].get("model")
            if options.model == spelled:
                return self._model(options.model)
        return self._model(self.wire_model(options.model))

    def _model(self, name: str) -> Model:
        model = self._models.get(name)
        if model is None:
            if len(self._models) >= _MODELS_KEPT:
                self._models.clear()
            model = self._models[name] = model_of(self.profile, name)
        return model

    def _option_loss(self, session_id: str, lost: LostOption) -> Loss:
        return Loss(
            session_id=session_id,
            message_id="",
            block_type="option",
            adapter=self.name,
            reason=lost.reason,
            change=lost.change,
            path=f"$.{lost.key}",
        )


def _checked(body: bytes | dict[str, Any]) -> bytes | dict[str, Any]:
    """A body that is JSON; objects that were made by hand may hold what JSON has no place for."""
    if isinstance(body, dict):
        fault = json_fault(body)
        if fault:
            raise DecodeError(fault[1], path=fault[0])
    return body


def _is_begun(messages: Sequence[Message]) -> bool:
    """Whether the last answer shall be gone on with; it is written otherwise when others follow."""
    return not messages or messages[-1].role is Role.ASSISTANT


def _fields(loss: Loss) -> dict[str, str]:
    return {
        "session_id": loss.session_id,
        "message_id": loss.message_id,
        "block_type": loss.block_type,
        "adapter": loss.adapter,
        "reason": loss.reason,
    }
