"""Attacks of clients on the gateway: smuggled requests, injected headers, floods, other tenants."""

import asyncio
import gc
import gzip
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from gateway.served import Served, Upstream, chat_chunk, reply_chat, serve, stream
from metis.canonical.errors import ContextOverflowError
from metis.gateway import core, pass_through, recorder
from metis.gateway.client_call import RequestKeys, read_keys
from metis.gateway.config import GatewayConfig, Limits, ProviderConfig
from metis.gateway.endpoints import MAX_PATH, match_other, match_path
from metis.gateway.exchange import BodyCollector, Exchange
from metis.gateway.exchange_plans import Draft, ExchangePlans
from metis.gateway.pass_through import ModelEcho
from metis.gateway.server import GatewaySocketProtocol
from metis.gateway.usage_meter import UsageMeter, requested_model
from metis.store import open as open_store
from metis.transport import response

pytestmark = pytest.mark.anyio

BODY = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
HIDDEN = POST + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
UPGRADE = (
    b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def sent(gateway: Served, data: bytes) -> bytes:
    """Send bytes as they are; return what comes back."""
    port = int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(30):
                return await reader.read()
        return b""
    finally:
        writer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        b"content-length: 4\r\ncontent-length: 400\r\n",
        b"content-length: 4, 400\r\n",
        b"content-length: +4\r\n",
        b"content-length: 0x4\r\n",
        b"transfer-encoding: xchunked\r\ncontent-length: 4\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding : chunked\r\ncontent-length: 4\r\n",
        b"transfer-encoding:\x0bchunked\r\ncontent-length: 4\r\n",
        b"x: a\r\n transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        b"x: a\rtransfer-encoding: chunked\r\ncontent-length: 4\r\n",
        b"x: a\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n",
    ],
)
async def test_a_request_with_two_lengths_hides_no_other_request(headers: bytes) -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        answer = await sent(gateway, POST + headers + b"\r\n0\r\n\r\n" + HIDDEN)
    assert upstream.requests == []
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_names_and_paths_cannot_add_headers_or_requests() -> None:
    upstream = Upstream()
    name = "gpt-4o\r\nx-injected: 1\r\n\r\nGET /other"
    quoted = "a%0d%0ax-injected:%201%0d%0a%0d%0aGET%20/other"
    async with serve(upstream) as gateway:
        body = {"model": f"openai:{name}", "messages": [{"role": "user", "content": "hi"}]}
        status, headers, _ = await gateway.post("/v1/chat/completions", body)
        assert status == 200
        assert "x-injected" not in headers
        for path in (
            f"/v1beta/models/gemini:{quoted}:generateContent",
            f"/model/anthropic:{quoted}/converse",
            f"/pass/openai/v1/{quoted}",
            f"/v1/files/{quoted}",
        ):
            await sent(
                gateway,
                b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
                % (path.encode(), len(BODY), BODY),
            )
        await gateway.post(
            "/v1/chat/completions", BODY, x_metis_policy="warn", x_metis_session="a b"
        )
    assert all("x-injected" not in request.headers for request, _ in upstream.requests)
    assert all(request.path != "/other" for request, _ in upstream.requests)
    assert all("x-metis-policy" not in request.headers for request, _ in upstream.requests)


@pytest.mark.parametrize(
    "path",
    ["../admin", "%2e%2e/admin", "..%2fadmin", "v1/../../admin", ".%2e/admin", "v1/./admin", ".."],
)
async def test_no_path_leads_out_of_the_address_of_a_provider(path: str) -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        line = f"GET /pass/openai/{path} HTTP/1.1\r\n".encode()
        answer = await sent(gateway, line + b"host: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404")
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /pass/openai/{path} HTTP/1.1\r\nhost: localhost\r\n".encode() + UPGRADE)
        assert b" 404 " in await reader.readline()
        writer.close()
    assert upstream.requests == []


async def test_a_socket_path_cannot_add_headers() -> None:
    received: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    provider = await asyncio.start_server(record, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{provider.sockets[0].getsockname()[1]}"
    rows = {"openai": ProviderConfig(base_url=url, keys=("key-of-openai",))}
    async with provider, serve(config=GatewayConfig(providers=rows)) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = b"/pass/openai/v1/realtime%0d%0ax-injected:%201"
        writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\n%b" % (path, UPGRADE))
        answer = await reader.readline()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 502")
    line = b"GET /v1/realtime%0D%0Ax-injected:%201 HTTP/1.1\r\n"
    assert received
    assert all(head.startswith(line) and b"\nx-injected" not in head for head in received)


async def test_a_provider_cannot_state_what_the_gateway_states() -> None:
    async def reply(request: web.Request, body: bytes) -> web.StreamResponse:
        response = await reply_chat(request, body)
        response.headers["x-metis-session"] = "of-another"
        response.headers["set-cookie"] = "a=b"
        return response

    async with (
        serve(Upstream(reply)) as gateway,
        gateway.client.post(gateway.url + "/v1/chat/completions", data=BODY) as response,
    ):
        assert "of-another" not in response.headers.getall("x-metis-session", [])
        assert "set-cookie" not in response.headers


async def test_a_header_that_does_not_end_is_not_collected() -> None:
    limits = Limits(header_bytes=10_000, header_s=30)
    async with serve(Upstream(), config=GatewayConfig(limits=limits)) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nx-long: ")
        count = 0
        with suppress(ConnectionError):
            while not reader.at_eof() and count < 2000:
                writer.write(b"a" * 10_000)
                await writer.drain()
                await asyncio.sleep(0)
                count += 1
        assert count < 2000
        writer.close()


def test_long_paths_are_not_matched_and_not_held() -> None:
    # Before any key is checked, one path of 64 kB took the patterns four seconds.
    for path in ("/model/" * 9000, "/models/" * 8000, "/models" * 9000 + "\n", "/pass/" * 9000):
        assert match_path("POST", path) is None
        assert match_path("GET", path) is None
        assert match_other(path, is_anthropic=False, is_google=False) is None
    assert match_path("POST", "/model/" + "a" * (MAX_PATH - 20) + "/converse") is not None


def test_the_model_of_a_form_is_found_in_linear_time() -> None:
    form = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--x--'
    assert requested_model("/v1/audio", b"", form) == "whisper-1"
    assert requested_model("/v1/audio", b"", b'name="model"\r\n' * 4000) == ""


def test_the_usage_of_a_long_body_is_searched_from_its_end() -> None:
    body = b"\n" * 4_000_000 + b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n\n'
    meter = UsageMeter()
    meter.add(body)
    exchange = Exchange(client_protocol="openai_chat", client_adapter="openai", path="/")
    meter.finish(exchange, {})
    assert exchange.usage is not None
    assert exchange.usage.output_tokens == 4
    meter.add(b'data: "usage"\n' * 100_000)


def test_a_body_of_brackets_is_refused_before_it_is_read() -> None:
    with pytest.raises(ContextOverflowError, match="JSON objects and arrays"):
        read_keys(b'{"model":"a","x":[' + b"[]," * 1_000_000 + b"[]]}")


async def test_a_compressed_request_is_refused_and_not_unpacked() -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        data = gzip.compress(BODY + b" " * 10_000_000)
        status, _, body = await gateway.post("/v1/chat/completions", data, content_encoding="gzip")
    assert (status, upstream.requests) == (400, [])
    assert b"JSON" in body


async def reply_of_both(request: web.Request, body: bytes) -> web.StreamResponse:
    if request.path != "/v1/messages":
        return await reply_chat(request, body)
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6"}
    content = [{"type": "text", "text": "hello"}]
    usage = {"input_tokens": 1, "output_tokens": 1}
    return web.json_response(
        {**message, "content": content, "stop_reason": "end_turn", "usage": usage}
    )


@pytest.mark.parametrize("keys", [("key-of-one", "key-of-two"), ("a=key-of-one", "b=key-of-two")])
async def test_a_key_sees_nothing_of_another_key(keys: tuple[str, str]) -> None:
    one, two = ({"authorization": f"Bearer {key.rpartition('=')[2]}"} for key in keys)
    async with serve(Upstream(reply_of_both), keys=keys) as gateway:
        _, headers, _ = await gateway.post("/v1/chat/completions", BODY, **one)
        path = f"/metis/requests/{headers['x-metis-request-id']}"
        assert (await gateway.get(path, **one))[0] == 200
        assert (await gateway.get(path, **two))[0] == 404
        assert (await gateway.get(path))[0] == 401
        # A response of another provider, which the gateway holds for its client.
        request = {"model": "anthropic:claude-sonnet-4-6", "input": "hi"}
        _, _, body = await gateway.post("/v1/responses", request, **one)
        next_request = {**request, "previous_response_id": json.loads(body)["id"]}
        assert (await gateway.post("/v1/responses", next_request, **two))[0] == 400
        assert (await gateway.post("/v1/responses", next_request, **one))[0] == 200


@pytest.mark.slow
async def test_a_client_that_sends_pings_and_does_not_read_fills_no_memory() -> None:
    async with serve(Upstream()) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\n" + UPGRADE)
        assert b" 101 " in await reader.readline()
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        # The server does not hand out its connections.
        (server_side,) = (o for o in gc.get_objects() if isinstance(o, GatewaySocketProtocol))
        buffered = 0
        with suppress(ConnectionError):
            for _ in range(400):
                writer.write((b"\x89\xfd\0\0\0\0" + b"p" * 125) * 500)
                await writer.drain()
                await asyncio.sleep(0)
                buffered = max(buffered, server_side.transport.get_write_buffer_size())
        writer.close()
    assert 0 < buffered < 5_000_000


async def test_a_message_of_endless_empty_parts_is_cut_off() -> None:
    async with serve(Upstream()) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\n" + UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            writer.write(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 20_000)
            async with asyncio.timeout(30):
                assert await reader.read() == b""
        writer.close()


def test_parts_of_one_byte_take_no_more_memory_than_large_ones() -> None:
    exchange = Exchange(client_protocol="openai_chat", client_adapter="openai", path="/")
    collector = BodyCollector(exchange, 10_000)
    for _ in range(20_000):
        collector.add(b"x")
    assert b"".join(exchange.response_parts) == b"x" * 10_000
    assert len(exchange.response_parts) < 2000
    assert exchange.is_truncated


def test_the_model_is_replaced_in_lines_that_come_in_pieces() -> None:
    echo = ModelEcho("mine", "openai_chat")
    line = b'data: {"model":"theirs","x":"' + b"y" * 1000 + b'"}\n'
    data = line * 20
    out = b"".join(echo.feed(data[i : i + 7]) for i in range(0, len(data), 7)) + echo.finish()
    assert out == data.replace(b"theirs", b"mine")


async def test_large_requests_and_responses_are_read_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    threads: dict[str, set[int]] = {"keys": set(), "plans": set()}
    make = ExchangePlans.make

    def counted_keys(body: bytes) -> RequestKeys:
        threads["keys"].add(threading.get_ident())
        return read_keys(body)

    def counted_plans(self: ExchangePlans, batch: Sequence[Draft]) -> None:
        if any(draft.exchange.size > response.LARGE_BYTES for draft in batch):
            threads["plans"].add(threading.get_ident())
        make(self, batch)

    for module in (response, recorder):
        monkeypatch.setattr(module, "LARGE_BYTES", 10_000)
    monkeypatch.setattr(core, "read_keys", counted_keys)
    monkeypatch.setattr(ExchangePlans, "make", counted_plans)
    large = {"model": "gpt-4o", "messages": [{"role": "user", "content": "word " * 20_000}]}
    store = open_store(f"sqlite:///{tmp_path}/metis.db")
    async with serve(Upstream(), store=store) as gateway:
        assert (await gateway.post("/v1/chat/completions", large))[0] == 200
    async with open_store(f"sqlite:///{tmp_path}/metis.db") as stored:
        assert len(await stored.sessions()) == 1
    assert all(threads.values())
    assert threading.get_ident() not in threads["keys"] | threads["plans"]


async def test_a_stream_that_is_too_long_to_store_is_passed_whole_and_the_gap_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = partial(BodyCollector, max_bytes=1000)
    monkeypatch.setattr(pass_through, "BodyCollector", limited)
    chunk = chat_chunk('{"content":"words "}')
    chunks = [*[chunk] * 100, b"data: [DONE]\n\n"]
    ended: list[Exchange] = []

    async def endless(request: web.Request, _: bytes) -> web.StreamResponse:
        return await stream(request, chunks)

    async with serve(Upstream(endless)) as gateway:
        assert gateway.gateway.recorder is not None
        monkeypatch.setattr(gateway.gateway.recorder, "record", ended.append)
        request = {**json.loads(BODY), "stream": True}
        _, _, body = await gateway.post("/v1/chat/completions", request)
    assert body == b"".join(chunks)
    (exchange,) = ended
    assert exchange.is_truncated
    assert "are stored" in str(exchange.error)
    assert sum(map(len, exchange.response_parts)) <= 1000
