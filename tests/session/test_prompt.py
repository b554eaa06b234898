"""Composition of instructions from files and workspace."""

import ast
import logging
from pathlib import Path

import pytest

import metis.session.prompt
from metis.canonical import Role
from metis.session import Metis, text_of
from metis.session.prompt import MEMORY_BYTES, read_system_prompt
from session.fake import Fake, serving
from session.helpers import options


def fill(workspace: Path, home: Path) -> None:
    (workspace / "AGENTS.md").write_text("Use tabs.")
    (home / "MEMORY.md").write_text("Likes tea.")
    (home / "USER.md").write_text("Ada.")
    skill = home / "skills" / "deploy"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: deploy\ndescription: ships it\n---\nBody.")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    workspace, home = tmp_path / "work", tmp_path / "home"
    workspace.mkdir()
    home.mkdir()
    fill(workspace, home)
    return workspace, home


@pytest.mark.row("M-024")
def test_instructions_do_not_depend_on_provider(places: tuple[Path, Path]) -> None:
    workspace, home = places
    context = read_system_prompt("You are metis.", workspace=workspace, home=home)
    stable, volatile = context.texts()
    assert stable.startswith("You are metis.")
    assert stable.index("Use tabs.") < stable.index("deploy: ships it")
    assert "Body." not in stable
    assert volatile.index("Ada.") < volatile.index("Likes tea.")
    (home / "MEMORY.md").write_text("Likes coffee.")
    again = read_system_prompt("You are metis.", workspace=workspace, home=home)
    assert again.stable == stable
    assert again.volatile != volatile
    names = {
        node.module
        for node in ast.walk(ast.parse(Path(metis.session.prompt.__file__).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    providers = ("metis.adapters", "metis.wire", "metis.transport")
    assert [name for name in names if name and name.startswith(providers)] == []


def test_too_long_instructions_are_truncated_with_notice(
    places: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    _, home = places
    (home / "MEMORY.md").write_text("x" * (MEMORY_BYTES + 1))
    with caplog.at_level(logging.WARNING, "metis"):
        assert len(read_system_prompt(home=home).memory) == MEMORY_BYTES
    assert "MEMORY.md" in caplog.text
    assert read_system_prompt().texts() == []


@pytest.mark.anyio
@pytest.mark.row("M-023", "M-025")
async def test_instructions_are_stored_first_and_hoisted(
    url: str, places: tuple[Path, Path]
) -> None:
    workspace, home = places
    async with (
        serving(Fake()) as fake,
        Metis(url, options(fake, workspace=workspace, home=home)) as m,
    ):
        session = await m.session(model="sonnet", system="You are metis.")
        await session.ask("hi")
        await session.swap("gpt-5")
        await session.ask("hi")
        stored = await m.store.messages(session.id)
    assert [message.role for message in stored[:3]] == [Role.SYSTEM, Role.SYSTEM, Role.USER]
    assert "You are metis." in text_of(stored[0].content)
    assert "You are metis." in str(fake.bodies[0]["system"])
    assert fake.bodies[0]["messages"][0]["role"] == "user"
    assert fake.bodies[1]["messages"][0]["role"] == "system"
