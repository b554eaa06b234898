"""Models without streaming, or without streamed tool arguments."""

import json

import pytest
from msgspec.structs import replace

from metis.adapters import Adapter
from metis.canonical import MessageStatus, Role, StopReason, encode
from metis.canonical.errors import ResponseLimitError
from metis.catalog.models import AdapterCapabilities
from metis.session import CallFailed, Metis, TurnEnded
from metis.sim import Simulator
from metis.streaming import (
    Accumulator,
    MessageComplete,
    TextDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from metis.transport import Limits, Retry
from session.faults import MODELS, check_whole, options_for
from session.helpers import events_of

pytestmark = pytest.mark.anyio
WHOLE = ("openai:gpt-5-pro", "openai-responses:o1-pro")


@pytest.mark.row("M-209")
@pytest.mark.parametrize("model", WHOLE)
async def test_model_without_streaming_is_sent_a_plain_request(url: str, model: str) -> None:
    async with Simulator() as sim:
        retry = Retry(attempts=2, first_s=0.01)
        async with Metis(url, options_for(sim.base_url, retry=retry)) as m:
            session = await m.session(model=model)
            events = await events_of(session, "Read a.txt")
            assert isinstance(events[-1], TurnEnded)
            assert events[-1].stop_reason is StopReason.END_TURN
            roles = [each.role for each in session.messages]
            assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
            assert any(isinstance(each, TextDelta) for each in events)
            for end in (each for each in events if isinstance(each, MessageComplete)):
                summed = Accumulator()
                for each in events:
                    if getattr(each, "message_id", None) == end.message_id:
                        summed.add(each)  # pyright: ignore[reportArgumentType] - only those of the stream have it
                assert summed.content == end.message.content
            again = await events_of(session, "sim: 529 0 x1")
            assert [type(each) for each in again].count(CallFailed) == 1
            check_whole(await m.store.messages(session.id))
        assert not any(
            json.loads(sent_request.body).get("stream") for sent_request, _ in sim.service.exchanges
        )


@pytest.mark.parametrize("model", WHOLE)
async def test_partial_content_of_oversized_plain_response_is_stored(url: str, model: str) -> None:
    async with Simulator() as sim:
        limits = Limits(response_bytes=12_000)
        async with Metis(url, options_for(sim.base_url, limits=limits)) as m:
            session = await m.session(model=model)
            with pytest.raises(ResponseLimitError):
                await session.ask("6000 words")
            partial = session.messages[-1]
            assert partial.metadata.status is MessageStatus.ERROR
            assert len(encode(partial)) > 5000
            answer = await session.ask("say yes")
            assert answer is not None
            assert answer.metadata.status is MessageStatus.COMPLETE
            check_whole(await m.store.messages(session.id))


@pytest.mark.row("M-210")
@pytest.mark.parametrize("model", MODELS)
async def test_unstreamed_arguments_arrive_as_one_delta(
    url: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Simulator() as sim, Metis(url, options_for(sim.base_url)) as m:
        usual = await events_of(await m.session(model=model), "Read a.txt")
        known = m.models.get(model).adapter.capabilities(model)
        less = replace(known, supports_streaming_tool_calls=False)

        def capabilities(_adapter: Adapter, _model: str) -> AdapterCapabilities:
            return less

        monkeypatch.setattr(Adapter, "capabilities", capabilities)
        events = await events_of(await m.session(model=model), "Read a.txt")
    kinds = [type(each) for each in events]
    assert ToolUseInputDelta not in kinds
    assert kinds.count(ToolUseStart) == kinds.count(ToolUseEnd) == 1
    (end,) = [each for each in events if isinstance(each, ToolUseEnd)]
    assert end.final_input == {"path": "a.txt"}
    assert [type(each) for each in usual].count(ToolUseEnd) == 1
