"""Replies: text, cost, losses and the text of a stream, in async and blocking code."""

from decimal import Decimal

import pytest

import metis
from metis.canonical import Role, TextBlock, ThinkingBlock
from metis.canonical.errors import NoTurnError
from metis.session import Metis, open_sync
from session.fake import Fake, say, serving
from session.helpers import options


@pytest.mark.anyio
async def test_a_reply_has_text_cost_model_and_losses(url: str) -> None:
    thinking = ThinkingBlock("hm", signature="sealed", issuer="anthropic")
    async with (
        serving(Fake(say(thinking, "one"), say("two"))) as fake,
        Metis(url, options(fake)) as m,
    ):
        session = await m.session(model="anthropic:claude-sonnet-4-6")
        first = await session.ask("a")
        assert str(first) == first.text == "one "  # the fake ends each word with a space
        assert list(first) == ["one "]
        assert first.message is session.messages[-1]
        assert first.content == session.messages[-1].content
        assert first.losses == ()
        second = await session.ask("b", model="openai:gpt-5")
        assert second.model == "openai:gpt-5"
        assert second.losses
        assert second.usage is not None
        assert first.cost + second.cost == session.cost().total_usd > Decimal(0)
        assert second.session_id == session.id


@pytest.mark.anyio
async def test_a_stream_yields_text_and_has_the_reply_at_its_end(url: str) -> None:
    async with serving(Fake(say("one two"), say("x"))) as fake, Metis(url, options(fake)) as m:
        session = await m.session(model="sonnet")
        stream = session.stream("a")
        with pytest.raises(NoTurnError, match="iterate over the stream"):
            _ = stream.reply
        assert "".join([text async for text in stream]) == "one two "
        assert stream.reply.text == "one two "
        assert stream.reply.message is session.messages[-1]


def test_blocking_stream_can_be_abandoned(url: str) -> None:
    with open_sync(url, metis.Options(simulate=True)) as m:
        session = m.session()
        for text in session.stream("count to 50"):
            assert text
            break
        assert [message.role for message in session.messages][:1] == [Role.USER]
        assert session.ask("say done").text == "done"
        stream = session.stream("say hello")
        assert "".join(stream) == stream.reply.text == "hello"


def test_a_notebook_shows_markdown_and_no_markup_of_the_model() -> None:
    reply = metis.Reply(
        text="**bold** <script>alert(1)</script>",
        message=None,
        cost_usd=Decimal(0),
        session_id="s",
    )
    show = getattr(reply, "_repr_html_")  # noqa: B009 - the name by which notebooks find it
    shown = show()
    assert "<strong>bold</strong>" in shown
    assert "<script" not in shown
    assert reply.content == ()
    assert reply.model is None


def test_the_simulator_needs_no_model(url: str) -> None:
    reply = metis.ask("say done", url=url, options=metis.Options(simulate=True))
    assert reply.text == "done"
    assert reply.content == (TextBlock("done"),)
