"""Handle every event of a turn, and read what a session knows about itself."""

import asyncio
import tempfile
from decimal import Decimal
from pathlib import Path

import metis
from metis import Options
from metis.session import (
    Budget,
    CallFailed,
    Lost,
    ModelUse,
    OutputSchema,
    PastTurn,
    Position,
    Preview,
    Prompt,
    Routed,
    SessionCost,
    Stored,
    SyncMetis,
    SyncSession,
    ThinkingDelta,
    ToolStarted,
    TurnEnded,
    TurnEvent,
    TurnStarted,
    Warned,
    Why,
    WindowUse,
    text_of,
)
from metis.tools import Registry
from metis.tools.builtin import BUILTINS

TOWN: OutputSchema = {
    "type": "object",
    "properties": {"town": {"type": "string"}},
    "required": ["town"],
}


def show_start(event: TurnEvent) -> None:
    """Print what happens before and between the responses."""
    if isinstance(event, TurnStarted):
        print("prompt:", text_of(event.message.content))
    if isinstance(event, Routed):
        print("model:", event.record.chosen_model, event.record.reason)
    if isinstance(event, ToolStarted):
        print("call:", event.call.name, event.call.input)
    if isinstance(event, ThinkingDelta):
        print("thinking:", event.text)


def show_problem(event: TurnEvent) -> None:
    """Print warnings, losses and failed attempts."""
    if isinstance(event, Lost):
        print("not sent:", [loss.reason for loss in event.losses])
    if isinstance(event, CallFailed):
        print("failed:", event.error_class, "next in", event.next_in_s)
    if isinstance(event, Warned):
        print("warning:", event.text)


def show_end(event: TurnEvent) -> None:
    """Print what was stored, and what the turn cost."""
    if isinstance(event, Stored):
        print("stored:", event.message.role)
    if isinstance(event, TurnEnded):
        print("end:", event.stop_reason, event.cost_usd)


async def main(directory: str) -> None:
    """Run a turn with a tool call, then look back."""
    (Path(directory) / "owls.txt").write_text("Owls turn their heads.", encoding="utf-8")
    options = Options(simulate=True, workspace=directory, tools=Registry(*BUILTINS))
    async with metis.open(f"sqlite:///{directory}/chats.db", options) as m:
        session = await m.session(model="sonnet")
        prompt: Prompt = ["read owls.txt"]
        async for event in session.send(prompt):
            show_start(event)
            show_problem(event)
            show_end(event)

        why: Why | None = session.why()
        used: WindowUse | None = session.context()
        assert why is not None
        assert used is not None
        print(why.record.mode, used.tokens, used.window_tokens)
        turn: PastTurn = session.turns[0]
        position: Position = turn.prompt.id
        await session.bookmark("start", position)

        preview: Preview = session.preview_swap("gpt-5")
        assert preview.fits
        print("OpenAI would not receive", len(preview.dropped), "blocks")
        await session.set_budget(Decimal("0.50"))
        budget: Budget = session.budget
        assert budget.session_usd == Decimal("0.50")
        spent: SessionCost = session.cost()
        use: ModelUse = spent.used["anthropic:claude-sonnet-4-6"]
        print(spent.total_usd, use.calls, use.prompt_tokens)
        print(await session.ask_json("Where do owls live?", TOWN))


def without_async(url: str) -> None:
    """Use the same API from blocking code."""
    m: SyncMetis
    with metis.open_sync(url, Options(simulate=True)) as m:
        session: SyncSession = m.session(model="haiku")
        for event in session.send("say hello"):
            show_end(event)


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
    without_async(f"sqlite:///{folder}/chats.db")
