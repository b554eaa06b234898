"""Stored bytes of gateway exchanges, passed through or translated."""

from base64 import b64encode
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from gateway.served import CHAT_CHUNKS, CHAT_REPLY, Upstream, serve, stream
from metis.store import Store
from metis.store import open as open_store
from metis.store.wire_bodies import StoredBody

pytestmark = pytest.mark.anyio
CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "tools": []}


async def recorded(store: Store) -> list[StoredBody]:
    rows = await store.read(lambda t: t.run("SELECT session_id, id FROM wire_bodies ORDER BY id"))
    found = [await store.wire_body(*row) for row in rows]
    return [body for body in found if body is not None]


async def call(url: str, upstream: Upstream, path: str, *bodies: bytes, **options: object) -> None:
    store = open_store(url)
    try:
        async with serve(upstream, store=store, **options) as served:  # pyright: ignore[reportArgumentType] - by name
            for body in bodies:
                status, _, _ = await served.post(path, body)
                assert status == 200
    finally:
        await store.close()


async def test_passed_through_request_is_stored_unchanged(tmp_path: Path) -> None:
    url, upstream = f"sqlite:///{tmp_path}/metis.db", Upstream()
    # Whitespace and unknown keys of the client are preserved.
    body = msgspec.json.format(msgspec.json.encode({**CHAT, "odd_key": 1}), indent=3)
    await call(url, upstream, "/v1/chat/completions", body)
    async with open_store(url, recover=False) as store:
        (found,) = await recorded(store)
    assert found.request == body == upstream.requests[0][1]
    assert found.response == CHAT_REPLY
    assert (found.provider, found.path, found.status) == ("openai", "/v1/chat/completions", 200)


async def test_a_renamed_model_is_in_the_bytes_that_were_sent(tmp_path: Path) -> None:
    url, upstream = f"sqlite:///{tmp_path}/metis.db", Upstream()
    body = msgspec.json.encode({**CHAT, "model": "mine"})
    await call(url, upstream, "/v1/chat/completions", body, routes=("mine=openai:gpt-4o",))
    async with open_store(url, recover=False) as store:
        (found,) = await recorded(store)
    assert found.request == upstream.requests[0][1]
    assert b'"gpt-4o"' in found.request


@pytest.mark.parametrize("is_stream", [False, True])
async def test_translated_request_is_stored_as_sent_to_provider(
    tmp_path: Path, *, is_stream: bool
) -> None:
    url, upstream = f"sqlite:///{tmp_path}/metis.db", Upstream()
    body = msgspec.json.encode(
        {
            "model": "gpt-4o",
            "max_tokens": 99,
            "stream": is_stream,
            "messages": [{"role": "user", "content": "hi"}],
        }
    )
    await call(url, upstream, "/v1/messages", body, routes=("gpt-4o=openai:gpt-4o",))
    async with open_store(url, recover=False) as store:
        (found,) = await recorded(store)
    assert found.request == upstream.requests[0][1] != body
    assert found.path == "/v1/chat/completions"
    assert found.response == (b"".join(CHAT_CHUNKS) if is_stream else CHAT_REPLY)


async def test_key_in_an_error_of_a_stream_is_not_stored(tmp_path: Path) -> None:
    encoded = b64encode(b"user:key-of-openai")

    async def repeat_key(request: web.Request, _: bytes) -> web.StreamResponse:
        text = f"bad key-of-openai, {encoded.decode()}"
        error = msgspec.json.encode({"error": {"message": text, "type": "auth"}})
        return await stream(request, [*CHAT_CHUNKS[:2], b"data: " + error + b"\n\n"])

    url = f"sqlite:///{tmp_path}/metis.db"
    body = msgspec.json.encode({**CHAT, "stream": True})
    await call(url, Upstream(repeat_key), "/v1/chat/completions", body)
    async with open_store(url, recover=False) as store:
        (found,) = await recorded(store)
    assert b"bad [key]" in found.response
    assert encoded[8:-4] not in found.response
