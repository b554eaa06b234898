"""Tools of MCP servers over both transports; needs the official package."""

import asyncio
import importlib.util
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import mcp_server
from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    Message,
    SideEffects,
    TextBlock,
    validate,
)
from metis.canonical.errors import ToolError
from metis.tools import ErrorClass, Registry, error_class
from metis.tools.hidden_text import HIDDEN
from metis.tools.mcp import HttpServer, McpServer, StdioServer, connection
from metis.tools.mcp.server import MAX_TOOLS
from metis.tools.tool import ToolFailedError
from tool_helpers import permissive_dispatcher, result_of, result_text, tool_call, tool_context

needs_mcp = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the package mcp (our extra) is not installed"
)
pytestmark = pytest.mark.anyio
PROGRAM = str(Path(mcp_server.__file__))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def stdio(*, is_trusted: bool = False) -> AsyncGenerator[McpServer]:
    server = McpServer("My-Tests", StdioServer(sys.executable, (PROGRAM,)), is_trusted=is_trusted)
    try:
        yield server
    finally:
        await server.close()


async def _post(request: web.Request) -> web.StreamResponse:
    request_json = await request.json()
    if request.headers.get("X-Key") != "word":
        raise web.HTTPUnauthorized
    response = mcp_server.reply(request_json)
    return web.Response(status=202) if response is None else web.json_response(response)


@asynccontextmanager
async def http(key: str = "word") -> AsyncGenerator[McpServer]:
    app = web.Application()
    app.router.add_post("/mcp", _post)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    server = McpServer("web", HttpServer(url, {"X-Key": key}))
    try:
        yield server
    finally:
        await server.close()
        await runner.cleanup()


async def call_tool(server: McpServer, name: str, /, **arguments: object) -> Message:
    dispatcher = permissive_dispatcher(*await server.tools())
    (message,) = await dispatcher.run([tool_call(name, **arguments)], tool_context())
    return message


@needs_mcp
async def test_tools_are_listed_with_prefixed_names_and_strongest_effect() -> None:
    async with stdio() as server:
        registry = Registry(*await server.tools())
    assert list(registry)[:2] == ["my_tests___add_numbers", "my_tests___everything"]
    assert len(registry) == len(mcp_server.TOOLS)
    assert {tool.side_effects for tool in registry.tools.values()} == {SideEffects.EXECUTE}
    schema = registry.tools["my_tests___add_numbers"].input_schema
    assert schema == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "(minimum: 0)"},
            "b": {"type": ["integer", "null"]},
        },
        "required": ["a", "b"],
    }


@needs_mcp
async def test_hints_of_trusted_server_are_used() -> None:
    async with stdio(is_trusted=True) as server:
        tools = Registry(*await server.tools()).tools
    assert tools["my_tests___add_numbers"].side_effects is SideEffects.READ
    assert tools["my_tests___pid"].side_effects is SideEffects.WRITE
    assert tools["my_tests___fail"].side_effects is SideEffects.EXECUTE


@needs_mcp
@pytest.mark.row("GX-08")
async def test_a_call_over_both_transports() -> None:
    for make, name in ((stdio, "my_tests___"), (http, "web___")):
        async with make() as server:
            message = await call_tool(server, f"{name}add_numbers", a=1, b=2)
            assert result_text(message) == "3"
            assert message.metadata.outcome is not None
            assert message.metadata.outcome.value == {"total": 3}
            wrong = await call_tool(server, f"{name}add_numbers", a="x")
            assert error_class(wrong) is ErrorClass.VALIDATION_ERROR


@needs_mcp
async def test_every_kind_of_content_becomes_a_block() -> None:
    async with stdio() as server:
        message = await call_tool(server, "my_tests___everything")
    content = result_of(message).content
    assert [type(block) for block in content] == [
        *(TextBlock, ImageBlock, AudioBlock, TextBlock, DocumentBlock, ArtifactBlock, TextBlock),
    ]
    assert "[file:///a]\ninside" in result_text(message)
    assert "[resource] d: file:///d" in result_text(message)
    assert validate(message) == []


@needs_mcp
@pytest.mark.row("GX-08")
async def test_refusal_of_server_is_an_error_result() -> None:
    async with stdio() as server:
        failed = await call_tool(server, "my_tests___fail")
        refused = await call_tool(server, "my_tests___refuse")
    assert (result_text(failed), result_of(failed).is_error) == ("it failed", True)
    assert "says: refused" in result_text(refused)
    assert error_class(refused) is ErrorClass.EXECUTION_ERROR


@needs_mcp
async def test_dead_server_is_an_error_result_and_is_restarted() -> None:
    async with stdio() as server:
        first = result_text(await call_tool(server, "my_tests___pid"))
        dead = await call_tool(server, "my_tests___die")
        assert "has stopped" in result_text(dead)
        second = result_text(await call_tool(server, "my_tests___pid"))
        assert first != second
    missing = McpServer("gone", StdioServer("/no/such/program"))
    with pytest.raises(ToolError, match="could not be started"):
        await missing.tools()
    async with http("wrong") as server:
        with pytest.raises(ToolError):
            await server.tools()


@needs_mcp
async def test_server_process_ends_on_close() -> None:
    async with stdio() as server:
        pid = int(result_text(await call_tool(server, "my_tests___pid")))
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@needs_mcp
async def test_api_keys_are_not_passed_to_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "canary-0451")
    monkeypatch.setenv("GREETING", "hello")
    async with stdio() as server:
        variables = json.loads(result_text(await call_tool(server, "my_tests___environment")))
    assert "canary-0451" not in variables.values()
    assert "GREETING" not in variables
    assert variables["PATH"] == os.environ["PATH"]


@needs_mcp
async def test_cancelled_call_leaves_server_running() -> None:
    async with stdio() as server:
        dispatcher = permissive_dispatcher(*await server.tools())
        turn = tool_context()
        running = asyncio.create_task(dispatcher.run([tool_call("my_tests___sleep")], turn))
        await asyncio.sleep(0.05)
        turn.cancel.set()
        (message,) = await running
        assert error_class(message) is ErrorClass.CANCELLED
        assert result_text(await call_tool(server, "my_tests___add_numbers", a=1, b=None)) == "1"


async def test_missing_package_error_explains_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ToolError, match=r"metis-llm\[mcp\]"):
        await McpServer("any", StdioServer("any")).tools()


@needs_mcp
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_of_http_server_are_not_followed(status: int) -> None:
    arrived: list[str] = []
    requests: list[str] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        arrived.append(str(request.headers))
        return web.json_response({})

    async def redirect(request: web.Request) -> web.StreamResponse:
        requests.append(request.path)
        if request.path == "/same":
            arrived.append(request.path)
        # To another origin, and to the same one.
        target = "/same" if request.path == "/mcp" else other
        return web.Response(status=status, headers={"Location": target})

    async with listening(elsewhere) as other, listening(redirect) as url:
        for path in ("/mcp", "/other"):
            address = HttpServer(url + path, headers={"authorization": "Bearer sk-canary"})
            server = McpServer("far", address)
            with pytest.raises((ToolError, ToolFailedError)):
                await server.tools()
            await server.close()
    assert requests
    assert arrived == []


@needs_mcp
@pytest.mark.parametrize("kind", ["json", "events", "one event", "gzip"])
async def test_a_response_without_end_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(connection, "MAX_RESPONSE_BYTES", 1_000_000)
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        is_events = "event" in kind
        headers = {"content-type": "text/event-stream" if is_events else "application/json"}
        if kind == "gzip":
            headers["content-encoding"] = "gzip"
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        start = {"json": b'{"a":"', "events": b": ", "one event": b"data: ", "gzip": b"\x1f"}[kind]
        await response.write(start)
        piece = b": x\n\n" * 20_000 if kind == "events" else b"x" * 100_000
        while sent < 100_000_000:
            await response.write(piece)
            sent += len(piece)
        return response

    async with listening(endless) as url:
        server = McpServer("far", HttpServer(url))
        with pytest.raises((ToolError, ToolFailedError)):
            await server.tools()
        await server.close()
    assert sent < 50_000_000


@needs_mcp
async def test_hostile_names_descriptions_and_schemas_become_plain_tools() -> None:
    bomb: dict[str, object] = {
        f"a{level}": {"properties": {key: {"$ref": f"#/$defs/a{level + 1}"} for key in "xyz"}}
        for level in range(40)
    }
    escapes = {"name": "\x1b]0;owned\x07rm -rf\n", "description": "\x1b[2Jwipe \u202eevil"}
    listed: list[dict[str, Any]] = [
        {**escapes, "inputSchema": {"type": "object"}},
        {"name": "a" * 10_000, "description": "d" * 1_000_000, "inputSchema": {"type": "object"}},
        {"name": "bomb", "inputSchema": {"type": "object", "$defs": bomb, "$ref": "#/$defs/a0"}},
        {"name": "loop", "inputSchema": {"type": "object", "$ref": "#"}},
        *({"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(3000)),
    ]

    async def reply(request: web.Request) -> web.StreamResponse:
        wire = await request.json()
        if wire.get("method") == "tools/list":
            result = {"tools": listed, "nextCursor": "more"}
            return web.json_response({"jsonrpc": "2.0", "id": wire["id"], "result": result})
        response = mcp_server.reply(wire)
        return web.Response(status=202) if response is None else web.json_response(response)

    async with listening(reply) as url:
        server = McpServer("far", HttpServer(url))
        definitions = [make().definition for make in await server.tools()]
        await server.close()
    assert len(definitions) == MAX_TOOLS
    assert len({definition.name for definition in definitions}) == MAX_TOOLS
    for definition in definitions:
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,63}", definition.name)
        assert HIDDEN.search(definition.description) is None
        assert len(definition.description) < 20_000
        assert len(json.dumps(definition.input_schema)) < 1_000_000


@asynccontextmanager
async def listening(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
