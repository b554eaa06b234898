"""Strategies for documents of klaude-code, attocode and gpt2099.

Written from the formats' specifications, not from the importers: everything that a specification
allows is drawn, also unusual values.
"""

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from strategies import json_objects, json_values, names, words

Record = dict[str, Any]

ids = st.sampled_from(["call_1", "call_2", "call_3", "toolu_01", ""])
tools = st.sampled_from(["read_file", "bash", "search"])
zoned = st.sampled_from(["2026-01-01T10:00:00Z", "2026-01-01T10:00:00.123456+02:00"])
naive = st.sampled_from(["2026-01-01T10:00:00", "2026-01-01T10:00:00.250000"])
moments = zoned | naive
maybe_words = st.none() | words
urls = st.sampled_from(
    ["https://example.com/a.png", "data:image/png;base64,aWY=", "data:,hello", "data:x;base64,aWY="]
)
raw_arguments = st.one_of(
    json_objects(simple=True).map(json.dumps),
    json_objects(simple=True).map(lambda value: json.dumps(value, indent=1)),
    st.sampled_from(["", " ", "{", '{"a":1,"a":2}', "[1]", "null", '{"a": 1.10}']),
)


def record(required: dict[str, Any], optional: dict[str, Any] | None = None) -> SearchStrategy[Any]:
    """Draw an object with all of some keys and any of others, in any order."""
    drawn = st.fixed_dictionaries(required, optional=optional or {})
    return drawn.flatmap(lambda result: st.permutations(list(result.items())).map(dict))


# klaude-code: a typed event on each line.

text_part = record({"type": st.just("text"), "text": words})
image_url_part = record({"type": st.just("image_url"), "url": urls}, {"id": maybe_words})
image_file_part = record(
    {"type": st.just("image_file"), "file_path": words},
    {
        "mime_type": st.sampled_from([None, "image/png", "image/jpeg", "odd"]),
        "byte_size": st.none() | st.integers(0, 10**6),
        "sha256": maybe_words,
    },
)
models = st.sampled_from([None, "claude-sonnet-4-6", "some-model"])
thinking_text_part = record(
    {"type": st.just("thinking_text"), "text": words}, {"id": maybe_words, "model_id": models}
)
thinking_signature_part = record(
    {"type": st.just("thinking_signature"), "signature": words},
    {"id": maybe_words, "model_id": models, "format": maybe_words},
)
tool_call_part = record(
    {
        "type": st.just("tool_call"),
        "call_id": ids,
        "tool_name": tools,
        "arguments_json": raw_arguments,
    }
)
images = image_url_part | image_file_part
every_part = st.one_of(
    text_part, images, thinking_text_part, thinking_signature_part, tool_call_part
)
klaude_usage = record(
    {},
    {
        "input_tokens": st.integers(0, 500),
        "cached_tokens": st.integers(0, 500),
        "reasoning_tokens": st.integers(0, 50),
        "output_tokens": st.integers(0, 50),
        "context_limit": st.none() | st.integers(1, 10**6),
        "throughput_tps": st.none() | st.just(12.5),
        "input_cost": st.none() | st.just(0.01),
        "currency": st.sampled_from(["USD", "CNY"]),
        "model_name": st.sampled_from(["", "claude-sonnet-4-6"]),
        "provider": st.sampled_from([None, "anthropic", "a:b"]),
        "created_at": moments,
    },
)


def _common(role: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"created_at": moments, "role": st.just(role)}, {
        "id": maybe_words,
        "response_id": maybe_words,
    }


def _role_message(role: str, parts: SearchStrategy[Any], **more: Any) -> SearchStrategy[Any]:
    required, optional = _common(role)
    return record(required | {"parts": st.lists(parts, max_size=4)}, optional | more)


def _tool_result() -> SearchStrategy[Any]:
    required, optional = _common("tool")
    fields = {
        "call_id": ids,
        "tool_name": tools,
        "status": st.sampled_from(["success", "error", "aborted"]),
        "output_text": words,
    }
    more = {
        "parts": st.lists(images, max_size=2),
        "ui_extra": st.none() | json_objects(simple=True),
        "side_effects": st.none() | st.lists(st.just("todo_change"), max_size=2),
        "task_metadata": st.none() | json_objects(simple=True),
    }
    return record(required | fields, optional | more)


klaude_data: dict[str, SearchStrategy[Any]] = {
    "SystemMessage": _role_message("system", text_part),
    "DeveloperMessage": _role_message(
        "developer",
        text_part | images,
        command_output=st.none() | json_objects(simple=True),
        at_files=st.none() | st.lists(json_values(simple=True), max_size=2),
    ),
    "UserMessage": _role_message("user", text_part | images | every_part),
    "AssistantMessage": _role_message(
        "assistant",
        every_part,
        usage=st.none() | klaude_usage,
        stop_reason=st.sampled_from([None, "stop", "length", "tool_use", "error", "aborted"]),
    ),
    "ToolResultMessage": _tool_result(),
    "StreamErrorItem": record({"error": words, "created_at": moments}),
    "TaskMetadataItem": record(
        {"created_at": moments},
        {"main_agent": json_objects(simple=True), "sub_agent_task_metadata": st.just([])},
    ),
    "CompactionEntry": record(
        {"summary": words, "first_kept_index": st.integers(0, 6), "created_at": moments},
        {
            "tokens_before": st.none() | st.integers(0, 10**6),
            "details": st.none() | json_objects(simple=True),
            "kept_items_brief": st.lists(json_objects(simple=True), max_size=2),
        },
    ),
}
klaude_lines = st.one_of(
    [record({"type": st.just(name), "data": data}) for name, data in klaude_data.items()]
)


@st.composite
def klaude_histories(draw: st.DrawFn) -> list[Record]:
    return draw(st.lists(klaude_lines, max_size=6))


def klaude_bytes(lines: list[Record]) -> bytes:
    """Draw a history as klaude-code writes it."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


# attocode: an array of messages.

atto_call = record(
    {"id": ids, "name": tools, "arguments": json_objects(simple=True)}, {"parseError": words}
)
atto_result = record({"callId": ids, "result": json_values(simple=True)}, {"error": words})
mark = st.just({"type": "ephemeral"})
atto_block = record({"type": st.just("text"), "text": words}, {"cache_control": mark})
atto_message = record(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool"]),
        "content": words | st.lists(atto_block, max_size=3),
    },
    {
        "toolCalls": st.lists(atto_call, max_size=2),
        "toolResults": st.lists(atto_result, max_size=2),
        "toolCallId": ids,
        "metadata": json_objects(simple=True),
    },
)
atto_histories = st.lists(atto_message, max_size=6)
atto_responses = record(
    {"content": words},
    {
        "toolCalls": st.lists(atto_call, max_size=2),
        "usage": record(
            {"inputTokens": st.integers(0, 99), "outputTokens": st.integers(0, 99)},
            {
                "cacheReadTokens": st.integers(0, 99),
                "cacheWriteTokens": st.integers(0, 99),
                "cost": st.sampled_from([0, 0.25, 1e-7, 0.1]),
            },
        ),
        "model": st.sampled_from(["anthropic:claude-sonnet-4-6", "gpt-5"]),
        "stopReason": st.sampled_from(["end_turn", "tool_use", "max_tokens", "stop_sequence"]),
        "thinking": words,
    },
)

# gpt2099: blocks, messages, turns, frames.

media = st.sampled_from(["application/pdf", "image/png", "text/markdown", "audio/wav", "odd"])
gpt_text = record({"type": st.just("text"), "text": words}, {"cache_control": mark})
gpt_document = record(
    {
        "type": st.just("document"),
        "source": record({"type": st.just("base64"), "media_type": media, "data": st.just("aWY=")}),
    },
    {"cache_control": mark},
)
gpt_use = record(
    {"type": st.just("tool_use"), "name": tools, "input": json_objects(simple=True)}, {"id": ids}
)
gpt_result = record(
    {
        "type": st.just("tool_result"),
        "name": tools,
        "content": st.lists(gpt_text | json_objects(simple=True), max_size=2),
    },
    {"tool_use_id": ids, "is_error": st.booleans()},
)
gpt_block = gpt_text | gpt_document | gpt_use | gpt_result
gpt_roles = st.sampled_from(["user", "assistant", "system"])
gpt_options = record(
    {},
    {
        "provider_ptr": st.sampled_from(["nano", "milli", "kilo"]),
        "servers": st.lists(names, max_size=2),
        "search": st.booleans(),
        "tool_mode": names,
    },
)
gpt_message = record({"role": gpt_roles, "content": st.lists(gpt_block, max_size=4)})
gpt_contexts = record({"messages": st.lists(gpt_message, max_size=5), "options": gpt_options})


def scru128(number: int) -> str:
    """Return a turn id of gpt2099: 25 sortable letters and digits."""
    digits, rest = "", (1_767_225_600_000 << 80) + number
    for _ in range(25):
        rest, digit = divmod(rest, 36)
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
    return digits


@st.composite
def gpt_threads(draw: st.DrawFn) -> list[Record]:
    turns = draw(st.lists(gpt_message, max_size=5))
    extra = record({"options": gpt_options, "cache": st.booleans()})
    return [{"id": scru128(index), **turn, **draw(extra)} for index, turn in enumerate(turns)]


_heads = st.sampled_from(["research", "my thread"])


@st.composite
def gpt_frames(draw: st.DrawFn) -> list[Record]:
    """Draw stored turns that continue any of those before, by id or by bookmark."""
    frames: list[Record] = []
    named: list[str] = []
    for index in range(draw(st.integers(0, 5))):
        meta: Record = draw(record({}, {"role": gpt_roles, "cache": st.booleans()}))
        meta |= draw(record({}, {"options": gpt_options}) | record({"inherited": gpt_options}))
        expected = [frame["id"] for frame in frames] + named
        if expected and draw(st.booleans()):
            one = st.sampled_from(expected)
            meta["continues"] = draw(one | st.lists(one, min_size=1, max_size=2, unique=True))
        if draw(st.booleans()):
            meta["head"] = draw(_heads)
            named.append(meta["head"])
        frames.append({"topic": "gpt.turn", "id": scru128(index), **draw(_stored(meta))})
    return frames


def _stored(meta: Record) -> SearchStrategy[Record]:
    as_json = {**meta, "content_type": "application/json"}
    document = {
        **meta,
        "role": "user",
        "type": "document",
        "content_type": "application/pdf",
        "document_name": "a.pdf",
        "original_path": "/tmp/a.pdf",  # noqa: S108 - a path in a document
        "file_size": 2,
        "cache_control": "ephemeral",
    }
    blocks = st.lists(gpt_block, max_size=3)
    return st.one_of(
        blocks.map(lambda result: {"meta": as_json, "content": result}),
        blocks.map(lambda result: {"meta": as_json, "content": json.dumps(result)}),
        words.map(lambda result: {"meta": meta, "content": result}),
        st.just({"meta": document, "content": "aWY="}),
    )


DOCUMENTS: dict[str, SearchStrategy[bytes]] = {
    "klaude-code": klaude_histories().map(klaude_bytes),
    "attocode": atto_histories.map(lambda result: json.dumps(result).encode()),
    "attocode-response": atto_responses.map(lambda result: json.dumps(result).encode()),
    "gpt2099-context": gpt_contexts.map(lambda result: json.dumps(result).encode()),
    "gpt2099-thread": gpt_threads().map(lambda result: json.dumps(result).encode()),
    "gpt2099": gpt_frames().map(klaude_bytes),
}
"""Valid documents of each format, as bytes."""
