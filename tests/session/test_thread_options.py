"""Thread options: pointers to models, MCP servers, search and tool mode."""

import importlib.util
import json
import sys
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import mcp_server
from build import call, tool_id
from documents import scru128
from metis import interchange
from metis.canonical import Role, SideEffects, validate_session
from metis.canonical.errors import (
    InvalidValueError,
    SwapRefusedError,
    UnknownModelError,
    UnknownServerError,
)
from metis.catalog.cost import price
from metis.catalog.tables import model_pointers
from metis.session import Metis, Session
from metis.session.models import Models
from metis.session.options import ModelPointer, resolve_pointer
from metis.tools import Confirmation, Registry, Rule
from metis.tools.mcp import McpServer, StdioServer
from metis.wire.call import CanonicalRequest, RequestContext, ToolChoice
from metis.wire.reasoning import Reasoning
from session.fake import Fake, Say, say, serving
from session.helpers import GPT, SONNET, ReadFile, options

pytestmark = pytest.mark.anyio
needs_mcp = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the package mcp (our extra) is not installed"
)
ALL = Confirmation(rules=dict.fromkeys(SideEffects, Rule.AUTO))
PROGRAM = str(Path(mcp_server.__file__))


def server(name: str = "numbers") -> McpServer:
    return McpServer(name, StdioServer(sys.executable, (PROGRAM,)))


def thread(*turns: dict[str, Any]) -> str:
    """Return stored turns of gpt2099, each continuing the one before."""
    lines = [
        {
            "topic": "gpt.turn",
            "id": scru128(number),
            "meta": {"content_type": "text/plain", **turn}
            | ({"continues": scru128(number - 1)} if number > 1 else {}),
            "content": f"t{number}",
        }
        for number, turn in enumerate(turns, 1)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


async def imported(m: Metis, *turns: dict[str, Any]) -> Session:
    """Return a session that was imported from a thread of gpt2099."""
    record = await m.store.create_session()
    found = interchange.load("gpt2099", thread(*turns), RequestContext(session_id=record.id))
    await m.store.append_all(found.messages)
    return await m.resume(record.id)


def offered(sent_request: CanonicalRequest) -> list[str]:
    """Return the callable tools; tools that only the history uses are defined but not callable."""
    choice = sent_request.options.tool_choice
    return [] if choice == ToolChoice("none") else [tool.name for tool in sent_request.tools]


async def answered(session: Session) -> None:
    async for _ in session.respond():
        pass


# Servers.


@needs_mcp
@pytest.mark.row("G-005", "G-021", "GX-07")
async def test_the_tools_of_the_servers_of_a_thread_are_offered_and_run(url: str) -> None:
    def calls(sent_request: CanonicalRequest) -> Say:
        assert "numbers___add_numbers" in offered(sent_request)
        return say(call("numbers___add_numbers", tool_id(1), a=2, b=3))

    fake = Fake(calls, say("five"), say("none"))
    chosen = {"servers": (server(), server("others")), "tools": None, "confirmation": ALL}
    async with serving(fake), Metis(url, options(fake, **chosen)) as m:
        inherited = {"servers": ["numbers"]}
        session = await imported(m, {"inherited": inherited}, {"role": "assistant"}, {})
        await session.swap(SONNET)
        await answered(session)
        assert [each.role for each in session.messages[3:]] == [
            Role.ASSISTANT,
            Role.TOOL,
            Role.ASSISTANT,
        ]
        result = session.messages[4].metadata.outcome
        assert result is not None
        assert result.value == {"total": 5}
        names = offered(fake.requests[0])
        assert len(names) == len(mcp_server.TOOLS)
        assert all(name.startswith("numbers___") for name in names)
        # A later turn may change the option from there on.
        await session.ask("without", options={"servers": []})
        await session.ask("still without")
        assert [offered(sent_request) for sent_request in fake.requests[2:]] == [[], []]
        assert session.options == {"servers": []}
        await session.ask("others", options={"servers": ["others", "numbers"]})
        assert offered(fake.requests[-1])[0] == "others___add_numbers"
        assert len(offered(fake.requests[-1])) == 2 * len(mcp_server.TOOLS)
        await session.undo()
        await session.ask("again without")
        assert offered(fake.requests[-1]) == []
        assert validate_session(await m.store.messages(session.id)) == []


@needs_mcp
@pytest.mark.row("G-005")
async def test_server_tools_are_offered_with_built_in_tools_and_kept_by_retry(
    url: str,
) -> None:
    fake = Fake()
    async with serving(fake), Metis(url, options(fake, servers=(server(),))) as m:
        session = await m.session(model=SONNET)
        await session.ask("plain")
        assert offered(fake.requests[0]) == ["read_file"]
        await session.ask("more", options={"servers": ["numbers"]})
        async for _ in session.retry():
            pass
        for sent_request in fake.requests[1:]:
            assert offered(sent_request)[0] == "read_file"
            assert len(offered(sent_request)) == 1 + len(mcp_server.TOOLS)
        again = await (await session.fork()).ask("on")
        assert again is not None
        assert len(offered(fake.requests[-1])) == 1 + len(mcp_server.TOOLS)


@pytest.mark.row("G-005")
@pytest.mark.parametrize("tools", [None, Registry(ReadFile)])
async def test_unknown_server_is_an_error_before_anything_is_stored(
    url: str, tools: Registry | None
) -> None:
    fake = Fake()
    async with serving(fake), Metis(url, options(fake, tools=tools)) as m:
        session = await m.session(model=SONNET)
        with pytest.raises(UnknownServerError, match="no MCP server is named 'files'") as caught:
            await session.ask("go", options={"servers": ["files"]})
        assert (caught.value.name, caught.value.known) == ("files", ())
        assert session.messages == []
        assert fake.requests == []
        other = await imported(m, {"options": {"servers": ["files"]}})
        await other.swap(SONNET)
        with pytest.raises(UnknownServerError):
            await answered(other)
        assert await other.ask("without", options={"servers": None}) is not None
    with pytest.raises(InvalidValueError, match="two servers are named 'numbers'"):
        Metis(url, options(fake, servers=(server(), server())))


# Search and tool mode.


@pytest.mark.row("G-006", "G-007", "G-022", "G-023")
async def test_search_and_tool_mode_of_a_thread_reach_the_provider(url: str) -> None:
    fake = Fake()
    async with serving(fake), Metis(url, options(fake)) as m:
        inherited = {"search": True, "tool_mode": "auto"}
        session = await imported(m, {"options": inherited}, {"options": {"tool_mode": "none"}})
        await session.swap(SONNET)
        await answered(session)
        body = fake.bodies[0]
        assert body["tools"][-1] == {"type": "web_search_20250305", "name": "web_search"}
        assert body["tool_choice"] == {"type": "none"}
        await session.ask("no search", options={"search": False, "tool_mode": None})
        assert [tool["name"] for tool in fake.bodies[1]["tools"]] == ["read_file"]
        assert "tool_choice" not in fake.bodies[1]


@pytest.mark.row("G-006", "G-007")
async def test_unsupported_option_is_refused_and_reported_before_a_swap(url: str) -> None:
    fake = Fake()
    async with serving(fake), Metis(url, options(fake)) as m:
        session = await m.session(model=SONNET)
        assert await session.ask("search", options={"search": True}) is not None
        found = session.preview_swap(GPT)
        assert (found.fits, found.capability) == (False, "search")
        with pytest.raises(SwapRefusedError, match="has no web search"):
            await session.swap(GPT)
        assert session.model == SONNET
        with pytest.raises(InvalidValueError, match="has no web search"):
            async for _ in session.send("go", model=GPT):
                pass
        with pytest.raises(InvalidValueError, match="no tool mode 'sometimes'"):
            await session.ask("go", options={"tool_mode": "sometimes"})
        assert len(fake.requests) == 1


@pytest.mark.row("G-006")
async def test_fallback_without_search_is_skipped(url: str) -> None:
    fake = Fake(say(status=500, error="oh"))
    others = {"fallbacks": {"*": (GPT, "openai-responses:gpt-5")}}
    async with serving(fake), Metis(url, options(fake, **others)) as m:
        session = await m.session(model=SONNET)
        answer = await session.ask("search", options={"search": True})
        assert answer is not None
        assert answer.metadata.model == "openai-responses:gpt-5"
        assert {"type": "web_search"} in fake.bodies[-1]["tools"]


@pytest.mark.row("G-005", "G-006", "G-007", "G-024")
@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"servers": "files"}, "$.options.servers"),
        ({"servers": [1]}, "$.options.servers[0]"),
        ({"search": "yes"}, "$.options.search"),
        ({"tool_mode": 1}, "$.options.tool_mode"),
        ({"provider_ptr": []}, "$.options.provider_ptr"),
        ({"sevrers": []}, "$.options.sevrers"),
    ],
)
async def test_invalid_thread_option_error_names_the_path(
    url: str, wrong: dict[str, Any], path: str
) -> None:
    async with serving(Fake()) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model=SONNET)
        with pytest.raises(InvalidValueError) as caught:
            session.send("go", options=wrong)
        assert caught.value.path == path
        assert session.messages == []
        if "sevrers" not in wrong:
            other = await imported(m, {"options": wrong})
            with pytest.raises(InvalidValueError) as caught:
                await answered(other)
            assert caught.value.path == path


# Model pointers.


@pytest.mark.row("G-024", "GX-06")
async def test_thread_pointer_selects_model(url: str) -> None:
    fake = Fake()
    own = {"kilo": "openai:gpt-5", "own": "sonnet"}
    async with serving(fake), Metis(url, options(fake, pointers=own)) as m:
        nano, kilo = {"provider_ptr": "nano"}, {"provider_ptr": "kilo"}
        session = await imported(m, {"inherited": nano}, {"role": "assistant"}, {})
        await answered(session)
        assert session.model == model_pointers()["nano"]
        await session.ask("another", options=kilo)
        await session.ask("the same")
        await session.swap(SONNET)  # explicitly, after the thread has set a pointer
        await session.ask("by hand")
        assert session.model == SONNET
        await session.ask("back", options=kilo)
        again = await m.resume(session.id)
        assert again.model == "openai:gpt-5"
        await session.ask("mine", options={"provider_ptr": "own"})
        models = [each.metadata.model for each in session.messages if each.role is Role.ASSISTANT]
        assert models[1:] == [
            model_pointers()["nano"],
            *["openai:gpt-5"] * 2,
            SONNET,
            "openai:gpt-5",
            SONNET,
        ]
        await session.swap(None)
        assert session.model is None


@pytest.mark.row("G-024", "GX-06")
async def test_unknown_pointer_is_an_error_before_anything_is_stored(url: str) -> None:
    fake = Fake()
    async with serving(fake), Metis(url, options(fake, pointers={"lost": "nobody"})) as m:
        session = await m.session(model=SONNET)
        for name in ("pico", "pico.r", "lost"):
            with pytest.raises(UnknownModelError):
                await session.ask("go", options={"provider_ptr": name})
        assert session.messages == []
        other = await imported(m, {"options": {"provider_ptr": "pico"}})
        with pytest.raises(UnknownModelError, match=r"'pico': the pointers are nano, milli, kilo"):
            await answered(other)
        assert fake.requests == []
        assert (other.context(), other.model) == (None, None)
        # A turn with an explicit model continues.
        async for _ in other.send("go", model=SONNET):
            pass
        await other.swap(GPT)
        assert await other.ask("on") is not None
        assert other.model == GPT


@pytest.mark.row("GX-06")
async def test_pointer_with_r_is_a_reasoning_model_of_the_provider(
    url: str,
) -> None:
    fake = Fake()
    keys = {"anthropic": "key-of-anthropic", "openai": "key-of-openai"}
    chosen = {"keys": keys, "pointers": {"mine": "openai:gpt-5", "mine.r": "openai:o3"}}
    async with serving(fake), Metis(url, options(fake, **chosen)) as m:
        session = await m.session()
        for name in ("kilo", "kilo.r", "mine", "mine.r"):
            await session.ask("go", options={"provider_ptr": name})
        shown = [each.get("x-api-key") or each.get("authorization") for each in fake.headers]
        assert shown == ["key-of-anthropic"] * 2 + ["Bearer key-of-openai"] * 2
        assert [body["model"] for body in fake.bodies] == [
            "claude-sonnet-5-5",
            "claude-sonnet-5-5",
            "gpt-5",
            "o3",
        ]
        assert fake.requests[0].options.reasoning is None
        assert fake.requests[1].options.reasoning is not None
        await session.set_reasoning(Reasoning("low"))
        assert session.reasoning == Reasoning("low")


@pytest.mark.row("GX-06")
def test_custom_pointers_accept_any_model_name() -> None:
    models = Models()

    def find(name: str, **own: str) -> ModelPointer:
        return resolve_pointer(name, own, models)

    assert list(model_pointers()) == ["nano", "milli", "kilo", "mega", "giga"]
    costs = [cost(model) for model in model_pointers().values()]
    assert all(less < more for less, more in pairwise(costs))
    for name, model in model_pointers().items():
        assert find(name) == ModelPointer(model)
        assert find(f"{name}.r") == ModelPointer(model, Reasoning())
        assert models.get(model).adapter.capabilities(model).supports_thinking
    assert find("sonnet") == ModelPointer(SONNET)
    assert find("gpt-5.r") == ModelPointer("openai:gpt-5", Reasoning())
    assert find("giga", giga="gpt-5") == ModelPointer("openai:gpt-5")


def cost(model: str) -> Decimal:
    """Return the cost of a million input and output tokens."""
    from build import NOW, usage  # noqa: PLC0415 - two values

    used = usage(input_tokens=1_000_000, output_tokens=1_000_000)
    return price(used, model, NOW).cost_usd
