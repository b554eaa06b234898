"""Adapter: a codec bound to a provider; the one door for conversations, out and in."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.adapters.codecs import CODECS, AwsFrameDecoder, AwsFrameEncoder
from metis.adapters.history import (
    Dialect,
    EncodedHistory,
    HistoryCache,
    redact_tool_ids,
    rewritten_key_losses,
    unmapped_key_losses,
)
from metis.adapters.model import ModelFacts, TokenEstimate, model_facts, wire_model_name
from metis.adapters.output_format import JsonInThinking, JsonInThinkingDecoder
from metis.adapters.profile import Profile
from metis.adapters.request_options import Asked, are_native_options
from metis.adapters.response_decoder import (
    IssuerDecoder,
    ToolCallDecoder,
    ToolCallRules,
    for_issuer,
    with_issuer,
)
from metis.adapters.response_encoder import ClientStreamEncoder, log_losses, response_for_client
from metis.adapters.think_tags import (
    ThinkTagDecoder,
    ThinkTagEncoder,
    join_think_tags,
    split_think_tags,
    with_think_tags,
)
from metis.adapters.tool_options import OptionLoss, placeholder_tools
from metis.canonical.errors import DecodeError
from metis.canonical.json_value import json_fault
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.catalog.models import AdapterCapabilities, Capability
from metis.projection.cache_marks import LONG_TTL
from metis.projection.images import count_images, keep_newest_images
from metis.projection.loss import Change, Loss, LossRecorder
from metis.projection.pipeline import project, project_appended
from metis.projection.target import Target
from metis.streaming import StreamEvent
from metis.wire.call import (
    AdapterOptions,
    CanonicalRequest,
    RequestContext,
    ToolChoice,
    WireRequest,
)
from metis.wire.codec import HistoryEncoder, StreamDecoder, StreamEncoder
from metis.wire.original_form import (
    EMPTY,
    PROTOCOL_ONLY_KEYS,
    has_foreign_form,
    without_original_form,
)
from metis.wire.output_format import OutputFormat

log = logging.getLogger("metis.adapters")

_MODELS_KEPT = 1000


class Adapter:
    """Speaks to one provider, in both directions: as its client, and in its place."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.name = profile.name
        self._codec = CODECS[profile.protocol]
        self._memory = HistoryCache()
        self._models: dict[str, ModelFacts] = {}
        self._fits: dict[Target, Target] = {}
        self._asked: Asked | None = None
        """How the last request was asked for; the next one mostly is the same way."""
        self._plain_reading = ToolCallRules((), profile.tool_name_length)

    def capabilities(self, model: str) -> AdapterCapabilities:
        """What a model can do; a model that the catalogue does not know has the provider's rest."""
        return self._model(self.wire_model(model)).capabilities

    def capability_set(self, model: str) -> frozenset[Capability]:
        """The same in a word each, for whoever asks for one thing."""
        return self._model(self.wire_model(model)).capability_set

    def wire_model(self, model: str | None) -> str:
        """The name of a model as this provider spells it.

        Raises:
            WrongProviderError: the model is one of another provider.
        """
        return wire_model_name(model, self.profile)

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
            log_losses(request.losses)
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
        if (
            not sent
            and self.profile.needs_tool_definitions
            and not are_native_options(options, self.profile)
        ):
            undefined = self._undefined(told, model, taken)
        if undefined:
            sent, taken = undefined, replace(taken, tool_choice=ToolChoice("none"))
        body = told.turns.body(sent, taken if not self.profile.body_keys else self._said(taken))
        budget = options.image_budget
        if budget is not None and len(body) > budget:
            ledger = LossRecorder(told.target)
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
        unsaid = dict.fromkeys(profile.path_options - own.keys())
        if are_native_options(taken, profile):
            return replace(taken, **unsaid)
        return replace(taken, native={profile.protocol: {**profile.body_keys, **own}}, **unsaid)

    def _undefined(
        self, told: EncodedHistory, model: ModelFacts, taken: AdapterOptions
    ) -> Sequence[ToolDefinition]:
        """The tools of the history, where a request defines none (T36)."""
        own = taken.native.get(self.profile.protocol)
        has_none = told.calls is not None and not told.calls
        if has_none or not model.capabilities.supports_tools or (own and own.get("tools")):
            return ()
        return placeholder_tools(told.messages, self.profile.tool_name_length)

    def _route(
        self,
        turns: HistoryEncoder,
        tools: Sequence[ToolDefinition],
        asked: AdapterOptions,
        model: ModelFacts,
    ) -> tuple[str, list[OptionLoss]]:
        """The path of a request, and the options that have no place there."""
        if self._codec.route is None:
            return self.profile.request_path(model.name, is_stream=bool(asked.stream)), []
        route = self._codec.route(turns, tools, asked)
        lost = [
            OptionLoss(key, f"{route.path} has no place for the option {key!r}")
            for key in route.lost_options
        ]
        return route.path, lost

    def _fitted(self, model: ModelFacts, options: AdapterOptions) -> ModelFacts:
        """The model as the options of a request make it; the same facts are the same target."""
        fitted = model.target
        if self._codec.fit_target is not None:
            fitted = self._codec.fit_target(fitted, options)
        if options.include_thinking:
            fitted = replace(fitted, include_thinking=True)
        if fitted is model.target:
            return model
        return replace(model, target=self._fits.setdefault(fitted, fitted))

    def _told(
        self, messages: Sequence[Message], model: ModelFacts, target: Target
    ) -> EncodedHistory:
        """A conversation as a target is told it; what was sent before is reused."""
        crowd = self.profile.many_images_limit
        if crowd is not None:
            target = self._memory.narrowed(messages, target)
        sent = self._memory.find(messages, target)
        more = None
        if sent is not None and sent.calls is not None:
            more = project_appended(self._own(messages[len(sent.messages) :]), target, sent.calls)
        if sent is None or more is None:
            more = project(self._own(messages), target)
            sent = EncodedHistory(
                (), target, None, Dialect(self.profile, model), [], self._codec.history()
            )
        turns, dialect = sent.turns.copy(), sent.dialect
        own, losses = more.messages, [*more.losses]
        new = messages[len(sent.messages) :]
        ids, is_usual, loud = dialect.wire_ids(more.call_ids), *self._spellings(new)
        if ids is None or not is_usual:
            own, unspelled = dialect.apply(own)
            losses += unspelled
        if loud:
            losses += unmapped_key_losses(loud, self.profile)
        if more.attachments:
            losses += rewritten_key_losses(more.attachments, self.profile)
        turns.add(own, ids or EMPTY)
        losses = [*sent.losses, *_in_order(losses, new)]
        calls = more.call_ids
        if calls is not None and sent.calls:
            calls = sent.calls | calls if calls else sent.calls
        is_large = sent.has_large_images or more.has_large_images
        if is_large and crowd is not None and count_images(messages) > crowd[0]:
            narrow = replace(target, max_image_side=crowd[1])
            return self._told(messages, model, self._memory.narrow(target, narrow))
        return EncodedHistory(tuple(messages), target, calls, dialect, losses, turns, is_large)

    def _own(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as this provider knows them."""
        if self.profile.issuer_scope:
            messages = for_issuer(messages, self.profile)
        if self.profile.redact_ids:
            messages = redact_tool_ids(messages)
        return with_think_tags(messages, self.name) if self.profile.tags_thinking else messages

    def _target(self, model: ModelFacts, asked: AdapterOptions) -> Target:
        """What the model can carry; marks that the client set on tools are counted (T170, T171)."""
        target = model.target
        own = asked.native.get(self.profile.protocol)
        if not target.cache_marks or own is None:
            return target
        marks = self._codec.cache_marks(own)
        is_long = all(mark.get("ttl") == LONG_TTL for mark in marks)
        left = max(0, target.cache_marks - len(marks))
        if not marks:
            return target
        fitted = replace(target, cache_marks=left, accepts_long_marks=is_long)
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
                elif type(spelling) is not dict or not spelling.keys() <= PROTOCOL_ONLY_KEYS:
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
        told = for_issuer(messages, self.profile) if self.profile.issuer_scope else messages
        return TokenEstimate(asked.token_rates, asked.target).request_tokens(told, sent)

    def from_wire_response(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> Message:
        """The message of a response; an error body raises the error that it stands for."""
        context = self._context(context)
        message = self._codec.decode_response(_bytes_of(body), context)
        if self.profile.tags_thinking:
            message = split_think_tags(message, self.name)
        if self.profile.issuer_scope:
            message = with_issuer(message, self.profile)
        message = self._reading(context).normalise(message)
        if context.output is None:
            return message
        return self._misplaced(context.output, context).with_output_text(message)

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

    def stream_decoder(self, context: RequestContext | None = None) -> StreamDecoder:
        """A decoder that is fed the bytes of a streamed response."""
        context = self._context(context)
        reader = self._codec.stream_decoder(context)
        if self.profile.aws_framed:
            reader = AwsFrameDecoder(reader, self._codec)
        if self.profile.tags_thinking:
            reader = ThinkTagDecoder(reader, self.name)
        if self.profile.issuer_scope:
            reader = IssuerDecoder(reader, self.profile)
        reader = ToolCallDecoder(reader, self._reading(context))
        if context.output is None:
            return reader
        return JsonInThinkingDecoder(reader, self._misplaced(context.output, context))

    def from_wire_request(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> CanonicalRequest:
        """The canonical request of a client that speaks this provider's protocol."""
        context = self._context(context)
        request = self._codec.decode_request(_bytes_of(body), context)
        if self.profile.path_options:
            request = self._with_path(request, context)
        if self.profile.tags_thinking:
            messages = tuple(split_think_tags(message, self.name) for message in request.messages)
            request = replace(request, messages=messages)
        return replace(request, options=replace(request.options, origin=self.name))

    def _with_path(self, request: CanonicalRequest, context: RequestContext) -> CanonicalRequest:
        """With what the path says of a request, or the context if there is no path."""
        options, found = request.options, self.profile.parse_path(context.path or "")
        if found is None:
            told: dict[str, Any] = {"model": options.model or context.model}
        else:
            told = {"model": found[0], "stream": found[1]}
        changes = {name: told[name] for name in self.profile.path_options if name in told}
        return replace(request, options=replace(options, **changes))

    def to_wire_response(self, message: Message, context: RequestContext | None = None) -> bytes:
        """The response body with which this provider would have given the message."""
        if has_foreign_form(message, self.profile.protocol, self.name):
            message = without_original_form(message)
        elif self.profile.tags_thinking:
            message = join_think_tags(message)
        message, losses = response_for_client(message, self.profile)
        log_losses(losses)
        return self._codec.encode_response(message, self._context(context))

    def stream_encoder(self, context: RequestContext | None = None) -> StreamEncoder:
        """An encoder that writes events as this provider streams them."""
        context = self._context(context)
        writer = self._codec.stream_encoder(context)
        if self.profile.tags_thinking:
            writer = ThinkTagEncoder(writer, self.name)
        if self.profile.aws_framed:
            writer = AwsFrameEncoder(writer, self._codec)
        return ClientStreamEncoder(writer, self.profile, context.session_id)

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

    def _reading(self, context: RequestContext) -> ToolCallRules:
        if not context.tools:
            return self._plain_reading
        return ToolCallRules(context.tools, self.profile.tool_name_length)

    def _misplaced(self, output: OutputFormat, context: RequestContext) -> JsonInThinking:
        def pass_on(loss: Loss) -> None:
            log_losses([loss])
            if context.on_loss is not None:
                context.on_loss(loss)

        return JsonInThinking(output, self.name, pass_on)

    def _asked_model(self, options: AdapterOptions) -> ModelFacts:
        """The model of a request; a name that a client of this provider spelled stays."""
        if are_native_options(options, self.profile) and options.model:
            spelled = options.native[self.profile.protocol].get("model")
            if options.model == spelled:
                return self._model(options.model)
        return self._model(self.wire_model(options.model))

    def _model(self, name: str) -> ModelFacts:
        model = self._models.get(name)
        if model is None:
            if len(self._models) >= _MODELS_KEPT:
                self._models.clear()
            model = self._models[name] = model_facts(self.profile, name)
        return model

    def _option_loss(self, session_id: str, lost: OptionLoss) -> Loss:
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


def _stand_in(tool: ToolDefinition) -> OptionLoss:
    reason = f"the history uses the tool {tool.name!r}, so that it is defined, and not to be called"
    return OptionLoss("tools", reason, Change.SYNTHESISED)


def _in_order(losses: list[Loss], messages: Sequence[Message]) -> list[Loss]:
    """Losses in the order of the messages, whoever found them, and however the request grew."""
    if len(losses) > 1:
        place = {message.id: number for number, message in enumerate(messages)}
        losses.sort(key=lambda loss: place.get(loss.message_id, -1))
    return losses


def _is_begun(messages: Sequence[Message]) -> bool:
    """Whether the last answer shall be gone on with; it is written otherwise when others follow."""
    return not messages or messages[-1].role is Role.ASSISTANT
