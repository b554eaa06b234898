"""Output functions of the commands: styles, control characters and encodings."""

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import metis
from metis.cli import output
from metis.cli.text import escape_controls, style, styled_text, unstyled, visible_controls


class Terminal(io.StringIO):
    """A stream with `isatty()` true."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_own_styles_are_applied_and_styles_of_content_are_escaped() -> None:
    text = style("a\x1b[31mred", fg="green", bold=True)
    assert styled_text(text, has_colour=True) == "\x1b[32;1ma␛[31mred\x1b[0m"
    assert styled_text(text, has_colour=False) == "a␛[31mred"
    assert unstyled(text) == "a\x1b[31mred"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("a\tb\nc", "a    b\nc"),
        ("windows\r\nline", "windows\nline"),
        ("a\rover", "a␍over"),
        ("\x1b]0;t\x07", "␛]0;t␇"),
        ("\x7f\x85\x9b", "\\x7f\\x85\\x9b"),
        ("\u202eabc\u2069", "\\u202eabc\\u2069"),
        ("hidden\U000e0041", "hidden\\ue0041"),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f3f4\U000e0067\U000e0062\U000e007f"),
        ("\ud800", "\ufffd"),
        ("é 漢 \U0001f468\u200d\U0001f469", "é 漢 \U0001f468\u200d\U0001f469"),
    ],
)
def test_control_characters_become_visible(content: str, shown: str) -> None:
    assert visible_controls(content) == shown


def test_names_show_everything_that_is_invisible() -> None:
    assert escape_controls("rm\u200b\u3164x\u2800\ufe01") == "rm\\u200b\\u3164x\\u2800\\ufe01"


def test_content_is_exact_in_a_pipe_and_visible_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output.write_data("a\x1b[2J\t\u202e\r")
    assert capsys.readouterr().out == "a\x1b[2J\t\u202e\r"
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    output.write_data("a\x1b[2J")
    output.echo(style("b\x1b", dim=True))
    assert terminal.getvalue() == "a␛[2J\x1b[2mb␛\x1b[0m\n"


def test_human_readable_text_is_escaped_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    output.echo(style("a\x1b[2J", bold=True), err=True)
    assert capsys.readouterr().err == "a␛[2J\n"


def test_json_has_no_raw_control_character_and_the_same_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"text": "\x9b\u202e\U000e0041\u200b\x7f\U0001f600 é"}
    output.echo_json(json.dumps(value, ensure_ascii=False))
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert visible_controls(printed) == printed
    assert "é" in printed


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-16"])
def test_no_encoding_makes_printing_fail(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    output.echo("● 漢字 \ud800 é")
    output.write_data("→ \ud800\n")
    output.echo_json('{"a": "漢\U0001f600"}')
    first, second, third = raw.getvalue().decode(encoding).splitlines()
    assert first in (
        "● 漢字 \ufffd é",
        "\\u25cf \\u6f22\\u5b57 \\ufffd é".replace("é", "\\xe9" if encoding == "ascii" else "é"),
    )
    assert second in ("→ \\ud800", "\\u2192 \\ud800")
    assert json.loads(third) == {"a": "漢\U0001f600"}


def test_log_records_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("a provider")
    log.addHandler(output.EchoHandler())
    log.warning("it says %s", "\x1b[2J")
    assert capsys.readouterr().err == "it says ␛[2J\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("arguments", [("models",), ("-m", "sim", "sim: say 漢字")])
def test_a_program_prints_in_the_encoding_of_its_output(
    user: Path, arguments: tuple[str, ...], encoding: str
) -> None:
    variables = {**os.environ, "PYTHONIOENCODING": encoding, "METIS_HOME": str(user)}
    variables["PYTHONPATH"] = str(Path(metis.__file__).parents[1])
    command = [sys.executable, "-m", "metis", *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, check=False, input=b"")  # noqa: S603 - our own interpreter
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(encoding)


def test_a_status_line_is_one_row_that_is_drawn_over_and_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(output, "screen_width", lambda: 20)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output.StatusLine, "interval_s", 0.0)
    line = output.StatusLine()
    line.clear()
    line.show("a name\x1b]0;t\x07\nof a file that is long")
    line.show("short")
    line.clear()
    line.clear()
    first, second, last = terminal.getvalue().split("\x1b[K")[:3]
    assert first.startswith("\ra name\\u001b")
    assert len(first) <= 20
    assert (second, last) == ("\rshort", "\r")
    assert terminal.getvalue().count("\x1b[K") == 3


def test_a_status_line_is_drawn_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output.StatusLine, "interval_s", 3600.0)
    line = output.StatusLine()
    for number in range(1000):
        line.show(f"file {number}")
    assert terminal.getvalue() == "\rfile 0\x1b[K"


@pytest.mark.parametrize("reason", ["pipe", "off", "dumb"])
def test_no_status_line_without_terminal(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    stream = io.StringIO() if reason == "pipe" else Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "dumb" if reason == "dumb" else "xterm")
    line = output.StatusLine(is_shown=reason != "off")
    line.show("file 1")
    line.clear()
    assert stream.getvalue() == ""


def test_notice_wraps_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "metis: " + "words that go on " * 12
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "60")
    output.echo_notice(text.strip())
    rows = terminal.getvalue().splitlines()
    assert len(rows) > 2
    assert max(map(len, rows)) <= 60
    assert " ".join(row.strip() for row in rows) == text.strip()
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    output.echo_notice(text.strip())
    assert piped.getvalue() == f"{text.strip()}\n"
