"""Every kind of server misbehaviour behind the gateway: responses end, and keys stay secret.

In each case the gateway answers or closes, serves the next request, needs limited memory, and sends
the provider's key to no client.
"""

import aiohttp
import pytest
from msgspec import structs

from gateway.served import Served, serve
from hostile.dialects import DIALECTS, Dialect
from hostile.kinds import KEY, KINDS, Kind
from hostile.limits import RESPONSE_LIMITS, assert_no_key, limited_memory
from hostile.server import hostile_server
from metis.gateway.config import GatewayConfig, Limits, ProviderConfig, ResponseLimits
from metis.gateway.exchange import Exchange

pytestmark = pytest.mark.anyio
PROMPT = "say all is well"
CHAT = {"model": "M", "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
REQUESTS = {
    "anthropic": ("/v1/messages", CHAT | {"max_tokens": 99}),
    "openai": ("/v1/chat/completions", CHAT),
    "openai-responses": ("/v1/responses", {"model": "M", "stream": True, "input": PROMPT}),
    "gemini": (
        "/v1beta/models/M:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": PROMPT}]}]},
    ),
    "ollama": ("/api/chat", CHAT),
    "bedrock-converse": (
        "/model/M/converse-stream",
        {"messages": [{"role": "user", "content": [{"text": PROMPT}]}]},
    ),
}
"""A streamed request of each protocol."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def request(gateway: Served, client: str) -> tuple[int, bytes]:
    """Return what a client gets: a status, and the body until it ended or the connection broke."""
    path, body = REQUESTS[client]
    status, received = 0, bytearray()
    try:
        async with gateway.client.post(gateway.url + path, json=body) as response:
            status = response.status
            assert_no_key(str(response.headers))
            async for piece in response.content.iter_any():
                if len(received) < RESPONSE_LIMITS.body_bytes:
                    received += piece
    except aiohttp.ClientError:
        pass
    return status, bytes(received)


def recorded(gateway: Served) -> list[Exchange]:
    """Return a list that gets every exchange which is recorded from now on."""
    exchanges: list[Exchange] = []
    recorder = gateway.gateway.recorder
    assert recorder is not None
    record = recorder.record

    def note(exchange: Exchange) -> None:
        exchanges.append(exchange)
        record(exchange)

    recorder.record = note
    return exchanges


async def through_gateway(kind: Kind, dialect: Dialect, client: str) -> None:
    async with hostile_server(kind, dialect) as server:
        limits = Limits(silence_s=kind.silence_s, response_bytes=1_000_000, response=SHORT)
        row = ProviderConfig(base_url=server.url, keys=(KEY,))
        config = GatewayConfig(limits=limits, providers={dialect.provider: row})
        async with serve(config=config, routes=(f"*={dialect.provider}:some-model",)) as gateway:
            exchanges = recorded(gateway)
            async with limited_memory():
                status, body = await request(gateway, client)
            assert server.request_count == 1
            assert status, "the gateway gave no response"
            assert_no_key(body)
            for exchange in exchanges:
                assert_no_key(b"".join(exchange.response_parts) if status >= 400 else b"")
                assert_no_key(str(exchange.error))
            # What a provider of the client's protocol sends with success goes on as it is.
            if client != dialect.provider and kind.errors and not kind.answers:
                assert status >= 400 or b"error" in body.lower()
            server.is_healed = True
            status, body = await request(gateway, client)
            assert (status, server.refusals) == (200, [])
            assert b"well" in body


def translating(protocol: str) -> str:
    """Return a client of another protocol."""
    return "anthropic" if protocol == "openai" else "openai"


SHORT = ResponseLimits(**structs.asdict(RESPONSE_LIMITS))
# Text that a provider repeats goes on to the client as content; what has no end or is compressed is
# bounded where it is translated only.
BEHIND = [
    name
    for name in KINDS
    if not name.startswith(("endless", "slow", "gzip bomb", "deflate"))
    and name not in ("key in a stream error", "key in a page")
]
TRANSLATED = [name for name in KINDS if name.startswith(("endless", "gzip bomb", "deflate"))]
DIAGONAL = [(name, list(DIALECTS)[number % 6]) for number, name in enumerate(BEHIND)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "protocol"), DIAGONAL[::4])
async def test_misbehaviour_behind_the_gateway(name: str, protocol: str) -> None:
    kind, dialect = KINDS[name], DIALECTS[protocol]
    await through_gateway(kind, dialect, protocol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "protocol"),
    [(name, list(DIALECTS)[number % 6]) for number, name in enumerate(TRANSLATED)],
)
async def test_misbehaviour_bounded_by_configured_limits(name: str, protocol: str) -> None:
    await through_gateway(KINDS[name], DIALECTS[protocol], translating(protocol))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pass", "translate"])
@pytest.mark.parametrize("protocol", DIALECTS)
@pytest.mark.parametrize("name", BEHIND)
async def test_every_misbehaviour_and_protocol_behind_the_gateway(
    name: str, protocol: str, mode: str
) -> None:
    client = protocol if mode == "pass" else translating(protocol)
    await through_gateway(KINDS[name], DIALECTS[protocol], client)
