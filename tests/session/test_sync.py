"""Blocking sessions."""

from pathlib import Path

import pytest

import metis
from metis.canonical.errors import BudgetExceededError, NoTurnError
from metis.session import Options, Stored, TurnEnded
from metis.streaming import TextDelta

SIM = Options(simulate=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'metis.db'}"


def test_one_prompt_and_one_response(url: str) -> None:
    reply = metis.ask("say all is well", model="sonnet", url=url, options=SIM)
    assert str(reply) == "all is well"
    assert reply.cost_usd > 0
    with metis.open_sync(url, SIM) as m:
        assert [record.id for record in m.sessions()] == [reply.session_id]
        again = m.resume(reply.session_id)
        assert again.cost().total_usd == reply.cost_usd
        assert len(again.messages) == 2


def test_blocking_session(url: str) -> None:
    with metis.open_sync(url, SIM) as m:
        session = m.session(model="sonnet", system="Be short.")
        events = list(session.send("count to 3"))
        assert isinstance(events[-1], TurnEnded)
        assert sum(isinstance(event, Stored) for event in events) == 1
        assert session.preview_swap("gpt-5").fits
        session.swap("gpt-5")
        assert session.model == "openai:gpt-5"
        for event in session.send("count to 30"):
            if isinstance(event, TextDelta):
                break
        other = session.fork()
        assert other.ask("say hello") is not None
        session.end()


def test_blocking_session_undo_and_queries(url: str) -> None:
    with metis.open_sync(url, SIM) as m:
        session = m.session(model="sonnet")
        session.ask("say one")
        session.ask("say two")
        start = session.turns[0].prompt.id
        used, why = session.context(), session.why()
        assert used is not None
        assert used.tokens > 0
        assert why is not None
        assert why.record.chosen_model == used.model
        events = list(session.retry("gpt-5"))
        assert isinstance(events[-1], TurnEnded)
        assert session.compact() == 2
        assert len(session.undo()) == 1
        session.rewind(start)
        assert len(session.messages) == 1
        session.set_budget(session.cost().total_usd)
        with pytest.raises(BudgetExceededError):
            session.ask("say three")


def test_answer_without_pending_confirmation_is_refused(url: str) -> None:
    with metis.open_sync(url, Options(simulate=True)) as m:
        session = m.session(model="sonnet")
        assert session.ask(["say", "well"]) is not None
        with pytest.raises(NoTurnError):
            next(session.respond())


def test_session_that_is_not_open_is_a_typed_error() -> None:
    with pytest.raises(RuntimeError, match="open_sync"):
        metis.open_sync("sqlite:///x.db").sessions()
