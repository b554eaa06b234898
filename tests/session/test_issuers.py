"""The same provider name at another host or account is another issuer of seals."""

import json
from collections.abc import Sequence

import pytest

from metis import adapters
from metis.canonical import Message, ThinkingBlock
from metis.session import Lost, Metis, TurnEvent, Warned
from metis.sim import Simulator
from metis.sim.responder import Responder
from metis.sim.signing import ThinkingSigner
from session.faults import options_for
from session.helpers import SONNET, events_of

pytestmark = pytest.mark.anyio


def thoughts(messages: Sequence[Message]) -> list[ThinkingBlock]:
    return [b for m in messages for b in m.content if isinstance(b, ThinkingBlock)]


def sent_thoughts(sim: Simulator) -> int:
    last_request, _ = sim.service.exchanges[-1]
    turns = json.loads(last_request.body)["messages"]
    parts = [part for turn in turns if turn["role"] == "assistant" for part in turn["content"]]
    return sum(1 for part in parts if part["type"] == "thinking")


def lost(events: Sequence[TurnEvent]) -> list[str]:
    return [loss.reason for e in events if isinstance(e, Lost) for loss in e.losses]


@pytest.mark.row("T203", "T204")
async def test_seals_are_sent_only_to_issuing_host(url: str) -> None:
    async with Simulator() as sim:
        other = sim.base_url.replace("127.0.0.1", "localhost")
        async with Metis(url, options_for(sim.base_url)) as m:
            session = await m.session(model=SONNET)
            await session.ask("say one")
            await session.ask("say two")
            assert {each.issuer for each in thoughts(session.messages)} == {"anthropic@127.0.0.1"}
            assert sent_thoughts(sim) == 1
        async with Metis(url, options_for(other)) as m:
            again = await m.resume(session.id)
            kept = again.preview_swap(SONNET).sealed
            assert [loss.block_type for loss in kept] == ["thinking", "thinking"]
            events = await events_of(again, "say three")
            assert "it was sealed by anthropic@127.0.0.1" in lost(events)
            assert sent_thoughts(sim) == 0
            await again.ask("say four")
            assert sent_thoughts(sim) == 1
        async with Metis(url, options_for(sim.base_url)) as m:
            back = await m.resume(session.id)
            await back.ask("say five")
            assert sent_thoughts(sim) == 2
            assert len(thoughts(back.messages)) == 5


@pytest.mark.row("T203")
async def test_seals_are_not_sent_for_another_account(url: str) -> None:
    async with Simulator() as sim:
        async with Metis(url, options_for(sim.base_url, accounts={"anthropic": "mine"})) as m:
            session = await m.session(model=SONNET)
            await session.ask("say one")
            issuers = {each.issuer for each in thoughts(session.messages)}
            assert issuers == {"anthropic@127.0.0.1/mine"}
        async with Metis(url, options_for(sim.base_url, accounts={"anthropic": "yours"})) as m:
            again = await m.resume(session.id)
            await again.ask("say two")
            assert sent_thoughts(sim) == 0


@pytest.mark.row("T203", "T63", "T193")
async def test_refused_seal_is_omitted_permanently(
    url: str,
) -> None:
    """Two servers behind one address: the mismatch is only known after the refusal."""
    async with (
        Simulator(responder=Responder(ThinkingSigner(b"one"))) as sim,
        Metis(url, options_for(sim.base_url)) as m,
    ):
        session = await m.session(model=SONNET)
        await session.ask("Read a.txt")
        await session.ask("say one")
    async with (
        Simulator(responder=Responder(ThinkingSigner(b"two"))) as sim,
        Metis(url, options_for(sim.base_url)) as m,
    ):
        again = await m.resume(session.id)
        first = await events_of(again, "say two")
        assert [each.code for each in first if isinstance(each, Warned)] == ["repaired"]
        assert [reply.status for _, reply in sim.service.exchanges] == [400, 200]
        then = await events_of(again, "say three")
        assert not [each for each in then if isinstance(each, Warned)]
        assert [reply.status for _, reply in sim.service.exchanges] == [400, 200, 200]


@pytest.mark.row("T203")
def test_issuer_name_has_address_and_account() -> None:
    assert adapters.get("anthropic").profile.issuer == "anthropic"
    moved = adapters.get("anthropic", base_url="https://proxy.example/x", account="team")
    assert moved.profile.issuer == "anthropic@proxy.example/team"
    placed = adapters.get("vertex", place="projects/p/locations/europe-west1")
    assert placed.profile.issuer == "vertex@projects/p/locations/europe-west1"
    # Another port of the local machine is the same host.
    assert adapters.get("ollama", base_url="http://127.0.0.1:9").profile.issuer == "ollama"
