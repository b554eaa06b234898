"""Gemini requests and responses in both directions."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import assistant, call, image, media, system, text, thinking, tool, tool_id, user
from corpus import body_of, exchanges, needs_corpus, needs_whole_corpus, requests, responses
from encoding import encode_request
from gemini_build import (
    ANSWER,
    BLOB,
    CALL,
    CALLED,
    CONTEXT,
    PROMPT_TURN,
    REQUESTS,
    RESULT,
    SIGNED,
    TEXT,
    answered,
    result,
    round_trip_body,
    sent,
    wire_turn,
)
from judges import complaints
from metis import adapters
from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageStatus,
    MetisError,
    OpaqueBlock,
    Role,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
    decode,
    encode,
    validate,
)
from metis.canonical.errors import (
    DecodeError,
    InvalidRequestError,
    ServerError,
)
from metis.projection import Change
from metis.streaming import MessageStart, ThinkingDelta
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.gemini.codec import CODEC
from metis.wire.gemini.fast import decode_request
from metis.wire.gemini.key_names import plain_base64, with_camel_keys
from metis.wire.gemini.request import parse_path
from metis.wire.gemini.response import decode_response, encode_response

CORPUS = "gemini"
PLACEHOLDER = "skip_thought_signature_validator"


@pytest.mark.row("T200", "K-109", "G-009", "G-013")
@pytest.mark.parametrize("name", REQUESTS)
def test_request_round_trip_keeps_every_key(name: str) -> None:
    assert round_trip_body(REQUESTS[name]) == REQUESTS[name]


# A broken history is repaired for the provider, even if a client of this protocol broke it.
BROKEN = {
    "an empty id",
    "a call without arguments",
    "a result without a call",
    "a result of another name",
}


@pytest.mark.parametrize("name", [name for name in REQUESTS if name not in BROKEN])
def test_request_to_its_own_provider_is_valid_and_has_no_loss(name: str) -> None:
    for host in ("gemini", "vertex"):
        adapter = adapters.get(host)
        request = adapter.from_wire_request(REQUESTS[name], CONTEXT)
        assert [validate(m) for m in request.messages if m.content] == [
            [] for m in request.messages if m.content
        ]
        wire = adapter.to_wire(request.messages, request.tools, request.options)
        assert wire.losses == []
        assert json.loads(wire.body) == REQUESTS[name]


@needs_corpus
@pytest.mark.row("M-008")
def test_recorded_requests_round_trip_for_their_host() -> None:
    for exchange in exchanges(CORPUS):
        adapter = adapters.get(exchange["provider"])
        request = adapter.from_wire_request(exchange["request"], CONTEXT)
        stored = [decode(encode(message)) for message in request.messages]
        wire = adapter.to_wire(stored, request.tools, request.options)
        assert json.loads(wire.body) == exchange["request"], exchange["id"]
        assert wire.losses == []
        model, is_stream = parse_path(exchange["url_path"])
        again = replace(request.options, model=model, stream=is_stream)
        path = adapter.to_wire(stored, (), again).path
        assert parse_path(path) == (model, is_stream)


def blocks_of(*parts: Any, role: str = "user") -> tuple[Any, ...]:
    request = decode_request(body_of(sent(wire_turn(*parts, role=role))), CONTEXT)
    return tuple(block for message in request.messages for block in message.content)


def test_parts_are_read_in_camel_and_snake_case() -> None:
    camel = blocks_of(BLOB, {"inlineData": {"mimeType": "audio/wav", "data": "AA=="}}, TEXT)
    snake = blocks_of(
        {"inline_data": {"mime_type": "image/png", "data": "-_8="}},
        {"inline_data": {"mime_type": "audio/wav", "data": "AA=="}},
        TEXT,
    )
    assert camel == snake
    first, second, third = camel
    assert isinstance(first, ImageBlock)
    assert first.source.data == "+/8="
    assert isinstance(second, AudioBlock)
    assert third == TextBlock("hi")


@pytest.mark.row("T92", "G-009", "G-010", "K-131")
def test_media_of_every_kind_and_source() -> None:
    def at(uri: str, kind: str) -> Any:
        return blocks_of({"fileData": {"fileUri": uri, "mimeType": kind}})[0]

    video = at("https://youtu.be/x", "video/mp4")
    assert isinstance(video, VideoBlock)
    assert video.source.kind == "url"
    own = at("https://generativelanguage.googleapis.com/v1beta/files/x", "application/pdf")
    assert isinstance(own, DocumentBlock)
    assert (own.source.kind, own.source.issuer) == ("file_id", "gemini")
    assert isinstance(at("gs://b/x.png", "image/png"), OpaqueBlock)
    (table,) = blocks_of({"inlineData": {"mimeType": "text/csv", "data": "YSxi"}})
    assert (table.source.kind, table.source.data) == ("text", "a,b")
    (broken,) = blocks_of({"inlineData": {"mimeType": "text/csv", "data": "_w"}})
    assert broken.source.kind == "base64"
    (made,) = blocks_of(BLOB, role="model")
    assert isinstance(made, ArtifactBlock)


@pytest.mark.row("T92")
def test_image_url_is_sent_only_to_host_that_fetches_it() -> None:
    picture = ImageBlock(ImageSource("url", "https://a.example/x.webp?y=1"), "image/*")
    wire = adapters.get("vertex").to_wire([user(picture)])
    assert json.loads(wire.body)["contents"][0]["parts"] == [
        {"fileData": {"fileUri": "https://a.example/x.webp?y=1", "mimeType": "image/webp"}}
    ]
    assert wire.losses == []
    (loss,) = adapters.get("gemini").to_wire([user(picture)]).losses
    assert loss.reason.startswith("image is not accepted by URL")


@pytest.mark.row("T10", "G-012")
def test_calls_without_ids_get_stable_ids_and_results_pair_by_name_and_order() -> None:
    other: Any = {"functionCall": {"name": "g", "args": {}}}
    answers = [
        {"functionResponse": {"name": name, "response": {"output": word}}}
        for name, word in (("g", "2"), ("f", "1"), ("f", "3"))
    ]
    body = body_of(
        sent(
            PROMPT_TURN,
            wire_turn(CALL, other, CALL, role="model"),
            wire_turn(*answers),
            PROMPT_TURN,
        )
    )
    one, two = (decode_request(body, CONTEXT).messages for _ in range(2))
    calls = [block.id for block in one[1].content if isinstance(block, ToolUseBlock)]
    assert len(set(calls)) == 3
    assert calls == [b.id for b in two[1].content if isinstance(b, ToolUseBlock)]
    assert [m.metadata.parent_tool_use_id for m in one[2:5]] == [calls[1], calls[0], calls[2]]


@pytest.mark.row("T09", "T10")
def test_result_answers_only_the_preceding_turn() -> None:
    body = sent(
        PROMPT_TURN,
        wire_turn(CALL, role="model"),
        PROMPT_TURN,
        wire_turn(CALL, role="model"),
        wire_turn(RESULT),
    )
    messages = decode_request(body_of(body), CONTEXT).messages
    ((first,), (second,)) = (calls_of(messages[1]), calls_of(messages[3]))
    assert first != second
    assert messages[4].metadata.parent_tool_use_id == second


TALK = [
    system("be brief", "and kind"),
    user("go", image()),
    assistant(
        thinking("hm", signature="s", issuer="anthropic"),
        call("f", tool_id(1), a=1),
        call("f", tool_id(2), a=2),
    ),
    tool("two", answers=tool_id(2)),
    tool("one", answers=tool_id(1)),
    user("and?"),
]


@pytest.mark.row("M-025", "T11", "T14", "T16", "T31", "T56", "T57", "K-094", "K-109", "G-014")
def test_conversation_of_other_providers_is_encoded_for_gemini() -> None:
    wire = adapters.get("gemini").to_wire(TALK)
    assert json.loads(wire.body) == {
        "systemInstruction": {"parts": [{"text": "be brief"}, {"text": "and kind"}]},
        "contents": [
            wire_turn({"text": "go"}, {"inlineData": {"mimeType": "image/png", "data": "aWY="}}),
            wire_turn(
                {
                    "functionCall": {"name": "f", "args": {"a": 1}},
                    "thoughtSignature": PLACEHOLDER,
                },
                {"functionCall": {"name": "f", "args": {"a": 2}}},
                role="model",
            ),
            wire_turn(result({"output": "one"}), result({"output": "two"})),
            wire_turn({"text": "and?"}),
        ],
    }
    assert [(loss.change, loss.block_type) for loss in wire.losses] == [
        (Change.DROPPED, "thinking"),
        (Change.SYNTHESISED, "thinking"),
    ]
    assert complaints("gemini", json.loads(wire.body)) == []


@pytest.mark.row("T56")
@pytest.mark.parametrize(
    ("model", "is_signed"),
    [
        ("gemini-3-pro-preview", True),
        ("gemini-4-argon", True),
        ("gemini-flash-latest", True),
        ("gemini-2.5-flash", False),
        ("gemini:gemini-2.0-flash", False),
        ("gemma-3-27b-it", False),
    ],
)
def test_placeholder_signature_is_sent_only_to_models_that_require_one(
    model: str,
    is_signed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    wire = adapters.get("gemini").to_wire(TALK, (), AdapterOptions(model=model))
    assert (PLACEHOLDER.encode() in wire.body) is is_signed


def read(answer: Any, host: str = "gemini") -> Message:
    return decode_response(answer, replace(CONTEXT, provider=host))


@pytest.mark.row("T60")
def test_signature_is_sent_only_to_its_issuer() -> None:
    answer = read(answered(SIGNED, CALL))
    history = [user("go"), answer, *(tool("ok", answers=each) for each in calls_of(answer))]
    at_home = json.loads(adapters.get("gemini").to_wire(history).body)
    assert at_home["contents"][1] == wire_turn(SIGNED, CALL, role="model")
    elsewhere = adapters.get("vertex").to_wire(history)
    first = json.loads(elsewhere.body)["contents"][1]["parts"][0]
    assert first["thoughtSignature"] == PLACEHOLDER
    assert elsewhere.losses[0].reason == "it was sealed by gemini"
    other = adapters.get("anthropic").to_wire(history)
    assert b"c2ln" not in other.body
    # The other host requires a definition for the call, if only a placeholder.
    assert [(loss.block_type, loss.path) for loss in other.losses] == [
        ("thinking", "$.content[0]"),
        ("option", "$.tools"),
    ]


def calls_of(message: Message) -> list[str]:
    return [block.id for block in message.content if isinstance(block, ToolUseBlock)]


@pytest.mark.row("T57")
def test_parallel_calls_keep_their_signature_pattern() -> None:
    parts: Any = (SIGNED, CALL, {"functionCall": {"name": "g", "args": {}}})
    answer = decode(encode(read(answered(*parts))))
    history = [user("go"), answer, *(tool("ok", answers=each) for each in calls_of(answer))]
    wire = adapters.get("gemini").to_wire(history)
    assert json.loads(wire.body)["contents"][1] == wire_turn(*parts, role="model")
    assert wire.losses == []


ANSWERS: dict[str, dict[str, Any]] = {
    "text": answered(TEXT),
    "signed": answered({"text": "x", "thoughtSignature": "MQ=="}, SIGNED, CALL),
    "thoughts": answered({"text": "t", "thought": True}, {"text": "", "thoughtSignature": "MQ=="}),
    "a picture": answered({**BLOB, "thoughtSignature": "MQ=="}),
    "ids": answered({"functionCall": {"name": "f", "args": {}, "id": "x"}}),
    "code": answered({"executableCode": {"language": "PYTHON", "code": "1"}}, TEXT),
    "two answers": {**ANSWER, "candidates": [*ANSWER["candidates"], {"index": 1, "content": {}}]},
    "blocked prompt": {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT", "safetyRatings": []},
        "usageMetadata": {"trafficType": "ON_DEMAND"},
        "modelVersion": "m",
    },
    "blocked answer": {
        **ANSWER,
        "candidates": [
            {
                "content": {},
                "finishReason": "SAFETY",
                "safetyRatings": [
                    {"category": "HARM_CATEGORY_HARASSMENT", "probability": "HIGH", "blocked": True}
                ],
            }
        ],
    },
    "no parts": {**ANSWER, "candidates": [{"content": {"role": "model"}, "finishReason": 2}]},
    "empty parts": answered(finish="MAX_TOKENS"),
    "snake case": {
        "candidates": [
            {
                "content": wire_turn({"function_call": {"name": "f", "args": {}}}, role="model"),
                "finish_reason": "STOP",
            }
        ],
        "usage_metadata": {"prompt_token_count": 3, "total_token_count": 3},
        "response_id": "r",
    },
    "unknown keys": {**answered({**TEXT, "mood": "calm"}, tone="dry"), "weather": [1]},
}


@pytest.mark.row("M-008", "T200", "G-048")
@pytest.mark.parametrize("name", ANSWERS)
def test_response_round_trip_keeps_every_key(name: str) -> None:
    message = decode(encode(read(ANSWERS[name])))
    assert json.loads(encode_response(message, CONTEXT)) == ANSWERS[name]
    assert validate(message) == []
    assert message.metadata.stop_reason is not None


@needs_whole_corpus
@pytest.mark.row("M-008", "T200", "G-048", "G-049", "G-051", "K-117")
def test_recorded_responses_round_trip_with_every_key() -> None:
    count = 0
    for exchange in responses(CORPUS):
        context = replace(
            CONTEXT, model=None, provider=exchange["provider"], status=exchange["status"]
        )
        if exchange["status"] >= 400:
            with pytest.raises(InvalidRequestError):
                decode_response(exchange["response"], context)
            continue
        count += 1
        message = decode(encode(decode_response(body_of(exchange["response"]), context)))
        assert validate(message) == []
        assert json.loads(encode_response(message, context)) == exchange["response"]
        assert message.metadata.stop_reason is not None
        total = exchange["response"]["usageMetadata"].get("totalTokenCount")
        usage = message.metadata.usage
        if total is not None and usage is not None:
            assert usage.prompt_tokens + usage.output_tokens == total, exchange["id"]
    assert count == 461


@needs_whole_corpus
@pytest.mark.row("T56")
def test_encoded_history_equals_parts_sent_by_real_clients() -> None:
    """Each signed part or call that a real client sent back is in what metis would send."""
    by_id = {exchange["id"]: exchange for exchange in exchanges(CORPUS)}
    count = 0
    for exchange in exchanges(CORPUS):
        if not exchange.get("echo_of"):
            continue
        before = by_id[exchange["echo_of"]]
        adapter = adapters.get(before["provider"])
        decoder = adapter.stream_decoder(CONTEXT)
        if before["sse"]:
            decoder.feed(before["sse"].encode())
            decoder.finish()
            answer = decoder.message
        else:
            answer = adapter.from_wire_response(before["response"], CONTEXT)
        ours = json.loads(adapter.to_wire([user("go"), decode(encode(answer))]).body)
        mine = [essence(part) for part in ours["contents"][1]["parts"]]
        signatures = {signature for signature, _ in mine if signature}
        for content in exchange["request"]["contents"]:
            for part in content["parts"]:
                if essence(part)[0] in signatures:
                    count += 1
                    assert essence(part) in mine, exchange["id"]
    assert count > 200


def essence(part: dict[str, Any]) -> tuple[str, Any]:
    """Return a part without what clients change: case of keys, base64 alphabet, their ids."""
    normal = with_camel_keys(part)
    signature = plain_base64(normal.get("thoughtSignature", ""))
    called = normal.get("functionCall")
    if called:
        return signature, (called["name"], json.dumps(called.get("args"), sort_keys=True))
    return signature, next((key for key in normal if key != "thoughtSignature"), None)


USAGES = [
    ({"promptTokenCount": 9, "totalTokenCount": 9}, (9, 0, 0, 0)),
    (
        {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 60,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 20,
            "toolUsePromptTokenCount": 7,
            "totalTokenCount": 132,
        },
        (47, 60, 25, 20),
    ),
    ({"promptTokenCount": 5, "cachedContentTokenCount": 9, "totalTokenCount": 5}, (0, 5, 0, 0)),
]


@pytest.mark.row("T142", "T145", "T146", "T153", "G-049", "G-050")
@pytest.mark.parametrize(("wire", "expected"), USAGES)
def test_usage_is_read_into_disjoint_buckets(
    wire: dict[str, int], expected: tuple[int, ...]
) -> None:
    usage = read(answered(TEXT, usage={**wire, "serviceTier": "flex"})).metadata.usage
    assert usage is not None
    assert expected == (
        usage.input_tokens,
        usage.cached_input_tokens,
        usage.output_tokens,
        usage.reasoning_output_tokens,
    )
    assert usage.service_tier == "flex"
    foreign = assistant("x", metadata=replace(assistant("x").metadata, usage=usage))
    again = json.loads(encode_response(foreign, CONTEXT))["usageMetadata"]
    total = usage.prompt_tokens + usage.output_tokens
    assert again["totalTokenCount"] == total
    assert again["promptTokenCount"] == usage.prompt_tokens


def test_unknown_usage_is_not_zero() -> None:
    assert read(ANSWERS["blocked prompt"]).metadata.usage is None


STOPS: list[tuple[Any, str, StopReason]] = [
    ("STOP", "gemini", StopReason.END_TURN),
    ("MAX_TOKENS", "gemini", StopReason.MAX_TOKENS),
    ("SAFETY", "gemini", StopReason.CONTENT_FILTER),
    ("SPII", "gemini", StopReason.CONTENT_FILTER),
    ("MODEL_ARMOR", "vertex", StopReason.CONTENT_FILTER),
    ("OTHER", "gemini", StopReason.UNKNOWN),
    ("NEW_WORD", "gemini", StopReason.UNKNOWN),
    (None, "gemini", StopReason.UNKNOWN),
    (1, "gemini", StopReason.END_TURN),
    (2, "vertex", StopReason.MAX_TOKENS),
    (9, "gemini", StopReason.CONTENT_FILTER),
    (9, "vertex", StopReason.ERROR),
    (99, "gemini", StopReason.UNKNOWN),
    ("UNEXPECTED_TOOL_CALL", "gemini", StopReason.ERROR),
]


@pytest.mark.row("T163", "G-051")
@pytest.mark.parametrize(("word", "host", "expected"), STOPS)
def test_finish_reasons_are_mapped(word: Any, host: str, expected: StopReason) -> None:
    assert read(answered(TEXT, finish=word), host).metadata.stop_reason is expected


@pytest.mark.row("T163", "G-051")
def test_response_with_calls_has_tool_use_stop_reason() -> None:
    assert read(answered(TEXT, CALL)).metadata.stop_reason is StopReason.TOOL_USE
    assert read(answered(CALL, finish="MAX_TOKENS")).metadata.stop_reason is StopReason.MAX_TOKENS


@pytest.mark.row("T161")
def test_malformed_function_call_is_an_error_and_never_runs() -> None:
    empty = {
        **ANSWER,
        "candidates": [
            {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "bad call: f(", "index": 0}
        ],
    }
    with pytest.raises(ServerError, match=r"bad call: f\(") as caught:
        read(empty)
    assert caught.value.is_retryable
    assert caught.value.kind == "MALFORMED_FUNCTION_CALL"
    message = read(answered(CALL, finish="UNEXPECTED_TOOL_CALL"))
    assert message.metadata.status is MessageStatus.ERROR
    assert message.metadata.stop_reason is StopReason.ERROR


def test_blocked_prompt_gives_refusal() -> None:
    message = read(ANSWERS["blocked prompt"])
    assert message.content == ()
    assert message.metadata.stop_reason is StopReason.CONTENT_FILTER
    assert message.metadata.status is MessageStatus.ERROR


@pytest.mark.row("T200")
def test_grounding_becomes_citations_of_the_text() -> None:
    grounding = {
        "groundingChunks": [
            {"web": {"uri": "https://a.example", "title": "A"}},
            {"retrievedContext": {"text": "x", "title": "B"}},
        ],
        "groundingSupports": [
            {
                "segment": {"startIndex": 6, "endIndex": 11, "text": "warm"},
                "groundingChunkIndices": [0, 1, 7],
            },
            {"segment": {"text": "not there"}, "groundingChunkIndices": [0]},
        ],
        "webSearchQueries": ["a", "b"],
    }
    wire = answered({"text": "Zoë: warm."}, groundingMetadata=grounding)
    message = read(wire)
    (block,) = message.content
    assert isinstance(block, TextBlock)
    first, second = block.citations
    assert (first.url, first.title, first.start, first.end) == ("https://a.example", "A", 5, 9)
    assert (second.url, second.title, second.cited_text) == (None, "B", "warm")
    assert message.metadata.usage is not None
    assert message.metadata.usage.server_tool_requests == {"web_search": 2}
    assert json.loads(encode_response(decode(encode(message)), CONTEXT)) == wire
    home = adapters.get("gemini").to_wire([user("?"), message, user("more")])
    assert home.losses == []
    assert json.loads(home.body)["contents"][1] == wire_turn({"text": "Zoë: warm."}, role="model")


@pytest.mark.row("G-015", "G-016")
def test_foreign_results_use_output_and_error_keys() -> None:
    def answer(*content: Any, model: str = "gemini-3.5-flash", **fields: Any) -> Any:
        made = ToolResultBlock(tool_id(), tuple(content), **fields)
        history = [user("go"), assistant(call("f")), replace(tool("x"), content=(made,))]
        wire = adapters.get("gemini").to_wire(history, (), AdapterOptions(model=model))
        return json.loads(wire.body)["contents"][2]["parts"][0]["functionResponse"], wire.losses

    assert answer(text("a"))[0] == {"name": "f", "response": {"output": "a"}}
    assert answer(text("a"), text("b"))[0]["response"] == {"output": ["a", "b"]}
    assert answer(text("a"), text("b"), is_error=True)[0]["response"] == {"error": "a\nb"}
    assert answer()[0]["response"] == {}
    shown = {"inlineData": {"mimeType": "image/png", "data": "aWY="}}
    assert answer(image())[0] == {"name": "f", "response": {}, "parts": [shown]}
    plain = DocumentBlock(media("text", "words"), "text/plain")
    assert answer(plain)[0]["response"] == {"output": "words"}
    older, losses = answer(image(), model="gemini-2.5-pro")
    assert "parts" not in older
    assert any(loss.block_type == "image" for loss in losses)


@pytest.mark.row("G-013", "G-016")
def test_error_and_object_results_are_decoded() -> None:
    def meaning(response: Any) -> tuple[Any, bool]:
        messages = decode_request(
            body_of(sent(PROMPT_TURN, CALLED, wire_turn(result(response)))), CONTEXT
        )
        block = messages.messages[2].content[0]
        assert isinstance(block, ToolResultBlock)
        return [inner.text for inner in block.content if isinstance(inner, TextBlock)], (
            block.is_error
        )

    assert meaning({"output": "x"}) == (["x"], False)
    assert meaning({"error": "no"}) == (["no"], True)
    assert meaning({"error": {"b": 1, "a": 2}}) == (['{"a":2,"b":1}'], True)
    assert meaning({"z": 1, "a": None}) == (['{"a":null,"z":1}'], False)
    assert meaning({}) == ([], False)


def test_changed_result_is_encoded_without_original_form() -> None:
    request = decode_request(
        body_of(sent(PROMPT_TURN, CALLED, wire_turn(result({"z": 1})))), CONTEXT
    )
    *before, answer = request.messages
    block = answer.content[0]
    assert isinstance(block, ToolResultBlock)
    changed = replace(answer, content=(replace(block, content=(text("other"),)),))
    body = json.loads(encode_request(CODEC, [*before, changed], (), request.options))
    assert body["contents"][2] == wire_turn(result({"output": "other"}))


def test_changed_part_is_encoded_without_original_form() -> None:
    request = decode_request(body_of(sent(wire_turn({**TEXT, "partMetadata": {"x": 1}}))), CONTEXT)
    changed = replace(request.messages[0], content=(text("other"),))
    body = json.loads(encode_request(CODEC, [changed], (), request.options))
    assert body["contents"] == [wire_turn({"text": "other"})]


def test_generated_images_are_sent_back_with_signature() -> None:
    part = {**BLOB, "thoughtSignature": "MQ=="}
    message = decode(encode(read(answered(part))))
    wire = adapters.get("gemini").to_wire([user("draw"), message, user("bluer")])
    assert json.loads(wire.body)["contents"][1] == wire_turn(part, role="model")
    assert wire.losses == []
    other = adapters.get("anthropic").to_wire([user("draw"), message, user("bluer")])
    assert [loss.block_type for loss in other.losses] == ["thinking", "artifact"]


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"", b"[]", b"null", b"{}", b"[1]"])
def test_body_that_is_not_a_response_is_a_typed_error(body: bytes) -> None:
    with pytest.raises(ServerError):
        decode_response(body, RequestContext(status=502))
    with pytest.raises(DecodeError):
        decode_response(body, CONTEXT)
    with pytest.raises(DecodeError):
        decode_request(body, CONTEXT)


FAULTS: list[tuple[Any, str]] = [
    ({"contents": 1}, "$.contents"),
    ({"contents": [1]}, "$.contents[0]"),
    ({"contents": [{"role": "narrator", "parts": []}]}, "$.contents[0].role"),
    ({"contents": [{"role": 1, "parts": []}]}, "$.contents[0].role"),
    ({"contents": [{"parts": "x"}]}, "$.contents[0].parts"),
    ({"contents": [], "systemInstruction": 1}, "$.systemInstruction"),
]


@pytest.mark.parametrize(("body", "path"), FAULTS)
def test_invalid_request_error_names_the_place(body: Any, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_request(body_of(body), CONTEXT)
    assert caught.value.path == path


def test_response_of_another_provider_is_encoded() -> None:
    message = assistant(thinking("hm", signature="s", issuer="gemini"), "x", call("f", a=1))
    wire = json.loads(encode_response(message, replace(CONTEXT, model="gemini:m")))
    assert wire["modelVersion"] == "m"
    (candidate,) = wire["candidates"]
    assert candidate["finishReason"] == "STOP"
    assert candidate["content"]["parts"] == [
        {"text": "hm", "thought": True, "thoughtSignature": "s"},
        {"text": "x"},
        {"functionCall": {"name": "f", "args": {"a": 1}, "id": tool_id().replace("tu_", "call_")}},
    ]
    again = read(wire)
    assert [block.type for block in again.content] == ["thinking", "text", "tool_use"]


def test_foreign_signatures_are_not_shown_to_client() -> None:
    message = assistant(thinking("hm", signature="secret", issuer="anthropic"), "x")
    body = adapters.get("gemini").encode_response(message, CONTEXT).body
    assert b"secret" not in body
    assert b"hm" in body
    encoder = adapters.get("gemini").stream_encoder(CONTEXT)
    encoder.encode(MessageStart("m", "anthropic:m"))
    assert b"secret" not in encoder.encode(ThinkingDelta("m", 0, "hm", "secret"))


@pytest.mark.row("G-017")
def test_foreign_cache_hints_are_omitted() -> None:
    marked = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [marked]}]}
    request = adapters.get("anthropic").from_wire_request(body, CONTEXT)
    wire = adapters.get("gemini").to_wire(request.messages, (), AdapterOptions())
    assert json.loads(wire.body) == sent(wire_turn({"text": "long"}))


def test_signature_of_removed_part_is_still_sent_back() -> None:
    lone = ThinkingBlock("", "MQ==", format="signature_on_next", issuer="gemini")
    body = json.loads(encode_request(CODEC, [user("x"), assistant(lone)], (), AdapterOptions()))
    assert body["contents"][1] == wire_turn({"text": "", "thoughtSignature": "MQ=="}, role="model")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        *("text", "thought", "thoughtSignature", "functionCall", "function_call", "name", "args"),
        *("functionResponse", "id", "response", "parts", "inlineData", "inline_data", "mimeType"),
        *("data", "fileData", "fileUri", "role", "executableCode", "output", "error", "result"),
        *("finishReason", "content", "candidates", "usageMetadata", "promptTokenCount"),
        *("partialArgs", "jsonPath", "stringValue", "willContinue", "groundingMetadata"),
    ]
)
WORDS = st.sampled_from(["user", "model", "image/png", "AA==", "-_==", "f", "STOP", "$.a[0].b"])
SHAPED = st.recursive(
    JSON | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner | WORDS, max_size=5),
    max_leaves=15,
)


@pytest.mark.row("T210")
@given(SHAPED)
def test_any_json_gives_a_value_or_a_typed_error(value: Any) -> None:
    for body in (
        value,
        {"contents": value, "tools": value, "generationConfig": value, "toolConfig": value},
        sent(
            wire_turn(value),
            wire_turn(value, value, role="model"),
            wire_turn({"functionResponse": value}),
        ),
    ):
        with contextlib.suppress(MetisError):
            decode_request(body_of(body), CONTEXT)
    for body in (value, {"candidates": value, "usageMetadata": value}, answered(value, TEXT)):
        with contextlib.suppress(MetisError):
            decode_response(body_of(body), CONTEXT)


@pytest.mark.row("M-008", "T210")
@given(st.lists(SHAPED, max_size=3), st.lists(SHAPED, max_size=3))
def test_any_parts_round_trip(prompt_parts: list[Any], answered: list[Any]) -> None:
    body = json.loads(
        body_of(
            sent(
                wire_turn(*prompt_parts),
                wire_turn(*answered, role="model"),
                wire_turn(*prompt_parts),
            )
        )
    )
    try:
        again = round_trip_body(body)
    except MetisError:
        return
    assert msgspec.json.encode(again, order="sorted") == msgspec.json.encode(body, order="sorted")


@needs_corpus
def test_validator_accepts_requests_of_real_clients() -> None:
    """The validator is not stricter than the provider, except for new keys."""
    refused = [
        complaint
        for _, body in requests(CORPUS)
        if isinstance(body.get("tools", []), list)
        and not {"modelArmorConfig", "imageConfig"} & {*body, *body.get("generationConfig", {})}
        for complaint in complaints("gemini", body)
    ]
    assert refused == []


@pytest.mark.parametrize("depth", [100, 450, 700, 2000])
def test_deep_nesting_gives_a_value_or_a_typed_error(depth: int) -> None:
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    answer = b'{"candidates":[{"content":{"parts":[%b]},"finishReason":"STOP"}]}' % deep
    for read_it, body in (
        (decode_request, b'{"contents":[{"role":"model","parts":[%b]}]}' % deep),
        (decode_request, b'{"contents":[],"tools":{"functionDeclarations":[%b]}}' % deep),
        (decode_response, answer),
    ):
        try:
            assert read_it(body, CONTEXT) is not None
        except DecodeError:
            assert depth > 100
    decoder = adapters.get("gemini").stream_decoder(CONTEXT)
    events = decoder.feed(b"data: %b\n\n" % answer) + decoder.finish()
    assert [event.type for event in events[-1:]] == [
        "message_complete" if depth == 100 else "error"
    ]


def test_roles_of_a_request() -> None:
    messages = decode_request(
        body_of(
            sent(PROMPT_TURN, CALLED, wire_turn(RESULT, TEXT), systemInstruction={"parts": [TEXT]})
        ),
        CONTEXT,
    ).messages
    assert [m.role for m in messages] == [
        Role.SYSTEM,
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.USER,
    ]
