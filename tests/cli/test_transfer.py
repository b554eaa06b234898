"""`metis import` and `metis export` with the files of other programs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metis.cli.main import cli
from metis.cli.store_commands import EXPORT_FORMATS, SESSION_FORMATS
from metis.cli.transfer import export_formats
from metis.interchange.registry import session_formats

ATTOCODE = json.dumps(
    [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what does the owl say?", "metadata": {"mood": "calm"}},
        {"role": "assistant", "content": "hoot"},
    ]
)
KLAUDE = "".join(
    json.dumps({"type": name, "data": {"parts": [{"type": "text", "text": text}], **data}}) + "\n"
    for name, text, data in (
        ("UserMessage", "what does the owl say?", {"created_at": "2026-05-08T10:00:00+00:00"}),
        ("AssistantMessage", "hoot", {"created_at": "2026-05-08T10:00:01+00:00"}),
    )
)
FILES = {"attocode": ATTOCODE, "klaude": KLAUDE}


@pytest.fixture(autouse=True)
def home(user: Path) -> Path:
    return user


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin.encode())


@pytest.mark.parametrize("form", FILES)
def test_history_of_another_program_round_trips(form: str) -> None:
    done = run("import", "-", stdin=FILES[form])
    assert done.exit_code == 0, done.output
    session = done.stdout.strip()
    assert f"messages imported as {form}" in done.stderr
    shown = run("show", session).stdout
    assert "what does the owl say?" in shown
    assert "hoot" in shown
    again = run("export", session, "--format", form)
    assert again.exit_code == 0
    assert again.stderr == ""
    assert json_values(again.stdout) == json_values(FILES[form])


def json_values(text: str) -> object:
    is_array = text.startswith("[")
    return json.loads(text) if is_array else [json.loads(line) for line in text.splitlines()]


def test_import_losses_are_listed() -> None:
    done = run("import", "-", stdin=ATTOCODE)
    assert "altered: metadata at message 2 $[1].metadata: " in done.stderr


@pytest.mark.parametrize("form", ["klaude-code", "attocode", "gpt2099"])
def test_a_session_is_exported_for_another_program_with_its_losses(form: str) -> None:
    Path("owl.txt").write_text("hoot hoot")
    run("-m", "sim", "read owl.txt")
    done = run("export", "last", "--format", form)
    assert done.exit_code == 0, done.output
    assert "hoot hoot" in done.stdout
    assert done.stderr
    imported = run("import", "-", "--format", form, stdin=done.stdout)
    assert imported.exit_code == 0, imported.output
    assert "hoot hoot" in run("show", imported.stdout.strip()).stdout


def test_a_history_can_be_imported_twice_and_continued() -> None:
    first = run("import", "-", stdin=ATTOCODE).stdout.strip()
    second = run("import", "-", stdin=ATTOCODE).stdout.strip()
    assert first != second
    assert run("-s", second, "-m", "sim", "say on").stdout == "on\n"


def test_unrecognised_file_is_one_sentence() -> None:
    done = run("import", "-", stdin='{"owl": "hoot"}')
    assert done.exit_code == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("metis: line 1: ")
    assert "klaude" in line
    wrong = run("import", "-", "--format", "klaude-code", stdin=ATTOCODE)
    assert wrong.exit_code == 2
    assert wrong.stdout == ""


def test_the_formats_of_the_commands_are_those_of_interchange() -> None:
    assert set(EXPORT_FORMATS) <= set(export_formats())
    assert set(session_formats()) <= set(SESSION_FORMATS)
