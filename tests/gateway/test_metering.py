"""Usage, cost and budgets: every path is metered, streams like plain responses."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.served import Served, Upstream, serve, stream
from metis.gateway.config import ClientKey, GatewayConfig, KeyBudget, Prices, read_config
from metis.store.store import open_store

pytestmark = pytest.mark.anyio

USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 200,
    "total_tokens": 1200,
    "prompt_tokens_details": {"cached_tokens": 600},
    "completion_tokens_details": {"reasoning_tokens": 150},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def decode(body: bytes) -> Any:
    return msgspec.json.decode(body)


async def record_of(gateway: Served, headers: dict[str, str], **sent: str) -> Any:
    place = f"/metis/requests/{headers['x-metis-request-id']}"
    return decode((await gateway.get(place, **sent))[2])


def chat_reply(usage: Any, *, streamed: bool, usage_with_choices: bool = False) -> list[bytes]:
    base: dict[str, Any] = {"id": "c1", "created": 1, "model": "gpt-4o"}
    message = {"role": "assistant", "content": "hello"}
    if not streamed:
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
        return [msgspec.json.encode(body)]
    base["object"] = "chat.completion.chunk"
    last: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": "stop"}
    rows: list[dict[str, Any]] = [{**base, "choices": [{"index": 0, "delta": message}]}]
    if usage_with_choices:
        rows.append({**base, "choices": [last], "usage": usage})
    else:
        rows += [{**base, "choices": [last]}, {**base, "choices": [], "usage": usage}]
    return [b"data: " + msgspec.json.encode(row) + b"\n\n" for row in rows] + [b"data: [DONE]\n\n"]


@pytest.mark.row("GW-23", "GW-24", "GW-25")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_stream_costs_what_the_plain_response_costs(path: str) -> None:
    async def reply(request: web.Request, body: bytes) -> web.StreamResponse:
        is_stream = b'"stream":true' in body.replace(b" ", b"")
        is_last = len(upstream.requests) == 3
        parts = chat_reply(USAGE, streamed=is_stream, usage_with_choices=is_last)
        if is_stream:
            return await stream(request, parts)
        return web.Response(body=parts[0], content_type="application/json")

    records: list[Any] = []
    upstream = Upstream(reply)
    async with serve(upstream, routes=("*=openai:gpt-4o",)) as gateway:
        body = {"model": "M", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
        for is_stream in (False, True, True):
            _, headers, _ = await gateway.post(path, {**body, "stream": is_stream})
            records.append(await record_of(gateway, headers))
    for record in records:
        usage = record["usage"]
        assert usage["input_tokens"] == 400
        assert usage["cached_input_tokens"] == 600
        assert usage["output_tokens"] == 200
        assert usage["reasoning_output_tokens"] == 150
        # 400 at 2.50, 600 at 1.25 and 200 at 10 dollars for a million.
        assert Decimal(record["cost_usd"]) == Decimal("0.00375")


PASSED: list[tuple[str, dict[str, Any] | bytes, dict[str, Any] | bytes, tuple[int, int]]] = [
    (
        "/v1/embeddings",
        {"model": "gpt-4o", "input": "x"},
        {"object": "list", "data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}},
        (8, 0),
    ),
    (
        "/v1/images/generations",
        {"model": "gpt-4o", "prompt": "x"},
        {"data": [], "usage": {"input_tokens": 50, "output_tokens": 70, "total_tokens": 120}},
        (50, 70),
    ),
    (
        "/v1/audio/transcriptions",
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ngpt-4o\r\n--x--\r\n',
        {"text": "x", "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 45}},
        (14, 45),
    ),
    (
        "/v1/rerank",
        {"model": "gpt-4o", "query": "x", "documents": []},
        {"results": [], "usage": {"total_tokens": 15}},
        (15, 0),
    ),
    (
        "/v1/rerank",
        {"model": "gpt-4o", "query": "x", "documents": []},
        {"results": [], "meta": {"billed_units": {"input_tokens": 16}}},
        (16, 0),
    ),
    (
        "/v1/completions",
        {"model": "gpt-4o", "prompt": "x", "stream": True},
        (
            b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":3,'
            b'"completion_tokens":1,"total_tokens":4}}\n\ndata: [DONE]\n\n'
        ),
        (3, 1),
    ),
    (
        "/v1/fim/completions",
        {"model": "gpt-4o", "prompt": "x", "suffix": "y"},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}},
        (5, 2),
    ),
    (
        "/pass/openai/v1/some/new/thing",
        {"model": "gpt-4o"},
        {"usage": {"input_tokens": 9, "output_tokens": 1}},
        (9, 1),
    ),
]


@pytest.mark.slow
@pytest.mark.row("GW-27")
@pytest.mark.parametrize(("path", "sent", "answer", "counts"), PASSED)
@pytest.mark.parametrize("has_store", [False, True])
async def test_passed_through_calls_are_metered_and_recorded(  # noqa: PLR0913, PLR0917 - the parts of a case
    tmp_path: Path,
    path: str,
    sent: dict[str, Any] | bytes,
    answer: dict[str, Any] | bytes,
    counts: tuple[int, int],
    has_store: bool,  # noqa: FBT001 - a case
) -> None:
    async def reply(request: web.Request, _: bytes) -> web.StreamResponse:
        if isinstance(answer, bytes):
            return await stream(request, [answer])
        return web.json_response(answer)

    upstream = Upstream(reply)
    store = open_store(f"sqlite:///{tmp_path / 'g.db'}") if has_store else None
    async with serve(upstream, keys=("t/ann=secret-1",), store=store) as gateway:
        key = {"authorization": "Bearer secret-1"}
        _, headers, body = await gateway.post(path, sent, **key)
        record = await record_of(gateway, headers, **key)
    assert answer in (body, None if isinstance(answer, bytes) else decode(body))
    usage = record["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == counts
    assert (record["provider"], record["model"], record["mode"]) == ("openai", "gpt-4o", "pass")
    assert record["status"] == 200
    expected = (counts[0] * Decimal("2.5") + counts[1] * 10) / 1_000_000
    assert Decimal(record["cost_usd"]) == expected
    assert len(record["attempts"]) == 1
    sent_body = sent if isinstance(sent, bytes) else msgspec.json.encode(sent)
    assert upstream.requests[0][1] == sent_body


@pytest.mark.row("GW-27")
async def test_calls_without_a_usage_or_a_price_are_recorded_as_such() -> None:
    async def reply(request: web.Request, _: bytes) -> web.StreamResponse:
        if request.path.endswith("/content"):
            return web.Response(body=b"\x00" * 100_000, content_type="application/octet-stream")
        return web.json_response({"usage": {"prompt_tokens": 1_000_000, "total_tokens": 1_000_000}})

    stated = Prices(input_per_mtok_usd=Decimal("0.02"))
    config = GatewayConfig(prices={"openai:listed": stated})
    async with serve(Upstream(reply), config=config) as gateway:
        _, headers, body = await gateway.get("/v1/files/f1/content")
        file = await record_of(gateway, headers)
        _, headers, _ = await gateway.post("/v1/embeddings", {"model": "nobody-knows"})
        unpriced = await record_of(gateway, headers)
        _, headers, _ = await gateway.post("/v1/embeddings", {"model": "listed"})
        listed = await record_of(gateway, headers)
    assert len(body) == 100_000
    assert (file["usage"], file["cost_usd"], file["status"]) == (None, None, 200)
    assert unpriced["usage"]["input_tokens"] == 1_000_000
    assert unpriced["cost_usd"] is None
    assert Decimal(listed["cost_usd"]) == Decimal("0.02")


@pytest.mark.row("GW-27")
async def test_a_realtime_socket_is_metered(tmp_path: Path) -> None:
    async def talk(request: web.Request, _: bytes) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _message in socket:
            usage = {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14}
            await socket.send_json({"type": "response.done", "response": {"usage": usage}})
        return socket

    store = open_store(f"sqlite:///{tmp_path / 'g.db'}")
    async with serve(Upstream(talk), keys=("t/ann=secret-1",), store=store) as gateway:
        headers = {"authorization": "Bearer secret-1"}
        url = gateway.url + "/v1/realtime?model=gpt-4o"
        async with gateway.client.ws_connect(url, headers=headers) as socket:
            for _ in range(2):
                await socket.send_str("more")
                await socket.receive_str(timeout=60)
        costs: dict[str, Decimal] = {}
        while not costs:
            await asyncio.sleep(0.02)
            costs = await store.exchange_costs("t/ann", "")
        [exchange_id] = costs
        record = decode((await gateway.get(f"/metis/requests/{exchange_id}", **headers))[2])
    assert (record["usage"]["input_tokens"], record["usage"]["output_tokens"]) == (20, 8)
    assert record["status"] == 101


def budgeted(usd: str, **settings: Any) -> GatewayConfig:
    key = ClientKey.parse("t/ann=secret-1", budget=KeyBudget(usd=Decimal(usd)))
    return GatewayConfig(keys=(key,), **settings)


KEY = {"authorization": "Bearer secret-1"}


@pytest.mark.row("GW-27")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "gpt-4o", "messages": []}),
        ("/v1/messages", {"model": "M", "max_tokens": 9, "messages": []}),
        ("/v1/embeddings", {"model": "gpt-4o", "input": "x"}),
        ("/pass/openai/v1/other", {"model": "gpt-4o"}),
    ],
)
async def test_a_budget_stops_every_path(path: str, body: dict[str, Any]) -> None:
    async def reply(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.Response(body=chat_reply(USAGE, streamed=False)[0], content_type="text/json")

    upstream = Upstream(reply)
    config = budgeted("0.0074", aliases={"M": "openai:gpt-4o"})  # each call costs 0.00375
    async with serve(upstream, config=config) as gateway:
        chat = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
        first = await gateway.post("/v1/chat/completions", chat, **KEY)
        second = await gateway.post(path, body, **KEY)
        status, headers, reply_body = await gateway.post(path, body, **KEY)
        models = await gateway.get("/v1/models", **KEY)
    assert (first[0], second[0], models[0]) == (200, 200, 200)
    assert status == 429
    assert "budget" in reply_body.decode()
    assert headers["x-should-retry"] == "false"
    assert int(headers["retry-after"]) > 0
    assert len(upstream.requests) == 2


@pytest.mark.row("GW-28")
async def test_concurrent_calls_do_not_exceed_a_budget() -> None:
    release = asyncio.Event()

    async def slow(_: web.Request, __: bytes) -> web.StreamResponse:
        await release.wait()
        return web.Response(body=chat_reply(USAGE, streamed=False)[0], content_type="text/json")

    upstream = Upstream(slow)
    body = {
        "model": "gpt-4o",
        "max_tokens": 1000,  # 0.01 dollars
        "messages": [{"role": "user", "content": "hi"}],
    }
    async with serve(upstream, config=budgeted("0.025")) as gateway:
        calls = [
            asyncio.ensure_future(gateway.post("/v1/chat/completions", body, **KEY))
            for _ in range(8)
        ]
        while sum(call.done() for call in calls) < 5:  # noqa: ASYNC110 - tasks have no event
            await asyncio.sleep(0.01)
        release.set()
        statuses = sorted([(await call)[0] for call in calls])
        # Reserved but unused amounts can be spent.
        again = await gateway.post("/v1/chat/completions", body, **KEY)
    assert statuses == [200, 200, 200, 429, 429, 429, 429, 429]
    assert again[0] == 200


@pytest.mark.row("GW-28")
async def test_budget_counts_spending_of_other_processes(tmp_path: Path) -> None:
    async def reply(_: web.Request, __: bytes) -> web.StreamResponse:
        return web.Response(body=chat_reply(USAGE, streamed=False)[0], content_type="text/json")

    chat = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
    statuses: list[int] = []
    for _ in range(3):
        store = open_store(f"sqlite:///{tmp_path / 'g.db'}")
        async with serve(Upstream(reply), config=budgeted("0.0074"), store=store) as gateway:
            statuses.append((await gateway.post("/v1/chat/completions", chat, **KEY))[0])
    assert statuses == [200, 200, 429]


@pytest.mark.row("GW-28")
async def test_unpriced_models_can_be_refused_to_keys_with_budget() -> None:
    upstream = Upstream()
    async with serve(upstream, config=budgeted("1", unpriced="refuse")) as gateway:
        status, _, reply = await gateway.post("/v1/embeddings", {"model": "nobody"}, **KEY)
    assert status == 429
    assert b"[prices]" in reply
    assert upstream.requests == []


def test_budgets_and_prices_are_read_from_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        'unpriced = "refuse"\n[keys]\n"t/ann" = { key = "$ANN", budget_usd = 2.5, '
        'budget_period = "day" }\n[prices]\n"openai:e" = { input_per_mtok_usd = 0.02 }\n'
    )
    config = read_config(file, environment={"ANN": "secret-1"})
    assert config.keys[0].budget == KeyBudget(usd=Decimal("2.5"), period="day")
    assert config.prices["openai:e"].input_per_mtok_usd == Decimal("0.02")
    assert config.unpriced == "refuse"
