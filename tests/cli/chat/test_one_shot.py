"""One question at a terminal: the answer is drawn as in a conversation."""

from pathlib import Path

import pytest

from cli.chat.conftest import Start


def test_an_answer_at_a_terminal_is_drawn_as_markdown(start: Start) -> None:
    asked = start("say **all** is `well` here")
    assert asked.exit_code() == 0
    assert asked.text == "all is well here"
    assert asked.screen.buffer[0][0].bold
    assert asked.screen.buffer[0][7].fg == "cyan"


def test_a_dumb_terminal_gets_the_words_as_they_are(start: Start) -> None:
    asked = start("say **all** is `well` here", variables={"TERM": "dumb"})
    assert asked.exit_code() == 0
    assert asked.text == "**all** is `well` here"
    assert b"\x1b" not in asked.raw


def test_who_asks_one_question_is_asked_before_a_tool_changes_something(
    start: Start, tmp_path: Path
) -> None:
    asked = start("create the file a.txt")
    asked.wait_for("[y] yes  [s] always in this session")
    asked.type("y")
    assert asked.exit_code() == 0
    assert "allowed once" in asked.text
    assert (tmp_path / "work" / "a.txt").exists()


@pytest.mark.parametrize("words", ["create the file a.txt", "count to 3000 sim: slow 20"])
def test_ctrl_c_stops_and_what_came_is_kept(start: Start, tmp_path: Path, words: str) -> None:
    asked = start(words)
    asked.wait_for("[y] yes" if "file" in words else "1, 2, 3, 4")
    asked.type("\x03")
    assert asked.exit_code() == 130
    assert asked.text.endswith("stopped; partial answer saved")
    assert not (tmp_path / "work" / "a.txt").exists()


def test_an_error_is_a_sentence_under_the_answer(start: Start) -> None:
    asked = start("sim: 401")
    assert asked.exit_code() == 3
    line = "".join(asked.text.split())  # the terminal breaks the line anywhere
    assert line.startswith("metis:anthropicrejectedtheAPIkey:")
    assert line.endswith(";checkthekey;`metisdoctor`showswhereitcomesfrom")
