"""Computations about turns: routing steps, cache use, prices of other models, replays."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import ChainPolicy, RoutingDecisionRecord, Usage
from metis.catalog.cost import cost
from metis.catalog.prices import PriceTable
from metis.events import Event
from metis.events.trace import EventQuery, TraceStore
from metis.events.turn_events import LlmCallCompleted, LlmCallFailed, RouteDecided
from metis.store.wire_bodies import shared_prefix
from metis.verify.request_diff import aligned_lines
from metis.web.views import MARKS, format_usd, wire_request

Replayer = Callable[[Sequence[Message], str], Awaitable[Message]]
"""Returns the response of a model to a history, without storing anything."""

_CACHE_TTL = timedelta(minutes=5)
"""How long providers cache an unused prefix; Anthropic and OpenAI state five minutes."""
_MIN_CACHED = 1024
"""The shortest prefix that Anthropic and OpenAI cache for most models."""
_EXCERPT = 60


class RoutingStep(Struct, frozen=True, kw_only=True):
    """One of the seven slots of the routing chain, and what it did."""

    slot: str
    verdict: str = ""
    """Empty if the trace has no record of the turn."""
    reason: str = ""
    candidate: str = ""


async def turn_events(trace: TraceStore, message: Message) -> list[Event]:
    """Return the events of the turn that a response belongs to; none if it was not traced."""
    calls = await trace.select(
        EventQuery(session_id=message.session_id, types={"llm.call_completed"})
    )
    response_id = message.metadata.response_id
    for event in calls:
        payload = event.payload
        if isinstance(payload, LlmCallCompleted) and response_id == payload.response_id:
            query = EventQuery(session_id=message.session_id, turn_id=event.turn_id)
            return await trace.select(query) if response_id and event.turn_id else []
    return []


def routing_steps(
    events: Sequence[Event], record: RoutingDecisionRecord | None
) -> list[RoutingStep]:
    """Return the seven slots in order, with their verdicts from the trace or the message."""
    decided = next((e.payload for e in events if isinstance(e.payload, RouteDecided)), None)
    steps = {step.policy: step for step in decided.chain} if decided else {}
    result: list[RoutingStep] = []
    for policy in ChainPolicy:
        step = steps.get(policy)
        if step is not None:
            candidate = step.candidate_model or ""
            reason = step.reason + (
                f" ({step.validation_failure})" if step.validation_failure else ""
            )
            verdict = step.verdict.replace("_", " ")
            result.append(
                RoutingStep(slot=policy, verdict=verdict, reason=reason, candidate=candidate)
            )
        elif not steps and record is not None and policy.mode == record.mode:
            result.append(RoutingStep(slot=policy, verdict="chose (or its class)"))
        else:
            result.append(RoutingStep(slot=policy, verdict="not reached" if steps else ""))
    return result


def failed_attempts(events: Sequence[Event]) -> list[LlmCallFailed]:
    """Return the calls of a turn that failed before a response arrived."""
    return [event.payload for event in events if isinstance(event.payload, LlmCallFailed)]


def first_chunk_ms(events: Sequence[Event], message: Message) -> int | None:
    """Return the time to the first part of a response; None if it was not traced."""
    for event in events:
        payload = event.payload
        if (
            isinstance(payload, LlmCallCompleted)
            and payload.response_id == message.metadata.response_id
        ):
            return payload.time_to_first_chunk_ms
    return None


class CacheMap(Struct, frozen=True, kw_only=True):
    """How much of a request was sent before, and where the two begin to differ."""

    total_bytes: int
    shared_bytes: int
    """The length of the prefix that equals the request before it."""
    before: str
    """The end of the shared prefix."""
    old: str
    new: str
    """What follows the prefix in the earlier request (`old`) and in this one (`new`)."""
    is_first: bool = False
    """Whether there is no earlier request to the provider."""
    previous_id: str = ""
    """The response to the earlier request; empty if it left none."""
    cached_tokens: int = 0
    uncached_tokens: int = 0
    written_tokens: int = 0
    extra_usd: Decimal | None = None
    """What the uncached tokens cost above the price of cached ones; None without a price."""

    @property
    def share(self) -> float:
        """The shared part of the request in percent."""
        return 100 * self.shared_bytes / self.total_bytes if self.total_bytes else 0.0


def rewritten_cache_map(messages: Sequence[Message], message_id: str) -> CacheMap | None:
    """Compare the request of a response with the one before it, as this version writes them."""
    at = next((i for i, message in enumerate(messages) if message.id == message_id), None)
    if at is None or messages[at].role is not Role.ASSISTANT:
        return None
    model = messages[at].metadata.model or ""
    provider = model.partition(":")[0]
    earlier = [
        i
        for i in range(at)
        if messages[i].role is Role.ASSISTANT
        and (messages[i].metadata.model or "").partition(":")[0] == provider
    ]
    try:
        new = wire_request(messages[:at], model).body
        old = wire_request(messages[: earlier[-1]], model).body if earlier else b""
    except MetisError:
        return None
    return cache_map(old, new, messages[at], messages[earlier[-1]].id if earlier else "")


def cache_map(old: bytes, new: bytes, response: Message, previous_id: str) -> CacheMap:
    """Compare the request of a response with the one before it to the same provider."""
    shared = shared_prefix(old, new)
    usage, model = response.metadata.usage, response.metadata.model or ""
    return CacheMap(
        total_bytes=len(new),
        shared_bytes=shared,
        before=_excerpt(new[max(0, shared - _EXCERPT) : shared]),
        old=_excerpt(old[shared : shared + _EXCERPT]),
        new=_excerpt(new[shared : shared + _EXCERPT]),
        is_first=not old,
        previous_id=previous_id,
        cached_tokens=usage.cached_input_tokens if usage else 0,
        uncached_tokens=usage.input_tokens if usage else 0,
        written_tokens=usage.cache_creation_input_tokens if usage else 0,
        extra_usd=_price_above_cached(usage, model) if usage else None,
    )


def _excerpt(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _price_above_cached(usage: Usage, model: str) -> Decimal | None:
    uncached = replace(usage, output_tokens=0, server_tool_requests=None)
    cached = replace(
        uncached,
        cached_input_tokens=usage.prompt_tokens,
        input_tokens=0,
        cache_creation_input_tokens=0,
        cache_creation_1h_input_tokens=0,
    )
    try:
        return Decimal(cost(uncached, model)) - Decimal(cost(cached, model))
    except MetisError:
        return None


class WhatIf(Struct, frozen=True, kw_only=True):
    """Calls under another model or price table."""

    model: str
    pricing_version: str
    call_count: int
    old_usd: Decimal
    new_usd: Decimal
    without_cache_usd: Decimal
    """What the calls would cost if nothing came from a cache."""
    unpriced: int = 0


class Call(Struct, frozen=True):
    """A model call that was made: where it was, when, and what it used."""

    conversation: str
    at: datetime
    model: str
    usage: Usage


def what_if(calls: Iterable[Call], model: str, table: PriceTable | None = None) -> WhatIf:
    """Price calls as if another model had answered them; an empty name leaves the models.

    Another model has its own cache: it contains what was sent and answered in the same conversation
    in the five minutes before, if the model has a price for cached input.
    """
    count = unpriced = 0
    old = new = plain = Decimal(0)
    version = table.pricing_version if table else ""
    last: dict[str, Call] = {}
    for call in calls:
        name = model or call.model
        usage = call.usage
        if model and model != call.model:
            usage = _with_simulated_cache(call, last.get(call.conversation))
        last[call.conversation] = call
        try:
            amount = cost(usage, name, call.at, table=table)
            uncached = cost(_without_cache(usage), name, call.at, table=table)
        except MetisError:
            unpriced += 1
            continue
        version = version or amount.pricing_version
        count, old = count + 1, old + call.usage.cost_usd
        new, plain = new + Decimal(amount), plain + Decimal(uncached)
    return WhatIf(
        model=model,
        pricing_version=version,
        call_count=count,
        old_usd=old,
        new_usd=new,
        without_cache_usd=plain,
        unpriced=unpriced,
    )


def _with_simulated_cache(call: Call, before: Call | None) -> Usage:
    prompt = call.usage.prompt_tokens
    cached = 0
    if before is not None and call.at - before.at <= _CACHE_TTL:
        cached = min(prompt, before.usage.prompt_tokens)
    cached = cached if cached >= _MIN_CACHED else 0
    return replace(
        call.usage,
        input_tokens=prompt - cached,
        cached_input_tokens=cached,
        cache_creation_input_tokens=0,
        cache_creation_1h_input_tokens=0,
        service_tier=None,
    )


def _without_cache(usage: Usage) -> Usage:
    return replace(
        usage,
        input_tokens=usage.prompt_tokens,
        cached_input_tokens=0,
        cache_creation_input_tokens=0,
        cache_creation_1h_input_tokens=0,
    )


class Comparison(Struct, frozen=True, kw_only=True):
    """Two answers to the same history."""

    rows: list[tuple[str, str, str]]
    """The kind of each pair of lines, and the lines."""
    calls: list[tuple[str, str, str]]
    """Tool calls of both, in order: the verdict and the two calls."""
    costs: tuple[str, str]


def compare_answers(first: Message, second: Message) -> Comparison:
    """Compare two answers by lines of text and by tool calls."""
    rows = [
        (MARKS[mark], one, other)
        for mark, one, other in aligned_lines(_text_lines(first), _text_lines(second))
    ]
    calls: list[tuple[str, str, str]] = []
    one, other = _calls(first), _calls(second)
    for index in range(max(len(one), len(other))):
        first_call = one[index] if index < len(one) else None
        second_call = other[index] if index < len(other) else None
        calls.append(
            (_verdict(first_call, second_call), _call_text(first_call), _call_text(second_call))
        )
    return Comparison(rows=rows, calls=calls, costs=(_cost_text(first), _cost_text(second)))


def _text_lines(message: Message) -> list[str]:
    texts = (
        f"(thinking) {block.text}" if isinstance(block, ThinkingBlock) else block.text
        for block in message.content
        if isinstance(block, TextBlock | ThinkingBlock)
    )
    return "\n".join(texts).split("\n")


def _calls(message: Message) -> list[ToolUseBlock]:
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def _verdict(first: ToolUseBlock | None, second: ToolUseBlock | None) -> str:
    if first is None or second is None:
        return "only one answer has this call"
    if first.name != second.name:
        return "another tool"
    if first.input == second.input:
        return "equal"
    old, new = dict(first.input), dict(second.input)
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return f"other arguments: {', '.join(changed)}"


def _call_text(call: ToolUseBlock | None) -> str:
    if call is None:
        return ""
    return f"{call.name} {msgspec.json.encode(call.input).decode('utf-8', 'replace')}"


def _cost_text(message: Message) -> str:
    usage = message.metadata.usage
    if usage is None:
        return ""
    return f"{usage.prompt_tokens:,} in, {usage.output_tokens:,} out, {format_usd(usage.cost_usd)}"
