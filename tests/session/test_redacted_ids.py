"""Canonical tool ids are shown to models only if allowed."""

import pytest

from metis.canonical import ToolUseBlock
from metis.session import Metis, Warned
from metis.sim import Simulator
from session.faults import MODELS, options_for
from session.helpers import events_of

pytestmark = pytest.mark.anyio


@pytest.mark.row("M-296")
@pytest.mark.parametrize("hides", [False, True])
async def test_canonical_ids_are_sent_only_if_allowed(url: str, *, hides: bool) -> None:
    async with (
        Simulator() as sim,
        Metis(url, options_for(sim.base_url, redact_ids=hides)) as m,
    ):
        session = await m.session(model=MODELS[0])
        await session.ask("Read a.txt and b.txt")
        for model in (*MODELS, *reversed(MODELS)):
            await session.swap(model)
            events = await events_of(session, "Read c.txt")
            assert not [each for each in events if isinstance(each, Warned)]
        calls = [b.id for e in session.messages for b in e.content if isinstance(b, ToolUseBlock)]
        sent = b"".join(sent_request.body for sent_request, _ in sim.service.exchanges)
        shown = [own for own in calls if own.removeprefix("tu_").encode() in sent]
        assert bool(shown) is not hides
        assert {reply.status for _, reply in sim.service.exchanges} == {200}
