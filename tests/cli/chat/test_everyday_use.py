"""Common chat actions besides prompting: paste, undo, export, retry, pickers."""

import json
import os
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from cli.chat.conftest import Start, ready
from cli.chat.test_chat import PNG, send_and_wait
from metis.cli.main import cli
from session_files import ANSWER, claude_file
from terminal import Terminal

SLOW = "count to 60 sim: slow 20"


def test_paste_during_response_stays_in_prompt(chat: Terminal) -> None:
    chat.send(SLOW)
    chat.wait_for("1, 2, 3, 4, 5")
    chat.paste("first line\rsecond line\rthird line\r")
    chat.wait_for("59, 60")
    text = chat.wait_for("third line")
    assert "metis simulator" not in text
    assert chat.raw.rindex(b"\x1b[?2004h") > chat.raw.find(b"\x1b[?2004l")
    chat.type("\x03")
    chat.wait_for(lambda text: "third line" not in text)
    chat.send("/rewind")
    assert "before turn 2" not in chat.wait_for("before turn 1")
    chat.type("\x1b")
    chat.wait_for(lambda text: "before turn 1" not in text)
    chat.type("\x04")
    assert chat.exit_code() == 0
    assert chat.raw.rindex(b"\x1b[?2004l") > chat.raw.rindex(b"\x1b[?2004h")


def test_earlier_paste_does_not_answer_confirmation(chat: Terminal, tmp_path: Path) -> None:
    chat.send("create the file a.txt sim: slow 50")
    chat.wait_for("Ctrl-C stops")
    chat.type("\x1b[200~yes\ryes\r")
    chat.wait_for("[y] yes  [s] always in this session")
    chat.type("y\r\x1b[201~")
    chat.rest()
    assert not (tmp_path / "work" / "a.txt").exists()
    chat.type("n")
    chat.wait_for("not allowed")


def test_typed_ahead_prompt_is_sent_after_response(chat: Terminal) -> None:
    chat.send(SLOW)
    chat.wait_for("1, 2, 3, 4, 5")
    chat.send("say typed ahead")
    chat.wait_for("\ntyped ahead")


def test_retyped_prompt_replaces_failed_one(chat: Terminal) -> None:
    for _ in range(2):
        chat.send("hello sim: 400")
        chat.wait_for("rejected the request")
        chat.rest()
    chat.send("/rewind")
    assert "before turn 2" not in chat.wait_for("before turn 1")


def test_export_over_existing_file_asks_first(chat: Terminal, tmp_path: Path) -> None:
    target = tmp_path / "work" / "talk.md"
    target.write_text("precious")
    send_and_wait(chat, "say hello", "hello\n")
    chat.send("/export talk.md")
    chat.wait_for("talk.md exists. Overwrite it? y/n")
    chat.type("n")
    chat.wait_for("Not exported.")
    assert target.read_text() == "precious"
    chat.send("/export talk.md")
    chat.wait_for("talk.md exists. Overwrite it? y/n")
    chat.type("y")
    chat.wait_for("Wrote talk.md")
    assert "say hello" in target.read_text()


def test_a_bookmark_stays_where_it_was_set(chat: Terminal) -> None:
    send_and_wait(chat, "say one", "one\n")
    chat.send("/bookmark start")
    chat.wait_for('Bookmarked as "start" (#1). /rewind start returns to this point.')
    send_and_wait(chat, "say two", "two\n")
    send_and_wait(chat, "say three", "three\n")
    chat.send("/rewind start")
    chat.wait_for("Went back to bookmark start.")
    chat.send("/rewind")
    assert "before turn 2" not in chat.wait_for("before turn 1")
    chat.type("\x1b")
    chat.wait_for(lambda text: "before turn 1" not in text)
    chat.send("/bookmark")
    chat.wait_for("#1  start  one")
    chat.send("/bookmark end")
    chat.wait_for('Bookmarked as "end" (#2)')
    chat.send("/rewind 1")
    chat.wait_for("Went back to before turn 1.")
    chat.send("/bookmark")
    chat.wait_for("#2  end    one")
    chat.send("/rewind nowhere")
    chat.wait_for("There is no bookmark nowhere; /bookmark lists them.")
    chat.send("/rewind #1")
    chat.wait_for("Went back to bookmark #1.")


def test_response_of_another_model_shows_its_name(chat: Terminal) -> None:
    text = send_and_wait(chat, "@haiku say hello", "hello\n")
    assert "\nanthropic:claude-haiku-4-5\n\nhello" in text
    text = send_and_wait(chat, "say goodbye", "goodbye\n")
    assert "claude" not in text.rpartition("say goodbye")[2].partition("›")[0]  # noqa: RUF001


def test_all_tools_of_the_model_are_listed(chat: Terminal) -> None:
    chat.send("/tools")
    text = chat.wait_for("run_command")
    assert "memory_" in text


def test_model_picker_filters(chat: Terminal) -> None:
    chat.send("/model")
    chat.wait_for("type to search")
    chat.type("hai45")
    chat.wait_for(lambda text: "claude-haiku-4-5" in text and "gpt-5" not in text)
    chat.type("\r")
    chat.wait_for("Switched to anthropic:claude-haiku-4-5")
    chat.send("/model")
    chat.wait_for("type to search")
    chat.type("\x1b")
    chat.wait_for(lambda text: "type to search" not in text)
    send_and_wait(chat, "say go on", "go on\n")


def test_turn_picker_rewinds_and_undo_edits_last_prompt(chat: Terminal) -> None:
    for word in ("apple", "banana", "cherry"):
        send_and_wait(chat, f"say {word}", f"\n{word}\n")
    chat.send("/rewind")
    chat.wait_for("before turn 3")
    chat.type("banana")
    chat.wait_for(lambda text: "before turn 3" not in text)
    chat.type("\r")
    chat.wait_for("Went back to before turn 2.")
    chat.send("/undo")
    chat.wait_for("Took the last turn back; /rewind #2 restores it.")
    chat.wait_for(lambda text: text.splitlines()[-2].endswith("say apple"))
    chat.type("s\r")
    chat.wait_for("\napples\n")


def test_a_conversation_is_renamed_found_and_deleted(chat: Terminal) -> None:
    send_and_wait(chat, "say first", "\nfirst\n")
    chat.send("/rename Owls of Europe")
    chat.wait_for("Renamed to Owls of Europe.")
    chat.send("/new")
    chat.wait_for("New conversation.")
    send_and_wait(chat, "say second", "\nsecond\n")
    chat.send("/resume")
    chat.wait_for("Owls of Europe")
    chat.type("owls\r")
    chat.wait_for(lambda text: text.count("say first") > 1)
    chat.send("/delete")
    chat.wait_for("Owls of Europe for good? y/n")
    chat.type("y")
    chat.wait_for("Deleted ")
    chat.send("/sessions")
    text = chat.wait_for("continues one")
    assert "Owls" not in text.rpartition("/sessions")[2]


def test_a_conversation_that_ends_with_instructions_or_at_its_start_is_kept(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METIS_HOME", str(tmp_path / "metis"))
    chat = ready(start())
    send_and_wait(chat, "say first", "\nfirst\n")
    chat.send("/system Answer in Latin.")
    chat.wait_for("Added to the system prompt")
    chat.send("/new")
    chat.wait_for("New conversation.")
    send_and_wait(chat, "say second", "\nsecond\n")
    chat.send("/rewind 1")
    chat.wait_for("Went back")
    chat.send("/new")
    chat.wait_for(lambda text: text.count("New conversation.") > 1)
    chat.send("/system Nothing is ever said here.")
    chat.wait_for(lambda text: text.count("Added to the system prompt") > 1)
    chat.send("/quit")
    assert chat.exit_code() == 0
    rows = json.loads(CliRunner().invoke(cli, ["sessions", "--json"]).stdout)
    assert [row["title"] for row in rows] == ["say second", "say first"]


def test_resume_lists_matching_sessions(chat: Terminal) -> None:
    for _ in range(2):
        send_and_wait(chat, "say owl", "\nowl\n")
        chat.send("/new")
        chat.wait_for("New conversation.")
    chat.send("/resume owl")
    text = chat.wait_for("type to search")
    assert text.rpartition("/resume")[2].count("say owl") == 2


def test_a_session_of_another_program_is_resumed_and_searched(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METIS_HOME", str(tmp_path / "metis"))
    path = claude_file(tmp_path / "made", str(tmp_path / "work"))
    imported = CliRunner().invoke(cli, ["import", str(path)])
    session = imported.stdout.strip()
    chat = ready(start())
    chat.send(f"/resume {session}")
    chat.wait_for(ANSWER)
    send_and_wait(chat, "say further", "\nfurther\n")
    chat.send("/new")
    chat.wait_for("New conversation.")
    chat.send("/search owls")
    chat.wait_for(lambda text: f"{session[-6:]}  Two" in text.partition("/search owls")[2])
    shown = CliRunner().invoke(cli, ["show", session]).stdout
    assert shown.index(ANSWER) < shown.index("further")


def test_instructions_and_attachments_are_sent(chat: Terminal, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "a.txt").write_text("alpha")
    (work / "b.txt").write_text("beta")
    chat.send("/system Answer in Latin.")
    chat.wait_for("Added to the system prompt")
    chat.send("/system")
    chat.wait_for("\nAnswer in Latin.")
    chat.send("/attach *.txt")
    chat.wait_for("2 attachments for the next message.")
    send_and_wait(chat, "say both", "both\n")
    chat.send("/attach nothing.xyz")
    chat.wait_for("no such file")
    chat.send("/context")
    text = chat.wait_for("tool definitions")
    assert "instructions" in text
    chat.send("/attach clipboard")
    chat.wait_for(lambda text: "clipboard" in text.rpartition("/attach clipboard")[2])


def test_a_long_answer_notifies(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "metis" / "config.toml"
    config.write_text(f"notify_after_s = 1\n{config.read_text()}")
    chat = ready(start())
    send_and_wait(chat, "say quick", "\nquick\n")
    assert b"\x1b]9;" not in chat.raw
    send_and_wait(chat, "count to 60 sim: slow 40", "59, 60")
    assert b"\x1b]9;metis: the answer is complete\x07" in chat.raw


def test_long_ids_stay_whole_in_a_narrow_terminal(start: Start) -> None:
    chat = ready(start(columns=80))
    chat.send("/models gemini preview")
    chat.wait_for("T tools")
    assert re.search(
        r"^gemini:deep-research-\w+-preview-\d\d-\d{4}$", chat.scrollback, re.MULTILINE
    )
    chat.send("/diff gemini")
    text = chat.wait_for(lambda text: "gemini:gemini" in text.rpartition("/diff gemini")[2])
    assert "There is no model" not in text


def test_the_parts_of_the_window_add_up(chat: Terminal) -> None:
    send_and_wait(chat, "say something", "something\n")
    chat.send("/context")
    text = chat.wait_for("tool definitions").rpartition("/context")[2]
    total, *parts = (
        float(number) * (1000 if unit else 1)
        for number, unit in re.findall(r"about ([\d.]+)(k?)", text)
    )
    assert sum(parts) == pytest.approx(total, rel=0.02)


@pytest.fixture
def page() -> Iterator[str]:
    """Yield the address of a page on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain")
            self.end_headers()
            self.wfile.write(b"a page about owls")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/owls"
        server.shutdown()
        thread.join()


def test_urls_and_the_image_of_the_clipboard_are_attached(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "image.png").write_bytes(PNG)
    for name in ("wl-paste", "xclip", "pngpaste"):
        (programs / name).write_text(f"#!/bin/sh\nexec cat {tmp_path / 'image.png'}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    chat = ready(start())
    chat.send(f"/attach {page} clipboard")
    text = chat.wait_for("2 attachments for the next message.")
    assert "a page about owls" in text
    assert "image · image/png" in text
    send_and_wait(chat, "say seen", "seen\n")
    chat.send("/export seen.json")
    chat.wait_for("Wrote seen.json")
    (prompt,) = (
        message["content"]
        for message in json.loads((tmp_path / "work" / "seen.json").read_text())["messages"]
        if message["role"] == "user"
    )
    assert [block["type"] for block in prompt] == ["text", "image", "text"]
    assert "a page about owls" in prompt[0]["text"]
