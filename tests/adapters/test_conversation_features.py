"""Provider features through a whole conversation, and then at another provider.

Each case: a response with the feature, plain and as a stream; the next request to the same provider
has every part of it, key for key; requests to all other providers report what they lose.
"""

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from build import user
from metis import adapters
from metis.adapters import Adapter, RequestContext
from metis.canonical import Message, Role, TextBlock, ToolDefinition, ToolResultBlock, ToolUseBlock
from metis.canonical.ids import new_ulid
from metis.canonical.metadata import StopReason
from metis.canonical.tools import SideEffects
from metis.streaming.events import events_of_message
from metis.wire.call import AdapterOptions

CONTEXT = RequestContext(session_id="sess_features")
TOOL = ToolDefinition("f", "Does it.", {"type": "object"}, SideEffects.READ)
PROVIDERS = ["anthropic", "bedrock-converse", "gemini", "ollama", "openai", "openai-responses"]


class Case(NamedTuple):
    """A response, its parts that must be sent back, and how the conversation continues."""

    provider: str
    body: dict[str, Any]
    parts: list[Any]
    native: dict[str, Any] = {}  # noqa: RUF012 - never changed
    follows: str = "user"
    lost: int = 1
    """The minimum number of losses of a request to another provider."""


def claude(content: list[Any], stop: str = "end_turn", **keys: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-6",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
        **keys,
    }


def gemini(parts: list[Any], **keys: Any) -> dict[str, Any]:
    content = {"role": "model", "parts": parts}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0, **keys}],
        "usageMetadata": {
            "promptTokenCount": 1,
            "candidatesTokenCount": 2,
            "totalTokenCount": 3,
        },
        "modelVersion": "gemini-3-pro-preview",
        "responseId": "r1",
    }


def responses(*items: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-5",
        "output": list(items),
        "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    }


TEXT = {"type": "text", "text": "So."}
CODE = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "code_execution",
    "input": {"code": "f(1)"},
}
CALLED = {
    "type": "tool_use",
    "id": "toolu_1",
    "name": "f",
    "input": {"a": 1},
    "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"},
}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_search", "input": {"q": "x"}}
COMPACTION = {"type": "compaction", "content": "They agreed on blue."}
MCP = [
    {
        "type": "mcp_tool_use",
        "id": "mcptoolu_1",
        "name": "echo",
        "server_name": "s",
        "input": {"a": 1},
    },
    {
        "type": "mcp_tool_result",
        "tool_use_id": "mcptoolu_1",
        "is_error": False,
        "content": [{"type": "text", "text": "r"}],
    },
]
CITED: dict[str, Any] = {
    "type": "text",
    "text": "Cited.",
    "citations": [
        {
            "type": "char_location",
            "cited_text": "c",
            "document_index": 0,
            "document_title": "T",
            "start_char_index": 0,
            "end_char_index": 1,
            "file_id": None,
        },
        {
            "type": "page_location",
            "cited_text": "c",
            "document_index": 0,
            "document_title": "T",
            "start_page_number": 1,
            "end_page_number": 2,
            "file_id": None,
        },
        {
            "type": "content_block_location",
            "cited_text": "c",
            "document_index": 0,
            "document_title": None,
            "start_block_index": 0,
            "end_block_index": 1,
            "file_id": None,
        },
        {
            "type": "web_search_result_location",
            "cited_text": "c",
            "url": "https://example.org",
            "title": "t",
            "encrypted_index": "EI",
        },
        {
            "type": "search_result_location",
            "cited_text": "c",
            "source": "s",
            "title": "t",
            "search_result_index": 0,
            "start_block_index": 0,
            "end_block_index": 1,
        },
    ],
}
RUN = [
    {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}},
]
GROUNDED = {
    "groundingMetadata": {
        "webSearchQueries": ["q"],
        "groundingChunks": [{"web": {"uri": "https://example.org", "title": "t"}}],
        "groundingSupports": [
            {
                "segment": {"startIndex": 0, "endIndex": 3, "text": "one"},
                "groundingChunkIndices": [0],
            }
        ],
    },
    "urlContextMetadata": {
        "urlMetadata": [
            {
                "retrievedUrl": "https://example.org",
                "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS",
            }
        ]
    },
}
ITEMS: list[dict[str, Any]] = [
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
        "output": "o",
        "error": None,
    },
    {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
    },
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "EEE"},
]
MESSAGE: dict[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "So.", "annotations": []}],
}
CITATIONS = {
    "citationsContent": {
        "content": [{"text": "a"}],
        "citations": [
            {
                "title": "T",
                "source": "s",
                "sourceContent": [{"text": "q"}],
                "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}},
            }
        ],
    }
}
ROUTER = "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-3-5-haiku-20241022-v1:0"
CASES = {
    "programmatic tool calling": Case(
        "anthropic",
        claude(
            [TEXT, CODE, CALLED],
            "tool_use",
            container={"id": "container_1", "expires_at": "2100-01-01T00:00:00Z"},
        ),
        [TEXT, CODE, CALLED],
        {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
        "tool",
    ),
    "open server call": Case(
        "anthropic",
        claude([TEXT, SEARCH], "pause_turn"),
        [TEXT, SEARCH],
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "nothing",
    ),
    "compaction": Case(
        "anthropic",
        claude([COMPACTION, TEXT]),
        [COMPACTION, TEXT],
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
    ),
    "MCP connector": Case("anthropic", claude([*MCP, TEXT]), [*MCP, TEXT], lost=2),
    "citations": Case("anthropic", claude([CITED]), [CITED]),
    "context management": Case(
        "anthropic",
        claude(
            [TEXT],
            context_management={
                "applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 8}]
            },
        ),
        [TEXT],
        lost=0,
    ),
    "code execution": Case("gemini", gemini([*RUN, {"text": "one"}]), RUN, lost=2),
    "grounding and URL context": Case(
        "gemini", gemini([{"text": "one two"}], **GROUNDED), [{"text": "one two"}]
    ),
    "MCP, images, compaction": Case(
        "openai-responses", responses(*ITEMS, MESSAGE), [*ITEMS, MESSAGE], lost=4
    ),
    "citations of documents": Case(
        "bedrock-converse",
        {
            "output": {"message": {"role": "assistant", "content": [CITATIONS]}},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
            "metrics": {"latencyMs": 1},
            "trace": {"promptRouter": {"invokedModelId": ROUTER}},
        },
        [CITATIONS],
    ),
}


def conversation(case: Case, message: Message) -> list[Message]:
    """Return the messages of the next request."""
    if case.follows == "user":
        return [user("Go."), message, user("More.")]
    results = [
        Message(
            id=new_ulid(),
            session_id=message.session_id,
            role=Role.TOOL,
            content=(ToolResultBlock(block.id, (TextBlock("r"),)),),
            created_at=datetime.now(UTC),
        )
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    return [user("Go."), message, *results]


def next_request(adapter: Adapter, case: Case, message: Message) -> tuple[Any, list[Any]]:
    native = {adapter.profile.protocol: case.native} if case.native else {}
    wire = adapter.preview(conversation(case, message), [TOOL], AdapterOptions(native=native))
    return json.loads(wire.body), wire.losses


def parts_of(wire: Any) -> list[Any]:
    """Return all parts of the messages of a request."""
    messages = wire.get("messages") or wire.get("contents") or wire["input"]
    parts: list[Any] = []
    for message in messages:
        content = message.get("content") or message.get("parts")
        is_item = message.get("type") not in (None, "message") or "id" in message
        parts += [message] if is_item or not isinstance(content, list) else content
    return parts


@pytest.mark.row("T222")
@pytest.mark.parametrize("name", CASES)
def test_feature_is_sent_back_to_its_provider_with_every_key(name: str) -> None:
    case = CASES[name]
    adapter = adapters.get(case.provider)
    message = adapter.from_wire_response(case.body, CONTEXT)
    assert json.loads(adapter.to_wire_response(message, CONTEXT)) == case.body
    wire, losses = next_request(adapter, case, message)
    sent = parts_of(wire)
    assert [part for part in case.parts if part not in sent] == []
    assert [loss for loss in losses if loss.block_type in ("opaque", "text", "tool_use")] == []


def sse(events: list[dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + json.dumps(event).encode() + b"\n\n"
        for event in events
    )


def claude_stream(body: dict[str, Any]) -> bytes:
    """Return the stream in which Anthropic sends a response."""
    start: dict[str, Any] = {**body, "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(body["content"]):
        first, deltas = dict(block), list[dict[str, Any]]()
        if block["type"] == "text":
            first["text"] = ""
            if "citations" in first:
                first["citations"] = []
            deltas = [{"type": "text_delta", "text": block["text"]}]
            deltas += [
                {"type": "citations_delta", "citation": citation}
                for citation in block.get("citations", ())
            ]
        elif "input" in block:
            first["input"] = {}
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": text}]
        events.append({"type": "content_block_start", "index": index, "content_block": first})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    keys = ("container", "context_management")
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    delta |= {key: body[key] for key in keys[:1] if key in body}
    more = {key: body[key] for key in keys[1:] if key in body}
    events.append({"type": "message_delta", "delta": delta, "usage": body["usage"], **more})
    return sse([*events, {"type": "message_stop"}])


def responses_stream(body: dict[str, Any]) -> bytes:
    """Return the stream in which OpenAI sends a response."""
    start: dict[str, Any] = {**body, "output": [], "status": "in_progress", "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": start}]
    for index, item in enumerate(body["output"]):
        for name in ("added", "done"):
            kind = f"response.output_item.{name}"
            events.append({"type": kind, "output_index": index, "item": item})
    return sse([*events, {"type": "response.completed", "response": body}])


def first_stream(adapter: Adapter, case: Case) -> bytes:
    match case.provider:
        case "anthropic":
            return claude_stream(case.body)
        case "openai-responses":
            return responses_stream(case.body)
        case _:
            message = adapter.from_wire_response(case.body, CONTEXT)
            encoder = adapter.stream_encoder(CONTEXT)
            events = events_of_message(message, adapter.profile.protocol)
            return b"".join([*map(encoder.encode, events), encoder.finish()])


@pytest.mark.row("T222")
@pytest.mark.parametrize("name", CASES)
def test_streamed_feature_is_equal_after_second_encoding(name: str) -> None:
    case = CASES[name]
    adapter = adapters.get(case.provider)
    plain = adapter.from_wire_response(case.body, CONTEXT)
    stream = first_stream(adapter, case)
    for _ in range(2):
        decoder, encoder = adapter.stream_decoder(CONTEXT), adapter.stream_encoder(CONTEXT)
        events = [*decoder.feed(stream), *decoder.finish()]
        stream = b"".join([*map(encoder.encode, events), encoder.finish()])
        streamed = decoder.message
        assert streamed.metadata.usage == plain.metadata.usage
        assert streamed.metadata.stop_reason is plain.metadata.stop_reason
        wire, _ = next_request(adapter, case, streamed)
        assert [part for part in case.parts if part not in parts_of(wire)] == []
        assert not encoder.losses


@pytest.mark.row("T222")
@pytest.mark.parametrize("target", PROVIDERS)
@pytest.mark.parametrize("name", CASES)
def test_other_providers_report_losses(name: str, target: str) -> None:
    case = CASES[name]
    if target == case.provider:
        pytest.skip("the provider itself")
    message = adapters.get(case.provider).from_wire_response(case.body, CONTEXT)
    other = adapters.get(target)
    wire = other.preview(conversation(case, message), [TOOL])
    named = [loss for loss in wire.losses if loss.message_id == message.id]
    assert len(named) >= case.lost
    served = other.encode_response(message, CONTEXT)
    for block in message.content:
        if isinstance(block, TextBlock):
            assert json.dumps(block.text)[1:-1] in wire.body.decode()
            assert json.dumps(block.text)[1:-1] in served.body.decode()
    for word in ("srvtoolu_1", "mcptoolu_1", "encrypted_content", "executableCode", "EI"):
        assert f'"{word}"' not in wire.body.decode()


@pytest.mark.row("T222")
def test_compaction_summary_is_text_at_other_providers() -> None:
    message = adapters.get("anthropic").from_wire_response(CASES["compaction"].body, CONTEXT)
    for target in PROVIDERS[1:]:
        wire = adapters.get(target).preview([message, user("More.")])
        assert "They agreed on blue." in wire.body.decode()
        assert [loss.change for loss in wire.losses if loss.block_type == "opaque"] == ["altered"]


@pytest.mark.row("T222")
@pytest.mark.parametrize("is_stream", [False, True])
def test_compactions_count_as_usage(*, is_stream: bool) -> None:
    iterations = [
        {"type": "compaction", "input_tokens": 1000, "output_tokens": 100},
        {"type": "message", "input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3},
    ]
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 3,
        "iterations": iterations,
    }
    adapter = adapters.get("anthropic")
    message = adapter.from_wire_response(claude([COMPACTION, TEXT], usage=usage), CONTEXT)
    if is_stream:
        encoder = adapter.stream_encoder(CONTEXT)
        events = [*events_of_message(message, "anthropic")]
        decoder = adapter.stream_decoder(CONTEXT)
        decoder.feed(b"".join([*map(encoder.encode, events), encoder.finish()]))
        decoder.finish()
        message = decoder.message
    counted = message.metadata.usage
    assert counted is not None
    assert (counted.input_tokens, counted.output_tokens) == (1010, 105)
    assert counted.cached_input_tokens == 3


@pytest.mark.row("T222")
def test_paused_response_is_sent_back_unchanged() -> None:
    adapter, case = adapters.get("anthropic"), CASES["open server call"]
    message = adapter.from_wire_response(case.body, CONTEXT)
    assert message.metadata.stop_reason is StopReason.PAUSE
    for model in ("claude-sonnet-4-5", "claude-sonnet-4-6"):  # the second accepts no prefill
        options = AdapterOptions(model=model, native={"anthropic": case.native})
        wire = adapter.preview([user("Go."), message], (), options)
        assert json.loads(wire.body)["messages"][-1]["content"] == [TEXT, SEARCH]
    # Another prompt ends the call, which would be refused without its result.
    wire = adapter.preview([user("Go."), message, user("Stop.")], (), options)
    assert "srvtoolu_2" not in wire.body.decode()


@pytest.mark.row("T222")
def test_document_context_and_title_are_preserved() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Words."}
    document = {
        "type": "document",
        "source": source,
        "title": "Report",
        "context": "From 2020.",
        "citations": {"enabled": True},
    }
    body = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [document, TEXT]}],
    }
    adapter = adapters.get("anthropic")
    request = adapter.from_wire_request(body, CONTEXT)
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body)["messages"][0]["content"][0] == document
    for target in PROVIDERS[1:]:
        options = AdapterOptions(native=request.options.native, origin="anthropic")
        other = adapters.get(target).preview(request.messages, (), options)
        text = other.body.decode()
        assert [word for word in ("Words.", "From 2020.", "Report") if word not in text] == []
        # Converse has a place for both; others get one text, which is another form.
        altered = [loss.path for loss in other.losses if loss.block_type == "document"]
        assert altered == ([] if target == "bedrock-converse" else ["$.content[0]"])


@pytest.mark.row("T222")
def test_converse_guarded_content_and_prompt_routers_are_preserved() -> None:
    guarded = {"guardContent": {"text": {"text": "Check this.", "qualifiers": ["query"]}}}
    body = {"messages": [{"role": "user", "content": [{"text": "Hi."}, guarded]}]}
    adapter = adapters.get("bedrock-converse")
    router = "arn:aws:bedrock:us-east-1:1:default-prompt-router/anthropic.claude:1"
    context = RequestContext(session_id="sess_features", path=f"/model/{router}/converse")
    request = adapter.from_wire_request(body, context)
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body)["messages"] == body["messages"]
    message = adapter.from_wire_response(CASES["citations of documents"].body, CONTEXT)
    again = json.loads(adapter.to_wire_response(message, CONTEXT))
    assert again["trace"]["promptRouter"]["invokedModelId"] == ROUTER
    other = adapters.get("anthropic").preview(request.messages)
    assert "Check this." in other.body.decode()
    assert [loss.path for loss in other.losses] == ["$.content[1].guardContent"]


@pytest.mark.row("T222")
@pytest.mark.parametrize(
    ("target", "lost"),
    [
        ("bedrock-converse", ["$.content"]),  # which needs a text beside it
        ("gemini", ["$.content[0].name", "$.content[0].context"]),
        ("openai-responses", ["$.content[0].context"]),
        ("openai", ["$.content[0].context"]),
    ],
)
def test_name_and_context_of_a_file_are_sent_or_lost_by_name(target: str, lost: list[str]) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}
    document = {"type": "document", "source": source, "title": "Report", "context": "From 2020."}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [document]}]}
    request = adapters.get("anthropic").from_wire_request(body, CONTEXT)
    other = adapters.get(target).preview(request.messages)
    assert [loss.path for loss in other.losses] == lost
    assert ("Report" in other.body.decode()) is ("$.content[0].name" not in lost)


@pytest.mark.row("T222")
def test_gemini_media_resolution_is_preserved() -> None:
    part = {
        "inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="},
        "mediaResolution": {"level": "MEDIA_RESOLUTION_HIGH"},
    }
    body: dict[str, Any] = {
        "contents": [{"role": "user", "parts": [{"text": "What?"}, part]}],
        "generationConfig": {"mediaResolution": "MEDIA_RESOLUTION_LOW"},
        "tools": [{"urlContext": {}}, {"codeExecution": {}}],
    }
    adapter = adapters.get("gemini")
    context = RequestContext(session_id="s", path="/v1beta/models/gemini-3-pro:generateContent")
    request = adapter.from_wire_request(body, context)
    wire = adapter.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body) == body
    other = adapters.get("anthropic").preview(
        request.messages, (), AdapterOptions(native=request.options.native, origin="gemini")
    )
    text = " ".join(loss.path + loss.reason for loss in other.losses)
    for word in ("mediaResolution", "urlContext", "codeExecution"):
        assert word in text
