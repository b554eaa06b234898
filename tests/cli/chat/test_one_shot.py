"""One prompt at a terminal: the response is drawn as in a chat."""

from pathlib import Path

import pytest

from cli.chat.conftest import Start


def test_response_at_terminal_is_drawn_as_markdown(start: Start) -> None:
    terminal = start("say **all** is `well` here")
    assert terminal.exit_code() == 0
    assert terminal.text == "all is well here"
    assert terminal.screen.buffer[0][0].bold
    assert terminal.screen.buffer[0][7].fg == "cyan"


def test_dumb_terminal_gets_plain_text(start: Start) -> None:
    terminal = start("say **all** is `well` here", variables={"TERM": "dumb"})
    assert terminal.exit_code() == 0
    assert terminal.text == "**all** is `well` here"
    assert b"\x1b" not in terminal.raw


def test_side_effects_need_confirmation_in_one_shot_mode(start: Start, tmp_path: Path) -> None:
    terminal = start("create the file a.txt")
    terminal.wait_for("[y] yes  [s] always in this session")
    terminal.type("y")
    assert terminal.exit_code() == 0
    assert "allowed once" in terminal.text
    assert (tmp_path / "work" / "a.txt").exists()


@pytest.mark.parametrize("prompt", ["create the file a.txt", "count to 3000 sim: slow 20"])
def test_ctrl_c_stops_and_keeps_partial_text(start: Start, tmp_path: Path, prompt: str) -> None:
    terminal = start(prompt)
    terminal.wait_for("[y] yes" if "file" in prompt else "1, 2, 3, 4")
    terminal.type("\x03")
    assert terminal.exit_code() == 130
    assert terminal.text.endswith("stopped; partial answer saved")
    assert not (tmp_path / "work" / "a.txt").exists()


def test_error_is_one_sentence_below_the_response(start: Start) -> None:
    terminal = start("sim: 401")
    assert terminal.exit_code() == 3
    line = "".join(terminal.text.split())  # the terminal breaks the line anywhere
    assert line.startswith("metis:anthropicrejectedtheAPIkey:")
    assert line.endswith(";checkthekey;`metisdoctor`showswhereitcomesfrom")
