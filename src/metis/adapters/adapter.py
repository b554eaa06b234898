"""Adapter: a codec bound to a provider; the one door for conversations, out and in."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.adapters.answer_calls import CallReader, CallReading
from metis.adapters.asked import Asked, is_own
from metis.adapters.codecs import CODECS
from metis.adapters.definitions import used_tools
from metis.adapters.dialect import Dialect
from metis.adapters.estimate import Estimate
from metis.adapters.framed import FramedReader, FramedWriter
from metis.adapters.hiding import hidden
from metis.adapters.memory import Memory, Sent
from metis.adapters.misplaced import Misplaced, MisplacedReader
from metis.adapters.model import Model, model_of
from metis.adapters.naming import wire_model
from metis.adapters.profile import Profile
from metis.adapters.scope import ScopeReader, known, stamped
from metis.adapters.serving import ServedStream, served, tell
from metis.adapters.tags import TagReader, TagWriter, join, joined, split
from metis.adapters.toolbox import LostOption
from metis.adapters.unspoken import unkept, unsaid
from metis.canonical.errors import DecodeError
from metis.canonical.json_value import json_fault
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.catalog.capability import Capability
from metis.catalog.models import AdapterCapabilities
from metis.projection.cache import LONG
from metis.projection.image_budget import keep_newest_images
from metis.projection.ledger import Ledger
from metis.projection.loss import Change, Loss
from metis.projection.project import project, project_more
from metis.projection.scaling import image_count
from metis.projection.target import Target
from metis.streaming import StreamEvent
from metis.wire.call import (
    AdapterOptions,
    CanonicalRequest,
    RequestContext,
    ToolChoice,
    WireRequest,
)
from metis.wire.codec import StreamReader, StreamWriter, TurnWriter
from metis.wire.output import OutputFormat
from metis.wire.spelling import (
    NOTHING,
    QUIET_KEYS,
    has_foreign_spelling,
    without_spelling,
)

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
        self._asked: Asked | None = None
        """How the last request was asked for; the next one mostly is the same way."""
        self._plain_reading = CallReading((), profile.tool_name_length)

    def capabilities(self, model: str) -> AdapterCapabilities:
        """What a model can do; a model that the catalogue does not know has the provider's rest."""
        return self._model(self.wire_model(model)).capabilities

    def abilities(self, model: str) -> frozenset[Capability]:
        """The same in a word each, for whoever asks for one thing."""
        return self._model(self.wire_model(model)).abilities

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
        request = self.preview(messages, tools, options)
        if request.losses and log.isEnabledFor(logging.WARNING):
            tell(request.losses)
        return request

    def preview(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        options: AdapterOptions = AdapterOptions(),  # noqa: B008 - an immutable value
    ) -> WireRequest:
        """The same as `to_wire` for somebody who only asks: no loss is written to the log."""
        model = self._fitted(self._asked_model(options), options)
        asked = self._asked
        if asked is None or not asked.is_again(model, options, tools):
            asked = Asked(self.profile, model)
            asked.project(options, tools, messages)
            self._asked = asked if asked.is_steady else None
        taken, sent = asked.taken, asked.sent
        said = asked.conversation(messages)
        told = self._told(said, model, self._target(model, taken))
        undefined: Sequence[ToolDefinition] = ()
        if not sent and self.profile.needs_definitions and not is_own(options, self.profile):
            undefined = self._undefined(told, model, taken)
        if undefined:
            sent, taken = undefined, replace(taken, tool_choice=ToolChoice("none"))
        body = told.turns.body(sent, taken if not self.profile.body_keys else self._said(taken))
        budget = options.image_budget
        if budget is not None and len(body) > budget:
            ledger = Ledger(told.target)
            fewer = keep_newest_images(messages, budget, ledger)
            if ledger.losses:
                request = self.preview(fewer, tools, replace(options, image_budget=None))
                return replace(request, losses=[*ledger.losses, *request.losses])
        if told.calls is not None and not _is_begun(said):
            self._memory.keep(told)
        path, unplaced = self._route(told.turns, sent, taken, model)
        session = messages[0].session_id if messages else ""
        unplaced += map(_stand_in, undefined)
        lost = [self._option_loss(session, each) for each in (*asked.lost, *unplaced)]
        return WireRequest(
            path=path,
            headers={"content-type": "application/json", **self.profile.headers},
            body=body,
            losses=[*told.losses, *lost],
        )

    def _said(self, taken: AdapterOptions) -> AdapterOptions:
        """The options as a body says them that does not say what the path does."""
        profile, own = self.profile, taken.native.get(self.profile.protocol, {})
        unsaid = dict.fromkeys(profile.told_by_path - own.keys())
        if is_own(taken, profile):
            return replace(taken, **unsaid)
        return replace(taken, native={profile.protocol: {**profile.body_keys, **own}}, **unsaid)

    def _undefined(
        self, told: Sent, model: Model, taken: AdapterOptions
    ) -> Sequence[ToolDefinition]:
        """The tools of the history, where a request defines none (T36)."""
        own = taken.native.get(self.profile.protocol)
        has_none = told.calls is not None and not told.calls
        if has_none or not model.capabilities.supports_tools or (own and own.get("tools")):
            return ()
        return used_tools(told.messages, self.profile.tool_name_length)

    def _route(
        self,
        turns: TurnWriter,
        tools: Sequence[ToolDefinition],
        asked: AdapterOptions,
        model: Model,
    ) -> tuple[str, list[LostOption]]:
        """The path of a request, and the options that have no place there."""
        if self._codec.route is None:
            return self.profile.path_to(model.name, is_stream=bool(asked.stream)), []
        route = self._codec.route(turns, tools, asked)
        lost = [
            LostOption(key, f"{route.path} has no place for the option {key!r}")
            for key in route.lost
        ]
        return route.path, lost

    def _fitted(self, model: Model, options: AdapterOptions) -> Model:
        """The model as the options of a request make it; the same facts are the same target."""
        fitted = model.target
        if self._codec.fit is not None:
            fitted = self._codec.fit(fitted, options)
        if options.tells_thoughts:
            fitted = replace(fitted, tells_thoughts=True)
        if fitted is model.target:
            return model
        return replace(model, target=self._fits.setdefault(fitted, fitted))

    def _told(self, messages: Sequence[Message], model: Model, target: Target) -> Sent:
        """A conversation as a target is told it; what was sent before is reused."""
        crowd = self.profile.crowd
        if crowd is not None:
            target = self._memory.narrowed(messages, target)
        sent = self._memory.find(messages, target)
        more = None
        if sent is not None and sent.calls is not None:
            more = project_more(self._own(messages[len(sent.messages) :]), target, sent.calls)
        if sent is None or more is None:
            more = project(self._own(messages), target)
            sent = Sent((), target, None, Dialect(self.profile, model), [], self._codec.turns())
        turns, dialect = sent.turns.copy(), sent.dialect
        own, losses = more.messages, [*more.losses]
        new = messages[len(sent.messages) :]
        ids, is_usual, loud = dialect.ids_of(more.calls), *self._spellings(new)
        if ids is None or not is_usual:
            own, unspelled = dialect.spell(own)
            losses += unspelled
        if loud:
            losses += unsaid(loud, self.profile)
        if more.hosts:
            losses += unkept(more.hosts, self.profile)
        turns.add(own, ids or NOTHING)
        losses = [*sent.losses, *_in_order(losses, new)]
        calls = more.calls
        if calls is not None and sent.calls:
            calls = sent.calls | calls if calls else sent.calls
        is_large = sent.has_large_images or more.has_large_images
        if is_large and crowd is not None and image_count(messages) > crowd[0]:
            narrow = replace(target, max_image_side=crowd[1])
            return self._told(messages, model, self._memory.narrow(target, narrow))
        return Sent(tuple(messages), target, calls, dialect, losses, turns, is_large)

    def _own(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as this provider knows them."""
        if self.profile.scope:
            messages = known(messages, self.profile)
        if self.profile.hides_ids:
            messages = hidden(messages)
        return joined(messages, self.name) if self.profile.tags_thoughts else messages

    def _target(self, model: Model, asked: AdapterOptions) -> Target:
        """What the model can carry; marks that the client set on tools are counted (T170, T171)."""
        target = model.target
        own = asked.native.get(self.profile.protocol)
        if not target.cache_marks or own is None:
            return target
        marks = self._codec.marks(own)
        is_long = all(mark.get("ttl") == LONG for mark in marks)
        left = max(0, target.cache_marks - len(marks))
        if not marks:
            return target
        fitted = replace(target, cache_marks=left, takes_long_marks=is_long)
        return self._fits.setdefault(fitted, fitted)

    def _spellings(self, messages: Sequence[Message]) -> tuple[bool, list[Message]]:
        """Whether no other host of the protocol spelled a message; those that others spelled."""
        name, own = self.name, self.profile.protocol
        is_usual, others = True, list[Message]()
        for message in messages:
            metadata = message.metadata
            raw = metadata.provider_raw
            if raw is None:
                continue
            for protocol, spelling in raw.items():
                if protocol == own:
                    is_usual = is_usual and (metadata.provider or metadata.origin) == name
                elif type(spelling) is not dict or not spelling.keys() <= QUIET_KEYS:
                    others.append(message)
        return is_usual, others

    def changed_since_sent(
        self, messages: Sequence[Message], *, model: str | None = None
    ) -> Message | None:
        """The first message that is not as it was when it was sent to a model last.

        The provider keeps beginnings of requests; from this message on they serve for nothing.
        """
        return self._memory.changed(messages, self.wire_model(model))

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        *,
        model: str | None = None,
    ) -> int:
        """About how many tokens a request will take, told at once and without a network."""
        asked = self._model(self.wire_model(model))
        sent = tools if asked.capabilities.supports_tools else ()
        told = known(messages, self.profile) if self.profile.scope else messages
        return Estimate(asked.rates, asked.target).of(told, sent)

    def from_wire_response(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> Message:
        """The message of a response; an error body raises the error that it stands for."""
        context = self._context(context)
        message = self._codec.decode_response(_bytes_of(body), context)
        if self.profile.tags_thoughts:
            message = split(message, self.name)
        if self.profile.scope:
            message = stamped(message, self.profile)
        message = self._reading(context).read(message)
        if context.output is None:
            return message
        return self._misplaced(context.output, context).settled(message)

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
        reader = self._codec.stream_reader(context)
        if self.profile.framed:
            reader = FramedReader(reader, self._codec)
        if self.profile.tags_thoughts:
            reader = TagReader(reader, self.name)
        if self.profile.scope:
            reader = ScopeReader(reader, self.profile)
        reader = CallReader(reader, self._reading(context))
        if context.output is None:
            return reader
        return MisplacedReader(reader, self._misplaced(context.output, context))

    def from_wire_request(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> CanonicalRequest:
        """The canonical request of a client that speaks this provider's protocol."""
        context = self._context(context)
        request = self._codec.decode_request(_bytes_of(body), context)
        if self.profile.told_by_path:
            request = self._with_path(request, context)
        if self.profile.tags_thoughts:
            messages = tuple(split(message, self.name) for message in request.messages)
            request = replace(request, messages=messages)
        return replace(request, options=replace(request.options, origin=self.name))

    def _with_path(self, request: CanonicalRequest, context: RequestContext) -> CanonicalRequest:
        """With what the path says of a request, or the context if there is no path."""
        options, found = request.options, self.profile.read_path(context.path or "")
        if found is None:
            told: dict[str, Any] = {"model": options.model or context.model}
        else:
            told = {"model": found[0], "stream": found[1]}
        changes = {name: told[name] for name in self.profile.told_by_path if name in told}
        return replace(request, options=replace(options, **changes))

    def to_wire_response(self, message: Message, context: RequestContext | None = None) -> bytes:
        """The response body with which this provider would have given the message."""
        if has_foreign_spelling(message, self.profile.protocol, self.name):
            message = without_spelling(message)
        elif self.profile.tags_thoughts:
            message = join(message)
        message, losses = served(message, self.profile)
        tell(losses)
        return self._codec.encode_response(message, self._context(context))

    def stream_encoder(self, context: RequestContext | None = None) -> StreamWriter:
        """An encoder that writes events as this provider streams them."""
        context = self._context(context)
        writer = self._codec.stream_writer(context)
        if self.profile.tags_thoughts:
            writer = TagWriter(writer, self.name)
        if self.profile.framed:
            writer = FramedWriter(writer, self._codec)
        return ServedStream(writer, self.profile, context.session_id)

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

    def _reading(self, context: RequestContext) -> CallReading:
        if not context.tools:
            return self._plain_reading
        return CallReading(context.tools, self.profile.tool_name_length)

    def _misplaced(self, output: OutputFormat, context: RequestContext) -> Misplaced:
        def pass_on(loss: Loss) -> None:
            tell([loss])
            if context.tell is not None:
                context.tell(loss)

        return Misplaced(output, self.name, pass_on)

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


def _stand_in(tool: ToolDefinition) -> LostOption:
    reason = f"the history uses the tool {tool.name!r}, so that it is defined, and not to be called"
    return LostOption("tools", reason, Change.SYNTHESISED)


def _in_order(losses: list[Loss], messages: Sequence[Message]) -> list[Loss]:
    """Losses in the order of the messages, whoever found them, and however the request grew."""
    if len(losses) > 1:
        place = {message.id: number for number, message in enumerate(messages)}
        losses.sort(key=lambda loss: place.get(loss.message_id, -1))
    return losses


def _is_begun(messages: Sequence[Message]) -> bool:
    """Whether the last answer shall be gone on with; it is written otherwise when others follow."""
    return not messages or messages[-1].role is Role.ASSISTANT
