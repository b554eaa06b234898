"""`metis --version`, `metis schema`, `metis validate` and `metis show`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metis.canonical import encode
from metis.cli.main import cli
from metis.version import SPEC_VERSION, __version__
from worked_examples import worked_examples


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


@pytest.fixture
def conversation(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    messages = worked_examples()[1].messages
    path.write_bytes(b"".join(encode(message) + b"\n" for message in messages))
    return path


def test_version_of_command_and_module() -> None:
    expected = f"metis {__version__} (canonical form {SPEC_VERSION})\n"
    module = [sys.executable, "-m", "metis", "--version"]
    assert run("--version").output == expected
    assert subprocess.run(module, check=True, capture_output=True, text=True).stdout == expected  # noqa: S603 - our own interpreter


def test_schema_prints_json() -> None:
    printed = json.loads(run("schema").stdout)
    assert printed["$defs"]["Message"]["required"] == [
        "content",
        "created_at",
        "id",
        "role",
        "session_id",
    ]


@pytest.mark.row("M-015")
def test_validate_prints_nothing_for_valid_file(conversation: Path) -> None:
    done = run("validate", str(conversation))
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "4 messages, no problems (profile full)\n"


@pytest.mark.row("M-015")
def test_validate_names_file_line_path_and_problem(conversation: Path) -> None:
    lines = conversation.read_bytes().splitlines()
    lines[0] = lines[0].replace(b'"role":"user"', b'"role":"user","role":"tool"')
    lines[2] = lines[2].replace(b'"tool_use_id":"tu_', b'"tool_use_id":"toolu_')
    conversation.write_bytes(b"\n".join(lines))
    done = run("validate", str(conversation))
    assert done.exit_code == 1
    assert [
        line.removeprefix(f"{conversation}:").partition(" ")[0] for line in done.stdout.splitlines()
    ] == [
        "1:",
        "3:",
        "3:",
        "3:",
    ]
    assert f"{conversation}:1: $.role: the key appears twice" in done.stdout
    assert f"{conversation}:3: $.content[0].tool_use_id: no earlier call has the id" in done.stdout


def test_validate_finds_the_line_inside_a_pretty_printed_array(conversation: Path) -> None:
    messages = [json.loads(line) for line in conversation.read_bytes().splitlines()]
    messages[1]["metadata"]["usage"]["input_tokens"] = "many"
    text = json.dumps(messages, indent=1)
    done = run("validate", "-", stdin=text.encode())
    line = next(n for n, line in enumerate(text.splitlines(), 1) if '"many"' in line)
    assert done.exit_code == 1
    assert f"-:{line}: $.metadata.usage.input_tokens: expected `int`, got `str`\n" in done.stdout


def test_validate_accepts_one_pretty_printed_message(conversation: Path) -> None:
    first = json.loads(conversation.read_bytes().splitlines()[0])
    assert run("validate", "-", stdin=json.dumps(first, indent=2).encode()).exit_code == 0


def test_validate_single_skips_session_rules(conversation: Path) -> None:
    answer = conversation.read_bytes().splitlines()[2]
    assert run("validate", "-", stdin=answer).exit_code == 1
    assert run("validate", "--single", "-", stdin=answer).exit_code == 0


def test_validate_strict_refuses_an_addition(conversation: Path) -> None:
    first = conversation.read_bytes().splitlines()[0].replace(b'"user"', b'"developer"')
    assert run("validate", "-", stdin=first).exit_code == 0
    done = run("validate", "--profile", "strict", "-", stdin=first)
    assert done.exit_code == 1
    assert "-:1: $.role: the role 'developer': not part of the base specification" in done.stdout


@pytest.mark.parametrize("stdin", [b"", b"\n\n", b"[]"])
def test_a_file_without_messages_is_a_problem(stdin: bytes) -> None:
    done = run("validate", "-", stdin=stdin)
    assert (done.exit_code, done.stdout) == (1, "-:1: $: no message in this file\n")
    assert run("show", "-", stdin=stdin).exit_code == 1


@pytest.mark.parametrize("stdin", [b"\xff\xfe", b"{", b"[{]", b"null", b"7\n8", b"{}\n{", b"[1]"])
def test_invalid_bytes_are_a_problem_without_traceback(stdin: bytes) -> None:
    for command in ("validate", "show"):
        done = run(command, "-", stdin=stdin)
        assert done.exit_code == 1
        assert isinstance(done.exception, SystemExit)
        assert "-:1: $" in done.output


def test_a_missing_file_is_one_sentence() -> None:
    done = run("validate", "nowhere.json")
    assert done.exit_code == 2
    assert "nowhere.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.row("M-015")
def test_show_prints_a_conversation(conversation: Path) -> None:
    done = run("show", str(conversation))
    assert done.exit_code == 0
    assert '  → read_file(path="README.md")\n' in done.stdout
    assert "  ← # Project Foo\n" in done.stdout
    assert "31 in · 58 out · $0.000963 at prices of 2026-05-08 · 1140 ms" in done.stdout
    assert done.stdout.endswith("4 messages, $0.001644\n")
    assert "\x1b[" not in done.stdout


def test_show_prints_valid_messages_and_reports_the_rest(conversation: Path) -> None:
    conversation.write_bytes(conversation.read_bytes() + b'{"role":"user"}\n')
    done = run("show", str(conversation))
    assert done.exit_code == 1
    assert "4 messages" in done.stdout
    assert f"{conversation}:5: $.content: a required field is missing" in done.stderr
