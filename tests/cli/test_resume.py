"""Real programs continue what `metis handoff` wrote; a loopback server records their requests.

The programs are found on PATH and in `METIS_TEST_PROGRAMS`, a directory of npm packages.
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metis.cli.main import cli
from session_files import (
    SEALED,
    SUMMARY,
    claude_file,
    codex_file,
    compacted_file,
    gemini_file,
    opencode_file,
    pi_file,
)

TIMEOUT_S = 180
KEY = "key-for-loopback"
OPENCODE_MODEL = "anthropic/claude-sonnet-4-5"


def command(name: str) -> str | None:
    packages = os.environ.get("METIS_TEST_PROGRAMS", "")
    local = Path(packages, "node_modules", ".bin", name)
    return str(local) if packages and local.exists() else shutil.which(name)


class Recorder(BaseHTTPRequestHandler):
    """Answers every protocol with one short text."""

    bodies: list[dict[str, Any]]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(json.dumps({"data": [], "models": []}).encode(), "application/json")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body: dict[str, Any] = json.loads(raw)
        except ValueError:
            body = {}
        path = self.path.partition("?")[0]
        self.bodies.append({"path": path, "body": body})
        if path.endswith(("/count_tokens", ":countTokens")):
            self._send(b'{"input_tokens": 10, "totalTokens": 10}', "application/json")
        elif path.endswith("/messages"):
            self._send(anthropic_stream(str(body.get("model"))), "text/event-stream")
        elif path.endswith("/responses"):
            self._send(responses_stream(), "text/event-stream")
        elif "generateContent" in path or "GenerateContent" in path:
            self._send(*gemini_answer(is_stream="stream" in path))
        else:
            self._send(b"{}", "application/json")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the base class
        pass


def events(*items: dict[str, Any]) -> bytes:
    return "".join(f"event: {i['type']}\ndata: {json.dumps(i)}\n\n" for i in items).encode()


def anthropic_stream(model: str) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 2}
    message = {"id": "msg_stub", "type": "message", "role": "assistant", "model": model}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return events(
        {"type": "message_start", "message": message},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Continued."},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    )


def responses_stream() -> bytes:
    part: dict[str, Any] = {"type": "output_text", "text": "Continued.", "annotations": []}
    item: dict[str, Any] = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
    }
    item["content"] = [part]
    usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
    response: dict[str, Any] = {"id": "resp_1", "object": "response", "model": "gpt-5"}
    done = response | {"status": "completed", "output": [item], "usage": usage}
    return events(
        {"type": "response.created", "response": response | {"status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": done},
    )


def gemini_answer(*, is_stream: bool) -> tuple[bytes, str]:
    content = {"role": "model", "parts": [{"text": "Continued."}]}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12}
    body = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}
    text = json.dumps(body | {"usageMetadata": usage})
    if is_stream:
        return f"data: {text}\r\n\r\n".encode(), "text/event-stream"
    return text.encode(), "application/json"


@pytest.fixture
def recorder() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    bodies: list[dict[str, Any]] = []
    handler = type("BoundRecorder", (Recorder,), {"bodies": bodies})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", bodies
    server.shutdown()
    server.server_close()


def claude_command(program: str, resume: list[str], base: str) -> tuple[list[str], dict[str, str]]:
    environment = {
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_MODEL": "claude-sonnet-4-5",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "claude-sonnet-4-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return [program, *resume[1:], "-p", "go on", "--max-turns", "1"], environment


def codex_command(program: str, resume: list[str], base: str) -> tuple[list[str], dict[str, str]]:
    provider = (
        f'{{name="gw",base_url="{base}/v1",env_key="GW_KEY",wire_api="responses",'
        "request_max_retries=1,stream_max_retries=1}"
    )
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "gpt-5"]
    settings = ('model_provider="gw"', f"model_providers.gw={provider}")
    more = ("check_for_update_on_startup=false", "features.plugins=false", "features.apps=false")
    pairs = [word for setting in (*settings, *more) for word in ("-c", setting)]
    return [program, "exec", *options, *pairs, "resume", resume[2], "go on"], {"GW_KEY": KEY}


def gemini_command(program: str, resume: list[str], base: str) -> tuple[list[str], dict[str, str]]:
    environment = {
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": base,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    options = ["-m", "gemini-2.5-pro", "--approval-mode", "yolo"]
    return [program, *options, *resume[1:], "-p", "go on"], environment


def opencode_command(
    program: str, resume: list[str], base: str
) -> tuple[list[str], dict[str, str]]:
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/anthropic",
        "options": {"baseURL": f"{base}/v1", "apiKey": KEY},
        "models": {"claude-sonnet-4-5": {}},
    }
    settings: dict[str, Any] = {
        "provider": {"anthropic": provider},
        "autoupdate": False,
        "share": "disabled",
    }
    script = resume[2].replace(
        "exec opencode --session", f"{program} run -m {OPENCODE_MODEL} --session"
    )
    script = script.replace("opencode import", f"{program} import") + " 'go on'"
    return ["sh", "-c", script], {"OPENCODE_CONFIG_CONTENT": json.dumps(settings)}


COMMANDS = {
    "claude": claude_command,
    "codex": codex_command,
    "gemini": gemini_command,
    "opencode": opencode_command,
}
SOURCES = {
    "claude": claude_file,
    "codex": codex_file,
    "gemini": gemini_file,
    "opencode": opencode_file,
    "pi": pi_file,
}
PAIRS = [(one, two) for one in SOURCES for two in COMMANDS if one != two]


@pytest.mark.slow
@pytest.mark.parametrize(("origin", "target"), PAIRS)
def test_program_sends_history_of_another_program(
    origin: str,
    target: str,
    user: Path,
    tmp_path: Path,
    recorder: tuple[str, list[dict[str, Any]]],
) -> None:
    sent, losses = resumed(SOURCES[origin], target, tmp_path, recorder)
    dropped = {loss["block_type"] for loss in losses if loss["change"] == "dropped"}
    for kind, text in expected_facts(origin).items():
        is_lost = any(block.endswith(kind) for block in dropped)
        assert is_lost or text in sent, (kind, losses)


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(COMMANDS))
def test_summary_is_sent(
    target: str, user: Path, tmp_path: Path, recorder: tuple[str, list[dict[str, Any]]]
) -> None:
    sent, _ = resumed(compacted_file, target, tmp_path, recorder)
    assert SUMMARY in sent
    assert "Two owls." in sent


def resumed(
    write_source: Callable[[Path, str], Path],
    target: str,
    tmp_path: Path,
    recorder: tuple[str, list[dict[str, Any]]],
) -> tuple[str, list[dict[str, Any]]]:
    """Return what a program sends after a handoff, and the losses of the handoff."""
    program = command(target)
    if program is None:
        pytest.skip(f"{target} is not installed")
    base, bodies = recorder
    home, cwd = tmp_path / "programs", tmp_path / "folder"
    cwd.mkdir()
    path = write_source(tmp_path, str(cwd))
    done = CliRunner().invoke(
        cli, ["handoff", target, str(path), "--home", str(home), "--cwd", str(cwd), "--json"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    settings = home / ".gemini" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    words, variables = COMMANDS[target](program, report["resume"], base)
    plain = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    result = subprocess.run(  # noqa: S603 - the program under test
        words,
        cwd=cwd,
        env=plain | variables,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    sent = json.dumps([entry["body"] for entry in bodies], ensure_ascii=False)
    assert "go on" in sent, result.stderr.decode()[-2000:]
    return sent, report["losses"]


def expected_facts(origin: str) -> dict[str, str]:
    """Return one text per block in the sessions of `session_files`, by block type."""
    return {
        "text of the user": "which owls are here?",
        "text of the model": "Two owls.",
        "tool_use first": "call_owl_1",
        "tool_use second": "call_owl_2",
        "tool_result first": "owl 1",
        "tool_result second": "owl 2 failed",
        "image": "iVBORw0KGgo",
        **({"thinking": SEALED} if origin in ("claude", "codex") else {}),
    }
