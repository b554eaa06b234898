"""Exports of events: JSON lines, CSV, and OpenTelemetry spans as OTLP/JSON.

The same events always give the same bytes: the ids of traces and spans are hashes of our ids. The
names of spans follow the GenAI semantic conventions: a turn is one trace with a span for the turn
(`invoke_agent`), each model call (`chat`) and each tool run (`execute_tool`). No other module
depends on the conventions.
"""

import csv
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from metis.events.event import Event, encode_json, read_event
from metis.events.turn_events import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RouteDecided,
    ToolCalled,
    ToolCompleted,
    ToolFailed,
    TurnCancelled,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from metis.version import __version__

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Numbers of the OTLP enumerations SpanKind and StatusCode.
_INTERNAL, _CLIENT = 1, 3
_OK, _ERROR = 1, 2
# The names of the conventions, where they differ from ours.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock-converse": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}

COLUMNS = Event.__struct_fields__
"""The columns of the CSV export."""

Attributes = dict[str, str | int | float | bool | list[str] | None]


def write_jsonl(events: Iterable[Event]) -> Iterator[bytes]:
    """Yield one line of JSON per event, in the order of their ids."""
    return (encode_json(event) + b"\n" for event in _ordered(events))


def read_jsonl(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of lines of JSON; unknown types are skipped with a warning."""
    events = (read_event(line) for line in lines if line.strip())
    return (event for event in events if event is not None)


def write_csv(events: Iterable[Event]) -> Iterator[bytes]:
    """Yield a header and one line per event, in the order of their ids; payloads are JSON."""
    yield _csv_line(COLUMNS)
    for event in _ordered(events):
        texts = {
            "timestamp": event.timestamp.isoformat(timespec="microseconds"),
            "payload": encode_json(event.payload).decode(),
        }
        yield _csv_line(texts.get(name) or getattr(event, name) or "" for name in COLUMNS)


def _ordered(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event.id)


def _csv_line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow([_escape_formula(cell) for cell in cells])
    return text.getvalue().encode()


def _escape_formula(cell: str) -> str:
    # A spreadsheet would evaluate a cell that begins like a formula; the apostrophe makes it text.
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


class _SpanPart(NamedTuple):
    """The attributes and the error that an event adds to its span."""

    attributes: Attributes
    error: str | None = None


def otlp_json(events: Iterable[Event], *, service_name: str = "metis") -> bytes:
    """Return the JSON body of an OTLP/HTTP request for traces."""
    return msgspec.json.encode(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes({"service.name": service_name})},
                    "scopeSpans": [
                        {
                            "scope": {"name": "metis", "version": __version__},
                            "spans": list(spans(events)),
                        }
                    ],
                }
            ]
        }
    )


def spans(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Yield a span for each turn, model call and tool run; an unfinished one is an error."""
    ordered = _ordered(events)
    by_id = {event.id: event for event in ordered}
    ends = {event.parent_event_id: event for event in ordered if type(event.payload) in _ENDS}
    routes = {e.parent_event_id: e for e in ordered if isinstance(e.payload, RouteDecided)}
    last_of = {event.turn_id: event for event in ordered}
    turns: dict[str, Event | None] = {}
    for event in ordered:
        if type(event.payload) in _STARTS:
            end = ends.get(event.id)
            # An unfinished span ends with the last event of its turn.
            last = end or last_of[event.turn_id]
            span = _span(event, end, last)
            parent = _span_parent(event, by_id, turns)
            if parent is not None:
                span["parentSpanId"] = _span_id(parent)
            if event.id in routes:
                span["events"] = [_route_event(routes[event.id])]
            yield span


def _span(event: Event, end: Event | None, last: Event) -> dict[str, Any]:
    name, kind, started = _STARTS[type(event.payload)](event.payload)
    ended = _SpanPart({}, "unfinished") if end is None else _ENDS[type(end.payload)](end.payload)
    attributes: Attributes = {"gen_ai.conversation.id": event.session_id}
    attributes |= started.attributes | ended.attributes
    status: dict[str, Any] = {"code": _OK}
    if ended.error is not None:
        attributes["error.type"] = ended.error
        status = {"code": _ERROR}
    return {
        "traceId": _trace_id(event),
        "spanId": _span_id(event),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": _nanoseconds(event.timestamp),
        "endTimeUnixNano": _nanoseconds(max(last.timestamp, event.timestamp)),
        "attributes": _attributes(attributes),
        "status": status,
    }


def _span_parent(
    event: Event, by_id: Mapping[str, Event], turns: dict[str, Event | None]
) -> Event | None:
    """Return the turn of a span; `turns` holds the turns of the events that were visited.

    A tool run is caused by the end of a model call and the next call by the end of a tool run, so
    no call encloses another span.
    """
    visited: list[str] = []
    cause = by_id.get(event.parent_event_id or "")
    while cause is not None and not isinstance(cause.payload, TurnStarted):
        if cause.id in turns:
            cause = turns[cause.id]
            break
        turns[cause.id] = None  # ends a circle of causes, which a damaged file can have
        visited.append(cause.id)
        cause = by_id.get(cause.parent_event_id or "")
    turns.update(dict.fromkeys(visited, cause))
    return cause


def _route_event(event: Event) -> dict[str, Any]:
    payload = event.payload
    attributes: Attributes = {}
    if isinstance(payload, RouteDecided):
        attributes["metis.route.chosen_model"] = payload.chosen_model
        if payload.chosen_model is not None:
            attributes["metis.route.slot"] = payload.chain[payload.winner_index].policy.value
    return {
        "timeUnixNano": _nanoseconds(event.timestamp),
        "name": event.type,
        "attributes": _attributes(attributes),
    }


def _turn_started(_: TurnStarted) -> tuple[str, int, _SpanPart]:
    attributes: Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "metis",
    }
    return "invoke_agent metis", _INTERNAL, _SpanPart(attributes)


def _call_started(call: LlmCallStarted) -> tuple[str, int, _SpanPart]:
    model = call.model.partition(":")[2] or call.model
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(call.provider, call.provider),
        "gen_ai.request.model": model,
    }
    return f"chat {model}", _CLIENT, _SpanPart(attributes)


def _tool_started(call: ToolCalled) -> tuple[str, int, _SpanPart]:
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.tool_name,
        "gen_ai.tool.call.id": call.tool_use_id,
        "gen_ai.tool.type": "function",
        "metis.tool.side_effects": call.side_effects.value,
    }
    return f"execute_tool {call.tool_name}", _INTERNAL, _SpanPart(attributes)


def _turn_completed(turn: TurnCompleted) -> _SpanPart:
    return _SpanPart(
        {
            "gen_ai.usage.input_tokens": turn.total_input_tokens,
            "gen_ai.usage.output_tokens": turn.total_output_tokens,
            "metis.cost_usd": str(turn.total_cost_usd),
        }
    )


def _call_completed(call: LlmCallCompleted) -> _SpanPart:
    # In the conventions `input_tokens` includes cached tokens.
    first_ms = call.time_to_first_chunk_ms
    return _SpanPart(
        {
            "gen_ai.response.model": call.model.partition(":")[2] or call.model,
            "gen_ai.response.id": call.response_id,
            "gen_ai.response.finish_reasons": [call.stop_reason.value],
            "gen_ai.response.time_to_first_chunk": None if first_ms is None else first_ms / 1000,
            "gen_ai.usage.input_tokens": call.input_tokens
            + call.cached_input_tokens
            + call.cache_creation_input_tokens,
            "gen_ai.usage.cache_read.input_tokens": call.cached_input_tokens,
            "gen_ai.usage.cache_creation.input_tokens": call.cache_creation_input_tokens,
            "gen_ai.usage.output_tokens": call.output_tokens,
            "gen_ai.usage.reasoning.output_tokens": call.reasoning_output_tokens,
            "metis.cost_usd": str(call.cost_usd),
            "metis.pricing_version": call.pricing_version,
        }
    )


_STARTS: Mapping[type, Callable[[Any], tuple[str, int, _SpanPart]]] = {
    TurnStarted: _turn_started,
    LlmCallStarted: _call_started,
    ToolCalled: _tool_started,
}
_ENDS: Mapping[type, Callable[[Any], _SpanPart]] = {
    TurnCompleted: _turn_completed,
    TurnCancelled: lambda turn: _SpanPart({"metis.cancel_reason": turn.reason}, "cancelled"),
    TurnFailed: lambda turn: _SpanPart({}, turn.error_type),
    LlmCallCompleted: _call_completed,
    LlmCallFailed: lambda call: _SpanPart(
        {"metis.retry_count": call.retry_count}, call.error_class
    ),
    ToolCompleted: lambda tool: _SpanPart(
        {"metis.tool.output_size_bytes": tool.output_size_bytes},
        None if tool.success else "tool_error",
    ),
    ToolFailed: lambda tool: _SpanPart({}, tool.error_class),
}


def _attributes(values: Attributes) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": _value(value)}
        for key, value in sorted(values.items())
        if value is not None
    ]


def _value(value: str | float | bool | list[str]) -> dict[str, Any]:  # noqa: FBT001 - JSON
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            # OTLP/JSON writes 64-bit integers as strings.
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case _:
            return {"stringValue": value}


def _trace_id(event: Event) -> str:
    key = f"{event.session_id}/{event.turn_id or event.id}"
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _span_id(event: Event) -> str:
    # A hash makes repeated exports idempotent: the collector gets the same span id.
    return hashlib.sha256(event.id.encode()).hexdigest()[:16]


def _nanoseconds(moment: datetime) -> str:
    return str((moment - _EPOCH) // timedelta(microseconds=1) * 1000)
