"""Bad client input is bounded and answered in the client's format; other clients are unaffected."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from gateway.served import CHAT_CHUNKS, Served, Upstream, reply_chat, serve
from gateway.test_translation import CLIENTS
from metis.canonical.errors import SettingsError
from metis.gateway.config import (
    ClientKey,
    GatewayConfig,
    Limits,
    ProviderConfig,
    Tenant,
    read_config,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def raw(gateway: Served, data: bytes, *, is_slow: bool = False) -> bytes:
    """Send raw bytes, and return everything received until the server closes."""
    port = int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
        if not is_slow:
            writer.write_eof()
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except (ConnectionError, TimeoutError):
        return b""
    finally:
        writer.close()


async def status_line(gateway: Served, data: bytes) -> bytes:
    """Send raw bytes, and return the first line of the response."""
    port = int(gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'"text"',
        b"\xff\xfe{}",
        b'{"model":',
        b'{"model":3,"messages":[]}',
        b'{"model":"gpt-4o","messages":' + b"[" * 100_000,
        b'{"model":"gpt-4o","messages":[],"stream":"yes"}',
    ],
    ids=lambda body: body[:20].decode("latin-1"),
)
async def test_undecodable_body_gives_error_in_protocol_format(body: bytes) -> None:
    upstream = Upstream()
    async with serve(upstream) as gateway:
        for path in ("/v1/messages", "/v1/chat/completions", "/v1/responses"):
            status, _, reply = await gateway.post(path, body)
            assert 400 <= status < 500, (path, reply)
            assert msgspec.json.decode(reply)["error"]["message"]
        assert (await gateway.post("/v1/chat/completions", {"model": "gpt-4o", "messages": []}))[
            0
        ] == 200


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    config = GatewayConfig(limits=Limits(body_bytes=1000))
    async with serve(Upstream(), config=config) as gateway:
        status, _, reply = await gateway.post("/v1/messages", b"x" * 2000)
        assert status == 413
        assert msgspec.json.decode(reply)["type"] == "error"
        head = (
            b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        chunked = await raw(gateway, head + b"800\r\n" + b"x" * 2048 + b"\r\n0\r\n\r\n")
    assert b" 413 " in chunked.split(b"\r\n")[0]


async def test_slow_clients_and_header_floods_are_cut_off() -> None:
    limits = Limits(body_s=0.2, header_s=0.2, header_bytes=4000)
    async with serve(Upstream(), config=GatewayConfig(limits=limits)) as gateway:
        slow_header = await raw(
            gateway, b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\n", is_slow=True
        )
        head = b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99\r\n\r\n"
        slow_body = await status_line(gateway, head + b"{")
        flood = await raw(gateway, b"GET / HTTP/1.1\r\n" + b"x-a: 1234567890\r\n" * 1000 + b"\r\n")
        broken = await raw(gateway, b"\x00\x01\x02 nonsense\r\n\r\n")
        assert (await gateway.get("/healthz"))[0] == 200
    assert slow_header == b""
    assert b" 408 " in slow_body
    assert b" 431 " in flood.split(b"\r\n")[0]
    assert b" 400 " in broken.split(b"\r\n")[0]


@pytest.mark.row("GW-34")
async def test_client_that_does_not_read_pauses_the_provider() -> None:
    sent = 0

    async def flood(request: web.Request, _: bytes) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _number in range(4000):
            await response.write(CHAT_CHUNKS[1] * 50)
            sent += len(CHAT_CHUNKS[1]) * 50
        return response

    async with serve(Upstream(flood)) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        body = b'{"model":"gpt-4o","stream":true,"messages":[]}'
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n"
        )
        writer.write(head % len(body) + body)
        before = -1
        while before != sent or not sent:
            before = sent
            await asyncio.sleep(0.3)
        writer.close()
    assert 0 < sent < 4000 * 50 * len(CHAT_CHUNKS[1]) / 2


async def test_next_provider_key_is_used_after_rate_limit() -> None:
    async def limited(request: web.Request, _: bytes) -> web.StreamResponse:
        if request.headers["authorization"] == "Bearer first":
            return web.Response(status=429, headers={"retry-after": "60"})
        return web.json_response({"id": "c", "choices": []})

    upstream = Upstream(limited)
    async with serve(upstream, providers=()) as gateway:
        row = ProviderConfig(
            base_url=("http://127.0.0.1:9", upstream.url), keys=("first", "second")
        )
        gateway.gateway.load(GatewayConfig(providers={"openai": row}))
        body = CLIENTS["chat"][1] | {"model": "gpt-4o"}
        statuses = [(await gateway.post("/v1/chat/completions", body))[0] for _ in range(3)]
    assert statuses == [200, 200, 200]
    keys = [request.headers["authorization"] for request, _ in upstream.requests]
    assert keys == ["Bearer first", "Bearer second", "Bearer second", "Bearer second"]


def test_keys_identify_tenants_and_public_address_requires_one(tmp_path: Path) -> None:
    assert ClientKey.parse("team/ann=abcd").tenant == Tenant("ann", "team")
    assert ClientKey.parse("ann=abcd").tenant == Tenant("ann")
    assert ClientKey.parse("abcd==").tenant == Tenant()
    with pytest.raises(SettingsError, match="--key"):
        read_config(options={"host": "192.0.2.1"}, environment={})
    file = tmp_path / "gateway.toml"
    file.write_text(
        'port = 1\n[keys]\n"t/ann" = "abcdef"\n[routes]\n"claude-*" = "openai:gpt-4o"\n'
    )
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_config(file, environment={})
    file.chmod(0o600)
    config = read_config(file, environment={"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert config.keys[0].tenant == Tenant("ann", "t")
    assert config.routes[0].target == "openai:gpt-4o"
    assert config.providers["openai"].base_urls == ("http://127.0.0.1:1",)
    file.write_text("prot = 1\n")
    with pytest.raises(SettingsError, match="prot"):
        read_config(file, environment={})


@pytest.mark.row("GW-38")
@pytest.mark.slow
async def test_a_process_drains_reloads_and_ends_cleanly(tmp_path: Path) -> None:
    """SIGHUP changes the routes without dropping a stream; SIGTERM lets the stream end."""
    release = asyncio.Event()

    async def gated(request: web.Request, body: bytes) -> web.StreamResponse:
        if b'"stream"' not in body:
            return await reply_chat(request, body)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(CHAT_CHUNKS[0])
        await release.wait()
        for chunk in CHAT_CHUNKS[1:]:
            await response.write(chunk)
        return response

    upstream = Upstream(gated)
    config = tmp_path / "g.toml"
    async with serve(upstream):
        provider = f'[providers.openai]\nbase_url = "{upstream.url}"\n'
        config.write_text(f'[routes]\n"a" = "openai:one"\n{provider}')
        environment = {"PATH": os.environ["PATH"], "METIS_HOME": str(tmp_path)}
        server = subprocess.Popen(  # noqa: ASYNC220, S603 - our own program, which starts at once
            [
                *(sys.executable, "-m", "metis", "serve", "--port", "0", "--store", "none"),
                *("--config", str(config), "--workers", "2"),
            ],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            url = await asyncio.to_thread(server.stdout.readline)
            url = url.split()[-1]
            async with aiohttp.ClientSession() as client:
                await until_ready(client, url)
                path, body = CLIENTS["chat"]
                async with client.post(url + path, json={**body, "model": "a"}) as response:
                    assert response.headers["x-metis-model"] == "openai:one"
                streamed = {**body, "model": "a", "stream": True}
                async with client.post(url + path, json=streamed) as response:
                    received = await response.content.readany()
                    config.write_text(f'[routes]\n"a" = "openai:two"\n{provider}')
                    server.send_signal(signal.SIGHUP)
                    await until_reloaded(client, url)
                    server.send_signal(signal.SIGTERM)
                    await asyncio.sleep(0.3)
                    assert server.poll() is None
                    release.set()
                    received += await response.content.read()
            assert received == b"".join(CHAT_CHUNKS).replace(b'"gpt-4o"', b'"a"')
            assert await asyncio.to_thread(server.wait, 30) == 0
        finally:
            server.kill()
            # Workers end with the process that started them, which closes the pipe.
            server.communicate(timeout=60)


@pytest.mark.slow
async def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "METIS_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "metis", "serve", "--port", "0", "--store", "none"]
    server = subprocess.Popen(  # noqa: ASYNC220, S603 - our own program, which starts at once
        [*command, "--workers", "2"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = (await asyncio.to_thread(server.stdout.readline)).split()[-1]
    async with aiohttp.ClientSession() as client:
        await until_ready(client, url)
        server.kill()
        await asyncio.to_thread(server.communicate, None, 60)
        with pytest.raises(OSError, match="Cannot connect"):
            await client.get(f"{url}/readyz")


@pytest.mark.row("M-021")
@pytest.mark.slow
async def test_a_killed_process_loses_nothing_that_was_answered_before(tmp_path: Path) -> None:
    """After a kill in the middle of a load, the next process stores what was answered earlier."""
    environment = {
        "PATH": os.environ["PATH"],
        "METIS_HOME": str(tmp_path),
        "OPENAI_API_KEY": "sk-test",
    }
    command = [sys.executable, "-m", "metis", "serve", "--port", "0"]
    command += ["--store", f"sqlite:///{tmp_path}/x.db"]
    answered: list[str] = []

    async def send(client: aiohttp.ClientSession, url: str, name: int) -> None:
        path, body = CLIENTS["chat"]
        while True:
            # An equal question would be a retry, which is stored together with the first.
            question = f"{name}: question {len(answered)}"
            messages = [{"role": "user", "content": question}]
            with suppress(aiohttp.ClientError):
                async with client.post(
                    url + path, json={**body, "model": "gpt-4o", "messages": messages}
                ) as response:
                    await response.read()
                    answered.append(response.headers["x-metis-request-id"])
                    continue
            return  # the process was killed

    async with serve(upstream := Upstream(reply_chat)), aiohttp.ClientSession() as client:
        environment["OPENAI_BASE_URL"] = upstream.url
        server, url = await started(command, environment)
        try:
            await until_ready(client, url)
            senders = [asyncio.ensure_future(send(client, url, name)) for name in range(16)]
            async with asyncio.timeout(60):
                while len(answered) < 50:  # noqa: ASYNC110 - a list has no event
                    await asyncio.sleep(0.01)
            earlier = list(answered)
            await asyncio.sleep(2)  # durable within one second
            server.kill()
            await asyncio.gather(*senders)
        finally:
            server.kill()
            await asyncio.to_thread(server.communicate, None, 60)
        assert len(answered) > len(earlier), "the load had ended before the kill"
        server, url = await started(command, environment)
        try:
            await until_ready(client, url)
            for request_id in earlier:
                for _ in range(300):
                    async with client.get(f"{url}/metis/requests/{request_id}") as response:
                        if response.status == 200:
                            break
                    await asyncio.sleep(0.1)
                else:
                    raise AssertionError(f"{earlier.index(request_id)} of {len(earlier)} is lost")
        finally:
            server.terminate()
            await asyncio.to_thread(server.communicate, None, 60)
    assert not list((tmp_path / "spool").glob("*.backlog"))


async def started(
    command: list[str], environment: dict[str, str]
) -> tuple["subprocess.Popen[str]", str]:
    """Start a gateway, and return its address."""
    server = subprocess.Popen(  # noqa: ASYNC220, S603 - our own program, which starts at once
        command, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    return server, (await asyncio.to_thread(server.stdout.readline)).split()[-1]


async def until_ready(client: aiohttp.ClientSession, url: str) -> None:
    for _ in range(200):
        with suppress(OSError):
            async with client.get(f"{url}/readyz") as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise AssertionError("the gateway did not start")


async def until_reloaded(client: aiohttp.ClientSession, url: str) -> None:
    path, body = CLIENTS["chat"]
    for _ in range(100):
        async with client.post(url + path, json={**body, "model": "a"}) as response:
            if response.headers["x-metis-model"] == "openai:two":
                return
        await asyncio.sleep(0.05)
    raise AssertionError("the routes were not reloaded")
