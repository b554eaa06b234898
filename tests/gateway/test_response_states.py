"""Responses that clients continue by id, in memory and in the store."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from metis.gateway import response_states
from metis.gateway.response_states import ResponseStates
from metis.store import Store
from metis.store import open as open_store
from metis.store.exchanges import ResponseItems

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def row(response_id: str, previous_id: str, items: str = "[1]") -> ResponseItems:
    return ResponseItems("t", response_id, "sess_1", previous_id, items)


async def continued(states: ResponseStates, response_id: str) -> list[Any] | None:
    await states.load("t", response_id, may_wait=False)
    request: dict[str, Any] = {"input": [], "previous_response_id": response_id}
    items = states.expand("t", request)
    return None if "previous_response_id" in request else items


@pytest.mark.row("GW-12")
async def test_earlier_responses_of_a_chain_come_first(store: Store) -> None:
    for one in (row("a", "", '["q1","r1"]'), row("b", "a", '["q2"]'), row("c", "b", '["q3"]')):
        await store.add_response_items(one)
    assert await continued(ResponseStates(store=store), "c") == ["q1", "r1", "q2", "q3"]
    held = ResponseStates(store=store)
    held.add("t", "b", ["in memory"])
    assert await continued(held, "c") == ["in memory", "q3"]


@pytest.mark.row("GW-12")
async def test_broken_circular_or_too_long_chain_is_unknown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_states, "_MAX_ENTRY_BYTES", 100)
    for one in (
        *(row("cut", "gone"), row("x", "y"), row("y", "x"), row("self", "self")),
        *(row("one", ""), row("long", "one", '["' + "z" * 99 + '"]')),
    ):
        await store.add_response_items(one)
    states = ResponseStates(store=store)
    for name in ("cut", "x", "y", "self", "long", "none"):
        assert await continued(states, name) is None
    assert await continued(states, "one") == [1]
    assert await store.response_items("another tenant", "one") is None


async def test_response_being_stored_by_another_worker_is_awaited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_states, "_PAUSES_S", (0.001,) * 2000)
    states, other = ResponseStates(store=store), ResponseStates(store=store)
    waiting = asyncio.ensure_future(states.load("t", "late", may_wait=True))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    other.save(row("late", ""))
    await other.close()
    await waiting
    assert states.has("t", "late")


async def test_deleted_session_deletes_its_items(store: Store) -> None:
    session = await store.create_session(workspace_path="/w")
    await store.add_response_items(ResponseItems("t", "a", session.id, "", "[1]"))
    await store.delete(session.id)
    assert await store.response_items("t", "a") is None
