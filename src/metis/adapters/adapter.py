"""Adapter: a codec bound to a provider; the one door for conversations, out and in."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.memory import Memory, Sent
from metis.adapters.profile import Profile
from metis.canonical.errors import CatalogError, DecodeError
from metis.canonical.json_value import json_fault
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.catalog.load import catalog
from metis.catalog.models import AdapterCapabilities
from metis.projection.loss import Change, Loss
from metis.projection.project import project, project_more
from metis.projection.target import Target
from metis.streaming import StreamEvent
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext, WireRequest
from metis.wire.codec import StreamReader, StreamWriter, TurnWriter
from metis.wire.shape import maybe_list, maybe_object
from metis.wire.spelling import extra_keys, has_foreign_spelling, without_spelling

log = logging.getLogger("metis.adapters")

_MODELS = 1000
"""How many models an adapter remembers the facts of."""

_Lost = list[tuple[str, str]]
"""Options that are not sent, each with the reason."""


class Adapter:
    """Speaks to one provider, in both directions: as its client, and in its place."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.name = profile.name
        self._codec = CODECS[profile.protocol]
        self._memory = Memory()
        self._targets: dict[str, tuple[AdapterCapabilities, Target]] = {}

    def capabilities(self, model: str) -> AdapterCapabilities:
        """What a model can do; a model that the catalogue does not know has the provider's rest."""
        try:
            return catalog().capabilities(f"{self.name}:{self.wire_model(model)}")
        except CatalogError:
            return self.profile.defaults

    def wire_model(self, model: str | None) -> str:
        """The name of a model as this provider spells it."""
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
        capabilities, target = self._target(model)
        turns, losses = self._turns(messages, target)
        asked, lost = self._project_options(options, tools)
        sent = tools
        if tools and not capabilities.supports_tools:
            sent, asked = (), replace(asked, tool_choice=None, parallel_tool_calls=None)
            lost += [("tools", f"{model} takes no tools: {tool.name}") for tool in tools]
        body = turns.body(sent, asked)
        session = messages[0].session_id if messages else ""
        losses = [*losses, *(self._option_loss(session, *each) for each in lost)]
        for loss in losses:
            log.warning("%s", loss, extra=_fields(loss))
        return WireRequest(
            path=self.profile.path,
            headers={"content-type": "application/json", **self.profile.headers},
            body=body,
            losses=losses,
        )

    def _target(self, model: str) -> tuple[AdapterCapabilities, Target]:
        """What a model can do, and what can be sent to it; asked once a model."""
        known = self._targets.get(model)
        if known is None:
            capabilities = self.capabilities(model)
            known = capabilities, self.profile.target(capabilities, model)
            if len(self._targets) > _MODELS:
                self._targets.clear()
            self._targets[model] = known
        return known

    def _turns(self, messages: Sequence[Message], target: Target) -> tuple[TurnWriter, list[Loss]]:
        """The turns of a conversation for a target, and what was lost; what was sent is reused."""
        sent = self._memory.find(messages, target)
        more = None
        if sent is not None:
            more = project_more(messages[len(sent.messages) :], target, sent.calls)
        if sent is None or more is None:
            more = project(messages, target)
            turns, losses, calls = self._codec.turns(), more.losses, set[str]()
        else:
            turns, losses, calls = sent.turns.copy(), sent.losses + more.losses, sent.calls
        own, unsaid = self._own_spelling(more.messages)
        turns.add(own)
        losses = losses + unsaid
        if messages and more.calls is not None:
            calls |= more.calls
            self._memory.keep(Sent(tuple(messages), target, calls, losses, turns))
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

    def _own_spelling(self, messages: Sequence[Message]) -> tuple[Sequence[Message], list[Loss]]:
        """The messages without what other hosts of the protocol remember, and what that loses."""
        protocol, name = self.profile.protocol, self.name
        foreign = [
            index
            for index, message in enumerate(messages)
            if message.metadata.provider_raw is not None
            and has_foreign_spelling(message, protocol, name)
        ]
        if not foreign:
            return messages, []
        losses: list[Loss] = []
        own = list(messages)
        for index in foreign:
            own[index] = without_spelling(own[index])
            keys = extra_keys(messages[index], protocol)
            losses += (self._key_loss(messages[index], key) for key in keys)
        return own, losses

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
            if value is not None and key not in _shared_keys(protocol)
        ]
        lost += [
            each
            for protocol, keys in options.native.items()
            if protocol != own
            for each in _lost_tools(protocol, keys, tools)
        ]
        spelled = options.native.get(own)
        if spelled is not None and options.origin in (None, self.name):
            if options.model is None:
                return options, lost
            return replace(options, model=self.wire_model(options.model)), lost
        refused = [
            name
            for name in sorted(self.profile.refused_options)
            if getattr(options, name) is not None
        ]
        lost += [(name, f"{self.name} takes no {name}") for name in refused]
        changes: dict[str, Any] = dict.fromkeys(refused)
        if spelled is not None:
            changes["native"] = {own: self._common(spelled)}
            lost += self._uncommon(spelled, options.origin, tools)
        return replace(options, model=self.wire_model(options.model), **changes), lost

    def _common(self, spelled: Mapping[str, Any]) -> dict[str, Any]:
        """What this host knows of the keys that another host of the protocol was asked with."""
        known = self._codec.common_keys - self.profile.unknown_keys
        return {key: value for key, value in spelled.items() if key in known}

    def _uncommon(
        self, spelled: Mapping[str, Any], origin: str | None, tools: Sequence[ToolDefinition]
    ) -> Iterator[tuple[str, str]]:
        known = self._codec.common_keys - self.profile.unknown_keys | self._codec.shared_keys
        for key, value in spelled.items():
            if value is not None and key not in known:
                yield key, f"{self.name} does not know the option {key!r} of {origin}"
        yield from _lost_tools(str(origin), spelled, tools)

    def _key_loss(self, message: Message, key: str) -> Loss:
        return Loss(
            session_id=message.session_id,
            message_id=message.id,
            block_type="message",
            adapter=self.name,
            reason=f"only {message.metadata.provider or message.metadata.origin} knows the key",
            path=f"$.{key}",
        )

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
