"""The list of sessions: title and facts of each, on SQLite and PostgreSQL."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from build import MODEL, NOW, assistant, image, numbered, system, text, ulid, usage, user
from metis.canonical import ContentBlock
from metis.store import Store
from metis.store.entries import SidecarEntry
from metis.store.queries import TITLE_LENGTH, title_of

S = "sess_42"
pytestmark = pytest.mark.anyio


async def test_session_title_is_its_first_prompt(store: Store) -> None:
    await store.create_session(S, workspace_path="/work")
    await store.append_all(
        numbered(
            system("Be short."),
            user("# Why is\n\nthe sky blue?"),
            assistant("Light."),
            user("And at night?"),
            assistant("None."),
        )
    )
    await note(store, {"model": MODEL, "usage": msgspec.to_builtins(usage())})
    await note(store, {"usage": [{"cost_usd": "of somebody else"}]})
    await store.create_session("sess_2", workspace_path="/other", active_model="openai:gpt-5")
    silent, talkative = await store.overviews()
    assert (talkative.session.id, talkative.title, talkative.model) == (
        S,
        "Why is the sky blue?",
        MODEL,
    )
    assert (talkative.message_count, talkative.cost_usd) == (4, 3 * usage().cost_usd)
    assert (silent.title, silent.model, silent.message_count) == ("", "openai:gpt-5", 0)
    assert silent.cost_usd == Decimal(0)
    assert [item.session.id for item in await store.overviews(1)] == ["sess_2"]
    assert [item.session.id for item in await store.overviews(workspace_path="/work")] == [S]


async def note(store: Store, data: Any) -> None:
    entry = SidecarEntry(id=ulid(900), session_id=S, created_at=NOW, kind="note", data=data)
    await store.record(msgspec.structs.replace(entry, id=ulid(900 + len(await store.history(S)))))


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ((text("C# or F#?"),), "C# or F#?"),
        ((text("> quoted\n- one\n- two"),), "quoted one two"),
        ((text("-5 + 3 = ?"),), "-5 + 3 = ?"),
        ((image(), text("what is this")), "what is this"),
        ((text("a.py:\n\nx = 1"), text("explain it")), "explain it"),
        ((text("explain it"), text("a.py:\n\nx = 1")), "explain it"),
        ((text("explain:\n\nx = 1"),), "explain: x = 1"),
        ((image(),), "an image"),
        ((text("a" * 1000),), "a" * (TITLE_LENGTH - 1) + "…"),
        ((text("a " * 1000),), ("a " * TITLE_LENGTH)[: TITLE_LENGTH - 1] + "…"),
        ((), ""),
    ],
)
def test_title_is_one_line_of_the_prompt(content: tuple[ContentBlock, ...], title: str) -> None:
    assert title_of(content) == title
