"""Servers that mean harm or are not what they seem: redirects, pages, keys in errors, breaks."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from build import user
from metis import adapters
from metis.adapters import Adapter
from metis.canonical.errors import (
    AuthenticationError,
    InvalidRequestError,
    InvalidValueError,
    MetisError,
    NetworkError,
    ProviderError,
    RedirectError,
    ResponseLimitError,
    ServerError,
    WebPageError,
)
from metis.streaming import StreamError, StreamEvent, TextDelta
from metis.transport import Keys, Limits, Retry, Transport
from metis.transport.concealment import without_key
from metis.wire.call import RequestContext, WireRequest

KEY = "sk-canary-0123456789abcdef"
AWS_KEY = "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
PROTOCOLS = (
    "anthropic",
    "openai",
    "openai-responses",
    "gemini",
    "ollama",
    "bedrock",
    "bedrock-converse",
)
REDIRECTS = (301, 302, 303, 307, 308)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
pytestmark = pytest.mark.anyio
STREAM_STARTS = {
    "anthropic": b'data: {"type":"message_start","message":{"id":"m"}}\n\n'
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'data: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"NOT"}}\n\n',
    "openai": b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"NOT"}}]}\n\n',
    "gemini": b'data: {"candidates":[{"content":{"parts":[{"text":"NOT"}]}}]}\n\n',
    "ollama": b'{"model":"m","message":{"role":"assistant","content":"NOT"},"done":false}\n',
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def serve(handler: Handler) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def no_sleep(_: float) -> None:
    pass


def client_with(key: str = KEY, **limits: Any) -> Transport:
    keys = Keys(dict.fromkeys(adapters.names(), key), environment={})
    return Transport(keys=keys, limits=Limits(**limits), sleep=no_sleep)


async def streamed(client: Transport, adapter: Adapter) -> list[StreamEvent]:
    context = RequestContext(session_id="sess_t", provider=adapter.name)
    async with aclosing(client.stream(adapter, request_of(adapter), context)) as events:
        return [event async for event in events]


async def completed(client: Transport, adapter: Adapter) -> object:
    context = RequestContext(session_id="sess_t", provider=adapter.name)
    return await client.complete(adapter, request_of(adapter), context)


def request_of(adapter: Adapter) -> WireRequest:
    return adapter.to_wire([user("the conversation")])


CALLS = {"stream": streamed, "complete": completed}


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("call", CALLS)
async def test_no_redirect_is_followed(name: str, status: int, call: str) -> None:
    arrived: list[str] = []
    attempts: list[str] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        arrived.append(f"{dict(request.headers)} {await request.text()}")
        return web.json_response({})

    async with serve(elsewhere) as other:
        target = other.replace("//", "//me:hunter2@") + f"/v1/new?key={KEY}"

        async def redirect(request: web.Request) -> web.StreamResponse:
            attempts.append(request.path)
            return web.Response(status=status, headers={"Location": target})

        key = AWS_KEY if name.startswith("bedrock") else KEY
        async with serve(redirect) as url, client_with(key) as client:
            with pytest.raises(RedirectError) as caught:
                await CALLS[call](client, adapters.get(name, base_url=url))
        assert caught.value.location == f"{other}/v1/new"
    assert arrived == []
    assert len(attempts) == 1
    assert caught.value.status == status
    assert other in str(caught.value)
    shown = f"{caught.value!s} {caught.value!r} {vars(caught.value)}"
    assert not any(secret in shown for secret in (KEY, "hunter2", "me:"))


@pytest.mark.parametrize("location", [None, "/other", "//evil.example/x", "http://[::1"])
async def test_a_redirect_with_any_location_is_an_error(location: str | None) -> None:
    async def redirect(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": location} if location else {})

    async with serve(redirect) as url, client_with() as client:
        with pytest.raises(RedirectError, match="not followed"):
            await streamed(client, adapters.get("anthropic", base_url=url))


PAGE = b"\n <!DOCTYPE html><html><head><title>\nWelcome to\nCafe WiFi</title></head>Log in</html>"


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("call", CALLS)
async def test_a_login_page_of_the_network_is_named_in_one_sentence(name: str, call: str) -> None:
    attempts: list[int] = []

    async def portal(_: web.Request) -> web.StreamResponse:
        attempts.append(1)
        return web.Response(body=PAGE, content_type="text/html")

    key = AWS_KEY if name.startswith("bedrock") else KEY
    async with serve(portal) as url, client_with(key) as client:
        with pytest.raises(WebPageError, match="a web page") as caught:
            await CALLS[call](client, adapters.get(name, base_url=url))
    assert "\n" not in str(caught.value)
    assert len(attempts) == 1


@pytest.mark.parametrize("call", CALLS)
async def test_a_page_with_an_error_status_has_the_class_of_the_status(call: str) -> None:
    async def gateway(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, body=PAGE, content_type="text/html")

    async with serve(gateway) as url, client_with() as client:
        with pytest.raises(ServerError, match="web page") as caught:
            await CALLS[call](client, adapters.get("openai", base_url=url))
    assert "<" not in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", PROTOCOLS)
async def test_an_oversized_error_body_is_read_in_part_and_once(name: str, call: str) -> None:
    written: list[int] = []

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        written.append(0)
        try:
            while written[-1] < 50_000_000:
                await response.write(b"x" * 50_000)
                written[-1] += 50_000
        except ConnectionError:
            pass
        return response

    key = AWS_KEY if name.startswith("bedrock") else KEY
    async with serve(endless) as url, client_with(key) as client:
        with pytest.raises(ProviderError) as caught:
            await CALLS[call](client, adapters.get(name, base_url=url))
    assert len(written) == 1
    assert written[0] < 20_000_000
    assert len(str(caught.value)) < 10_000


async def test_a_response_over_the_limit_is_not_requested_again() -> None:
    attempts: list[int] = []

    async def long(_: web.Request) -> web.StreamResponse:
        attempts.append(1)
        return web.json_response({"text": "x" * 10_000})

    async with serve(long) as url, client_with(response_bytes=1000) as client:
        with pytest.raises(ResponseLimitError, match="more than 1,000 bytes"):
            await completed(client, adapters.get("anthropic", base_url=url))
    assert len(attempts) == 1


ERROR_BODIES: dict[str, Any] = {
    "anthropic": {"type": "error", "error": {"type": "api_error", "message": "it broke"}},
    "openai": {"error": {"message": "it broke", "type": "server_error"}},
    "openai-responses": {"error": {"message": "it broke", "type": "server_error"}},
    "gemini": {"error": {"code": 500, "message": "it broke", "status": "INTERNAL"}},
    "ollama": {"error": "it broke"},
    "bedrock": {"message": "it broke", "__type": "InternalServerException"},
    "bedrock-converse": {"message": "it broke", "__type": "InternalServerException"},
}


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("call", CALLS)
async def test_an_error_body_with_status_200_is_the_error_that_it_states(
    name: str, call: str
) -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(ERROR_BODIES[name])

    key = AWS_KEY if name.startswith("bedrock") else KEY
    async with serve(handle) as url, client_with(key) as client:
        with pytest.raises(ProviderError, match="it broke"):
            await CALLS[call](client, adapters.get(name, base_url=url))


def breaking(name: str, how: str, attempts: list[int]) -> Handler:
    """Return a handler that sends some text, and then breaks the response in one way."""

    async def handle(request: web.Request) -> web.StreamResponse:
        attempts.append(1)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(STREAM_STARTS[name])
        await asyncio.sleep(0.02)
        assert request.transport is not None
        match how:
            case "closed":
                request.transport.close()
            case "bad chunk":
                request.transport.write(b"zzzz\r\nnot a chunk\r\n")
                await asyncio.sleep(0.05)
                request.transport.close()
            case "total timeout":
                for _ in range(200):
                    await response.write(b"\n")
                    await asyncio.sleep(0.01)
            case _:
                while not request.transport.is_closing():  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
        return response

    return handle


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed", "bad chunk", "total timeout", "silence"])
@pytest.mark.parametrize("name", STREAM_STARTS)
async def test_a_request_is_not_repeated_once_text_was_shown(name: str, how: str) -> None:
    attempts: list[int] = []
    limits: dict[str, Any] = {"total timeout": {"total_s": 0.3}, "silence": {"silence_s": 0.2}}.get(
        how, {}
    )
    async with (
        serve(breaking(name, how, attempts)) as url,
        client_with(**limits) as client,
    ):
        events = await streamed(client, adapters.get(name, base_url=url))
    assert len(attempts) == 1
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["NOT"]
    last = events[-1]
    assert isinstance(last, StreamError)
    assert "what arrived is preserved" in last.text
    assert last.message is not None
    assert [getattr(block, "text", "") for block in last.message.content] == ["NOT"]


def echoes() -> dict[str, str]:
    encoded = base64.b64encode
    return {
        "whole": KEY,
        "cut at the front": KEY[4:],
        "cut at the end": KEY[:-4],
        "middle": KEY[5:20],
        "base64": encoded(KEY.encode()).decode(),
        "login": encoded(f"user:{KEY}".encode()).decode(),
        "url base64": base64.urlsafe_b64encode(KEY.encode()).decode(),
        "percent": "".join(f"%{ord(character):02X}" for character in KEY),
        "half percent": "".join(f"%{ord(c):02x}" if n % 2 else c for n, c in enumerate(KEY)),
        "hexadecimal": KEY.encode().hex(),
        "escapes": "".join(f"\\u{ord(character):04x}" for character in KEY),
        "entities": "".join(f"&#{ord(character)};" for character in KEY),
    }


def assert_concealed(echo: str, shown: str) -> None:
    """Assert that no eight characters of an echo in a row are shown."""
    size = 8 if len(echo) < 40 else 20
    parts = [echo[start : start + size] for start in range(len(echo) - size + 1)]
    assert not [part for part in parts if part in shown]


@pytest.mark.parametrize("kind", echoes())
@pytest.mark.parametrize("status", [400, 401, 500, 200])
async def test_an_echoed_key_is_concealed(
    kind: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = echoes()[kind]
    failures: list[str] = []

    async def handle(_: web.Request) -> web.StreamResponse:
        error = {"message": f"Incorrect key: {echo}.", "type": f"x{echo}", "code": echo}
        return web.Response(
            status=status,
            body=json.dumps({"error": error}).encode(),
            headers={"x-request-id": echo},
        )

    async def on_failure(error: ProviderError, *_: object) -> None:
        failures.append(f"{error!r} {vars(error)}")

    async with serve(handle) as url, client_with() as client:
        adapter = adapters.get("openai", base_url=url)
        context = RequestContext(session_id="sess_t", provider=adapter.name)
        with pytest.raises(ProviderError) as caught:
            await client.complete(adapter, request_of(adapter), context, on_failure)
        with pytest.raises(ProviderError) as streaming:
            await streamed(client, adapter)
    for error in (caught.value, streaming.value):
        assert "[key]" in str(error)
        assert_concealed(echo, f"{error!s} {error!r} {vars(error)}")
    assert_concealed(echo, "".join(failures) + caplog.text)


@pytest.mark.parametrize(
    "spelled",
    [
        "".join(f"\\u{ord(c):04x}" for c in KEY),
        "".join(f"\\\\u{ord(c):04x}" for c in KEY),
        "".join(f"\\\\x{ord(c):02X}" for c in KEY),
        "".join(f"%25{ord(c):02x}" for c in KEY),
        "".join(f"&#x{ord(c):04X};" for c in KEY),
        "".join(f"&#{ord(c):05};" for c in KEY),
        KEY[::-1],
    ],
)
def test_a_key_with_escaped_characters_or_backwards_is_concealed(spelled: str) -> None:
    assert without_key(f"bad key {spelled} (401)", KEY) == "bad key [key] (401)"
    assert without_key("would not reach it", "u") == "would not reach it"
    assert "[key]" in without_key(f"bad key {spelled[7:-7]}", KEY)


@pytest.mark.parametrize("kind", echoes())
def test_every_part_of_eight_characters_is_recognised_at_every_place(kind: str) -> None:
    echo = echoes()[kind]
    longest_escape = 6
    size = 9 * longest_escape if set(echo) & set("%\\&") else 8
    for start in range(9, len(echo) - size - 3):  # `user:` is before a login
        text = f"{'.' * (start % 7)}{echo[start : start + size]}{'.' * (start % 5)}"
        assert "[key]" in without_key(text, KEY), text


def test_ordinary_words_of_an_error_are_not_concealed() -> None:
    text = "Incorrect API key provided: sk-can***cdef. Rate limit 0123456 of 100%25 reached."
    assert without_key(text, KEY) == text
    assert without_key("the model is one of many", "one") == "the model is [key] of many"
    assert without_key(text, None) == text


@pytest.mark.parametrize(
    "base_url",
    [
        *("not a url", "http://", "http://[::1", "http://host:99999", "http://host:port", ""),
        *("http://ho st", "ftp://host", "http:///v1", "http://h\nx", "http://a..b", "http://h?x=1"),
        *("http://me:hunter2@", "http://me:hunter2/x@host", "me:hunter2@host", "http://h#x"),
    ],
)
def test_a_malformed_base_url_is_a_typed_error_without_its_login(base_url: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        adapters.get("openai", base_url=base_url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.path == "$.base_url"


async def test_a_login_in_a_base_url_is_sent_and_never_shown() -> None:
    headers: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        headers.append(request.headers["authorization"])
        return web.Response(status=404, text=f"no {request.url} http://me:hunter2@x/")

    async with serve(handle) as url:
        with_login = url.replace("//", "//me:hunter2@")
        async with client_with() as client:
            with pytest.raises(ProviderError) as caught:
                await completed(client, adapters.get("anthropic", base_url=with_login))
            with pytest.raises(InvalidRequestError, match="remove one") as both:
                await completed(client, adapters.get("openai", base_url=with_login))
    assert headers == ["Basic " + base64.b64encode(b"me:hunter2").decode()]
    assert "hunter2" not in f"{caught.value} {vars(caught.value)} {both.value}"
    gone = adapters.get("anthropic", base_url="http://me:hunter2@127.0.0.1:9")
    async with Transport(keys=Keys({"anthropic": KEY}), retry=Retry(attempts=1)) as client:
        with pytest.raises(NetworkError) as caught:
            await completed(client, gone)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-1234\nx-evil: 1", "sk-\r\n1234", "schlüssel-12345678"])
async def test_a_key_that_is_no_header_is_refused_and_not_repeated(key: str) -> None:
    async with client_with(key) as client:
        with pytest.raises(AuthenticationError) as caught:
            await completed(client, adapters.get("openai", base_url="http://127.0.0.1:9"))
    assert "1234" not in str(caught.value)


async def test_a_login_in_netrc_is_not_sent(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    headers: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        headers.append(str(request.headers))
        return web.json_response(ERROR_BODIES["openai"], status=400)

    async with serve(handle) as url, client_with() as client:
        for name in ("openai", "anthropic"):
            with pytest.raises(ProviderError):
                await completed(client, adapters.get(name, base_url=url))
    assert len(headers) >= 2
    assert "Basic" not in "".join(headers)


async def test_no_cookie_comes_back() -> None:
    cookies: list[str | None] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        cookies.append(request.headers.get("cookie"))
        response = web.json_response(ERROR_BODIES["openai"], status=500)
        response.set_cookie("id", "1")
        return response

    async with serve(handle) as url, client_with() as client:
        with pytest.raises(MetisError):
            await completed(client, adapters.get("openai", base_url=url))
    assert cookies == [None, None, None]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_interim_responses_without_end_are_cut_off(*, is_stream: bool) -> None:
    sent = 0

    async def hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        try:
            while sent < 1_000_000:
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
                sent += 100
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(hints, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    adapter = adapters.get("openai", base_url=url)
    request = adapter.to_wire([user("hi")])
    retry = Retry(attempts=1)
    async with server, Transport(keys=Keys({"openai": KEY}), retry=retry) as transport:
        call = transport.stream(adapter, request, RequestContext())
        first = anext(call) if is_stream else transport.complete(adapter, request, RequestContext())
        with pytest.raises(NetworkError):
            await first
    assert sent < 500_000


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("name", ["request-id", "x-request-id"])
async def test_error_has_request_id_of_headers(status: int, name: str) -> None:
    async def handle(_: web.Request) -> web.StreamResponse:
        body = json.dumps({"error": {"message": "no", "type": "invalid_request_error"}})
        return web.Response(status=status, body=body.encode(), headers={name: "req_7"})

    async with serve(handle) as url, client_with() as client:
        adapter = adapters.get("openai", base_url=url)
        context = RequestContext(session_id="sess_t", provider=adapter.name)
        with pytest.raises(ProviderError) as caught:
            await client.complete(adapter, request_of(adapter), context)
    assert caught.value.request_id == "req_7"


async def test_address_that_is_none_is_refused_before_sending() -> None:
    adapter = Adapter(replace(adapters.get("openai").profile, base_url="ftp://localhost/v1"))
    context = RequestContext(session_id="sess_t", provider=adapter.name)
    async with client_with() as client:
        with pytest.raises(InvalidRequestError, match="it must start with http"):
            await client.complete(adapter, request_of(adapter), context)


@pytest.mark.parametrize("before", ["", "a", "ab"])
def test_key_is_concealed_in_both_alphabets_of_base64(before: str) -> None:
    key = "sk->>>???~~~>>>???ooo>>>???"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        echo = encode(f"{before}{key}".encode()).decode().rstrip("=")
        shown = without_key(f"a {echo} b", key)
        # The ends depend on the bytes around the key.
        assert_concealed(echo[4:-4], shown)
