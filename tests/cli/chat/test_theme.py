"""Colours for light and dark terminals, and terminal replies among the keys."""

import io
import os
import sys
import termios
from pathlib import Path

import pytest
from rich.style import Style

from cli.chat.conftest import Start, ready
from cli.chat.test_chat import send_and_wait
from metis.cli.chat.theme import BLACK, WHITE, ReplyFilter, Theme, contrast, replaced_colours
from metis.cli.main import cli
from terminal import Terminal

LIGHT, DARK = {"11": "ffff/ffff/ffff"}, {"11": "1e1e/1e1e/1e1e"}
REPLIES = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b]4;3;rgb:cd/cd/00\x07\x1b[?62;22c"
CYAN = "005f5f"  # what replaces cyan on white


def colour_of(terminal: Terminal, word: str) -> str:
    """Return the colour of the last occurrence of a word on the screen."""
    row = max(number for number, line in enumerate(terminal.lines) if word in line)
    return terminal.screen.buffer[row][terminal.lines[row].index(word)].fg


def code_colour(chat: Terminal) -> str:
    send_and_wait(chat, "say with `marked` words", "with marked words")
    return colour_of(chat, "marked words")


def test_light_terminal_gets_readable_colours(start: Start) -> None:
    chat = ready(start(colours=LIGHT))
    assert code_colour(chat) == CYAN
    assert "rgb:" not in chat.scrollback


def test_readable_terminal_colours_are_kept(start: Start) -> None:
    chat = ready(start(colours={**LIGHT, "4;6": "0000/5555/5555"}))
    assert code_colour(chat) == "cyan"


def test_a_dark_terminal_keeps_its_colours(start: Start) -> None:
    assert code_colour(ready(start(colours=DARK))) == "cyan"


@pytest.mark.parametrize(
    ("setting", "colours", "expected"),
    [("light", {}, CYAN), ("dark", LIGHT, "cyan"), ("terminal", LIGHT, "cyan")],
)
def test_setting_overrides_detected_background(
    start: Start, tmp_path: Path, setting: str, colours: dict[str, str], expected: str
) -> None:
    config = tmp_path / "metis" / "config.toml"
    config.write_text(f'theme = "{setting}"\n{config.read_text()}')
    chat = ready(start(colours=colours))
    assert code_colour(chat) == expected
    assert b"\x1b]11;?" not in chat.raw


@pytest.mark.slow
def test_terminal_without_reply_is_not_waited_for(start: Start) -> None:
    chat = ready(start(variables={"COLORFGBG": "0;15"}))
    assert code_colour(chat) == CYAN
    chat.type("\x04")
    assert chat.exit_code() == 0


@pytest.mark.slow
def test_no_terminal_query_without_colours(start: Start) -> None:
    chat = ready(start(variables={"NO_COLOR": "1"}, colours=LIGHT))
    assert code_colour(chat) == "default"
    assert b"\x1b]11;?" not in chat.raw


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("0;15", "#875f00"),
        ("15;default;0", "ansiyellow"),
        ("0;99", "ansiyellow"),
        ("", "ansiyellow"),
    ],
)
def test_a_variable_states_the_background(variable: str, expected: str) -> None:
    theme = Theme("auto", {"COLORFGBG": variable, "TERM": "xterm"})
    assert theme.name(3, "ansiyellow") == expected
    assert theme.may_ask
    assert not Theme("auto", {"TERM": "linux"}).may_ask


def test_input_before_first_prompt_is_shown_once(start: Start) -> None:
    chat = start(colours=LIGHT)
    chat.type("say early")
    ready(chat).wait_for("say early")
    assert chat.scrollback.count("say early") == 1
    chat.type("\r")
    chat.wait_for("\nearly\n")


@pytest.mark.parametrize(
    ("arguments", "term", "echoes"),
    [([], "xterm", False), (["why"], "xterm", True), ([], "dumb", True)],
)
def test_chat_disables_echo_before_loading(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], term: str, *, echoes: bool
) -> None:
    states: list[bool] = []
    master, slave = os.openpty()

    def echo_of_terminal() -> bool:
        return bool(termios.tcgetattr(slave)[3] & termios.ECHO)

    def run(*_: object, **__: object) -> int:
        states.append(echo_of_terminal())
        return 0

    with os.fdopen(slave, "r+b", buffering=0) as raw:
        stream = io.TextIOWrapper(raw)
        monkeypatch.setattr(sys, "stdin", stream)
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr("metis.cli.ask.run_ask", run)
        cli(arguments or ["ask"], standalone_mode=False)
        states.append(echo_of_terminal())
        monkeypatch.undo()
        stream.detach()
    os.close(master)
    assert states == [echoes, True]


@pytest.mark.parametrize("cut", range(len(REPLIES) + 1))
def test_terminal_replies_are_removed_from_keys_for_any_chunking(cut: int) -> None:
    theme = Theme()
    replies = ReplyFilter(theme)
    parts = (f"before{REPLIES[:cut]}", f"{REPLIES[cut:]}after\x1b[A")
    typed = "".join(map(replies.typed_text, parts))
    # An Esc at the very end may be a key, and is not delayed.
    assert typed.replace("\x1b", "", typed.count("\x1b") - 1) == "beforeafter\x1b[A"
    assert not replies.is_waiting
    assert theme.name(3, "ansiyellow") == "#875f00"


@pytest.mark.parametrize("key", ["\x1b", "]", "\x1b[A", "a", "\x1b[200~]11;rgb\x1b[201~", "\x1bb"])
def test_keys_pass_while_a_reply_is_awaited(key: str) -> None:
    replies = ReplyFilter(Theme())
    assert replies.typed_text(key) + replies.typed_text("x") == f"{key}x"


def test_a_reply_without_end_is_bounded() -> None:
    replies = ReplyFilter(Theme())
    typed = [replies.typed_text(part) for part in ("\x1b]11;rgb:", *["f" * 1000] * 3)]
    assert len("".join(typed)) >= 2_000


@pytest.mark.parametrize("background", [WHITE, BLACK, (0xFD, 0xF6, 0xE3), (0x00, 0x2B, 0x36)])
def test_every_replacement_can_be_read(background: tuple[int, int, int]) -> None:
    for colour in replaced_colours(background, dict.fromkeys(range(16), background)).values():
        assert contrast(colour, background) >= 4.5


def test_only_the_sixteen_colours_are_replaced() -> None:
    theme = Theme("light")
    assert theme.recolour(Style.parse("bold yellow")) == Style.parse("bold #875f00")
    assert theme.recolour(Style.parse("bold")) == Style.parse("bold")
    assert theme.recolour(Style.parse("color(200)")) == Style.parse("color(200)")
    assert Theme("terminal").recolour(Style.parse("yellow")) == Style.parse("yellow")
