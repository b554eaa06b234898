"""Recordings of exchanges, and the laws that `metis verify` checks on them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from corpus import CORPUS, needs_corpus
from metis import adapters
from metis.canonical import Message, TextBlock
from metis.canonical.errors import DecodeError, MetisError
from metis.verify.json_differences import differences
from metis.verify.laws import SERVING_LAWS, Law, check_laws
from metis.verify.recordings import Recording, adapter_of, read_recording
from strategies import json_objects

PAGE = Path(__file__).parent.parent.parent / "docs" / "recordings.md"
OLLAMA = adapters.get("ollama")
REQUEST_BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "hi"}
ANSWERED: dict[str, Any] = {"model": "m", "message": ASSISTANT, "done": True, "done_reason": "stop"}
STREAM = (
    '{"model":"m","created_at":"x","message":{"role":"assistant","content":"h\u00e9"},"done":false}\n'
    '{"model":"m","created_at":"x","message":{"role":"assistant","content":"y"},"done":false}\n'
    '{"model":"m","created_at":"x","message":{"role":"assistant","content":""},"done":true}\n'
)


def recorded(**fields: Any) -> Recording:
    return read_recording(
        json.dumps({"protocol": "ollama", "request": REQUEST_BODY, **fields}).encode()
    )


def test_every_field_is_described() -> None:
    described = PAGE.read_text().partition("## The fields")[2].partition("\n## ")[0]
    assert [
        field.name for field in fields(Recording) if f"| `{field.name}` |" not in described
    ] == []


def test_every_law_is_described() -> None:
    described = PAGE.read_text().partition("## The laws")[2]
    assert [law for law in Law if f"| {law} |" not in described] == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "$: not JSON"),
        (b"[]", "$: expected object, got array"),
        (b'{"status":"x"}', "$.status: expected integer or null, got string"),
        (b'{"id":"x"}', "$: the recording has neither a request nor a response"),
        (b'{"raw_b64":"?"}', "$.raw_b64: not base64"),
        (b'{"request":[]}', "$.request: expected object or null, got array"),
    ],
)
def test_invalid_recording_error_names_the_path(line: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read_recording(line)
    assert str(caught.value).startswith(reason)


@given(st.one_of(st.binary(), json_objects().map(lambda value: json.dumps(value).encode())))
def test_any_line_is_a_recording_or_a_typed_error(line: bytes) -> None:
    try:
        recording = read_recording(line)
    except MetisError:
        return
    adapter = adapter_of(recording, "ollama")
    if adapter is not None:
        check_laws(recording, adapter)


@pytest.mark.parametrize(
    ("protocol", "provider", "otherwise", "name"),
    [
        ("anthropic_messages", None, None, "anthropic"),
        ("openai_chat", "groq", None, "groq"),
        ("openai_chat", "nobody", None, "openai"),
        ("openai_chat", "ollama-openai", None, "ollama-openai"),
        ("ollama", "anthropic", "openai", "ollama"),
        (None, "anthropic", None, "anthropic"),
        (None, "anthropic", "ollama", "ollama"),
        (None, None, None, None),
        ("telepathy", "openai", "openai", None),
    ],
)
def test_the_adapter_is_that_of_the_protocol(
    protocol: str | None, provider: str | None, otherwise: str | None, name: str | None
) -> None:
    adapter = adapter_of(Recording(protocol=protocol, provider=provider), otherwise)
    assert (None if adapter is None else adapter.name) == name


def faults(recording: Recording, answers: dict[str, Message] | None = None) -> dict[Law, Any]:
    return {each.law: each.faults for each in check_laws(recording, OLLAMA, answers).verdicts}


def test_valid_exchange_obeys_every_law() -> None:
    assert faults(recorded(response=ANSWERED)) == {
        Law.PARSE: (),
        Law.REQUEST: (),
        Law.EDITS: (),
        Law.STABLE: (),
        Law.LIMITS: (),
        Law.RESPONSE: (),
        Law.SERVED: (),
    }
    assert faults(recorded(sse=STREAM)) == {
        Law.PARSE: (),
        Law.REQUEST: (),
        Law.EDITS: (),
        Law.STABLE: (),
        Law.LIMITS: (),
        Law.STREAM: (),
        Law.WRITTEN: (),
        Law.SERVED: (),
    }


def test_undecodable_exchange_breaks_the_first_law() -> None:
    broken = recorded(request={"messages": [{"role": "x"}]}, response={"x": 1})
    assert faults(broken) == {
        Law.PARSE: (
            "the request: $.messages[0].role: unknown role 'x'",
            "the response: $.message: a response needs a `message` or a `response`",
        )
    }


def test_recorded_error_breaks_no_law() -> None:
    findings = check_laws(recorded(status=404, response={"error": "not found"}), OLLAMA)
    assert findings.notes == ["answered with an error: ollama (404): not found"]
    assert {verdict.law for verdict in findings.verdicts} - SERVING_LAWS == {
        Law.PARSE,
        Law.REQUEST,
    }
    cut_off = check_laws(recorded(sse=STREAM[:200]), OLLAMA)
    assert cut_off.notes[0].startswith("the stream ended with an error")
    assert {verdict.faults for verdict in cut_off.verdicts} == {()}
    page = check_laws(recorded(status=502, response_text="<h1>Bad gateway</h1>"), OLLAMA)
    assert "Bad gateway" in page.notes[0]


def test_echoed_message_equals_response() -> None:
    answer = check_laws(recorded(response=ANSWERED), OLLAMA).response
    assert answer is not None
    back = [*REQUEST_BODY["messages"], ASSISTANT, {"role": "user", "content": "on"}]
    echo = recorded(request={**REQUEST_BODY, "messages": back}, echo_of="1", echo="verbatim")
    assert faults(echo, {"1": answer})[Law.ECHO] == ()
    other = OLLAMA.from_wire_response({**ANSWERED, "message": {**ASSISTANT, "content": "no"}})
    assert faults(echo, {"1": other})[Law.ECHO] != ()
    assert Law.ECHO not in faults(echo)
    assert Law.ECHO not in faults(replace(echo, echo="full"), {"1": answer})


def test_echo_law_ignores_content_without_request_form() -> None:
    """The search sources of a response have no place in a request."""
    gemini = adapters.get("gemini")
    segment = {"endIndex": 2, "text": "hi"}
    chunk = {"web": {"uri": "https://example.org", "title": "example"}}
    grounding = {
        "groundingChunks": [chunk],
        "groundingSupports": [{"groundingChunkIndices": [0], "segment": segment}],
    }
    answer_content = {"role": "model", "parts": [{"text": "hi"}]}
    response = {"candidates": [{"content": answer_content, "groundingMetadata": grounding}]}
    answer = gemini.from_wire_response(response)
    assert isinstance(answer.content[0], TextBlock)
    assert answer.content[0].citations
    prompt = {"role": "user", "parts": [{"text": "go"}]}
    for back, holds in (
        (answer_content, True),
        ({**answer_content, "parts": [{"text": "ho"}]}, False),
    ):
        request = {"contents": [prompt, back, prompt]}
        echo = recorded(protocol="gemini", request=request, echo_of="1", echo="verbatim")
        verdicts = check_laws(echo, gemini, {"1": answer}).verdicts
        assert [v.faults == () for v in verdicts if v.law is Law.ECHO] == [holds]


def test_handwritten_echo_may_match_no_response() -> None:
    page = recorded(response_text="method=POST", recorded="hand_made")
    findings = check_laws(page, OLLAMA)
    assert findings.notes[0].startswith("written by hand, and refused: $: not JSON")
    assert {verdict.faults for verdict in findings.verdicts} == {()}
    assert faults(replace(page, recorded="yes"))[Law.PARSE] != ()


class Forgetful(adapters.Adapter):
    """An adapter that breaks the laws: it drops keys and responses."""

    def from_wire_request(self, body: Any, context: Any = None) -> Any:
        request = super().from_wire_request(body, context)
        return replace(request, options=replace(request.options, native={}, model="other"))

    def from_wire_response(self, body: Any, context: Any = None) -> Message:
        return replace(super().from_wire_response(body, context), content=())


def test_broken_adapter_is_detected() -> None:
    forgetful = Forgetful(OLLAMA.profile)
    verdicts = check_laws(recorded(response=ANSWERED), forgetful).verdicts
    assert {each.law: each.faults for each in verdicts if each.law not in SERVING_LAWS} == {
        Law.PARSE: (),
        Law.REQUEST: ('$.model: was string "m", is string "other"', "$.stream: is new"),
        Law.RESPONSE: ('$.message.content: was string "hi", is string ""',),
    }
    verdicts = check_laws(recorded(sse=STREAM), forgetful).verdicts
    (stream,) = (each for each in verdicts if each.law is Law.STREAM)
    assert stream.faults == ("the plain response has another content",)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, []),
        (1, True, ["$: was integer 1, is boolean true"]),
        (1, 1.0, ["$: was integer 1, is number 1.0"]),
        ({"a": 1}, {"b": 1}, ["$.a: is missing", "$.b: is new"]),
        ([1, 2], [1], ["$: was array of 2 items, is array of 1 item"]),
        ({"x y": ["a"]}, {"x y": ["b"]}, ['$["x y"][0]: was string "a", is string "b"']),
    ],
)
def test_differences_have_paths(before: Any, after: Any, expected: list[str]) -> None:
    assert list(differences(before, after)) == expected


@needs_corpus
@pytest.mark.row("M-008", "M-010")
@pytest.mark.parametrize(
    "name", [pytest.param("anthropic_messages", marks=pytest.mark.slow), "ollama"]
)
def test_every_recorded_exchange_obeys_every_law(name: str) -> None:
    answers: dict[str, Message] = {}
    laws: set[Law] = set()
    for line in (CORPUS / f"{name}.jsonl").read_bytes().splitlines():
        recording = read_recording(line)
        adapter = adapter_of(recording)
        assert adapter is not None
        findings = check_laws(recording, adapter, answers)
        if findings.response is not None:
            answers[recording.id] = findings.response
        read = [each for each in findings.verdicts if each.law not in SERVING_LAWS]
        assert [each for each in read if each.faults] == [], recording.id
        laws |= {each.law for each in findings.verdicts}
    rare = {Law.ECHO, Law.BROKEN_CALLS, Law.ERRORS, Law.SEALS}
    unseen = rare if name == "ollama" else set[Law]()
    assert laws == set(Law) - unseen
