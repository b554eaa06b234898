"""The simulator as a local server: allowed origins, timeouts and limits."""

import asyncio

import pytest

from metis.sim import server, service
from metis.sim.endpoints import HttpRequest
from metis.sim.server import Simulator
from metis.sim.service import Service

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def status_of(simulator: Simulator, *headers: str, body: bytes = b"{}") -> int:
    host, _, port = simulator.base_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = ["POST /v1/messages HTTP/1.1", *headers, f"Content-Length: {max(2, len(body))}"]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        (("Host: 127.0.0.1",), False),
        (("Host: localhost:8000",), False),
        (("Host: [::1]:8000",), False),
        (("Host: 127.0.0.1", "Origin: http://localhost:3000"), False),
        (("Host: evil.example",), True),
        (("Host: 127.0.0.1.evil.example:80",), True),
        (("Host: localhost@evil.example",), True),
        (("Host: ",), True),
        (("Host: 127.0.0.1", "Origin: https://evil.example"), True),
        (("Host: 127.0.0.1", "Origin: null"), True),
        (("Host: 127.0.0.1", "Origin: http://[::1"), True),
    ],
)
async def test_requests_of_other_origins_are_refused(
    headers: tuple[str, ...], *, is_refused: bool
) -> None:
    async with Simulator() as simulator:
        status = await status_of(simulator, *headers)
        assert (status == 403) is is_refused
        assert len(simulator.service.exchanges) == (0 if is_refused else 1)


@pytest.mark.slow
async def test_slow_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_TIMEOUT_S", 0.05)
    async with Simulator() as simulator:
        assert await status_of(simulator, "Host: localhost", body=b"") == 408


async def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE_TIMEOUT_S", 0.05)
    async with Simulator() as simulator:
        host, _, port = simulator.base_url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: loc")
        assert await reader.read() == b""
        writer.close()


def test_recorded_exchanges_are_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MAX_RECORDED_BYTES", 10_000)
    recording = Service()
    for _ in range(20):
        recording.respond(HttpRequest(method="POST", path="/v1/messages", body=b"x" * 3000))
    assert 1 <= len(recording.exchanges) <= 3
