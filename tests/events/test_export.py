"""OTLP export of turns, compared with `opentelemetry-proto` where installed."""

import base64
import json
from typing import Any

import msgspec
import pytest

from metis.events import Event
from metis.events.export import otlp_json, spans
from metis.events.turn_events import LlmCallStarted, TurnStarted
from sample_events import failed, recording_bus, run_turn

ASK = LlmCallStarted(model="gemini:gemini-4-argon", provider="gemini", request_id="r")


def turn() -> list[Event]:
    bus, emitted = recording_bus()
    run_turn(bus)
    return emitted


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}


def test_turn_is_exported_as_trace_of_calls_and_tools() -> None:
    result = list(spans(turn()))
    assert [span["name"] for span in result] == [
        *("invoke_agent metis", "chat claude-haiku-4-5"),
        *("execute_tool read_file", "chat claude-haiku-4-5"),
    ]
    assert len({span["traceId"] for span in result}) == 1
    assert len({span["spanId"] for span in result}) == 4
    assert {span.get("parentSpanId") for span in result[1:]} == {result[0]["spanId"]}
    assert all(span["startTimeUnixNano"] < span["endTimeUnixNano"] for span in result)
    assert [span["status"]["code"] for span in result] == [1, 1, 1, 1]
    assert result[0]["events"][0]["name"] == "route.decided"


def test_attributes_follow_semantic_conventions() -> None:
    _, call, tool, _ = (attributes(span) for span in spans(turn()))
    assert call["gen_ai.operation.name"] == "chat"
    assert call["gen_ai.provider.name"] == "anthropic"
    assert call["gen_ai.request.model"] == "claude-haiku-4-5"
    assert call["gen_ai.conversation.id"] == "sess_1"
    assert call["gen_ai.usage.input_tokens"] == "150", "with what came from the cache"
    assert call["gen_ai.usage.cache_read.input_tokens"] == "50"
    assert call["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "tool_use"}]}
    assert call["metis.cost_usd"] == "0.001"
    assert tool["gen_ai.tool.name"] == "read_file"
    assert tool["gen_ai.tool.call.id"] == "tu_1"


def test_failed_and_unfinished_spans_are_errors() -> None:
    bus, emitted = recording_bus()
    start = bus.emit(TurnStarted(user_message_hash="h", estimated_input_tokens=1), turn_id="t")
    call = bus.emit(ASK, turn_id="t", parent=start)
    bus.emit(failed("rate_limit"), turn_id="t", parent=call)
    open_turn, closed_call = spans(emitted)
    assert attributes(open_turn)["error.type"] == "unfinished"
    assert open_turn["endTimeUnixNano"] == closed_call["endTimeUnixNano"]
    assert attributes(closed_call)["error.type"] == "rate_limit"
    assert attributes(closed_call)["gen_ai.provider.name"] == "gcp.gemini"
    assert closed_call["status"] == {"code": 2}
    assert "upstream" not in otlp_json(emitted).decode()


def test_export_is_deterministic() -> None:
    assert otlp_json(turn()) == otlp_json(reversed(turn()))
    assert otlp_json([]).startswith(b'{"resourceSpans"')


def test_bytes_equal_those_of_opentelemetry_proto() -> None:
    service = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
        reason="opentelemetry-proto is not installed: its definition is not asked",
    )
    json_format: Any = pytest.importorskip("google.protobuf.json_format")
    body = json.loads(otlp_json(turn()))
    for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for key in ("traceId", "spanId", "parentSpanId"):  # OTLP writes ids in hex, not base64
            if key in span:
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    request = service.ExportTraceServiceRequest()
    json_format.ParseDict(body, request, ignore_unknown_fields=False)
    read = list(request.resource_spans[0].scope_spans[0].spans)
    assert [len(span.trace_id) for span in read] == [16] * 4
    assert [len(span.span_id) for span in read] == [8] * 4
    assert [span.kind for span in read] == [1, 3, 1, 3]
    assert request.resource_spans[0].resource.attributes[0].value.string_value == "metis"


def test_names_are_in_published_conventions() -> None:
    names: Any = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes",
        reason="opentelemetry-semantic-conventions is not installed: its names are not asked",
    )
    published = {getattr(names, name) for name in dir(names) if name.startswith("GEN_AI_")}
    used = {key for span in spans(turn()) for key in attributes(span) if key.startswith("gen_ai.")}
    assert used <= published
    operations = [value.value for value in list[Any](names.GenAiOperationNameValues)]
    assert {attributes(span)["gen_ai.operation.name"] for span in spans(turn())} <= {*operations}


def test_a_circle_of_causes_ends() -> None:
    first, second, *others = turn()
    circle = [
        msgspec.structs.replace(event, parent_event_id=cause.id)
        for event, cause in zip(others, [*others[1:], others[0]], strict=True)
    ]
    result = list(spans([first, second, *circle]))
    assert len(result) == 4
    assert not any("parentSpanId" in span for span in result)
