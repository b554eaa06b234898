"""`metis diff`."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.test_conversion import REQUEST
from metis import adapters
from metis.cli.main import cli
from metis.cli.text import cell_width, fold

ONE_A_PROTOCOL = ("anthropic", "gemini", "ollama", "openai", "openai-responses")
PAIRS = [
    *itertools.product(ONE_A_PROTOCOL, repeat=2),
    *((name, name) for name in adapters.names() if name not in ONE_A_PROTOCOL),
]


def run(*arguments: str, body: object = REQUEST, **settings: Any) -> Result:
    given = body if isinstance(body, bytes) else json.dumps(body).encode()
    return CliRunner(env={"COLUMNS": None}).invoke(
        cli, ["diff", *arguments, "-"], input=given, **settings
    )


@pytest.mark.row("T212")
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_any_two_targets_are_compared(first: str, second: str) -> None:
    done = run(first, second)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert all(cell_width(line) <= 80 for line in lines)
    assert lines[0].startswith(f"{first} · ")
    assert f"   {second} ·" in lines[0]
    if first == second:
        start = next(index for index, line in enumerate(lines, 1) if line.startswith("─"))
        assert {line[38:41] for line in lines[start : lines.index("")]} == {"   "}


def test_differences_are_marked_and_losses_listed() -> None:
    lines = run("anthropic", "openai:gpt-4o").stdout.splitlines()
    assert lines[:2] == [
        f"{'anthropic · claude-sonnet-4-6':<38}   openai · gpt-4o",
        f"{'POST /v1/messages':<38}   POST /v1/chat/completions",
    ]
    assert '  "max_tokens": 100,'.ljust(38) + ' |   "max_completion_tokens": 100,' in lines
    assert '      "content": "go",'.ljust(38) + '         "content": "go",' in lines
    assert '  "system": "be brief",'.ljust(38) + " <" in lines
    assert "anthropic loses nothing" in lines
    assert "openai:gpt-4o loses or changes 2:" in lines
    losses = lines[lines.index("openai:gpt-4o loses or changes 2:") + 1 :]
    reason = "the model does not accept thinking blocks"
    assert " ".join(" ".join(losses[:2]).split()) == (
        f"dropped: thinking at message 3 $.content[0]: {reason}"
    )


def test_json_output_has_both_bodies_and_losses() -> None:
    done = run("openai:gpt-4o", "ollama", "--json")
    one, other = json.loads(done.stdout)["targets"]
    assert (one["target"], one["adapter"], one["model"]) == ("openai:gpt-4o", "openai", "gpt-4o")
    assert (other["method"], other["path"]) == ("POST", "/api/chat")
    assert other["body"]["messages"][2]["tool_calls"] == [
        {"function": {"name": "f", "arguments": {"a": 1}}}
    ]
    assert [loss["block_type"] for loss in one["losses"]] == ["thinking", "option"]


def test_a_wide_terminal_is_used_and_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metis.cli.output.has_colour", bool)
    runner = CliRunner(env={"COLUMNS": "120"})
    body = json.dumps(REQUEST).encode()
    done = runner.invoke(cli, ["diff", "anthropic", "openai", "-"], input=body)
    assert "\x1b[" in done.stdout
    assert "─" * 58 + "─┼─" + "─" * 58 in done.stdout


def test_long_strings_are_truncated_and_control_characters_escaped() -> None:
    text = "\u202e漢字" + "x" * 5000
    body = {**REQUEST, "messages": [{"role": "user", "content": text}]}
    done = run("anthropic", "openai", body=body)
    assert "(5,003 characters)" in " ".join(done.stdout.split())
    assert "\u202e" not in done.stdout
    assert all(cell_width(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "body", "expected"),
    [
        (("nobody", "openai"), REQUEST, "invalid value for 'A': unknown provider 'nobody'"),
        (("openai", "nobody:x"), REQUEST, "invalid value for 'B': unknown provider 'nobody'"),
        (
            ("openai", "ollama", "--from", "nobody"),
            REQUEST,
            "invalid value for '--from': unknown provider 'nobody'",
        ),
        (("openai", "ollama"), b"", "-: the file is empty"),
        (
            ("openai", "ollama"),
            {"messages": []},
            "-: cannot tell which provider this request is for",
        ),
        (("openai", "ollama", "--from", "openai"), b"[", "-: $: not JSON"),
    ],
)
def test_incomparable_input_is_one_sentence(
    arguments: tuple[str, ...], body: object, expected: str
) -> None:
    done = run(*arguments, body=body)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert done.stdout == ""


def test_file_is_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "asked.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(REQUEST).encode())
    done = CliRunner().invoke(cli, ["diff", "openai", "ollama", str(path), "--json"])
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("short", ["short"]),
        ("  one two three", ["  one two", "    three"]),
        ("  nowheretobreak", ["  nowheret", "    obreak"]),
        ("漢字漢字漢字", ["漢字漢字漢", "  字"]),
        ("e\u0301" * 10, ["e\u0301" * 10]),
        ("a\tb", ["a\\u0009b"]),
    ],
)
def test_lines_wrap_at_spaces_by_cell_width(line: str, rows: list[str]) -> None:
    assert fold(line, 10) == rows
