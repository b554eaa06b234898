"""The real program in a pseudo-terminal: keyboard input and screen content."""

import base64
import os
import re
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from terminal import Terminal

Start = Callable[..., Terminal]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def ready(terminal: Terminal) -> Terminal:
    terminal.wait_for("session")
    return terminal


def send_and_wait(terminal: Terminal, prompt: str, answer: str) -> str:
    """Send a prompt, and wait for the response and the next prompt."""
    terminal.send(prompt)
    terminal.wait_for(answer)
    return terminal.wait_for(lambda text: text.splitlines()[-2].startswith("›"))  # noqa: RUF001


def test_response_is_drawn_as_markdown_above_next_prompt(chat: Terminal) -> None:
    text = send_and_wait(chat, "say **all** is `well` here", "all is well here")
    assert text.splitlines()[-1].startswith("anthropic:claude-sonnet-4-6 (your choice) · <1% of")
    assert re.search(r"\$0\.\d+ session · \$0\.\d+ turn", text)
    row = next(n for n, line in enumerate(chat.lines) if line == "all is well here")
    assert chat.screen.buffer[row][0].bold
    assert chat.screen.buffer[row][8].fg == "cyan"


def test_long_response_is_in_scrollback_once(chat: Terminal) -> None:
    chat.send("count to 900")
    chat.wait_for("899, 900")
    chat.rest()
    numbers = re.findall(r"\d+", chat.scrollback.partition("count to 900")[2].partition("›")[0])  # noqa: RUF001
    assert numbers == [str(number) for number in range(1, 901)]


def test_ctrl_c_during_response_keeps_partial_text(chat: Terminal) -> None:
    chat.send("count to 3000 sim: slow 20")
    chat.wait_for("Ctrl-C stops")
    chat.wait_for("1, 2, 3, 4, 5, 6, 7, 8, 9, 10")
    chat.type("\x03")
    text = chat.wait_for("stopped; partial answer saved")
    assert "3000" not in text.partition("slow 20")[2]
    text = send_and_wait(chat, "what did I say first", "You began with:")
    assert "count to 3000" in text


def test_model_switch_and_switch_back(chat: Terminal) -> None:
    send_and_wait(chat, "say one", "one\n")
    chat.send("/model gpt-5")
    chat.wait_for("Switched to openai:gpt-5.")
    chat.wait_for("openai:gpt-5 (your choice)")
    send_and_wait(chat, "say two", "two\n")
    chat.send("/model -")
    chat.wait_for("Switched to anthropic:claude-sonnet-4-6.")


def test_tool_call_runs_after_approval(chat: Terminal, tmp_path: Path) -> None:
    chat.send("create the file a.txt")
    text = chat.wait_for("[y] yes  [s] always in this session")
    assert "● write_file  write" in text
    assert not (tmp_path / "work" / "a.txt").exists()
    chat.type("y")
    chat.wait_for("allowed once")
    chat.wait_for("write_file gave")
    assert (tmp_path / "work" / "a.txt").exists()


def test_approval_for_session_is_not_asked_again(chat: Terminal, tmp_path: Path) -> None:
    chat.send("create the file a.txt")
    chat.wait_for("[y] yes  [s] always in this session")
    chat.type("s")
    chat.wait_for("write_file gave")
    send_and_wait(chat, "create the file b.txt", "b.txt\n")
    assert (tmp_path / "work" / "b.txt").exists()


def test_denial_reason_is_sent_to_the_model(chat: Terminal, tmp_path: Path) -> None:
    chat.send("create the file a.txt")
    chat.wait_for("[y] yes  [s] always in this session")
    chat.type("w")
    chat.wait_for("tell the model:")
    chat.send("not on a Sunday")
    chat.wait_for("The user says: not on a Sunday")
    assert not (tmp_path / "work" / "a.txt").exists()


def test_ctrl_c_at_confirmation_stops_the_turn(chat: Terminal, tmp_path: Path) -> None:
    chat.send("create the file a.txt")
    chat.wait_for("[y] yes  [s] always in this session")
    chat.type("\x03")
    chat.wait_for("stopped; partial answer saved")
    assert not (tmp_path / "work" / "a.txt").exists()
    send_and_wait(chat, "say go on", "go on")


def test_several_lines_are_one_message(chat: Terminal) -> None:
    chat.type("say exactly: first\x1b\rsecond")
    chat.wait_for("  second")
    chat.type("\r")
    chat.wait_for("first second")


def test_long_paste_is_collapsed_on_screen_and_sent_whole(chat: Terminal) -> None:
    chat.type("say exactly: ")
    chat.paste("\n\n".join(f"line {number}" for number in range(20)))
    chat.wait_for("[pasted 1: 39 lines]")
    chat.type("\r")
    chat.wait_for("line 19")


def test_message_can_be_written_in_editor(start: Start, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nprintf 'say written elsewhere' > \"$1\"\n")
    editor.chmod(0o755)
    chat = ready(start(variables={"EDITOR": str(editor)}))
    chat.type("\x18\x05")
    chat.wait_for("say written elsewhere")
    chat.type("\r")
    chat.wait_for("\nwritten elsewhere")


def test_files_are_attached_and_binary_ones_refused(chat: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "notes.txt").write_text("one\ntwo\n")
    (folder / "program.bin").write_bytes(b"\x00\x01\x02")
    (folder / "page.pdf").write_bytes(b"%PDF-1.4\n%%EOF\n")
    text = send_and_wait(chat, "what is this? @notes.txt", "metis simulator")
    assert "+ notes.txt · 2 lines" in text
    chat.send("and @program.bin")
    text = chat.wait_for("Cannot attach")
    assert "(text, images and PDF only)" in " ".join(text.split())
    text = send_and_wait(chat, "and @page.pdf", "+ page.pdf · PDF")
    assert "Traceback" not in chat.scrollback


def test_another_model_answers_once(chat: Terminal) -> None:
    send_and_wait(chat, "@haiku say hello", "hello")
    chat.send("/why")
    text = chat.wait_for("@model in the message")
    assert "anthropic:claude-haiku-4-5  for one message" in text


def test_tab_completion(chat: Terminal, tmp_path: Path) -> None:
    chat.type("/mo")
    chat.wait_for("list models that can be used")
    chat.type("\x15/model hai")
    chat.wait_for("haiku")
    (tmp_path / "work" / "letter.txt").write_text("x")
    chat.type("\x15look at @let")
    chat.wait_for("letter.txt")


def test_mistyped_command_suggests_similar_one(chat: Terminal) -> None:
    chat.send("/modle")
    chat.wait_for("There is no command /modle; did you mean /model?")
    chat.send("/model sonett")
    chat.wait_for("There is no model 'sonett'; did you mean sonnet?")


def test_ctrl_c_twice_at_the_prompt_leaves(chat: Terminal) -> None:
    chat.type("half a sentence\x03")
    chat.wait_for(lambda text: "half" not in text)
    chat.type("\x03")
    chat.wait_for("Ctrl-C again")
    chat.type("\x03")
    assert chat.exit_code() == 0
    assert "Traceback" not in chat.scrollback


def test_sigterm_keeps_partial_text_and_restores_terminal(start: Start) -> None:
    chat = ready(start())
    assert not chat.echoes()
    chat.send("count to 3000 sim: slow 20")
    chat.wait_for("1, 2, 3, 4, 5, 6, 7, 8, 9, 10")
    os.kill(chat.pid, signal.SIGTERM)
    assert chat.exit_code() == 143
    assert chat.raw.rindex(b"\x1b[?25h") > chat.raw.rindex(b"\x1b[?25l")
    assert "Traceback" not in chat.scrollback
    assert chat.echoes()
    again = start("-c")
    assert "count to 3000" in again.wait_for("session")
    assert "1, 2, 3, 4, 5" in again.text


@pytest.mark.slow
def test_resize_during_response_redraws_screen(start: Start) -> None:
    chat = ready(start(columns=100, rows=24))
    chat.send("count to 400 sim: slow 10")
    chat.wait_for("20, 21, 22")
    chat.resize(60, 16)
    chat.wait_for("399, 400")
    text = chat.rest()
    assert all(len(line) <= 60 for line in text.splitlines())
    assert send_and_wait(chat, "say still here", "still here")


def test_eighty_columns_are_enough(start: Start) -> None:
    chat = ready(start(columns=80, rows=24))
    chat.send("/help")
    text = chat.wait_for("/quit")
    chat.send("/models")
    chat.wait_for("@alias asks one once")
    assert not [line for line in f"{text}\n{chat.scrollback}".splitlines() if len(line) > 80]


def test_a_dumb_terminal_gets_plain_lines(start: Start) -> None:
    chat = start(variables={"TERM": "dumb"})
    chat.wait_for("›")  # noqa: RUF001
    chat.send("say **plain**")
    chat.wait_for("**plain**")
    chat.wait_for("turn]")
    chat.send("create the file a.txt")
    chat.wait_for("[y] yes")
    chat.send("n")
    chat.wait_for("The user did not allow write_file.")
    chat.wait_for(lambda text: text.count("turn]") > 1)
    chat.type("\x04")
    assert chat.exit_code() == 0
    assert b"\x1b" not in chat.raw


def test_no_color_variable_disables_colours(start: Start) -> None:
    chat = ready(start(variables={"NO_COLOR": "1"}))
    send_and_wait(chat, "say some `code` and **bold** words", "some code and bold words")
    assert not re.search(rb"\x1b\[[0-9;]*(3[1-7]|9[0-7])m", chat.raw)


def test_control_sequences_of_response_are_not_executed(chat: Terminal, tmp_path: Path) -> None:
    (tmp_path / "work" / "evil.txt").write_text("\x1b[2J\x1b]0;title\x07gone")
    text = send_and_wait(chat, "read evil.txt", "read_file gave")
    assert "␛[2J" in text
    assert b"\x1b[2J" not in chat.raw


def test_informational_commands(chat: Terminal) -> None:
    send_and_wait(chat, "say hello", "hello")
    for command, expected in {
        "/cost": "total $",
        "/context": "tokens, <1% of",
        "/why": "chosen with /model",
        "/trace": "answer    hello",
        "/tools": "run_command",
        "/budget 1": "$1.00",
        "/diff gpt-5": "openai:gpt-5 · this conversation takes",
    }.items():
        chat.send(command)
        chat.wait_for(lambda text, line=expected, after=command: line in text.rpartition(after)[2])


def test_conversation_undo_fork_and_resume(chat: Terminal) -> None:
    send_and_wait(chat, "say one", "one\n")
    send_and_wait(chat, "say two", "two\n")
    chat.send("/bookmark here")
    chat.wait_for("/rewind here returns to this point.")
    chat.send("/rewind 2")
    chat.wait_for("Went back to before turn 2.")
    chat.send("/rewind #1")
    chat.wait_for("Went back to bookmark #1.")
    chat.send("/fork")
    match = re.search(r"/resume (\w+) returns", chat.wait_for("returns to the original."))
    assert match is not None
    chat.send("/rewind 1")
    chat.wait_for("Went back to before turn 1.")
    chat.send(f"/resume {match[1]}")
    chat.wait_for(lambda text: text.count("say two") > 1)
    chat.send("/retry haiku")
    chat.send("/why")
    chat.wait_for("anthropic:claude-haiku-4-5  for one message")
    chat.send("/sessions")
    chat.wait_for("/resume ID continues one; words of its title work, too.")
    chat.send("/search two")
    chat.wait_for(lambda text: "/search two" in text and "say [two]" in text.replace("«", "["))


def test_empty_conversation_is_not_stored(chat: Terminal, tmp_path: Path) -> None:
    chat.send("/new")
    chat.wait_for("New conversation.")
    send_and_wait(chat, "say hello", "hello\n")
    chat.send("/new")
    chat.wait_for(lambda text: text.count("New conversation.") > 1)
    chat.send("/resume hello")
    chat.wait_for(lambda text: text.count("say hello") > 1)
    chat.send("/new")
    chat.wait_for(lambda text: text.count("New conversation.") > 2)
    chat.type("\x04")
    assert chat.exit_code() == 0
    with sqlite3.connect(tmp_path / "metis" / "metis.db") as database:
        assert database.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
    database.close()


@pytest.mark.parametrize("name", ["talk.md", "talk.html", "talk.json", "talk.jsonl", "t sharegpt"])
def test_a_conversation_is_written_to_a_file(chat: Terminal, tmp_path: Path, name: str) -> None:
    send_and_wait(chat, "say words to keep", "words to keep")
    chat.send(f"/export {name}")
    chat.wait_for(" bytes")
    assert "words to keep" in (tmp_path / "work" / name.split(maxsplit=1)[0]).read_text()


def test_thinking_is_collapsed_or_shown(start: Start) -> None:
    chat = ready(start("--no-tools", model="deepseek:deepseek-reasoner"))
    text = send_and_wait(chat, "say hello", "hello")
    assert "thinking (about" in text
    assert "The user says" not in text
    chat.send("/thinking show")
    chat.wait_for("Thinking: model default. Display: full.")
    send_and_wait(chat, "say goodbye", "goodbye")
    assert "│ The user says: say goodbye." in chat.text


def test_reasoning_effort_is_set_and_persisted(start: Start) -> None:
    chat = ready(start())
    text = send_and_wait(chat, "say hello", "hello")
    assert "thinking (about" not in text
    chat.send("/thinking high")
    chat.wait_for("Thinking: high. Display: collapsed.")
    send_and_wait(chat, "say one", "one\n")
    chat.wait_for("thinking (about")
    chat.wait_for("session · thinking high")
    chat.send("/thinking much")
    chat.wait_for("Thinking is one of off, on, minimal")
    chat.type("\x04")
    assert chat.exit_code() == 0
    again = ready(start("-c"))
    again.wait_for("thinking high")
    again.send("/thinking auto")
    again.wait_for("Thinking: model default.")
    assert "thinking high" not in again.lines[-1]


def test_swap_without_content_loss_needs_no_confirmation(chat: Terminal, tmp_path: Path) -> None:
    (tmp_path / "work" / "a.txt").write_text("prompt")
    send_and_wait(chat, "read the file a.txt", "read_file gave")
    chat.send("/model gemini")
    text = chat.wait_for("Switched to")
    assert "Nothing is lost." in text
    assert "y/n" not in text
    assert "Reformatted" not in text
    assert "Reformatted" not in send_and_wait(chat, "say on", "on\n")
    chat.send("/diff sonnet")
    chat.wait_for("Reformatted without loss: ")


def test_response_is_copied_to_terminal_clipboard(chat: Terminal) -> None:
    chat.send("/copy")
    chat.wait_for("There is no answer to copy yet.")
    send_and_wait(chat, "say hoot hoot", "hoot hoot\n")
    chat.send("/copy")
    chat.wait_for("Copied 9 characters")
    assert b"\x1b]52;c;" + base64.b64encode(b"hoot hoot") + b"\x07" in chat.raw


FAILS = {
    "sim: 400": "Anthropic rejected the request: ",
    "sim: 401": "and /retry, or switch with /model.",
    "sim: cut 200": "The connection to anthropic broke off",
    "@nobody hello": "There is no model 'nobody'. /models lists all.",
    "@nothere.txt hm": "There is no file or model 'nothere.txt'. /models lists all.",
    "@x.bin hm": "Cannot attach x.bin: unsupported file type (text, images and PDF only).",
    "@. hm": "Cannot attach .: it is a directory; name a file.",
    "/model gpt5": "There is no model 'gpt5'; did you mean gpt-5",
    "/modle": "There is no command /modle; did you mean /model?",
    "/resume nowhere": "No session has 'nowhere' in its id or title. /sessions lists all.",
    "/budget much": "'much' is not an amount; give one in dollars, such as /budget 0.50, or none.",
    "/budget -3": "'-3' is not an amount",
    "/thinking lots": "Thinking is one of off, on, minimal, low, medium, high, xhigh, max, auto",
    "/rewind 7": "There is no turn 7; /rewind lists them.",
    "/fork nope": "No message and no bookmark is named 'nope'.",
    "/diff": "Name the model to compare with: /diff MODEL.",
    "/export /nowhere/at/all.md": "/nowhere/at/all.md: No such file or directory.",
    "/export x.foo": "Unknown format for x.foo; add one of: jsonl,",
}


@pytest.mark.slow
@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_error_is_one_sentence_and_chat_continues(start: Start, tmp_path: Path, term: str) -> None:
    chat = start(variables={"TERM": term}, rows=60)
    (tmp_path / "work" / "x.bin").write_bytes(b"\0\1")
    chat.wait_for("›")  # noqa: RUF001 - the mark of the prompt
    for number, (prompt, expected) in enumerate(FAILS.items(), 1):
        chat.send(prompt)
        chat.wait_for(lambda text, expected=expected: expected in text.replace("\n", " "))
        chat.send("/new")
        chat.wait_for(lambda _, n=number: chat.scrollback.count("New conversation.") == n)
    chat.send("say still here")
    chat.wait_for("\nstill here")
    assert "Traceback" not in chat.scrollback
