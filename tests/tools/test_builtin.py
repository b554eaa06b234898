"""Built-in tools through the dispatcher, on real files and processes."""

import asyncio
import base64
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from metis.canonical import DocumentBlock, ImageBlock, OutcomeStatus, SideEffects, validate
from metis.canonical.tools import check_tool
from metis.tools import ErrorClass, error_class
from metis.tools.builtin import (
    BUILTINS,
    EditFile,
    Grep,
    ListFiles,
    ReadFile,
    RunCommand,
    WriteFile,
)
from metis.tools.builtin.fetch_url import FetchArguments
from metis.tools.builtin.files import EditArguments, ReadArguments, WriteArguments
from metis.tools.builtin.find import GrepArguments, ListArguments
from metis.tools.builtin.run_command import CommandArguments
from metis.tools.process import BoundedOutput
from tool_helpers import (
    permissive_dispatcher,
    result_of,
    result_text,
    run_one,
    tool_call,
    tool_context,
)

pytestmark = pytest.mark.anyio
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.row("M-121")
async def test_every_tool_declares_its_strongest_side_effect() -> None:
    assert {kind.definition.name: kind.definition.side_effects for kind in BUILTINS} == {
        "read_file": SideEffects.READ,
        "list_files": SideEffects.READ,
        "grep": SideEffects.READ,
        "write_file": SideEffects.WRITE,
        "edit_file": SideEffects.WRITE,
        "run_command": SideEffects.EXECUTE,
        "fetch_url": SideEffects.NETWORK,
    }


async def test_schemas_are_in_the_subset_and_name_every_argument() -> None:
    structs = (
        *(ReadArguments, WriteArguments, EditArguments, ListArguments, GrepArguments),
        *(CommandArguments, FetchArguments),
    )
    for kind, arguments in zip(BUILTINS, structs, strict=True):
        schema: Mapping[str, Any] = kind.definition.input_schema
        assert check_tool(kind.definition) == []
        parameters = fields(arguments)
        assert list(schema["properties"]) == [field.name for field in parameters]
        assert schema["required"] == [field.name for field in parameters if field.required]


async def test_text_is_read_by_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    turn = tool_context(tmp_path)
    assert result_text(await run_one(ReadFile, turn, path="a.txt")) == "one\ntwo\nthree\n"
    part = result_text(await run_one(ReadFile, turn, path="a.txt", offset=2, limit=1))
    assert part == "two\n\n[more lines follow: read on with offset 3]"
    assert result_text(await run_one(ReadFile, turn, path="a.txt", offset=9)).startswith(
        "(no such line"
    )
    (tmp_path / "empty").touch()
    assert result_text(await run_one(ReadFile, turn, path="empty")) == "(the file is empty)"
    refused = await run_one(ReadFile, turn, path="a.txt", offset=0)
    assert error_class(refused) is ErrorClass.VALIDATION_ERROR


async def test_reading_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 1_000_000)
    text = result_text(await run_one(ReadFile, tool_context(tmp_path), path="long"))
    assert len(text) < 201_000
    assert text.endswith("x\n[line 1 is cut here: it is too long to be shown]")
    (tmp_path / "long").write_bytes(b"one\ntwo\n" + b"x" * 1_000_000)
    text = result_text(await run_one(ReadFile, tool_context(tmp_path), path="long", offset=2))
    assert text.endswith("x\n[line 3 is cut here: it is too long to be shown]")


async def test_images_and_documents_are_returned_and_other_bytes_refused(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(PNG)
    (tmp_path / "d.pdf").write_bytes(b"%PDF-1.4 \0 ...")
    (tmp_path / "b.bin").write_bytes(b"a\0b")
    turn = tool_context(tmp_path)
    picture = await run_one(ReadFile, turn, path="p.png")
    block = result_of(picture).content[1]
    assert isinstance(block, ImageBlock)
    assert base64.b64decode(block.source.data) == PNG
    assert validate(picture) == []
    document = result_of(await run_one(ReadFile, turn, path="d.pdf")).content[1]
    assert isinstance(document, DocumentBlock)
    assert document.name == "d.pdf"
    binary = await run_one(ReadFile, turn, path="b.bin")
    assert result_of(binary).is_error
    assert "binary" in result_text(binary)


async def test_path_outside_of_workspace_is_denied(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("content of the secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to("../secret")
    turn = tool_context(inside)
    for path in ("../secret", "/etc/hostname", "link", str(tmp_path / "secret")):
        for kind, more in (
            (ReadFile, {}),
            (WriteFile, {"content": "x"}),
            (EditFile, {"old_text": "content of the secret", "new_text": "x"}),
            (ListFiles, {}),
            (Grep, {"pattern": "content of the secret"}),
        ):
            message = await run_one(kind, turn, path=path, **more)
            assert error_class(message) is ErrorClass.PERMISSION_DENIED, (kind, path)
            assert "content of the secret" not in result_text(message)
    assert (tmp_path / "secret").read_text() == "content of the secret"


async def test_write_result_describes_the_change(tmp_path: Path) -> None:
    message = await run_one(WriteFile, tool_context(tmp_path), path="new/a.txt", content="hé")
    assert (tmp_path / "new" / "a.txt").read_text() == "hé"
    outcome = message.metadata.outcome
    assert outcome is not None
    assert outcome.side_effects == ({"kind": "write", "path": "new/a.txt"},)
    assert outcome.tool_name == "write_file"


async def test_edit_requires_text_that_occurs_once(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one two two")
    turn = tool_context(tmp_path)
    for old, reason in (("three", "is not in"), ("two", "is 2 times in"), ("", "empty")):
        message = await run_one(EditFile, turn, path="a.txt", old_text=old, new_text="x")
        assert reason in result_text(message)
        assert file.read_text() == "one two two"
    done = await run_one(EditFile, turn, path="a.txt", old_text="one", new_text="1")
    assert file.read_text() == "1 two two"
    assert done.metadata.outcome is not None
    assert "-one two two\n+1 two two" in done.metadata.outcome.ui["diff"]
    await run_one(EditFile, turn, path="a.txt", old_text="two", new_text="2", replace_all=True)
    assert file.read_text() == "1 2 2"


async def test_listing_does_not_follow_links(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    (inside / "src" / "deep").mkdir(parents=True)
    (inside / "src" / "deep" / "a.py").touch()
    (inside / ".git" / "objects").mkdir(parents=True)
    (inside / "out").symlink_to("..")
    (inside / "b.md").touch()
    turn = tool_context(inside)
    assert result_text(await run_one(ListFiles, turn)).split() == [".git/", "b.md", "out@", "src/"]
    deep = result_text(await run_one(ListFiles, turn, recursive=True)).split()
    assert deep == [".git/", "b.md", "out@", "src/", "src/deep/", "src/deep/a.py"]
    named = result_text(await run_one(ListFiles, turn, recursive=True, pattern="*.py"))
    assert named == "src/deep/a.py"


async def test_search_result_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("import os\nx = 1\n" + "import re\n" * 300)
    (tmp_path / "b.md").write_text("Import\n" + "y" * 1000 + "needle" + "z" * 1000)
    (tmp_path / "c.bin").write_bytes(b"\0import")
    turn = tool_context(tmp_path)
    assert result_text(await run_one(Grep, turn, pattern=r"^import o", path="src")) == (
        "src/a.py:1: import os"
    )
    assert (
        result_text(await run_one(Grep, turn, pattern=r"x = \d", path="src/a.py"))
        == "src/a.py:2: x = 1"
    )
    assert result_text(
        await run_one(Grep, turn, pattern="IMPORT", ignore_case=True, glob="*.md")
    ) == ("b.md:1: Import")
    many = result_text(await run_one(Grep, turn, pattern="import")).splitlines()
    assert len(many) == 51
    assert many[-1].startswith("[more lines match")
    assert len(result_text(await run_one(Grep, turn, pattern="needle"))) < 350
    assert result_text(await run_one(Grep, turn, pattern="nothing like it")) == "(no matches)"
    broken = await run_one(Grep, turn, pattern="(")
    assert error_class(broken) is ErrorClass.VALIDATION_ERROR


async def test_catastrophic_pattern_is_stopped_and_does_not_block_the_loop(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 60 + "!")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    message = await run_one(lambda: Grep(max_seconds=0.5), tool_context(tmp_path), pattern="(a+)+$")
    ticking.cancel()
    assert "was stopped before" in result_text(message)
    assert ticks > 5


async def test_a_command_gives_output_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    turn = tool_context(tmp_path)
    done = await run_one(RunCommand, turn, command="cat a.txt; echo err >&2")
    assert result_text(done) == "helloerr\n"
    assert done.metadata.outcome is not None
    assert done.metadata.outcome.value["exit_code"] == 0
    failed = await run_one(RunCommand, turn, command="echo no; exit 3")
    assert result_text(failed) == "no\n[exit code 3]"
    assert error_class(failed) is ErrorClass.EXECUTION_ERROR
    assert failed.metadata.outcome is not None
    assert failed.metadata.outcome.side_effects == (
        {"kind": "execute", "command": "echo no; exit 3"},
    )
    assert (
        result_text(await run_one(RunCommand, turn, command="cat; kill -9 $$"))
        == "[killed by SIGKILL]"
    )


async def test_long_output_keeps_start_and_end(tmp_path: Path) -> None:
    message = await run_one(RunCommand, tool_context(tmp_path), command="seq 1 200000")
    text = result_text(message)
    assert text.startswith("1\n2\n")
    assert text.endswith("199999\n200000\n")
    assert "bytes omitted]" in text
    assert len(text) < 33_000


def test_output_reports_omitted_size() -> None:
    output = BoundedOutput(4, 3)
    for number in range(100_000):
        output.add(b"%d" % (number % 10))
    assert output.text() == "0123\n[99993 bytes omitted]\n789"
    short = BoundedOutput(4, 3)
    short.add(b"01234")
    assert short.text() == "01234"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


async def has_ended(pid: int) -> bool:
    for _ in range(500):
        if not is_alive(pid):
            return True
        await asyncio.sleep(0.01)
    return False


# A parent and its child that both ignore SIGTERM and print their process ids.
STUBBORN = (
    "trap '' TERM; (trap '' TERM; while :; do sleep 0.1; done) & echo $! > child; echo said; wait"
)


async def start_stubborn(folder: Path) -> int:
    child = folder / "child"
    while not (child.exists() and child.read_text().strip()):  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.01)
    return int(child.read_text())


async def test_cancellation_kills_the_process_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metis.tools.process.run.__defaults__", (0.2,))
    turn = tool_context(tmp_path)
    running = asyncio.create_task(run_one(RunCommand, turn, command=STUBBORN))
    child = await start_stubborn(tmp_path)
    assert is_alive(child)
    turn.cancel.set()
    message = await running
    assert error_class(message) is ErrorClass.CANCELLED
    assert message.metadata.outcome is not None
    assert message.metadata.outcome.status is OutcomeStatus.ABORTED
    assert "said" in result_text(message)
    assert await has_ended(child)


async def test_command_over_timeout_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metis.tools.process.run.__defaults__", (0.2,))
    message = await run_one(RunCommand, tool_context(tmp_path), command=STUBBORN, timeout_s=1)
    assert "[ended after 1 s]" in result_text(message)
    assert error_class(message) is ErrorClass.TIMEOUT
    assert await has_ended(await start_stubborn(tmp_path))


async def test_task_cancelled_twice_leaves_no_process(tmp_path: Path) -> None:
    turn = tool_context(tmp_path)
    running = asyncio.create_task(run_one(RunCommand, turn, command=STUBBORN))
    child = await start_stubborn(tmp_path)
    running.cancel()
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await has_ended(child)


async def test_background_processes_end_with_the_command(tmp_path: Path) -> None:
    start = time.monotonic()
    message = await run_one(
        RunCommand, tool_context(tmp_path), command="sleep 1000 & echo $! > child; echo done"
    )
    assert result_text(message) == "done\n"
    assert await has_ended(await start_stubborn(tmp_path))
    assert time.monotonic() - start < 500


async def test_only_common_and_named_variables_reach_a_command(tmp_path: Path) -> None:
    canary = "canary-0451"
    environment = {
        **dict.fromkeys(SECRET_NAMES, canary),
        "DATABASE": f"postgres://me:{canary}@localhost/x",
        "TMPDIR": f"http://me:{canary}@localhost/x",
        "PATH": os.environ["PATH"],
        "LC_ALL": "C",
        "TZ": "Europe/Paris",
    }
    turn = tool_context(tmp_path)
    message = await run_one(lambda: RunCommand(environment=environment), turn, command="env")
    assert canary not in result_text(message)
    assert {"LC_ALL=C", "TZ=Europe/Paris"} <= set(result_text(message).splitlines())
    allowed = await run_one(
        lambda: RunCommand(environment=environment, allowed_variables=("GH_TOKEN",)),
        turn,
        command="env",
    )
    assert result_text(allowed).count(canary) == 1


SECRET_NAMES = (
    *("OPENAI_API_KEY", "GH_TOKEN", "CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD"),
    *("anthropic_api_key", "GREETING", "MY_LOGIN", "SSH_AUTH_SOCK", "KUBECONFIG", "DSN"),
)


async def test_tool_without_required_workspace_is_an_error() -> None:
    message = await run_one(ReadFile, tool_context(), path="a")
    assert error_class(message) is ErrorClass.PERMISSION_DENIED
    assert "needs a workspace" in result_text(message)


async def test_undecodable_file_name_is_shown(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff", os.O_CREAT))
    message = await run_one(ListFiles, tool_context(tmp_path))
    assert validate(message) == []
    assert result_text(message) == "?"


async def test_four_commands_run_concurrently(tmp_path: Path) -> None:
    calls = [tool_call("run_command", command=f"sleep 0.2; echo {number}") for number in range(6)]
    answers = await permissive_dispatcher(RunCommand).run(calls, tool_context(tmp_path))
    assert [result_text(message).strip() for message in answers] == [*"012345"]
