"""One adapter shared by threads, tasks and tenants gives each caller its own results."""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest
from msgspec.structs import replace

from build import assistant, call, numbered, system, tool, tool_id, ulid, user
from metis import adapters
from metis.adapters import Adapter, AdapterOptions, OutputFormat, Reasoning, ToolChoice, WireRequest
from metis.adapters.history import HistoryCache
from metis.adapters.request_options import MAX_CLIENT_PLANS, MAX_PLANS
from metis.canonical import Message, ToolDefinition
from metis.canonical.tools import SideEffects

PROVIDERS = (
    "anthropic",
    "bedrock-converse",
    "gemini",
    "mistral",
    "ollama",
    "openai",
    "openai-responses",
)
THREADS, ROUNDS = 8, 25
OPTIONS = (
    AdapterOptions(),
    AdapterOptions(temperature=0.5),
    AdapterOptions(max_output_tokens=100, stop_sequences=("end",)),
    AdapterOptions(tool_choice=ToolChoice("required")),
    AdapterOptions(reasoning=Reasoning("low")),
    AdapterOptions(include_thinking=True),
    AdapterOptions(stream=True),
)


def definition(name: str) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        description="does it",
        input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
        side_effects=SideEffects.READ,
    )


TOOLS = [definition("look"), definition("find"), definition("look.closer")]


def conversation(tenant: int, turns: int) -> list[Message]:
    """Return a history of one tenant; its call ids are foreign, so that wire ids are generated."""
    messages = [system(f"Be brief with tenant {tenant}.")]
    for turn in range(turns):
        call_id = tool_id(turn + 1) if turn % 2 else f"call_{tenant}_{turn}"
        messages += [
            user(f"question {turn} of {tenant}"),
            assistant("let me see", call("look", call_id, path=f"{tenant}/{turn}")),
            tool(f"a result for {tenant}", answers=call_id),
            assistant(f"an answer for {tenant}"),
        ]
    named = [replace(message, session_id=f"sess_{tenant}") for message in messages]
    return [
        replace(message, id=ulid(1000 * tenant + number)) for number, message in enumerate(named)
    ]


Request = tuple[list[Message], list[ToolDefinition], AdapterOptions]


def requests_of(tenant: int) -> list[Request]:
    """Return the requests of a tenant, each a turn longer, with its own options and tools."""
    draw = random.Random(tenant)  # noqa: S311 - a workload, no secret
    history = conversation(tenant, ROUNDS)
    return [
        (
            [*history[: 1 + 4 * turn], history[1 + 4 * turn]],
            draw.sample(TOOLS, draw.randint(1, 3)),
            draw.choice(OPTIONS),
        )
        for turn in range(ROUNDS)
    ]


def send_all(adapter: Adapter, start: Barrier, requests: list[Request]) -> list[WireRequest]:
    start.wait()
    return [adapter.preview(*request) for request in requests]


@pytest.mark.parametrize("name", PROVIDERS)
def test_threads_with_one_adapter_get_their_own_requests(name: str) -> None:
    profile = adapters.profile_of(name)
    shared, start = Adapter(profile), Barrier(THREADS)
    requests = [requests_of(tenant) for tenant in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        sent = list(pool.map(partial(send_all, shared, start), requests))
    for tenant in range(THREADS):
        for request, wire in zip(requests[tenant], sent[tenant], strict=True):
            assert wire == Adapter(profile).preview(*request)


@pytest.mark.parametrize("name", PROVIDERS)
def test_threads_extend_one_conversation_independently(name: str) -> None:
    """Each thread continues the same prefix in its own way, as forks of a session do."""
    profile = adapters.profile_of(name)
    shared, start = Adapter(profile), Barrier(THREADS)
    beginning = conversation(0, 3)
    shared.preview([*beginning, user("go on")], TOOLS)
    forks: list[list[Request]] = []
    for tenant in range(THREADS):
        call_id = f"call_0_{tenant}"  # an id that may occur in the prefix too
        fork = [
            *beginning,
            user(f"fork {tenant}"),
            assistant(call("look", call_id, path="a")),
            tool("done", answers=call_id),
        ]
        forks.append([(fork, TOOLS, AdapterOptions()) for _ in range(3)])
    with ThreadPoolExecutor(THREADS) as pool:
        sent = list(pool.map(partial(send_all, shared, start), forks))
    for requests, answers in zip(forks, sent, strict=True):
        fresh = Adapter(profile).preview(*requests[0])
        assert answers == [fresh] * 3


def test_equal_options_of_another_type_are_distinct() -> None:
    adapter = Adapter(adapters.profile_of("openai"))

    def body(value: object) -> bytes:
        schema = {"type": "object", "properties": {"n": {"const": value}}}
        options = AdapterOptions(output=OutputFormat(schema))
        return adapter.preview(numbered(user("hi")), (), options).body

    assert b'"const":1}' in body(1)
    assert b'"const":true}' in body(True)  # noqa: FBT003 - the value of the schema
    assert b'"const":1}' in body(1)


def test_changed_tool_list_changes_request() -> None:
    adapter = Adapter(adapters.profile_of("anthropic"))
    tools = [definition("look")]
    messages = numbered(user("hi"))
    assert b'"look"' in adapter.preview(messages, tools).body
    tools[0] = definition("find")
    assert b'"look"' not in adapter.preview(messages, tools).body


def test_options_of_a_client_are_planned_once_and_by_their_object() -> None:
    adapter = Adapter(adapters.profile_of("openai"))
    messages = numbered(user("hi"))
    native = {"anthropic": {"top_k": 4, "metadata": {"user_id": "x"}}}
    options = AdapterOptions(native=native, origin="anthropic", model="gpt-4o")
    first = adapter.preview(messages, (), options)
    plans = adapter._planner._client_plans  # pyright: ignore[reportPrivateUsage] - its entries
    ((key, entry),) = plans.items()
    assert adapter.preview(messages, (), replace(options, stream=None)) == first
    assert plans[key] is entry, "the plan was made again"
    other = replace(options, native={"anthropic": {"top_k": True}})
    assert adapter.preview(messages, (), other).losses != first.losses
    assert adapter.preview(messages, (), replace(options, temperature=0.5)).body != first.body
    assert adapter.preview(messages, (), options) == first


def test_caches_are_bounded() -> None:
    adapter = Adapter(adapters.profile_of("anthropic"))
    for number in range(MAX_PLANS + 10):
        options = AdapterOptions(max_output_tokens=number + 1)
        adapter.preview([replace(user("hi"), id=ulid(number))], (), options)
        client = replace(options, native={"openai_chat": {"user": "x"}}, origin="openai")
        adapter.preview([replace(user("hi"), id=ulid(number))], (), client)
    planner = adapter._planner  # pyright: ignore[reportPrivateUsage] - its size
    assert len(planner._plans) == MAX_PLANS  # pyright: ignore[reportPrivateUsage] - its size
    assert len(planner._client_plans) == MAX_CLIENT_PLANS  # pyright: ignore[reportPrivateUsage] - its size


@pytest.mark.parametrize(("conversations", "size", "expected"), [(3, 10**6, 3), (100, 250, 2)])
def test_oldest_history_is_evicted(conversations: int, size: int, expected: int) -> None:
    adapter = Adapter(adapters.profile_of("anthropic"))
    adapter._histories = cache = HistoryCache(conversations, size)  # pyright: ignore[reportPrivateUsage] - smaller
    talks = [[replace(user("hi"), id=ulid(number))] for number in range(5)]
    for talk in talks:
        adapter.preview(talk)
    target = adapter._requested_model(AdapterOptions()).target  # pyright: ignore[reportPrivateUsage] - its key
    is_cached = [cache.find(talk, target) is not None for talk in talks]
    assert is_cached == [False] * (5 - expected) + [True] * expected
