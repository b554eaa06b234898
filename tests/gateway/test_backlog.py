"""Exchanges waiting for the store: durable in files, bounded, and joined correctly."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.test_recorder import ALICE, Client, assistant, recording, texts, user

from metis.gateway import recorder as recorder_module
from metis.gateway.backlog import Backlog
from metis.gateway.exchange import Exchange
from metis.gateway.exchange_queue import WaitingExchanges
from metis.gateway.placement import Planner
from metis.gateway.recorder import Recorder
from metis.gateway.stored_exchange import decoded_response, priced_response, resolved_model
from metis.session.models import Models
from metis.store import Store
from metis.store import open as open_store

pytestmark = [pytest.mark.anyio, pytest.mark.row("M-021")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with open_store(f"sqlite:///{tmp_path}/metis.db") as store:
        yield store


def waiting(directory: Path, **options: Any) -> WaitingExchanges:
    return WaitingExchanges(Backlog(directory, "sqlite:///x", segment_bytes=20_000), **options)


def stopped(store: Store, queue: WaitingExchanges) -> Recorder:
    """Return a recorder that never stores, as under endless load."""
    return Recorder(store, Models(), waiting=queue)


async def stored_texts(store: Store, exchange: Exchange) -> list[str]:
    return texts(await store.messages(exchange.session_id))


async def test_next_process_stores_exchanges_of_a_killed_one(tmp_path: Path, store: Store) -> None:
    queue = waiting(tmp_path / "spool")
    client = Client(stopped(store, queue))
    first = await client.send([user("one")], assistant("two"))
    other = await client.send([user("three")], assistant("four"))
    queue.save()
    # A killed process only has its descriptors closed.
    files = list((tmp_path / "spool").iterdir())
    assert [file.stat().st_mode & 0o077 for file in files] == [0]
    async with recording(store, waiting=waiting(tmp_path / "spool")) as locked:
        pass
    assert locked.metrics()["stored"] == 0, "the process that wrote the file still runs"
    queue.close()
    async with recording(store, waiting=waiting(tmp_path / "spool")) as recorder:
        pass
    assert recorder.metrics()["stored"] == 2
    assert await stored_texts(store, first) == ["one", "two"]
    assert await stored_texts(store, other) == ["three", "four"]
    assert not list((tmp_path / "spool").iterdir())


async def test_exchanges_stored_before_the_kill_are_not_stored_again(
    tmp_path: Path, store: Store
) -> None:
    queue = waiting(tmp_path / "spool")
    exchange = await Client(stopped(store, queue)).send([user("one")], assistant("two"))
    queue.save()
    (file,) = (tmp_path / "spool").iterdir()
    data = file.read_bytes()
    queue.close()
    for _ in range(2):
        file.write_bytes(data)
        async with recording(store, waiting=waiting(tmp_path / "spool")):
            pass
    assert await stored_texts(store, exchange) == ["one", "two"]


async def test_queue_over_memory_limit_spills_to_files_without_loss(
    tmp_path: Path, store: Store
) -> None:
    queue = waiting(tmp_path / "spool", memory_bytes=20_000)
    recorder = stopped(store, queue)
    client = Client(recorder)
    sent = [await client.send([user(f"{n}" * 500)], assistant("yes")) for n in range(60)]
    metrics = recorder.metrics()
    assert metrics["queued"] == 60
    assert metrics["queued_bytes"] <= 20_000
    assert metrics["backlog_bytes"] > 60 * 500
    assert metrics["shed_messages"] == 0
    record = await recorder.lookup(sent[0].id, ALICE)
    assert record is not None
    assert record["usage"]["output_tokens"] == 20
    await recorder.start()
    await recorder.close()
    assert recorder.metrics()["stored"] == 60
    for number, exchange in enumerate(sent):
        assert await stored_texts(store, exchange) == [f"{number}" * 500, "yes"]
    assert not list((tmp_path / "spool").iterdir())


async def test_exchanges_wait_in_files_while_the_gateway_is_busy(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_QUIET_S", 1e9)
    monkeypatch.setattr(recorder_module, "_MAX_HELD_S", 1e9)
    recorder = Recorder(store, Models(), waiting=waiting(tmp_path / "spool"))
    await recorder.start()
    client = Client(recorder)

    async def until(name: str, count: int) -> dict[str, int]:
        async with asyncio.timeout(60):
            while (metrics := recorder.metrics())[name] < count:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.01)
        return metrics

    # The first call comes to an idle gateway.
    await client.send([user("zero")], assistant("yes"))
    await until("stored", 1)
    sent = [await client.send([user(f"{number}")], assistant("yes")) for number in range(30)]
    metrics = await until("backlog_bytes", 1)
    assert metrics["stored"] + metrics["queued"] == 31
    assert metrics["queued"], "nothing was held"
    assert (await recorder.lookup(sent[-1].id, ALICE) or {})["status"] == 200
    monkeypatch.setattr(recorder_module, "_MAX_HELD_S", 0.0)
    await until("stored", 31)
    await recorder.close()
    assert await stored_texts(store, sent[-1]) == ["29", "yes"]


async def test_exchanges_are_durable_while_the_store_is_slow(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_exchanges, released = store.add_exchanges, asyncio.Event()

    async def add_slowly(jobs: Any) -> None:
        await released.wait()
        await add_exchanges(jobs)

    monkeypatch.setattr(store, "add_exchanges", add_slowly)
    recorder = Recorder(store, Models(), waiting=waiting(tmp_path / "spool"))
    await recorder.start()
    exchange = await Client(recorder).send([user("one")], assistant("two"))
    async with asyncio.timeout(60):
        while not recorder.metrics()["backlog_bytes"]:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0.01)
    assert await store.exchange(exchange.id) is None
    released.set()
    await recorder.close()
    assert await stored_texts(store, exchange) == ["one", "two"]
    assert not list((tmp_path / "spool").iterdir())


def test_exchanges_cannot_wait_for_ever(tmp_path: Path) -> None:
    queue = waiting(tmp_path / "spool", max_waiting=4)
    exchange = Exchange(client_protocol="openai_chat", client_adapter="openai", path="/")
    assert queue.can_wait(0.0), "nothing waits"
    queue.add(exchange)
    assert queue.can_wait(60.0)
    assert not queue.can_wait(0.0)
    queue.add(Exchange(client_protocol="openai_chat", client_adapter="openai", path="/"))
    assert not queue.can_wait(60.0), "half of the room is used"


async def test_request_joins_conversation_that_waits_in_a_file(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []
    plan = Planner.plan

    def count(self: Planner, exchange: Exchange, *parts: Any, **options: Any) -> Any:
        planned.append(exchange.id)
        return plan(self, exchange, *parts, **options)

    monkeypatch.setattr(Planner, "plan", count)
    queue = waiting(tmp_path / "spool")
    recorder = stopped(store, queue)
    client = Client(recorder)
    others = [await client.send([user(f"other {n}")], assistant("yes")) for n in range(50)]
    first = await client.send([user("one")], assistant("two"))
    queue.save()
    second = await client.send([user("one"), assistant("two"), user("three")], assistant("four"))
    assert second.session_id == first.session_id
    assert planned == [first.id], "only what the request continues is planned before its answer"
    # The system prompt may change between two requests of a conversation.
    changed = Client(recorder, system="It is Monday.")
    third = await changed.send(
        [user("one"), assistant("two"), user("three"), assistant("four"), user("five")],
        assistant("six"),
    )
    assert third.session_id == first.session_id
    await recorder.start()
    await recorder.close()
    assert await stored_texts(store, first) == ["one", "two", "three", "four", "five", "six"]
    assert await stored_texts(store, others[7]) == ["other 7", "yes"]


async def test_only_newest_of_many_equal_requests_are_planned(tmp_path: Path, store: Store) -> None:
    queue = waiting(tmp_path / "spool")
    recorder = stopped(store, queue)
    client = Client(recorder)
    for number in range(100):
        await client.send([user("one")], assistant(f"answer {number}"))
    before = len(queue)
    last = [user("one"), assistant("answer 99"), user("more")]
    exchange = await client.send(last, assistant("yes"))
    assert before - len(queue) + 1 <= 10
    await recorder.start()
    await recorder.close()
    assert "answer 99" in await stored_texts(store, exchange)


async def test_full_disk_keeps_exchanges_in_bounded_memory(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    queue = waiting(tmp_path / "spool", memory_bytes=60_000)
    recorder = stopped(store, queue)
    client = Client(recorder)
    with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
        patch.setattr(os, "write", refuse)
        sent = [await client.send([user("x" * 500)], assistant("yes")) for _ in range(60)]
    metrics = recorder.metrics()
    assert metrics["queued_bytes"] <= 130_000
    assert metrics["shed_messages"]
    assert metrics["dropped"]
    await recorder.start()
    await recorder.close()
    assert recorder.metrics()["stored"] == 60 - metrics["dropped"]
    assert await store.exchange(sent[0].id) is not None


async def test_damaged_files_lose_only_damaged_exchanges(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    queue = waiting(tmp_path / "spool")
    client = Client(stopped(store, queue))
    sent = [await client.send([user(f"number {n}")], assistant("yes")) for n in range(4)]
    queue.save()
    (file,) = (tmp_path / "spool").iterdir()
    data = file.read_bytes()
    queue.close()
    at = data.index(b"number 1")
    file.write_bytes(data[:at] + b"X" + data[at + 1 : -10])
    with caplog.at_level(logging.CRITICAL):
        async with recording(store, waiting=waiting(tmp_path / "spool")):
            pass
    stored = [await store.exchange(exchange.id) is not None for exchange in sent]
    assert stored == [True, False, True, False]
    assert not list((tmp_path / "spool").iterdir())


async def test_decoded_response_round_trips_through_a_file(tmp_path: Path, store: Store) -> None:
    recorder = stopped(store, waiting(tmp_path / "spool"))
    exchange = await Client(recorder).send([user("one")], assistant("two"))
    models = Models()
    model = resolved_model(exchange, models)
    assert model is not None
    response = decoded_response(exchange, model)
    assert response is not None
    exchange.response = priced_response(exchange, response, models, model).message
    exchange.response_parts = []
    assert exchange.response is not None
    backlog = Backlog(tmp_path / "more", "sqlite:///x")
    (place,) = backlog.save([exchange])
    loaded = backlog.load(place)
    assert loaded.response == exchange.response
    assert loaded.session_id == exchange.session_id
    assert loaded.request_body == exchange.request_body
    backlog.release(place)
    backlog.close()
