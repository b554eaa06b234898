"""Detection of local model servers; any process may listen on their ports."""

import asyncio

import pytest

from metis.cli.local_servers import running_servers

pytestmark = pytest.mark.anyio
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def listed(body: bytes, repeat: int = 1) -> tuple[list[str], int]:
    """Return the models of a server that answers with a body, and how often it was written."""
    written = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        try:
            writer.write(HEAD)
            for _ in range(repeat):
                writer.write(body)
                await writer.drain()
                written += 1
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        servers = await running_servers({"ollama": url}, ["ollama"], timeout_s=20)
    return [model for each in servers for model in each.models], written


async def test_a_list_of_models_is_read() -> None:
    assert await listed(b'{"models": [{"name": "llama3.2"}]}') == (["ollama:llama3.2"], 1)


async def test_endless_model_list_is_bounded() -> None:
    models, written = await listed(b"x" * 100_000, repeat=10_000)
    assert models == []
    assert written < 500


@pytest.mark.parametrize("body", [b"[" * 900_000, b"\xff\xfe", b'{"models": 7}', b'{"models":[7]}'])
async def test_body_that_is_not_a_model_list_is_ignored(body: bytes) -> None:
    assert (await listed(body))[0] == []
