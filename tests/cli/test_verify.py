"""`metis verify`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli

REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "go"}],
    "options": {"seed": 1},
}
ANSWERED: dict[str, Any] = {"message": {"role": "assistant", "content": "hi"}, "done": True}
GOOD: dict[str, Any] = {"protocol": "ollama", "request": REQUEST, "response": ANSWERED}
CALL: dict[str, Any] = {"function": {"name": "f", "arguments": {}}}
UNANSWERED: dict[str, Any] = {
    "protocol": "ollama",
    "request": {"messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}]},
}


def run(tmp_path: Path, *lines: object, options: tuple[str, ...] = ()) -> Result:
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines)
    )
    done = CliRunner().invoke(cli, ["verify", str(path), *options])
    assert "Traceback" not in done.output
    return done


def named(tmp_path: Path, text: str) -> str:
    return text.replace("LOG", str(tmp_path / "log.jsonl"))


def test_valid_exchanges_are_counted(tmp_path: Path) -> None:
    done = run(tmp_path, b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), b"", GOOD)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        named(tmp_path, "LOG: 2 exchanges"),
        "  ✓ parse                    2 of 2",
        "  ✓ request round trip       2 of 2",
        "  ✓ response round trip      2 of 2",
        "  ✓ served responses         2 of 2",
        "  ✓ edits                    4 of 4",
        "  ✓ stable bytes             2 of 2",
        "  ✓ ranges and limits        2 of 2",
    ]


def test_invalid_line_is_reported_and_the_rest_is_checked(tmp_path: Path) -> None:
    done = run(tmp_path, GOOD, b"{", {"id": "x"}, GOOD)
    assert done.exit_code == 1
    first, second = done.stderr.splitlines()
    assert first.startswith(named(tmp_path, "LOG:2: $: not JSON"))
    assert second == named(tmp_path, "LOG:3: $: the recording has neither a request nor a response")
    assert "  ✓ parse                    2 of 2" in done.stdout
    assert "  ✗ 2 lines could not be read" in done.stdout


def test_broken_law_names_the_line(tmp_path: Path) -> None:
    done = run(tmp_path, GOOD, {**GOOD, "response": {"surprise": 1}})
    assert done.exit_code == 1
    fault = "the response: $.message: a response needs a `message` or a `response`"
    assert done.stdout.splitlines()[0] == named(tmp_path, f"LOG:2: broken: parse: {fault}")
    assert "  ✗ parse                    1 of 2" in done.stdout


def test_repairs_are_reported_and_break_no_law(tmp_path: Path) -> None:
    done = run(tmp_path, UNANSWERED)
    assert done.exit_code == 0
    where = "tool_result at message 1 $.content"
    assert done.stdout.splitlines()[0] == named(
        tmp_path, f"LOG:1: repaired: synthesised: {where}: the call of f has no result"
    )
    assert "  - 1 request would be repaired before being sent again" in done.stdout


def test_losses_at_another_provider_are_listed(tmp_path: Path) -> None:
    done = run(tmp_path, GOOD, options=("--to", "openai:gpt-4o"))
    assert done.exit_code == 0
    reason = "the option 'options.seed' of ollama is not supported here"
    assert done.stdout.splitlines()[0] == named(
        tmp_path, f"LOG:1: to openai:gpt-4o: dropped: option at $.options.seed: {reason}"
    )
    last = done.stdout.splitlines()[-1]
    assert last == "  - to openai:gpt-4o: 1 part of 1 exchange would be lost or changed"
    home = run(tmp_path, GOOD, options=("--to", "ollama"))
    assert home.stdout.splitlines()[-1] == "  - to ollama: nothing would be lost or changed"


def test_unknown_protocols_are_counted(tmp_path: Path) -> None:
    unnamed = {"request": REQUEST}
    done = run(tmp_path, GOOD, {**GOOD, "protocol": "telepathy"}, unnamed)
    assert done.exit_code == 0
    assert "  - 1 not checked: no adapter for telepathy" in done.stdout
    assert "  - 1 not checked: no adapter for unnamed" in done.stdout
    done = run(tmp_path, unnamed, options=("--from", "ollama"))
    assert "  ✓ request round trip       1 of 1" in done.stdout


def test_recorded_errors_are_counted(tmp_path: Path) -> None:
    done = run(tmp_path, {**GOOD, "status": 404, "response": {"error": "not found"}})
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "  - 1 ended in an error, as recorded"


def test_empty_file_is_reported(tmp_path: Path) -> None:
    done = run(tmp_path, b"\n")
    assert done.exit_code == 1
    assert done.stderr == named(tmp_path, "LOG: no exchange in this file\n")


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_unknown_provider_error_names_the_option(tmp_path: Path, option: str) -> None:
    done = run(tmp_path, GOOD, options=(option, "nobody"))
    assert done.exit_code == 2
    assert f"invalid value for '{option}': unknown provider 'nobody'" in done.stderr


def test_findings_are_printed_below_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metis.cli.verify.terminal_width", lambda: 60)
    lines = run(tmp_path, GOOD, options=("--to", "openai")).stdout.splitlines()
    assert lines[:3] == [
        named(tmp_path, "LOG:1"),
        "  to openai: dropped: option at $.options.seed: the option",
        "    'options.seed' of ollama is not supported here",
    ]
