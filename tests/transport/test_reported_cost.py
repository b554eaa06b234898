"""Look-up of the cost that a host charged, with a recorded exchange of OpenRouter."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from build import assistant, usage
from metis import adapters
from metis.adapters import Adapter
from metis.canonical import Message, MessageMetadata
from metis.canonical.errors import InvalidRequestError, OtherProviderError, ProviderError
from metis.transport import Keys, Transport

EXCHANGE = json.loads(
    (Path(__file__).parent / "exchanges" / "openrouter_generation.json").read_text()
)
RESPONSE_ID = EXCHANGE["response"]["data"]["id"]
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def answer(response_id: str | None = RESPONSE_ID) -> Message:
    return assistant("hi", metadata=MessageMetadata(response_id=response_id, usage=usage()))


class Host:
    """A server that replays recorded responses, and records requests and waits."""

    def __init__(self, *responses: tuple[int, Any]) -> None:
        self.responses = list(responses)
        self.requests: list[tuple[str, str, str | None]] = []
        self.waits_s: list[float] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        key = request.headers.get("authorization")
        self.requests.append((request.method, request.raw_path, key))
        status, body = self.responses.pop(0)
        return web.json_response(body, status=status)

    async def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[tuple[Transport, Adapter]]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            keys = Keys({"openrouter": "sk-or-1"})
            async with Transport(keys=keys, sleep=self.sleep) as client:
                yield client, adapters.get("openrouter", base_url=address)
        finally:
            await runner.cleanup()


@pytest.mark.row("A-032")
async def test_reported_cost_is_stored_separately_from_computed_cost() -> None:
    host = Host((200, EXCHANGE["response"]))
    async with host.serve() as (client, adapter):
        priced = await client.look_up_cost(adapter, answer())
    expected = EXCHANGE["request"]
    assert host.requests == [(expected["method"], expected["path"], "Bearer sk-or-1")]
    assert priced.metadata.usage == replace(usage(), reported_cost_usd=Decimal("0.0015"))
    assert usage().reported_cost_usd is None


@pytest.mark.row("A-032")
async def test_look_up_is_repeated_until_host_has_the_response() -> None:
    missing = {"error": {"message": "Generation not found", "code": 404}}
    host = Host((404, missing), (404, missing), (200, EXCHANGE["response"]))
    async with host.serve() as (client, adapter):
        priced = await client.look_up_cost(adapter, answer())
    assert priced.metadata.usage is not None
    assert priced.metadata.usage.reported_cost_usd == Decimal("0.0015")
    assert host.waits_s == [1.0, 2.0]
    host = Host(*[(404, missing)] * 4)
    async with host.serve() as (client, adapter):
        with pytest.raises(ProviderError, match="Generation not found"):
            await client.look_up_cost(adapter, answer())
    assert host.waits_s == [1.0, 2.0, 4.0]


async def test_response_id_is_escaped_in_query() -> None:
    data = {"data": {"id": "a&b=c#d", "total_cost": 1}}
    host = Host((200, data))
    async with host.serve() as (client, adapter):
        await client.look_up_cost(adapter, answer("a&b=c#d"))
    assert host.requests[0][1] == "/api/v1/generation?id=a%26b%3Dc%23d"


@pytest.mark.parametrize(
    "data", [{"id": "other", "total_cost": 1}, {"id": RESPONSE_ID, "total_cost": -1}, None]
)
async def test_cost_of_another_response_is_refused(data: Any) -> None:
    host = Host((200, {"data": data}))
    async with host.serve() as (client, adapter):
        with pytest.raises(OtherProviderError, match=RESPONSE_ID):
            await client.look_up_cost(adapter, answer())


async def test_response_without_cost_is_not_looked_up() -> None:
    async with Transport() as client:
        with pytest.raises(InvalidRequestError, match="no look-up"):
            await client.look_up_cost(adapters.get("groq"), answer())
        with pytest.raises(InvalidRequestError, match="no response id"):
            await client.look_up_cost(adapters.get("openrouter"), answer(None))
