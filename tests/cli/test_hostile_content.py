"""No command sends a control character of any content to the terminal."""

import asyncio
import contextlib
import io
import json
import os
import re
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import Raw
from msgspec.structs import replace

import build
from metis import encode, store
from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    DocumentBlock,
    InvalidInput,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    RoutingMode,
    ToolUseBlock,
    new_ulid,
)
from metis.cli.main import cli
from metis.cli.store_commands import EXPORT_FORMATS
from metis.store.entries import (
    CompactionEntry,
    ErrorEntry,
    RetractionEntry,
    RewindEntry,
    SwapEntry,
)

# One sequence of each kind; none of them is one that metis writes itself.
HOSTILE = (
    "\x1b]0;title\x07\x1b[2J\x1b[38;5;201m\x1bP+q\x1b\\\x1b]52;c;cHduZWQ=\x07\x9b31m\x90\x9d8;;x\x9c"
    "\x00\x07\x08\x0b\x0c\x0e\x7f\x85\u202ereversed\u2066\u2069\u2028\u2029\U000e0041 back\rover"
)
# File names and settings cannot have a NUL.
HOSTILE_NAME = HOSTILE.replace("\x00", "").replace("/", "")[:60]
SESSION_ID = "sess_hostile"
# The styles that commands use.
_OUR_STYLES = re.compile(r"\x1b\[(0|1|2|3[0-7])(;[12])*m")
_RAW = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)
# Commands that print nothing but addresses and progress of their own, and do not end by themselves,
# and those that need a person or an editor.
UNTESTED = {
    *(("local", "setup"), ("local", "serve"), ("sim",), ("serve",), ("web",)),
    *(("chat",), ("templates", "edit")),
}

# The arguments of every command; `{…}` names a file of the fixture.
CASES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("ask",), ("-m", "sim", "sim: say {hostile}")),
    (("ask",), ("-m", "sim", "--json", "{hostile}")),
    (("ask",), ("-m", "{hostile}", "hello")),
    (("ask",), ("-m", "sim", "-a", "{missing}", "hello")),
    (("ask",), ("-m", "sim", "-v", "-s", SESSION_ID, "hello")),
    (("ask",), ("-m", "sim", "-x", "say\n```\n{hostile}\n```")),
    (("ask",), ("--{hostile}",)),
    (("models",), ("{hostile}",)),
    (("version",), ()),
    (("help",), ("{hostile}",)),
    (("run",), ("{hostile}",)),
    (("handoff",), ("{hostile}",)),
    (("templates",), ("{hostile}",)),
    (("templates", "show"), ("{hostile}",)),
    (("models",), ("--json",)),
    (("cost",), ("--by", "model")),
    (("cost",), ("--by", "session")),
    (("cost",), ("--json", "--by", "model")),
    (("cost",), ("--reprice", "{hostile}")),
    (("trace",), (SESSION_ID,)),
    (("trace",), (SESSION_ID, "--json")),
    (("trace",), ("{hostile}",)),
    (("demo",), ("--fast",)),
    (("tour",), ()),
    (("show",), (SESSION_ID,)),
    (("show",), ("{messages}",)),
    (("show",), ("{broken}",)),
    (("sessions",), ()),
    (("sessions",), ("--json",)),
    (("sessions", "rename"), (SESSION_ID, "{hostile}")),
    (("sessions", "rename"), ("{hostile}", "title")),
    (("sessions", "tag"), (SESSION_ID, "{hostile}")),
    (("sessions", "tag"), (SESSION_ID,)),
    (("sessions", "delete"), ("{hostile}",)),
    (("plugins",), ()),
    (("mcp",), ("{hostile}",)),
    (("mcp", "add"), ("{hostile}", "{hostile}")),
    (("mcp", "list"), ()),
    (("mcp", "remove"), ("{hostile}",)),
    (("mcp", "test"), ("{hostile}",)),
    (("fork",), (SESSION_ID, "--at", "{hostile}")),
    (("fork",), (SESSION_ID,)),
    (("search",), ("reversed",)),
    (("search",), ("{hostile}",)),
    (("embed",), ("-m", "{hostile}")),
    (("embed",), ("-m", "sim")),
    (("similar",), ("-m", "{hostile}", "x")),
    (("similar",), ("{hostile}",)),
    *((("export",), (SESSION_ID, "--format", form)) for form in EXPORT_FORMATS),
    (("import",), ("{exported}",)),
    (("import",), ("{broken}",)),
    (("import",), ("{messages}", "--format", "klaude-code")),
    (("store", "check"), ()),
    (("store", "backup"), ("{missing}/copy.db",)),
    (("store", "sweep"), ("--sessions", "0")),
    (("store", "repair"), ("{missing}",)),
    (("store", "migrate"), ()),
    (("store", "check"), ("--store", "sqlite:///{missing}")),
    (("keys", "set"), ("{hostile}",)),
    (("keys", "remove"), ("{hostile}",)),
    (("keys",), ()),
    (("config", "show"), ()),
    (("config", "get"), ("instructions",)),
    (("config", "set"), ("instructions", "{hostile}")),
    (("config", "set"), ("{hostile}", "x")),
    (("config", "unset"), ("{hostile}",)),
    (("config", "path"), ()),
    (("config",), ()),
    (("doctor",), ()),
    (("completion",), ("bash",)),
    (("completion",), ("{hostile}",)),
    (("local", "remove"), ()),
    (("schema",), ()),
    (("validate",), ("{messages}",)),
    (("validate",), ("{broken}",)),
    (("convert",), ("{request}", "--from", "anthropic", "--to", "openai")),
    (("convert",), ("{request}", "--from", "anthropic", "--to", "openai", "--json")),
    (("convert",), ("{broken}", "--from", "anthropic", "--to", "openai")),
    (("diff",), ("anthropic", "openai", "{request}")),
    (("diff",), ("anthropic", "openai:{hostile}", "{request}", "--json")),
    (("verify",), ("{recording}",)),
    (("verify",), ("{broken}",)),
)  # fmt: skip


def _leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _leaves(child, (*path, name))
        if not command.invoke_without_command:
            return
    yield path


def test_cases_cover_every_command() -> None:
    assert {path for path, _ in CASES} | UNTESTED == set(_leaves(cli)) - {()}


def _messages() -> list[Message]:
    h, call_id, broken_id = HOSTILE, build.tool_id(7), build.tool_id(8)
    model = f"anthropic:{h}"
    decision = build.routing(mode=RoutingMode.RULE, chosen_model=model, reason=h, rule_name=h)
    metadata = build.provenance(routing=decision, model=model, response_id=h)
    return [
        build.system(h),
        build.user(h, build.image()),
        build.user(DocumentBlock(build.media(), media_type="application/pdf", name=h, context=h)),
        build.user(AudioBlock(build.media(), media_type="audio/wav", transcript=h)),
        build.assistant(
            build.thinking(h),
            RedactedThinkingBlock(data=h),
            h,
            build.call(h, call_id, **{h: h, "deep": {h: [h]}}),
            ToolUseBlock(broken_id, h, {}, invalid=InvalidInput(raw=h, error=h)),
            OpaqueBlock(issuer=h, raw=Raw(json.dumps({"type": h, "x": h}).encode())),
            ArtifactBlock(build.media(), media_type="image/png", name=h, transcript=h),
            metadata=metadata,
        ),
        build.tool(h, answers=call_id),
        build.tool(h, answers=broken_id),
        build.assistant(h, metadata=metadata),
    ]


async def _fill() -> None:
    async with store.open() as opened:
        await opened.create_session(SESSION_ID, workspace_path=f"/{HOSTILE_NAME}")
        last = ""
        for message in _messages():
            last = new_ulid()
            await opened.append(replace(message, id=last, session_id=SESSION_ID))
        common: dict[str, Any] = {"session_id": SESSION_ID, "created_at": build.NOW}
        h = HOSTILE
        for entry in (
            SwapEntry(id=new_ulid(), from_model=f"a:{h}", to_model=f"b:{h}", reason=h, **common),
            ErrorEntry(id=new_ulid(), text=h, code=h, kind=h, provider=h, **common),
            CompactionEntry(id=new_ulid(), summary=h, head_id=last, **common),
            RewindEntry(id=new_ulid(), to_id=last, note=h, reason=h, **common),
            RetractionEntry(id=new_ulid(), message_id=last, reason=h, **common),
        ):
            await opened.record(entry)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: Path) -> dict[str, str]:
    """Create files, settings, paths and a store with hostile content in every place."""
    home = tmp_path / f"home{HOSTILE_NAME}"
    user.rename(home)
    monkeypatch.setenv("METIS_HOME", str(home))
    settings = (home / "config.toml").read_text()
    text = json.dumps(HOSTILE_NAME)
    (home / "config.toml").write_text(f"instructions = {text}\n{settings}")
    work = tmp_path / f"work{HOSTILE_NAME}"
    work.mkdir()
    monkeypatch.chdir(work)
    asyncio.run(_fill())
    request = {
        "model": HOSTILE,
        "max_tokens": 9,
        "system": HOSTILE,
        "unknown": {HOSTILE: HOSTILE},
        "messages": [{"role": "user", "content": [{"type": HOSTILE, HOSTILE: HOSTILE}]}],
    }
    recording = {"provider": "anthropic", "request": request, "response": {HOSTILE: HOSTILE}}
    files = {
        "messages": b"\n".join(encode(message) for message in _messages()),
        "broken": HOSTILE.encode() + b"\xff\xfe{",
        "request": json.dumps(request, ensure_ascii=False).encode(),
        "recording": json.dumps(recording, ensure_ascii=False).encode(),
        "exported": asyncio.run(_exported()),
    }
    for name, data in files.items():
        (work / f"{name}{HOSTILE_NAME}").write_bytes(data)
    return {
        "hostile": HOSTILE.replace("\x00", ""),
        "missing": str(work / f"missing{HOSTILE_NAME}"),
        **{name: str(work / f"{name}{HOSTILE_NAME}") for name in files},
    }


async def _exported() -> bytes:
    async with store.open() as opened:
        return b"\n".join(await opened.export(SESSION_ID))


def _terminal_output(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command with a pseudo-terminal as both outputs; return what it receives."""
    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST  # line breaks arrive as they were written
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    received = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(master, 65536):
                received.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    with (
        open(slave, "w", encoding="utf-8", newline="") as output,  # noqa: PTH123 - a descriptor
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        contextlib.suppress(SystemExit),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        cli.main(arguments, prog_name="metis")
    reader.join()
    os.close(master)
    return received.decode()


@pytest.mark.slow
@pytest.mark.parametrize(("path", "arguments"), CASES, ids=lambda value: " ".join(value)[:60])
def test_no_control_character_reaches_the_terminal(
    path: tuple[str, ...],
    arguments: tuple[str, ...],
    names: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = _terminal_output([*path, *_filled(arguments, names)], monkeypatch)
    rest = _OUR_STYLES.sub("", output)
    if "-m" in arguments and "-a" not in arguments and "\x1b[?2026" in output:
        # The screen of a question is redrawn with sequences of its own.
        rest = re.sub(r"\x1b\[(\?2026[hl]|\?25[hl]|\d*[AJK]|[0-9;]*m)|\r", "", rest)
    found = _RAW.search(rest)
    assert found is None, (found, rest[max(found.start() - 80, 0) :][:200] if found else "")


def _encoded_output(
    arguments: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[bytes, bytes]:
    """Run a command whose outputs have another encoding; return the bytes."""
    outputs = [io.BytesIO(), io.BytesIO()]
    out, err = (io.TextIOWrapper(data, encoding=encoding) for data in outputs)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.suppress(SystemExit),
    ):
        cli.main(arguments, prog_name="metis")
    for stream in (out, err):
        stream.flush()
    return outputs[0].getvalue(), outputs[1].getvalue()


def _filled(arguments: tuple[str, ...], names: dict[str, str]) -> list[str]:
    return [re.sub(r"\{(\w+)\}", lambda name: names[name[1]], each) for each in arguments]


READING = [case for case in CASES if case[0][0] in ("show", "trace", "search", "validate", "diff")]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_commands_print_in_another_encoding(
    encoding: str, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, arguments in READING:
        out, err = _encoded_output([*path, *_filled(arguments, names)], encoding, monkeypatch)
        assert b"Traceback" not in err
        if path != ("search",):  # which may have no result
            assert out + err != b""


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-16"])
@pytest.mark.parametrize(("path", "arguments"), CASES, ids=lambda value: " ".join(value)[:60])
def test_every_command_prints_in_another_encoding(
    encoding: str,
    path: tuple[str, ...],
    arguments: tuple[str, ...],
    names: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, err = _encoded_output([*path, *_filled(arguments, names)], encoding, monkeypatch)
    assert "Traceback" not in err.decode(encoding)
    if path != ("export",):  # the bytes of a file, whatever the encoding of the output
        out.decode(encoding)
