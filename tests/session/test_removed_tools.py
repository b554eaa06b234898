"""A history with calls of removed tools is accepted in every protocol."""

import json

import pytest

from metis.session import Metis, Warned
from metis.sim import Simulator
from session.faults import MODELS, check_whole, options_for
from session.helpers import events_of

pytestmark = pytest.mark.anyio


@pytest.mark.row("T36", "T209")
@pytest.mark.parametrize("model", MODELS)
async def test_history_with_removed_tools_is_accepted_by_every_protocol(
    url: str, model: str
) -> None:
    async with Simulator() as sim:
        async with Metis(url, options_for(sim.base_url)) as m:
            session = await m.session(model=model)
            await session.ask("Read a.txt and b.txt")
        async with Metis(url, options_for(sim.base_url, tools=None)) as m:
            for other in MODELS:
                forked = await (await m.resume(session.id)).fork()
                assert forked.preview_swap(other).fits
                await forked.swap(other)
                events = await events_of(forked, "Read c.txt")
                assert not [each for each in events if isinstance(each, Warned)]
                assert await forked.compact()
                check_whole(await m.store.messages(forked.id))
        statuses = {reply.status for _, reply in sim.service.exchanges}
        assert statuses == {200}


@pytest.mark.row("T36")
async def test_removed_tools_are_defined_where_required_and_not_callable(
    url: str,
) -> None:
    async with Simulator() as sim:
        async with Metis(url, options_for(sim.base_url)) as m:
            session = await m.session(model=MODELS[0])
            await session.ask("Read a.txt")
        async with Metis(url, options_for(sim.base_url, tools=None)) as m:
            await (await m.resume(session.id)).ask("Read b.txt")
        body = json.loads(sim.service.exchanges[-1][0].body)
        assert [tool["name"] for tool in body["tools"]] == ["read_file"]
        assert body["tool_choice"] == {"type": "none"}
