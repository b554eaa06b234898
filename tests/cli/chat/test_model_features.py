"""Models with missing capabilities, local server models, and the simulator in one chat."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from cli.chat.conftest import Start, ready
from cli.chat.test_chat import PNG, send_and_wait

FEATURES: dict[str, list[str]] = {
    "plain:1b": ["completion"],
    "able:8b": ["completion", "tools", "vision"],
}


class Ollama(BaseHTTPRequestHandler):
    """A server with two models, which refuses tools as the real one does."""

    requests: ClassVar[list[dict[str, Any]]] = []
    states_features = True

    def do_GET(self) -> None:
        self._reply({"models": [{"name": name} for name in FEATURES]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        model = body["model"]
        if self.path == "/api/show":
            stated = {"capabilities": FEATURES[model]} if self.states_features else {}
            self._reply(stated)
            return
        self.requests.append(body)
        if body.get("tools") and "tools" not in FEATURES[model]:
            fault = f"registry.ollama.ai/library/{model} does not support tools"
            self._reply({"error": fault}, status=400)
            return
        message = {"role": "assistant", "content": f"hello from {model}"}
        self._reply({"model": model, "message": message, "done": True, "done_reason": "stop"})

    def _reply(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        kind = "application/json" if status != 200 else "application/x-ndjson"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base
        """Write nothing."""


@pytest.fixture
def ollama(tmp_path: Path, start: Start) -> Iterator[type[Ollama]]:
    """Yield an Ollama server at the address of the config file."""

    class Handler(Ollama):
        requests: ClassVar[list[dict[str, Any]]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        config = tmp_path / "metis" / "config.toml"
        lines = [line for line in config.read_text().splitlines() if "ollama" not in line]
        lines.append(f'ollama = "http://127.0.0.1:{server.server_port}"')
        config.write_text("\n".join(lines) + "\n")
        yield Handler
        server.shutdown()


def test_a_model_without_tools_works_without_them(start: Start, ollama: type[Ollama]) -> None:
    chat = ready(start(model="ollama:plain:1b"))
    text = send_and_wait(chat, "hi", "hello from plain:1b")
    assert "ollama:plain:1b does not support tools; continuing without them" in text
    assert [body.get("tools") for body in ollama.requests] == [None]
    chat.send("/tools")
    chat.wait_for("ollama:plain:1b does not support tools and gets none of these:")


def test_server_without_capability_list_is_retried_without_tools(
    start: Start, ollama: type[Ollama]
) -> None:
    ollama.states_features = False
    chat = ready(start(model="ollama:plain:1b"))
    text = send_and_wait(chat, "hi", "hello from plain:1b")
    assert "ollama:plain:1b does not support tools; continuing without them" in text
    chat.send("again")
    chat.wait_for(lambda text: text.count("hello from") > 1)
    assert [bool(body.get("tools")) for body in ollama.requests] == [True, False, False]


def test_tools_can_be_disabled_and_enabled(start: Start, ollama: type[Ollama]) -> None:
    chat = ready(start(model="ollama:able:8b"))
    chat.send("/tools off")
    chat.wait_for("Tools: off.")
    send_and_wait(chat, "hi", "hello from able:8b")
    chat.send("/tools on")
    chat.wait_for("Tools: on.")
    chat.send("hi again")
    chat.wait_for(lambda text: text.count("hello from") > 1)
    assert [bool(body.get("tools")) for body in ollama.requests] == [False, True]


def test_config_file_disables_tools_of_a_model(
    start: Start, ollama: type[Ollama], tmp_path: Path
) -> None:
    with (tmp_path / "metis" / "config.toml").open("a") as config:
        config.write('[model_tools]\n"ollama:able:8b" = false\n')
    chat = ready(start(model="ollama:able:8b"))
    send_and_wait(chat, "hi", "hello from able:8b")
    assert not ollama.requests[0].get("tools")


def test_chat_lists_and_uses_models_of_local_server(start: Start, ollama: type[Ollama]) -> None:
    chat = ready(start(columns=120, rows=80))
    chat.send("/models")
    text = chat.wait_for("@alias asks one once")
    assert {"ollama:plain:1b", "ollama:able:8b"} <= set(text.split())
    assert "ollama:llama" not in text
    chat.send("/model ollama")
    chat.wait_for("Switched to ollama:plain:1b.")


def test_an_image_becomes_a_note_for_a_model_without_images(
    start: Start, ollama: type[Ollama], tmp_path: Path
) -> None:
    (tmp_path / "work" / "dot.png").write_bytes(PNG)
    chat = ready(start())
    send_and_wait(chat, "what is this @dot.png", "image")
    chat.send("/model ollama:plain:1b")
    text = chat.wait_for("Switch? y/n")
    assert "1 image" in text
    chat.type("y")
    chat.wait_for("Switched to ollama:plain:1b.")
    send_and_wait(chat, "and now?", "hello from plain:1b")
    assert "images" not in json.dumps(ollama.requests[0])


@pytest.mark.usefixtures("ollama")
def test_chat_switches_to_simulator_and_back(start: Start) -> None:
    chat = ready(start(model="ollama:able:8b"))
    send_and_wait(chat, "hi", "hello from able:8b")
    chat.send("/model sim")
    chat.wait_for("Switched to anthropic:sim-small (simulated).")
    chat.wait_for("anthropic:sim-small [simulated] (your choice)")
    send_and_wait(chat, "what did I say first", "You began with:")
    chat.send("/cost")
    assert "simulated" in chat.wait_for("total $")
    chat.send("/export talk.md")
    chat.wait_for("Wrote talk.md")
    chat.send("/model -")
    chat.wait_for("ollama:able:8b can be used for real. Leave the simulator? y/n")
    chat.type("y")
    chat.wait_for("Switched to ollama:able:8b.")
    send_and_wait(chat, "and you?", "hello from able:8b")
    chat.type("\x04")
    assert chat.exit_code() == 0
    again = start("-c", model="ollama:able:8b")
    assert "and you?" in again.wait_for("session")


def test_local_command_explains_installation(start: Start) -> None:
    chat = ready(start())
    chat.send("/model local")
    chat.wait_for("metis local setup")
    chat.wait_for("anthropic:claude-sonnet-4-6 (your choice)")
    send_and_wait(chat, "say go on", "go on\n")
