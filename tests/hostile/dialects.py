"""Frames of a streamed response in each of the six protocols, well formed or not."""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import Struct

from metis.streaming.aws_event_stream import encode_event_frame

TEXT = "NOT safe to delete"
"""The text of a response before the fault; without its first word its meaning is reversed."""
TOOL = "read_file"

Json = dict[str, Any]


class Dialect(Struct, frozen=True, kw_only=True):
    """One protocol: JSON values of its events, and how an event is framed."""

    provider: str
    model: str
    frame: Callable[[Any], bytes]
    start: Sequence[Json]
    text: Callable[[str], Json]
    end: Callable[[str], Sequence[Json | str]]
    """The last events; they may repeat the whole text."""
    call: Callable[[int, str, str, str], Sequence[Json]]
    """A whole call: its number, id, tool and arguments as JSON text."""
    open_call: Callable[[str, str], Sequence[Json]]
    """The beginning of a call whose arguments follow in pieces: id and tool."""
    arguments: Callable[[str], Json]
    error: Callable[[str], Json]
    usage: Callable[[Any], Json]
    """An event with the same number in every count."""
    idle: bytes = b": keepalive\n\n"
    content_type: str = "text/event-stream"

    def frames(self, *events: Any) -> bytes:
        """Return the bytes of events."""
        return b"".join(map(self.frame, events))

    def begin(self, text: str = TEXT) -> bytes:
        """Return a response up to its text."""
        return self.frames(*self.start, self.text(text))

    def finish(self, text: str = TEXT) -> bytes:
        """Return the end of a response."""
        return self.frames(*self.end(text))


def dumps(value: Any) -> bytes:
    """Return JSON; raw bytes and texts such as `[DONE]` pass through."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def sse(event: Any) -> bytes:
    """Return an event of a text stream."""
    return b"data: " + dumps(event) + b"\n\n"


def line(event: Any) -> bytes:
    """Return one line of JSON."""
    return dumps(event) + b"\n"


def aws(event: Any) -> bytes:
    """Return a binary frame; the only key of an event is its type."""
    name, payload = "contentBlockDelta", event
    if isinstance(event, dict) and len(cast("Json", event)) == 1:
        ((name, payload),) = cast("Json", event).items()
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return encode_event_frame(headers, dumps(payload))


def _chunk(delta: Json, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": None} | more
    return {"id": "c1", "object": "chat.completion.chunk", "model": "gpt-5", "choices": [choice]}


def _block(index: int, block: Json) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, kind: str, **fields: Any) -> Json:
    delta = {"type": f"{kind}_delta"} | fields
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _anthropic_call(number: int, wire_id: str, name: str, arguments: str) -> Sequence[Json]:
    use: Json = {"type": "tool_use", "id": wire_id, "name": name, "input": {}}
    return (
        _block(number + 1, use),
        _delta(number + 1, "input_json", partial_json=arguments),
        {"type": "content_block_stop", "index": number + 1},
    )


def _item(text: str, status: str) -> Json:
    part: Json = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": status,
        "content": [part],
    }


def _response(status: str, output: Sequence[Json] = (), **more: Any) -> Json:
    return {"id": "r1", "object": "response", "model": "gpt-5", "status": status} | {
        "output": list(output),
        **more,
    }


def _function(wire_id: str, name: str, arguments: str, status: str) -> Json:
    return {"type": "function_call", "id": f"fc_{wire_id}", "call_id": wire_id} | {
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def _responses_call(number: int, wire_id: str, name: str, arguments: str) -> Sequence[Json]:
    item = _function(wire_id, name, arguments, "completed")
    began = _function(wire_id, name, "", "in_progress")
    return (
        {"type": "response.output_item.added", "output_index": number + 1, "item": began},
        {"type": "response.output_item.done", "output_index": number + 1, "item": item},
    )


def _candidate(parts: Sequence[Json], **more: Any) -> Json:
    content = {"role": "model", "parts": list(parts)}
    return {"candidates": [{"content": content, "index": 0} | more]}


def _loose_json(text: str) -> Any:
    """Return arguments as a value, for protocols that have no text; what is no JSON stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _ollama(message: Json, **more: Any) -> Json:
    return {"model": "llama3.2", "message": {"role": "assistant"} | message, "done": False} | more


def _ollama_call(wire_id: str, name: str, arguments: Any) -> Json:
    return {"id": wire_id, "function": {"name": name, "arguments": arguments}}


def _counts(*names: str) -> Callable[[Any], Json]:
    return lambda number: dict.fromkeys(names, number)


_ANTHROPIC_USAGE = _counts(
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
)
_OPENAI_USAGE = _counts("prompt_tokens", "completion_tokens", "total_tokens")
_RESPONSES_USAGE = _counts("input_tokens", "output_tokens", "total_tokens")
_GEMINI_USAGE = _counts("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
_CONVERSE_USAGE = _counts("inputTokens", "outputTokens", "totalTokens", "cacheReadInputTokens")

ANTHROPIC = Dialect(
    provider="anthropic",
    model="anthropic:claude-sonnet-4-6",
    frame=sse,
    start=(
        {
            "type": "message_start",
            "message": {
                "id": "m1",
                "type": "message",
                "role": "assistant",
                "model": "claude-sonnet-4-6",
                "content": [],
                "usage": {"input_tokens": 3, "output_tokens": 1},
            },
        },
        _block(0, {"type": "text", "text": ""}),
    ),
    text=lambda text: _delta(0, "text", text=text),
    end=lambda _: (
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ),
    call=_anthropic_call,
    open_call=lambda wire_id, name: (_anthropic_call(0, wire_id, name, "")[0],),
    arguments=lambda piece: _delta(1, "input_json", partial_json=piece),
    error=lambda text: {"type": "error", "error": {"type": "api_error", "message": text}},
    usage=lambda n: {"type": "message_delta", "delta": {}, "usage": _ANTHROPIC_USAGE(n)},
)
OPENAI = Dialect(
    provider="openai",
    model="openai:gpt-5",
    frame=sse,
    start=(_chunk({"role": "assistant", "content": ""}),),
    text=lambda text: _chunk({"content": text}),
    end=lambda _: (_chunk({}, finish_reason="stop"), "[DONE]"),
    call=lambda number, wire_id, name, arguments: (
        _chunk(
            {
                "tool_calls": [
                    {"index": number, "id": wire_id, "type": "function"}
                    | {"function": {"name": name, "arguments": arguments}}
                ]
            }
        ),
    ),
    open_call=lambda wire_id, name: (
        _chunk(
            {
                "tool_calls": [
                    {"index": 0, "id": wire_id, "function": {"name": name, "arguments": ""}}
                ]
            }
        ),
    ),
    arguments=lambda piece: _chunk(
        {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
    ),
    error=lambda text: {"error": {"message": text, "type": "server_error"}},
    usage=lambda n: _chunk({}) | {"choices": [], "usage": _OPENAI_USAGE(n)},
)
RESPONSES = Dialect(
    provider="openai-responses",
    model="openai-responses:gpt-5",
    frame=sse,
    start=(
        {"type": "response.created", "response": _response("in_progress")},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": _item("", "in_progress") | {"content": []},
        },
        {"type": "response.content_part.added", "output_index": 0, "content_index": 0}
        | {"item_id": "msg_1", "part": {"type": "output_text", "text": "", "annotations": []}},
    ),
    text=lambda text: (
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0}
        | {"item_id": "msg_1", "delta": text}
    ),
    end=lambda text: (
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": _item(text, "completed"),
        },
        {
            "type": "response.completed",
            "response": _response("completed", (_item(text, "completed"),)),
        },
    ),
    call=_responses_call,
    open_call=lambda wire_id, name: (_responses_call(0, wire_id, name, "")[0],),
    arguments=lambda piece: (
        {"type": "response.function_call_arguments.delta", "output_index": 1}
        | {"item_id": "fc_a1", "delta": piece}
    ),
    error=lambda text: {"error": {"message": text, "type": "server_error"}},
    usage=lambda n: {
        "type": "response.completed",
        "response": _response("completed", (_item(TEXT, "completed"),), usage=_RESPONSES_USAGE(n)),
    },
)
GEMINI = Dialect(
    provider="gemini",
    model="gemini:gemini-2.5-flash",
    frame=sse,
    start=(),
    text=lambda text: _candidate([{"text": text}]),
    end=lambda _: (_candidate([], finishReason="STOP") | {"usageMetadata": _GEMINI_USAGE(3)},),
    call=lambda _, wire_id, name, arguments: (
        _candidate(
            [{"functionCall": {"id": wire_id, "name": name, "args": _loose_json(arguments)}}]
        ),
    ),
    open_call=lambda wire_id, name: (
        _candidate([{"functionCall": {"id": wire_id, "name": name, "willContinue": True}}]),
    ),
    arguments=lambda piece: _candidate(
        [
            {
                "functionCall": {
                    "partialArgs": [
                        {"jsonPath": "$.path", "stringValue": piece, "willContinue": True}
                    ],
                    "willContinue": True,
                }
            }
        ]
    ),
    error=lambda text: {"error": {"code": 500, "message": text, "status": "INTERNAL"}},
    usage=lambda n: {"usageMetadata": _GEMINI_USAGE(n)},
)
OLLAMA = Dialect(
    provider="ollama",
    model="ollama:llama3.2",
    frame=line,
    start=(),
    text=lambda text: _ollama({"content": text}),
    end=lambda _: (
        _ollama({"content": ""}, done=True, done_reason="stop", prompt_eval_count=3, eval_count=2),
    ),
    call=lambda _, wire_id, name, arguments: (
        _ollama(
            {"content": "", "tool_calls": [_ollama_call(wire_id, name, _loose_json(arguments))]}
        ),
    ),
    # Ollama sends calls in one piece: a call without end is a line without end.
    open_call=lambda _, __: (),
    arguments=lambda piece: _ollama(
        {"content": "", "tool_calls": [_ollama_call("a1", TOOL, {"path": piece})]}
    ),
    error=lambda text: {"error": text},
    usage=lambda n: _ollama(
        {"content": ""}, done=True, done_reason="stop", prompt_eval_count=n, eval_count=n
    ),
    idle=b"\n",
    content_type="application/x-ndjson",
)
CONVERSE = Dialect(
    provider="bedrock-converse",
    model="bedrock-converse:anthropic.claude-sonnet-4-6",
    frame=aws,
    start=({"messageStart": {"role": "assistant"}},),
    text=lambda text: {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": text}}},
    end=lambda _: (
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": _CONVERSE_USAGE(3)}},
    ),
    call=lambda number, wire_id, name, arguments: (
        {
            "contentBlockStart": {
                "contentBlockIndex": number + 1,
                "start": {"toolUse": {"toolUseId": wire_id, "name": name}},
            }
        },
        {
            "contentBlockDelta": {
                "contentBlockIndex": number + 1,
                "delta": {"toolUse": {"input": arguments}},
            }
        },
        {"contentBlockStop": {"contentBlockIndex": number + 1}},
    ),
    open_call=lambda wire_id, name: (
        {
            "contentBlockStart": {
                "contentBlockIndex": 1,
                "start": {"toolUse": {"toolUseId": wire_id, "name": name}},
            }
        },
    ),
    arguments=lambda piece: {
        "contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": {"input": piece}}}
    },
    error=lambda text: {"message": text, "__type": "InternalServerException"},
    usage=lambda n: {"metadata": {"usage": _CONVERSE_USAGE(n)}},
    idle=aws({"ping": {}}),
    content_type="application/vnd.amazon.eventstream",
)

DIALECTS = {d.provider: d for d in (ANTHROPIC, OPENAI, RESPONSES, GEMINI, OLLAMA, CONVERSE)}
"""The six protocols, by a provider of each."""
