"""Every exchange through the gateway is stored as messages of one conversation."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from metis.canonical.blocks import TextBlock, ToolUseBlock
from metis.canonical.errors import StoreUnavailableError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus
from metis.events import SqliteTrace
from metis.events.trace import EventQuery
from metis.events.turn_events import LlmCallCompleted, LlmCallFailed
from metis.gateway.exchange import Exchange, Tenant
from metis.gateway.exchange_queue import WaitingExchanges
from metis.gateway.recorder import Recorder
from metis.session.models import Models
from metis.store import Store
from metis.store import open as open_store
from metis.store.entries import PARENT_KIND, ErrorEntry, SidecarEntry
from metis.store.exchanges import ExchangeJob
from metis.store.threads import Threads

pytestmark = pytest.mark.anyio

ALICE = Tenant(user_id="alice", team_id="core")
BOB = Tenant(user_id="bob", team_id="core")
RECORD_KEYS = (
    *("id", "session", "client_protocol", "asked_model", "provider", "model", "mode", "status"),
    *("losses", "usage", "cost_usd", "attempts", "timings"),
)
TOOLS = [{"name": "ls", "description": "list", "input_schema": {"type": "object"}}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **calls: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [
        {"type": "tool_use", "id": wire_id, "name": name, "input": {"path": "."}}
        for wire_id, name in calls.items()
    ]
    return {"role": "assistant", "content": content}


def results(**texts: str) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": wire_id, "content": text}
            for wire_id, text in texts.items()
        ],
    }


def response(message: Mapping[str, Any], **fields: Any) -> bytes:
    has_calls = any(part["type"] == "tool_use" for part in message["content"])
    return json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "model": "claude-sonnet-4-5",
            "stop_reason": "tool_use" if has_calls else "end_turn",
            "usage": {"input_tokens": 100, "output_tokens": 20},
            **message,
            **fields,
        }
    ).encode()


class Client:
    """A client that sends its whole history with every request, as agents do."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        tenant: Tenant = ALICE,
        headers: Mapping[str, str] = {},
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.recorder = recorder
        self.tenant = tenant
        self.headers = headers
        self.system = system
        self.tools = tools

    def body(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> bytes:
        body: dict[str, Any] = {"model": "claude-sonnet-4-5", "max_tokens": 99, **fields}
        if self.system is not None:
            body["system"] = self.system
        if self.tools:
            body["tools"] = self.tools
        return json.dumps({**body, "messages": messages}).encode()

    async def send(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: Mapping[str, Any] | None = None,
        *,
        parts: Sequence[bytes] = (),
        status: int = 200,
        error: str | None = None,
        **fields: Any,
    ) -> Exchange:
        """Send a request, and record it with its response."""
        exchange = Exchange(
            tenant=self.tenant,
            client_protocol="anthropic",
            client_adapter="anthropic",
            path="/v1/messages",
            headers=self.headers,
            requested_model="claude-sonnet-4-5",
            provider="anthropic",
            model="claude-sonnet-4-5",
            request_body=self.body(messages, **fields),
        )
        if not self.recorder.begin(exchange):
            await self.recorder.search(exchange)
        exchange.is_stream = bool(parts)
        exchange.response_parts = list(parts) or ([response(answer)] if answer else [])
        exchange.status, exchange.error = status, error
        exchange.timings.end = exchange.timings.begin + 0.25
        self.recorder.record(exchange)
        return exchange


@asynccontextmanager
async def recording(store: Store | None, **options: Any) -> AsyncGenerator[Recorder]:
    recorder = Recorder(store, Models(), **options)
    await recorder.start()
    try:
        yield recorder
    finally:
        await recorder.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with open_store(f"sqlite:///{tmp_path}/metis.db") as opened:
        yield opened


async def threads_of(store: Store, session_id: str) -> Threads:
    return Threads(await store.history(session_id))


def texts(messages: Sequence[Message]) -> list[str]:
    return [
        "".join(block.text for block in message.content if isinstance(block, TextBlock))
        or message.role.value
        for message in messages
    ]


async def notes(store: Store, session_id: str, kind: str) -> list[Mapping[str, Any]]:
    history = await store.history(session_id)
    return [e.data for e in history if isinstance(e, SidecarEntry) and e.kind == kind]


async def test_turns_without_session_header_join_by_prefix(store: Store) -> None:
    async with recording(store) as recorder:
        client = Client(recorder, system="You help.")
        first = await client.send([user("one")], assistant("two"))
        second = await client.send(
            [user("one"), assistant("two"), user("three")], assistant("four")
        )
    assert second.session_id == first.session_id
    threads = await threads_of(store, first.session_id)
    assert texts(threads.path()) == ["You help.", "one", "two", "three", "four"]
    assert len(await store.sessions()) == 1


async def test_another_worker_joins_by_stored_prefix(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/metis.db"
    async with open_store(url) as one, open_store(url) as two:
        async with recording(one) as recorder:
            first = await Client(recorder).send([user("one")], assistant("two"))
        async with recording(two) as recorder:
            history = [user("one"), assistant("two"), user("three")]
            second = await Client(recorder).send(history, assistant("four"))
        assert second.session_id == first.session_id
        threads = await threads_of(two, first.session_id)
        assert texts(threads.path()) == ["one", "two", "three", "four"]


async def test_equal_conversations_of_two_tenants_never_join(store: Store) -> None:
    async with recording(store) as recorder:
        history = [user("one"), assistant("two"), user("three")]
        sessions = {
            (await Client(recorder, tenant=tenant).send(history, assistant("four"))).session_id
            for tenant in (ALICE, BOB)
        }
        headers = {"x-session-id": "same"}
        sessions |= {
            (await Client(recorder, tenant=t, headers=headers).send(history)).session_id
            for t in (ALICE, BOB)
        }
    assert len(sessions) == 4


async def test_a_retry_and_an_edited_history_become_branches(store: Store) -> None:
    async with recording(store) as recorder:
        client = Client(recorder)
        first_messages = [user("one"), assistant("two")]
        first = await client.send([user("one")], assistant("two"))
        await client.send([*first_messages, user("three")], assistant("four"))
        await client.send([*first_messages, user("three")], assistant("four again"))
        edited = await client.send([*first_messages, user("3")], assistant("5"))
    assert edited.session_id == first.session_id
    messages = await store.messages(first.session_id)
    assert sorted(texts(messages)) == sorted(
        ["one", "two", "three", "four", "four again", "3", "5"]
    )
    threads = await threads_of(store, first.session_id)
    assert texts(threads.path()) == ["one", "two", "3", "5"]
    by_text = {texts([message])[0]: message.id for message in messages}
    assert texts(threads.path(by_text["four"])) == ["one", "two", "three", "four"]
    assert texts(threads.path(by_text["four again"])) == ["one", "two", "three", "four again"]


async def test_results_pair_with_the_calls_of_the_response(store: Store) -> None:
    async with recording(store) as recorder:
        client = Client(recorder, tools=TOOLS)
        answer = assistant("look", toolu_1="ls", toolu_2="ls")
        first = await client.send([user("go")], answer)
        await client.send(
            [user("go"), answer, results(toolu_1="a", toolu_2="b")], assistant("done")
        )
    calls = await store.tool_calls(first.session_id)
    assert [call.status for call in calls] == ["succeeded", "succeeded"]
    path = (await threads_of(store, first.session_id)).path()
    assert [message.role.value for message in path] == [
        *("user", "assistant", "tool", "tool", "assistant")
    ]
    # The ids of the provider stay with the message, for requests to it.
    assert await store.provider_ids(first.session_id, "anthropic") == {
        call.id: wire_id
        for call, wire_id in zip(
            (b for b in path[1].content if isinstance(b, ToolUseBlock)),
            ("toolu_1", "toolu_2"),
            strict=True,
        )
    }


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_another_result_of_a_call_is_a_branch(
    tmp_path: Path,
    is_restarted: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    url = f"sqlite:///{tmp_path}/metis.db"
    answer = assistant("look", toolu_1="ls")
    async with open_store(url) as store:
        async with recording(store) as recorder:
            client = Client(recorder, tools=TOOLS)
            first = await client.send([user("go")], answer)
            await client.send([user("go"), answer, results(toolu_1="a")], assistant("done"))
            if not is_restarted:
                await client.send([user("go"), answer, results(toolu_1="b")], assistant("undone"))
        if is_restarted:
            async with recording(store) as recorder:
                client = Client(recorder, tools=TOOLS)
                await client.send([user("go"), answer, results(toolu_1="b")], assistant("undone"))
        calls = await store.tool_calls(first.session_id)
        assert [call.status for call in calls] == ["succeeded", "succeeded"]
        path = (await threads_of(store, first.session_id)).path()
        assert texts(path) == ["go", "look", "tool", "undone"]
        assert await store.check() == []


async def test_result_after_restart_that_aborted_its_call(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/metis.db"
    answer = assistant("look", toolu_1="ls")
    async with open_store(url) as store, recording(store) as recorder:
        first = await Client(recorder, tools=TOOLS).send([user("go")], answer)
    async with open_store(url) as store:
        assert store.recoveries
        async with recording(store) as recorder:
            client = Client(recorder, tools=TOOLS)
            history = [user("go"), answer, results(toolu_1="a")]
            second = await client.send(history, assistant("done"))
            await client.send([*history, assistant("done"), user("more")], assistant("end"))
        assert second.session_id == first.session_id
        path = (await threads_of(store, first.session_id)).path()
        assert texts(path) == ["go", "look", "tool", "done", "more", "end"]
        assert await store.check() == []


async def test_session_headers_join_and_sub_agents_become_children(store: Store) -> None:
    headers = {"x-claude-code-session-id": "11111111-2222-3333-4444-555555555555"}
    async with recording(store) as recorder:
        main = Client(recorder, headers=headers, system="You are an agent.", tools=TOOLS)
        first = await main.send([user("one")], assistant("two"))
        other = Client(recorder, headers=headers, system="You search.", tools=TOOLS)
        child = await other.send([user("find it")], assistant("it is here"))
        child_2 = await other.send(
            [user("find it"), assistant("it is here"), user("sure?")], assistant("yes")
        )
        agent = {**headers, "x-claude-code-agent-id": "a1"}
        named = await Client(recorder, headers=agent, tools=TOOLS).send([user("x")], assistant("y"))
        second = await main.send([user("one"), assistant("two"), user("three")], assistant("four"))
    assert first.session_id == second.session_id
    assert child.session_id == child_2.session_id != first.session_id
    assert named.session_id not in (first.session_id, child.session_id)
    for session_id in (child.session_id, named.session_id):
        assert await notes(store, session_id, PARENT_KIND) == [{"session_id": first.session_id}]
    path = (await threads_of(store, first.session_id)).path()
    assert texts(path) == ["You are an agent.", "one", "two", "three", "four"]


async def test_side_calls_are_marked_counted_and_outside_of_the_thread(store: Store) -> None:
    headers = {"x-claude-code-session-id": "s1"}
    async with recording(store) as recorder:
        probe = Client(recorder, headers=headers)
        await probe.send([user("quota")], assistant("#"), max_tokens=1)
        system = "You are an agent.\n- **Workspace Directories:**\n  - /home/ann/app\n- x"
        main = Client(recorder, headers=headers, system=system, tools=TOOLS)
        first = await main.send([user("one")], assistant("two"))
        title = Client(recorder, headers=headers, system="Write a title of five words.")
        await title.send([user("one")], assistant("A title"))
    path = (await threads_of(store, first.session_id)).path()
    assert texts(path) == [system, "one", "two"]
    marked = [n for n in await notes(store, first.session_id, "session.usage") if "side_call" in n]
    assert len(marked) == 2
    assert marked[1]["side_call"]["messages"][-1]["content"][0]["text"] == "A title"
    overview = (await store.overviews())[0]
    # The probe came first, and named no directory.
    assert (await store.session(first.session_id)).workspace_path == "/home/ann/app"
    assert overview.cost_usd == 3 * (Decimal(100) * 3 + Decimal(20) * 15) / 1_000_000


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"session_id": "c0ffee"}, {}),
        ({"session-id": "c0ffee"}, {}),
        ({"x-session-affinity": "ses_1"}, {}),
        ({}, {"metadata": {"user_id": '{"device_id": "d", "session_id": "s-1"}'}}),
        ({}, {"metadata": {"user_id": "user_a_account__session_" + "0" * 36}}),
    ],
)
async def test_a_session_is_named_by_header_or_body(
    store: Store, headers: Mapping[str, str], fields: Mapping[str, Any]
) -> None:
    async with recording(store) as recorder:
        client = Client(recorder, headers=headers)
        sessions = {
            (await client.send([user(text)], assistant("yes"), **fields)).session_id
            for text in ("one", "two")
        }
    assert len(sessions) == 1
    # Two roots: the second thread does not continue the first.
    path = (await threads_of(store, sessions.pop())).path()
    assert texts(path) == ["two", "yes"]


async def test_changed_system_prompt_is_recorded_once_without_new_conversation(
    store: Store,
) -> None:
    async with recording(store) as recorder:
        first = await Client(recorder, system="Monday").send([user("one")], assistant("two"))
        later = Client(recorder, system="Tuesday")
        history = [user("one"), assistant("two"), user("three")]
        await later.send(history, assistant("four"))
        await later.send([*history, assistant("four"), user("five")], assistant("six"))
    path = (await threads_of(store, first.session_id)).path()
    assert texts(path) == ["Monday", "one", "two", "three", "four", "five", "six"]
    assert await notes(store, first.session_id, "gateway.system") == [{"system": ["Tuesday"]}]


@pytest.mark.row("M-073", "M-074")
async def test_the_name_of_a_key_is_stored_but_no_e_mail_address(store: Store) -> None:
    async with recording(store) as recorder:
        named = await Client(recorder).send([user("one")], assistant("two"))
        address = Tenant(user_id="ann@example.org", team_id="core")
        mailed = await Client(recorder, tenant=address).send([user("one")], assistant("two"))
        nobody = await Client(recorder, tenant=Tenant()).send([user("one")], assistant("two"))
    principals = {
        session: {
            (message.metadata.user_id, message.metadata.team_id)
            for message in await store.messages(session)
        }
        for session in (named.session_id, mailed.session_id, nobody.session_id)
    }
    assert principals[named.session_id] == {("alice", "core")}
    assert principals[nobody.session_id] == {(None, None)}
    ((mailed_id, _),) = principals[mailed.session_id]
    assert mailed_id is not None
    assert "@" not in mailed_id
    for line in await store.export(mailed.session_id):
        assert b"example.org" not in line


async def test_truncated_stream_is_stored_partially(store: Store) -> None:
    events = [
        {"type": "message_start", "message": json.loads(response(assistant(""), content=[]))},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "half of"},
        },
    ]
    parts = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
    async with recording(store) as recorder:
        gone = await Client(recorder).send([user("one")], parts=parts, status=499)
        cut = await Client(recorder, tenant=BOB).send(
            [user("one")], parts=parts, error="the stream ended early"
        )
    for exchange, status in ((gone, MessageStatus.CANCELLED), (cut, MessageStatus.ERROR)):
        last = (await store.messages(exchange.session_id))[-1]
        assert texts([last]) == ["half of"]
        assert last.metadata.status is status
        assert last.metadata.usage is not None
        assert last.metadata.usage.estimated
        assert last.metadata.usage.cost_usd > 0
    history = await store.history(cut.session_id)
    assert [entry.text for entry in history if isinstance(entry, ErrorEntry)] == [
        "the stream ended early"
    ]


async def test_refused_request_stores_prompt_and_error(store: Store) -> None:
    async with recording(store) as recorder:
        failed = await Client(recorder).send([user("one")], status=529, error="overloaded")
        again = await Client(recorder).send([user("one")], assistant("two"))
    assert failed.session_id == again.session_id
    assert texts(await store.messages(failed.session_id)) == ["one", "two"]


async def test_the_record_has_exactly_its_keys_while_pending_and_after_a_restart(
    store: Store,
) -> None:
    async with recording(store) as recorder:
        exchange = await Client(recorder).send([user("one")], assistant("two"))
        pending = await recorder.lookup(exchange.id, ALICE)
        assert await recorder.lookup(exchange.id, BOB) is None
    async with recording(store) as recorder:
        stored = await recorder.lookup(exchange.id, ALICE)
        assert await recorder.lookup(exchange.id, BOB) is None
        assert await recorder.lookup("01JUNKNOWN", ALICE) is None
    assert stored == pending
    assert stored is not None
    assert sorted(stored) == sorted(RECORD_KEYS)
    assert stored["session"] == exchange.session_id
    assert stored["usage"]["input_tokens"] == 100
    assert Decimal(stored["cost_usd"]) == (Decimal(100) * 3 + Decimal(20) * 15) / 1_000_000
    assert "E" not in stored["cost_usd"]
    assert stored["timings"]["total_ms"] == 250


async def test_each_call_is_one_event_of_the_trace(store: Store, tmp_path: Path) -> None:
    async with recording(store, trace=tmp_path / "trace.db") as recorder:
        first = await Client(recorder).send([user("one")], assistant("two"))
        failed = await Client(recorder, tenant=BOB).send([user("one")], status=429, error="slow")
    trace = SqliteTrace(tmp_path / "trace.db")
    events = await trace.select(EventQuery())
    trace.close()
    assert [(event.type, event.session_id) for event in events] == [
        ("llm.call_completed", first.session_id),
        ("llm.call_failed", failed.session_id),
    ]
    completed, failure = (event.payload for event in events)
    assert isinstance(completed, LlmCallCompleted)
    assert (completed.user_id, completed.input_tokens) == ("alice", 100)
    assert isinstance(failure, LlmCallFailed)
    assert (failure.user_id, failure.error_class) == ("bob", "rate_limit")


async def test_without_a_store_records_are_looked_up_in_memory() -> None:
    async with recording(None) as recorder:
        exchange = await Client(recorder).send([user("one")], assistant("two"))
        record = await recorder.lookup(exchange.id, ALICE)
        assert await recorder.lookup(exchange.id, BOB) is None
    assert record is not None
    assert sorted(record) == sorted(RECORD_KEYS)
    assert record["usage"]["output_tokens"] == 20


@pytest.mark.row("GW-34")
async def test_overload_drops_messages_before_records(store: Store) -> None:
    async with recording(store, waiting=WaitingExchanges(max_waiting=4)) as recorder:
        client = Client(recorder)
        sent = [await client.send([user(f"{n}")], assistant("yes")) for n in range(12)]
        assert recorder.metrics()["dropped"] == 4
    counts = recorder.metrics()
    assert counts["stored"] == 8
    assert counts["shed_messages"] == 4
    assert counts["queued"] == 0
    stored = [await store.exchange(exchange.id) for exchange in sent]
    assert [row is not None for row in stored] == [True] * 8 + [False] * 4
    # Dropped messages still have their cost.
    assert all(json.loads(row.record_json)["cost_usd"] for row in stored if row)


async def test_exchanges_during_database_outage_are_spooled_and_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METIS_HOME", str(tmp_path))
    url = f"sqlite:///{tmp_path}/metis.db"

    def refuse(self: ExchangeJob, _: object) -> list[str]:
        raise StoreUnavailableError("away")

    async with open_store(url) as store:
        with monkeypatch.context() as patch:
            patch.setattr(ExchangeJob, "write", refuse)
            async with recording(store) as recorder:
                exchange = await Client(recorder).send([user("one")], assistant("two"))
        assert recorder.metrics()["spooled"] == 1
        assert await store.exchange(exchange.id) is None
    async with open_store(url) as store:
        row = await store.exchange(exchange.id)
        assert row is not None
        assert row.session_id == exchange.session_id
        assert texts(await store.messages(exchange.session_id)) == ["one", "two"]


async def test_answered_exchange_is_stored_without_further_request(store: Store) -> None:
    async with recording(store) as recorder:
        exchange = await Client(recorder).send([user("one")], assistant("two"))
        while (stored := await store.exchange(exchange.id)) is None:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        assert stored.session_id == exchange.session_id


async def test_gateway_session_continues_in_metis(tmp_path: Path) -> None:
    import metis  # noqa: PLC0415 - only here

    url = f"sqlite:///{tmp_path}/metis.db"
    async with open_store(url) as store, recording(store) as recorder:
        client = Client(recorder, system="<env>\nWorking directory: /home/ann/app\n</env>")
        exchange = await client.send([user("one")], assistant("two"))
    options = metis.Options(simulate=True, default_model="anthropic:claude-sonnet-4-5")
    async with metis.open(url, options) as opened:
        session = await opened.resume(exchange.session_id)
        assert (await opened.store.session(session.id)).workspace_path == "/home/ann/app"
        await session.ask("three")
        assert [message.role for message in session.messages] == [
            *(Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT)
        ]
