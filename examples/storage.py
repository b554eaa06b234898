"""Store sessions, search them, export and import them, and delete old data."""

import asyncio
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from metis import Message, Role, TextBlock, new_ulid, store
from metis.store import (
    Durability,
    EventRecord,
    Match,
    Overview,
    Policy,
    RepairReport,
    SessionRecord,
    Store,
    Sweep,
    ToolCallRecord,
    repair,
)

POWER: Durability = "power"  # an acknowledged write survives a power failure


async def main(url: str) -> None:
    """Write a session and read it back."""
    opened: Store = store.open(url, durability=POWER)
    async with opened:
        session: SessionRecord = await opened.create_session(workspace_path="/home/me/shop")
        prompt = Message(
            id=new_ulid(),
            session_id=session.id,
            role=Role.USER,
            content=(TextBlock("Owls turn their heads."),),
            created_at=datetime.now(UTC),
        )
        await opened.append(prompt)
        assert await opened.messages(session.id) == [prompt]

        overviews: list[Overview] = await opened.overviews()
        print(overviews[0].title, overviews[0].message_count)
        matches: list[Match] = await opened.search("owls")
        assert matches[0].message_id == prompt.id
        calls: list[ToolCallRecord] = await opened.tool_calls(session.id, status="pending")
        events: list[EventRecord] = await opened.events(session.id)
        assert (calls, events) == ([], [])

        lines = await opened.export(session.id)
        copy = await opened.import_lines(lines, new_ids=True)
        assert copy.id != session.id

        old = Policy(sessions_before=datetime(2020, 1, 1, tzinfo=UTC))
        sweep: Sweep = await opened.sweep(old)
        assert sweep.is_dry_run
        assert await opened.check() == []


async def salvage(url: str, target: Path) -> None:
    """Copy everything that can be read of a damaged file to a new one."""
    report: RepairReport = await repair(url, target)
    print(report.session_count, "sessions saved,", len(report.lost), "parts lost")


with tempfile.TemporaryDirectory() as directory:
    address = f"sqlite:///{directory}/chats.db"
    asyncio.run(main(address))
    asyncio.run(salvage(address, Path(directory) / "repaired.db"))
