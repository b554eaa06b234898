"""An adapter: a codec bound to a provider. It encodes requests and decodes responses."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from msgspec.structs import replace

from metis.adapters.client_features import (
    accepted_betas,
    beta_headers,
    beta_keys,
    with_planned_cache,
)
from metis.adapters.client_side import ClientSide
from metis.adapters.codecs import AwsFrameDecoder, body_bytes
from metis.adapters.history import EncodedHistory, HistoryCache, encode_history
from metis.adapters.hosts import profile_of
from metis.adapters.limits import fitted_output_limit
from metis.adapters.model import (
    ModelFacts,
    ModelFeatures,
    TokenEstimate,
    model_facts,
    wire_model_name,
)
from metis.adapters.output_format import JsonInThinking, JsonInThinkingDecoder
from metis.adapters.profile import Profile
from metis.adapters.request_options import RequestPlan, RequestPlanner, are_native_options
from metis.adapters.response_decoder import (
    IssuerDecoder,
    ToolCallDecoder,
    ToolCallRules,
    for_issuer,
    replayed_events,
    with_issuer,
)
from metis.adapters.response_encoder import log_losses
from metis.adapters.think_tags import ThinkTagDecoder, split_think_tags
from metis.adapters.tool_options import OptionLoss, placeholder_tools, with_native_keys
from metis.canonical.errors import InvalidValueError, LimitError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.canonical.tools import ToolDefinition
from metis.catalog.models import AdapterCapabilities, Capability
from metis.deprecation import renamed_parameters
from metis.projection import Change, Loss, LossRecorder, Target, keep_newest_images
from metis.projection.cache_marks import LONG_TTL
from metis.streaming import StreamEvent
from metis.streaming.limits import limit_content
from metis.wire.call import AdapterOptions, RequestContext, ToolChoice, WireRequest
from metis.wire.codec import StreamDecoder
from metis.wire.history import HistoryEncoder
from metis.wire.original_form import response_events
from metis.wire.output_format import OutputFormat

log = logging.getLogger("metis.adapters")

# Bounded, because clients of the gateway choose the names.
_MAX_MODELS = 1000


class Adapter(ClientSide):
    """Translates for one provider: as its client, and as its stand-in towards other clients.

    An adapter may be shared between threads, tasks and tenants. Its only state is caches, which
    are bounded and keyed by content; no request depends on the one before it.
    """

    def __init__(
        self, profile: Profile, features: Mapping[str, ModelFeatures] | None = None
    ) -> None:
        """Create an adapter; `features` overrides what models can do, by their wire names."""
        stated = features or {}
        super().__init__(profile)

        def facts_of(name: str) -> ModelFacts:
            return model_facts(profile, name, stated.get(name))

        self._model = lru_cache(_MAX_MODELS)(facts_of)
        self._planner = RequestPlanner(profile)
        self._histories = HistoryCache()
        self._plain_rules = ToolCallRules((), profile.tool_name_length)

    def capabilities(self, model: str) -> AdapterCapabilities:
        """Return what a model can do: the catalogue's facts, or the provider's defaults."""
        return self._model(self.wire_model(model)).capabilities

    def capability_set(self, model: str) -> frozenset[Capability]:
        """Return the capabilities of a model as a set, for membership tests."""
        return self._model(self.wire_model(model)).capability_set

    def wire_model(self, model: str | None) -> str:
        """Return the provider's name of a model that is given by id, alias or that name.

        Raises:
            WrongProviderError: the model belongs to another provider.
        """
        return wire_model_name(model, self.profile)

    def to_wire(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        options: AdapterOptions = AdapterOptions(),  # noqa: B008 - an immutable value
    ) -> WireRequest:
        """Return the request that carries a conversation to this provider, with its losses.

        Raises:
            CriticalLossError: a block that is marked critical cannot be carried.
            InvalidValueError: nothing of the messages can be sent, or an option would be refused.
            WrongProviderError: the model belongs to another provider.
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
        """Return what `to_wire` would, without writing losses to the log.

        Three steps: a plan of the options and tools, the encoded history, and the body around it.
        """
        profile, model = self.profile, self._requested_model(options)
        plan = self._planner.request_plan(model, options, tools, messages)
        if options.origin is not None and options.origin != self.name:
            plan, messages = self._with_planned_cache(plan, model, options, messages)
        sent_messages, instruction_losses = plan.history(messages)
        target = self._target(model, plan.options)
        history = encode_history(sent_messages, profile, model, target, self._histories)
        if not plan.tools and profile.needs_tool_definitions:
            plan = self._with_placeholder_tools(options, plan, history, model)
        betas, beta_losses = accepted_betas(options, profile) if options.betas else ((), [])
        body_options = plan.options
        if profile.body_keys:
            body_options = self._body_options(plan.options, beta_keys(betas, profile))
        # A history with complete calls is never empty. An empty one is allowed beside native
        # options, which may name an input that the provider has stored.
        may_be_empty = history.call_ids is None and messages
        if may_be_empty and history.encoder.is_empty and not options.native.get(profile.protocol):
            raise InvalidValueError(
                f"nothing of the messages can be sent to {self.name}; add a user message with text",
                path="$.messages",
            )
        body = history.encoder.body(plan.tools, body_options)
        if model.counts_output and options.max_output_tokens is None:
            body = self._within_window(body, history, plan, body_options, model)
        if options.image_budget is not None and len(body) > options.image_budget:
            request = self._with_fewer_images(messages, tools, options, target)
            if request is not None:
                return request
        # A history that ends with a response is not stored: the encoder writes that response
        # differently once another message follows it.
        if (
            history.call_ids is not None
            and sent_messages
            and sent_messages[-1].role is not Role.ASSISTANT
        ):
            self._histories.store(history, len(body))
        path, route_losses = self._route(history.encoder, plan, model)
        session_id = messages[0].session_id if messages else ""
        losses = [*plan.losses, *beta_losses, *instruction_losses, *route_losses]
        return WireRequest(
            path=path,
            headers={
                "content-type": "application/json",
                **profile.headers,
                **(beta_headers(betas, profile) if betas else {}),
            },
            body=body,
            losses=history.losses + [self._loss_of_option(session_id, loss) for loss in losses],
        )

    def _within_window(
        self,
        body: bytes,
        history: EncodedHistory,
        plan: RequestPlan,
        options: AdapterOptions,
        model: ModelFacts,
    ) -> bytes:
        """Return a body whose output limit fits into the context window beside the prompt."""
        limit = fitted_output_limit(len(body), history.messages, plan.tools, options, model)
        if limit is None:
            return body
        return history.encoder.body(plan.tools, replace(options, max_output_tokens=limit))

    def _with_fewer_images(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        options: AdapterOptions,
        target: Target,
    ) -> WireRequest | None:
        """Return the request with only as many images as its budget of bytes allows.

        None if no image can be left out.
        """
        recorder = LossRecorder(target)
        fewer_images = keep_newest_images(messages, options.image_budget or 0, recorder)
        if not recorder.losses:
            return None
        request = self.preview(fewer_images, tools, replace(options, image_budget=None))
        return replace(request, losses=[*recorder.losses, *request.losses])

    def _with_planned_cache(
        self,
        plan: RequestPlan,
        model: ModelFacts,
        options: AdapterOptions,
        messages: Sequence[Message],
    ) -> tuple[RequestPlan, Sequence[Message]]:
        profile = self.profile
        keys, messages, losses = with_planned_cache(
            options, messages, model, profile, has_tools=bool(plan.tools)
        )
        if not losses:
            return plan, messages
        marked = with_native_keys(plan.options, profile.protocol, keys) if keys else plan.options
        return replace(plan, options=marked, losses=[*plan.losses, *losses]), messages

    def _with_placeholder_tools(
        self, options: AdapterOptions, plan: RequestPlan, history: EncodedHistory, model: ModelFacts
    ) -> RequestPlan:
        # Anthropic and Bedrock answer 400 to a history with calls if the request defines no tool
        # (T36).
        profile = self.profile
        native = plan.options.native.get(profile.protocol)
        has_no_calls = history.call_ids is not None and not history.call_ids
        has_tools = bool(native and native.get("tools")) or are_native_options(options, profile)
        if has_no_calls or has_tools or not model.capabilities.supports_tools:
            return plan
        tools = placeholder_tools(history.messages, profile.tool_name_length)
        if not tools:
            return plan
        reason = "the tool {!r} of the history is defined, but may not be called"
        losses = [
            OptionLoss("tools", reason.format(tool.name), Change.SYNTHESISED) for tool in tools
        ]
        return replace(
            plan,
            options=replace(plan.options, tool_choice=ToolChoice("none")),
            tools=tools,
            losses=[*plan.losses, *losses],
        )

    def _body_options(self, options: AdapterOptions, betas: Mapping[str, Any]) -> AdapterOptions:
        # Bedrock and Vertex state model and stream in the path, and refuse these keys in the
        # body.
        profile = self.profile
        native = options.native.get(profile.protocol, {})
        changes: dict[str, Any] = dict.fromkeys(profile.path_options - native.keys())
        if not are_native_options(options, profile):
            changes["native"] = {profile.protocol: {**profile.body_keys, **native, **betas}}
        return replace(options, **changes)

    def _route(
        self, encoder: HistoryEncoder, plan: RequestPlan, model: ModelFacts
    ) -> tuple[str, list[OptionLoss]]:
        if self._codec.route is None:
            return self.profile.request_path(model.name, is_stream=bool(plan.options.stream)), []
        route = self._codec.route(encoder, plan.tools, plan.options)
        return route.path, [
            OptionLoss(key, f"the option {key!r} is not supported at {route.path}")
            for key in route.lost_options
        ]

    def _requested_model(self, options: AdapterOptions) -> ModelFacts:
        """Return the model of a request, with its target adjusted to the options."""
        name = options.model
        native = options.native.get(self.profile.protocol, {})
        # A client of this provider names the model as the provider does: no alias is resolved.
        if not (name and are_native_options(options, self.profile) and name == native.get("model")):
            name = self.wire_model(name)
        model = self._model(name)
        target = model.target
        if self._codec.fit_target is not None:
            target = self._codec.fit_target(target, options)
        if options.include_thinking:
            target = replace(target, include_thinking=True)
        return model if target is model.target else replace(model, target=target)

    def _target(self, model: ModelFacts, options: AdapterOptions) -> Target:
        # Marks that a client set on tools count towards the limit of the request (T170, T171).
        target = model.target
        native = options.native.get(self.profile.protocol)
        marks = self._codec.cache_marks(native) if target.cache_marks and native else []
        if not marks:
            return target
        is_long = all(mark.get("ttl") == LONG_TTL for mark in marks)
        free = max(0, target.cache_marks - len(marks))
        return replace(target, cache_marks=free, accepts_long_marks=is_long)

    def changed_since_sent(
        self, messages: Sequence[Message], *, model: str | None = None
    ) -> Message | None:
        """Return the first message that is not as it was in the last request of a conversation.

        From this message on, a prefix that the provider has cached cannot be used.
        """
        return self._histories.first_changed(messages, self.wire_model(model))

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        *,
        model: str | None = None,
    ) -> int:
        """Return an estimate of the input tokens of a request, without a network call."""
        facts = self._model(self.wire_model(model))
        sent_tools = tools if facts.capabilities.supports_tools else ()
        if self.profile.issuer_scope:
            messages = for_issuer(messages, self.profile)
        return TokenEstimate(facts.token_rates, facts.target).request_tokens(messages, sent_tools)

    def from_wire_response(
        self, body: bytes | dict[str, Any], context: RequestContext | None = None
    ) -> Message:
        """Return the message of a response; an error body raises the error that it states.

        Raises:
            ResponseLimitError: the response exceeds `context.limits`; the error has the message
                up to the limit.
        """
        context = self.complete_context(context)
        try:
            message = self._codec.decode_response(body_bytes(body), context)
        except RecursionError:
            raise LimitError("the response is nested too deeply") from None
        content, error = limit_content(message.content, context.limits)
        if error is None:
            return self._adapted(message, context)
        metadata = replace(message.metadata, status=MessageStatus.ERROR)
        partial = replace(message, content=tuple(content), metadata=metadata)
        error.message = self._adapted(partial, context)
        raise error

    def _adapted(self, message: Message, context: RequestContext) -> Message:
        """Return a decoded message with the quirks of its host removed.

        Thinking between tags becomes a block, sealed parts get their issuer, and tool calls our
        names; JSON output that a host put into the thinking is added as text.
        """
        if self.profile.tags_thinking:
            message = split_think_tags(message, self.name)
        if self.profile.issuer_scope:
            message = with_issuer(message, self.profile)
        message = self._call_rules(context).normalise(message)
        if context.output is None:
            return message
        return self._json_in_thinking(context.output, context).with_output_text(message)

    async def stream_response(
        self, chunks: AsyncIterable[bytes], context: RequestContext | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events of a streamed response as they arrive."""
        decoder = self.stream_decoder(context)
        async for chunk in chunks:
            for event in decoder.feed(chunk):
                yield event
        for event in decoder.finish():
            yield event

    def stream_decoder(self, context: RequestContext | None = None) -> StreamDecoder:
        """Return a decoder to feed with the bytes of a streamed response."""
        context = self.complete_context(context)
        decoder = self._codec.stream_decoder(context)
        if self.profile.aws_framed:
            decoder = AwsFrameDecoder(decoder, self._codec, context.limits)
        if self.profile.tags_thinking:
            decoder = ThinkTagDecoder(decoder, self.name)
        if self.profile.issuer_scope:
            decoder = IssuerDecoder(decoder, self.profile)
        decoder = ToolCallDecoder(decoder, self._call_rules(context))
        if context.output is None:
            return decoder
        return JsonInThinkingDecoder(decoder, self._json_in_thinking(context.output, context))

    def response_events(
        self, message: Message, context: RequestContext | None = None
    ) -> list[StreamEvent]:
        """Return the events of a response that this provider has not streamed.

        They carry the original form of each part, so that a client that asked for a stream reads
        the same keys as in the plain response.
        """
        context = replace(self.complete_context(context), status=None)
        events = None
        if message.metadata.provider == self.name:
            try:
                body = self._codec.encode_response(message, context)
            except RecursionError:
                raise LimitError("the response is nested too deeply") from None
            events = replayed_events(message, self.stream_decoder(context), body)
        return list(response_events(message)) if events is None else events

    def _call_rules(self, context: RequestContext) -> ToolCallRules:
        if not context.tools:
            return self._plain_rules
        return ToolCallRules(context.tools, self.profile.tool_name_length)

    def _json_in_thinking(self, output: OutputFormat, context: RequestContext) -> JsonInThinking:
        def report(loss: Loss) -> None:
            log_losses([loss])
            if context.on_loss is not None:
                context.on_loss(loss)

        return JsonInThinking(output, self.name, report)

    def _loss_of_option(self, session_id: str, loss: OptionLoss) -> Loss:
        return Loss(
            session_id=session_id,
            message_id="",
            block_type="option",
            adapter=self.name,
            reason=loss.reason,
            change=loss.change,
            path=f"$.{loss.key}",
        )


@renamed_parameters(hides_ids="redact_ids")
def get(
    name: str,
    *,
    base_url: str | None = None,
    place: str | None = None,
    account: str | None = None,
    redact_ids: bool = False,
) -> Adapter:
    """Return the adapter of a provider; `base_url` is another host that speaks the same protocol.

    `place` is for providers that need one in the path: `projects/p/locations/l` of Vertex.
    `account` names whose key is used: what was sealed for one account is sent to no other.
    `redact_ids` sends hashes in place of our call ids.

    >>> get("anthropic").name
    'anthropic'

    Raises:
        UnknownAdapterError: there is no provider of that name.
    """
    profile = profile_of(name)
    if base_url is None and place is None and account is None and not redact_ids:
        return _shared_adapter(name)
    if place is not None:
        profile = profile.at_location(place)
    return Adapter(replace(profile.with_address(base_url, account), redact_ids=redact_ids))


@cache
def _shared_adapter(name: str) -> Adapter:
    # One adapter per provider, so that all callers share its caches.
    return Adapter(profile_of(name))
