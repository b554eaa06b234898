"""The incremental request reader gives what full decoding gives, for every turn."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corpus import body_of, needs_corpus
from corpus import requests as recorded_requests
from exchange import handwritten
from metis import adapters
from metis.adapters import Adapter, CanonicalRequest, RequestContext
from metis.adapters import history as history_module
from metis.adapters import request_reader as module
from metis.adapters.codecs import PROTOCOLS
from metis.adapters.request_reader import RequestReader
from metis.canonical import Message, Role, TextBlock, encode
from metis.canonical.errors import MetisError
from metis.canonical.ids import new_ulid
from metis.projection import Projection, Target
from metis.verify.recordings import adapter_for
from metis.wire.request import RequestSteps

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT = RequestContext(session_id="sess_reader", model="m", created_at=NOW)
ADAPTERS = {name: adapter_for(name) or "" for name in PROTOCOLS}
CORPUS_NAMES = {"anthropic": "anthropic_messages"}
ROLES = ("user", "assistant")
LISTS = ("messages", "contents", "input")


def facts(request: CanonicalRequest) -> tuple[Any, ...]:
    """Return a request without the ids and times of its messages."""
    messages = [encode(replace(m, id="m", created_at=NOW)) for m in request.messages]
    return messages, request.tools, request.options


def plain(adapter: Adapter, body: bytes) -> tuple[Any, ...] | str:
    try:
        return facts(adapter.from_wire_request(body, CONTEXT))
    except MetisError as error:
        return f"{type(error).__name__}: {error}"


def read(reader: RequestReader, adapter: Adapter, body: bytes, tenant: str = "t") -> Any:
    try:
        return facts(reader.read(adapter, tenant, body, CONTEXT))
    except MetisError as error:
        return f"{type(error).__name__}: {error}"


def turns(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the earlier requests of a conversation, and the request itself."""
    key = next((key for key in LISTS if isinstance(body.get(key), list)), None)
    if key is None:
        yield dict(body)
        return
    for count in range(1, len(body[key]) + 1):
        yield {**body, key: body[key][:count]}


def check_turns(adapter: Adapter, body: Mapping[str, Any]) -> None:
    reader = RequestReader()
    for turn in turns(body):
        data = body_of(turn)
        assert read(reader, adapter, data) == plain(adapter, data)
        assert read(reader, adapter, data) == plain(adapter, data)


@pytest.mark.parametrize("protocol", ADAPTERS)
def test_turns_of_handwritten_requests_equal_full_decoding(protocol: str) -> None:
    adapter = adapters.get(ADAPTERS[protocol])
    for exchange in handwritten(protocol).values():
        if isinstance(exchange.request, dict):
            check_turns(adapter, exchange.request)


@needs_corpus
@pytest.mark.slow
@pytest.mark.parametrize("protocol", ADAPTERS)
def test_turns_of_recorded_requests_equal_full_decoding(protocol: str) -> None:
    adapter = adapters.get(ADAPTERS[protocol])
    for body in recorded_bodies(protocol):
        check_turns(adapter, body)


@needs_corpus
@pytest.mark.parametrize("protocol", ADAPTERS)
def test_longest_recorded_requests_equal_full_decoding(protocol: str) -> None:
    adapter = adapters.get(ADAPTERS[protocol])
    bodies = sorted(recorded_bodies(protocol), key=lambda body: len(body_of(body)))
    for body in bodies[-3:]:
        check_turns(adapter, body)


def recorded_bodies(protocol: str) -> Iterator[dict[str, Any]]:
    for _, body in recorded_requests(CORPUS_NAMES.get(protocol, protocol)):
        if isinstance(body, dict):
            yield cast("dict[str, Any]", body)


# Conversations of every protocol, with the same tool called several times

TURNS = 6


def conversation(protocol: str) -> dict[str, Any]:
    """Return a request with many turns, whose calls have repeated ids, or none."""
    items: list[Any] = []
    for number in range(TURNS):
        items += getattr(Wire, protocol)(number)
    match protocol:
        case "gemini":
            return {"systemInstruction": {"parts": [{"text": "Help."}]}, "contents": items}
        case "openai_responses":
            return {"model": "m", "instructions": "Help.", "input": items, "tools": []}
        case "bedrock_converse":
            return {"system": [{"text": "Help."}], "messages": items}
        case "anthropic":
            return {"model": "m", "max_tokens": 9, "messages": items, "system": "Help."}
        case _:
            return {"model": "m", "messages": [{"role": "system", "content": "Help."}, *items]}


class Wire:
    """One turn of each protocol."""

    @staticmethod
    def anthropic(n: int) -> list[Any]:
        use = {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"n": n}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": f"{n}"}
        return [
            {"role": "user", "content": f"turn {n}"},
            {"role": "assistant", "content": [{"type": "text", "text": "look"}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "and"}]},
            {"role": "assistant", "content": "done"},
        ]

    @staticmethod
    def openai_chat(n: int) -> list[Any]:
        call = {"name": "ls", "arguments": json.dumps({"n": n})}
        return [
            {"role": "user", "content": f"turn {n}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": f"{n}"},
            {"role": "assistant", "content": "done"},
        ]

    @staticmethod
    def openai_responses(n: int) -> list[Any]:
        return [
            {"role": "user", "content": f"turn {n}"},
            {"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "call_1", "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": f"{n}"},
            {"role": "assistant", "content": "done"},
        ]

    @staticmethod
    def gemini(n: int) -> list[Any]:
        return [
            {"role": "user", "parts": [{"text": f"turn {n}"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {"n": n}}}]},
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "ls", "response": {"result": n}}}],
            },
            {"role": "model", "parts": [{"text": "done"}]},
        ]

    @staticmethod
    def ollama(n: int) -> list[Any]:
        call = {"function": {"name": "ls", "arguments": {"n": n}}}
        return [
            {"role": "user", "content": f"turn {n}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_name": "ls", "content": f"{n}"},
            {"role": "assistant", "content": "done"},
        ]

    @staticmethod
    def bedrock_converse(n: int) -> list[Any]:
        result = {"toolUseId": "t1", "content": [{"text": f"{n}"}]}
        return [
            {"role": "user", "content": [{"text": f"turn {n}"}]},
            {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "t1", "name": "ls", "input": {"n": n}}}],
            },
            {"role": "user", "content": [{"toolResult": result}]},
            {"role": "assistant", "content": [{"text": "done"}]},
        ]


def list_key(body: Mapping[str, Any]) -> str:
    return next(key for key in LISTS if key in body)


def count_added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the wire messages that are decoded from now on."""
    added: list[int] = []

    class Counting(dict[str, Any]):
        def __getitem__(self, protocol: str) -> Any:
            codec = CODECS[protocol]

            def counted(steps: RequestSteps) -> RequestSteps:
                def add(draft: Any, data: bytes, index: int) -> None:
                    added.append(index)
                    steps.add(draft, data, index)

                return replace(steps, add=add)

            return replace(codec, request_steps=tuple(map(counted, codec.request_steps)))

    CODECS = module.CODECS  # noqa: N806 - the name in the module
    monkeypatch.setattr(module, "CODECS", Counting())
    return added


@pytest.mark.parametrize("protocol", ADAPTERS)
def test_next_turn_decodes_only_new_messages(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = adapters.get(ADAPTERS[protocol])
    body = conversation(protocol)
    key = list_key(body)
    reader = RequestReader()
    # Up to a result, so that a response and a prompt are new.
    count = len(body[key]) - 2
    added = count_added(monkeypatch)
    before = reader.read(adapter, "t", body_of({**body, key: body[key][:count]}), CONTEXT)
    added.clear()
    after = reader.read(adapter, "t", body_of(body), CONTEXT)
    assert len(added) <= 5
    assert min(added) >= count - 3
    shared = sum(a is b for a, b in zip(before.messages, after.messages, strict=False))
    assert shared >= len(before.messages) - 3
    # The same bytes are not decoded at all.
    added.clear()
    again = reader.read(adapter, "t", body_of(body), CONTEXT)
    assert all(a is b for a, b in zip(after.messages, again.messages, strict=True))
    assert added == []


def test_path_model_and_headers_are_read_per_request() -> None:
    contexts = [
        CONTEXT,
        replace(CONTEXT, headers={"anthropic-beta": "context-1m-2025-08-07"}),
        replace(CONTEXT, model="other"),
        replace(CONTEXT, path="/v1beta/models/gemini-2.5-pro:streamGenerateContent"),
    ]
    for protocol in ("anthropic", "gemini"):
        adapter, reader = adapters.get(ADAPTERS[protocol]), RequestReader()
        body = body_of(conversation(protocol))
        for context in (*contexts, *contexts):
            request = reader.read(adapter, "t", body, context)
            assert facts(request) == facts(adapter.from_wire_request(body, context))


@pytest.mark.parametrize("protocol", ADAPTERS)
def test_tenants_do_not_share_decoded_messages(protocol: str) -> None:
    adapter = adapters.get(ADAPTERS[protocol])
    data = body_of(conversation(protocol))
    reader = RequestReader()
    one = reader.read(adapter, "one", data, CONTEXT)
    two = reader.read(adapter, "two", data, CONTEXT)
    assert not {id(message) for message in one.messages} & {id(m) for m in two.messages}


def variants(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Return the conversation in other bytes, and others with a common prefix."""
    key = list_key(body)
    items: Sequence[Any] = body[key]
    yield body_of(body)
    yield json.dumps(body, indent=2).encode()
    yield json.dumps(body, separators=(",", ":")).encode()
    yield body_of({key: items, **body})
    yield body_of({**{k: v for k, v in body.items() if k != key}, key: items})
    yield body_of({**body, key: items[:-3]})
    yield body_of({**body, key: [*items[:-1], items[0]]})
    yield body_of({**body, key: [*items[:4], *items[5:]]})
    yield body_of({**body, "temperature": 0.5})
    yield body_of({**body, key: []})
    for name in ("system", "systemInstruction", "instructions"):
        if name in body:
            yield body_of({**body, name: None})
            other = json.loads(json.dumps(body[name]).replace("Help.", "Do not."))
            yield body_of({**body, name: other})
    text = body_of(body)
    # A second list under the same key: the last one counts.
    second = b', "%s": %s}' % (key.encode(), json.dumps(items[:2]).encode())
    yield text[:-1] + second
    yield text[:-1] + second.replace(key[:1].encode(), b"\\u%04x" % ord(key[0]), 1)
    yield b"{" + second[2:-1] + b", " + text[1:]
    # Duplicate keys within a message, and in the last one.
    yield text.replace(b'{"role":', b'{"role": "nobody", "role":', 1)
    at = text.rindex(b'{"role":')
    yield text[:at] + text[at:].replace(b'{"role":', b'{"role": "nobody", "role":', 1)
    # Broken, and cut off.
    yield text[:-1]
    yield text[: len(text) // 2]
    yield text.replace(b"done", b"do\xffne")
    yield text + b"]"
    # The list once more as the value of another key.
    yield b'{"metadata": {"x": %s}, ' % json.dumps(items).encode() + text[1:]


@pytest.mark.parametrize("protocol", ADAPTERS)
def test_variants_in_any_order_equal_full_decoding(protocol: str) -> None:
    adapter = adapters.get(ADAPTERS[protocol])
    body = conversation(protocol)
    bodies = list(variants(body))
    expected = [plain(adapter, data) for data in bodies]
    for order in (range(len(bodies)), range(len(bodies) - 1, -1, -1)):
        reader = RequestReader()
        read(reader, adapter, bodies[0])
        for number in order:
            assert read(reader, adapter, bodies[number]) == expected[number], bodies[number][:200]


@given(data=st.data())
@pytest.mark.parametrize("protocol", ADAPTERS)
def test_changed_bytes_equal_full_decoding(protocol: str, data: st.DataObject) -> None:
    adapter = adapters.get(ADAPTERS[protocol])
    text = body_of(conversation(protocol))
    reader = RequestReader()
    read(reader, adapter, text)
    for _ in range(3):
        at = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(st.sampled_from([b"", b" ", b'"', b",", b"}", b"]", b"0", b"\\u0061"]))
        width = data.draw(st.integers(0, 3))
        text = text[:at] + piece + text[at + width :]
        assert read(reader, adapter, text) == plain(adapter, text)


def test_white_space_between_messages_is_skipped_at_once() -> None:
    adapter, reader = adapters.get("anthropic"), RequestReader()
    body = conversation("anthropic")
    data = body_of(body).replace(b'}, {"role"', b"}," + b" " * 500_000 + b'{"role"', 3)
    assert read(reader, adapter, data) == plain(adapter, data)
    longer = {**body, "messages": [*body["messages"], *Wire.anthropic(9)]}
    data = body_of(longer).replace(b'}, {"role"', b"}," + b" " * 500_000 + b'{"role"', 3)
    assert read(reader, adapter, data) == plain(adapter, data)


def test_cache_is_bounded_and_evicted_requests_are_decoded_again() -> None:
    adapter = adapters.get("anthropic")
    reader = RequestReader(max_bytes=100_000)
    bodies: list[bytes] = []
    for number in range(40):
        body = conversation("anthropic")
        body["messages"][0] = {"role": "user", "content": f"{number} " * 200}
        bodies.append(body_of(body))
    for data in bodies:
        assert read(reader, adapter, data) == plain(adapter, data)
        assert reader.size_bytes <= 100_000
    for data in bodies:
        assert read(reader, adapter, data) == plain(adapter, data)


@pytest.mark.parametrize("protocol", ADAPTERS)
def test_work_per_turn_does_not_grow_with_conversation(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = adapters.get(ADAPTERS[protocol])
    body = conversation(protocol)
    key = list_key(body)
    turn = body[key][-5:] if protocol == "openai_responses" else body[key][-4:]
    reader = RequestReader()
    added = count_added(monkeypatch)
    read(reader, adapter, body_of(body))
    for _ in range(60):
        body = {**body, key: [*body[key], *turn]}
        added.clear()
        reader.read(adapter, "t", body_of(body), CONTEXT)
        assert len(added) <= len(turn) + 4
    assert read(reader, adapter, body_of(body)) == plain(adapter, body_of(body))


def marked(messages: Sequence[Any]) -> list[Any]:
    """Return messages as Claude Code sends them: only the last two prompts have cache marks."""
    copy = json.loads(json.dumps(messages))
    for message in [each for each in copy if each["role"] == "user"][-2:]:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        message["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return copy


@pytest.mark.parametrize("target", [ADAPTERS[name] for name in PROTOCOLS])
def test_moved_cache_marks_give_same_request_as_full_decoding(target: str) -> None:
    client, reader = adapters.get("anthropic"), RequestReader()
    provider = Adapter(adapters.get(target).profile)
    body = conversation("anthropic")
    for number in range(TURNS, 4 * TURNS):
        items = Wire.anthropic(number)
        # Repeated ids would exclude every request from the fast path of the projection.
        text = json.dumps(items).replace("toolu_1", f"toolu_{number}")
        body["messages"] += json.loads(text)
    messages = [m for m in body["messages"] if "toolu_1" not in json.dumps(m)]
    for count in range(len(messages) % 2 + 1, len(messages) + 1, 2):
        data = body_of({**body, "messages": marked(messages[:count])})
        request = reader.read(client, "t", data, CONTEXT)
        options = replace(request.options, model=None)
        sent = provider.preview(request.messages, request.tools, options)
        fresh = Adapter(provider.profile).preview(request.messages, request.tools, options)
        assert sent.body == fresh.body
        assert sent.losses == fresh.losses


@pytest.mark.parametrize("target", ["openai", "anthropic"])
@pytest.mark.parametrize("system", [None, [{"type": "text", "text": "Be brief."}]])
def test_moved_cache_marks_do_not_repeat_projection(
    monkeypatch: pytest.MonkeyPatch, target: str, system: list[dict[str, Any]] | None
) -> None:
    counts: list[int] = []
    encoded = history_module.project

    def project(messages: Sequence[Message], target: Target) -> Projection:
        counts.append(len(messages))
        return encoded(messages, target)

    monkeypatch.setattr(history_module, "project", project)
    client, reader = adapters.get("anthropic"), RequestReader()
    provider = Adapter(adapters.get(target).profile)
    messages = [{"role": role, "content": f"{n} {role}"} for n in range(60) for role in ROLES]
    body: dict[str, Any] = {"model": "m", "max_tokens": 9}
    if system is not None:
        body["system"] = [{**system[0], "cache_control": {"type": "ephemeral"}}]
    for count in range(41, len(messages), 2):
        data = body_of({**body, "messages": marked(messages[:count])})
        request = reader.read(client, "t", data, CONTEXT)
        provider.preview(request.messages, request.tools)
    # The first request is projected whole, the second up to its stable prefix, later ones never.
    assert len(counts) == 2


def test_own_messages_after_client_history_get_cache_marks_with_it() -> None:
    client, reader = adapters.get("anthropic"), RequestReader()
    provider = Adapter(adapters.get("anthropic").profile)
    messages = [{"role": role, "content": f"{n} {role}"} for n in range(30) for role in ROLES]
    requests = list[CanonicalRequest]()
    for count in (41, 43, 45):
        data = body_of({"model": "m", "max_tokens": 9, "messages": marked(messages[:count])})
        requests.append(reader.read(client, "t", data, CONTEXT))
        provider.preview(requests[-1].messages)
    # A session of `metis` continues a client's conversation; its messages may get cache marks.
    more = [
        Message(
            id=new_ulid(),
            session_id=CONTEXT.session_id,
            role=role,
            content=(TextBlock(f"{n} more"),),
            created_at=NOW,
        )
        for n in range(15)
        for role in (Role.ASSISTANT, Role.USER)
    ]
    for count in range(2, len(more) + 1, 2):
        history = [*requests[-1].messages, *more[:count]]
        sent = provider.preview(history)
        fresh = Adapter(provider.profile).preview(history)
        assert sent.body == fresh.body
        assert sent.losses == fresh.losses


def test_shared_prompt_of_many_conversations_is_compared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, reader = adapters.get("anthropic"), RequestReader()

    def body(prompt: int, conversation: int) -> bytes:
        start = {"model": "m", "max_tokens": 9, "system": f"You are agent {prompt}."}
        texts = {"user": f"conversation {conversation}", "assistant": "yes"}
        messages = [{"role": role, "content": text} for role, text in texts.items()]
        return body_of({**start, "messages": messages})

    for prompt in range(20):
        for conversation in range(10):
            reader.read(client, "t", body(prompt, conversation), CONTEXT)
    compared: list[int] = []
    matched = module._History.matched  # pyright: ignore[reportPrivateUsage] - its work is counted

    def count(self: Any, data: bytes) -> tuple[int, int]:
        compared.append(len(data))
        return matched(self, data)

    monkeypatch.setattr(module._History, "matched", count)  # pyright: ignore[reportPrivateUsage]
    reader.read(client, "t", body(3, 11), CONTEXT)
    assert len(compared) == 10
