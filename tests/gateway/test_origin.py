"""Web pages in a local browser cannot use an open gateway or spend its keys."""

import aiohttp
import pytest

from gateway.served import Upstream, serve

pytestmark = pytest.mark.anyio
BODY = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
PATHS = ("/v1/models", "/metis/metrics", "/v1/embeddings")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost.evil.example"},
        {"host": "evil.example"},  # a DNS name that was rebound to this machine
        {"host": "127.0.0.1.evil.example:80"},
    ],
)
async def test_a_foreign_page_is_refused_by_an_open_gateway(headers: dict[str, str]) -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        # A form can send this type without asking first.
        sent = headers | {"content_type": "text/plain"}
        status, _, body = await gateway.post("/v1/chat/completions", BODY, **sent)
        assert status == 403
        assert b"--key" in body
        for path in PATHS:
            assert (await gateway.get(path, **headers))[0] == 403, path
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await gateway.client.ws_connect(f"{gateway.url}/v1/responses", headers=headers)
    assert upstream.requests == []


@pytest.mark.parametrize("headers", [{}, {"origin": "http://localhost:3000"}])
async def test_programs_and_local_pages_are_served(headers: dict[str, str]) -> None:
    async with serve(Upstream()) as gateway:
        assert (await gateway.post("/v1/chat/completions", BODY, **headers))[0] == 200


async def test_with_a_key_the_origin_does_not_matter() -> None:
    async with serve(Upstream(), keys=("me=secret-5",)) as gateway:
        headers = {"authorization": "Bearer secret-5", "origin": "https://mine.example"}
        assert (await gateway.post("/v1/chat/completions", BODY, **headers))[0] == 200
