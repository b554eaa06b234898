"""What people do in a chat beside asking: paste, go back, export again, try again."""

from pathlib import Path

from cli.chat.test_chat import send_and_wait
from terminal import Terminal

SLOW = "count to 60 sim: slow 20"


def test_a_paste_while_an_answer_streams_waits_in_the_prompt(chat: Terminal) -> None:
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
    assert "2  " not in chat.wait_for("goes back to before that turn.")
    chat.type("\x04")
    assert chat.exit_code() == 0
    assert chat.raw.rindex(b"\x1b[?2004l") > chat.raw.rindex(b"\x1b[?2004h")


def test_a_paste_before_a_question_about_a_call_does_not_answer_it(
    chat: Terminal, tmp_path: Path
) -> None:
    chat.send("create the file a.txt sim: slow 50")
    chat.wait_for("Ctrl-C stops")
    chat.type("\x1b[200~yes\ryes\r")
    chat.wait_for("[y] yes  [s] always in this session")
    chat.type("y\r\x1b[201~")
    chat.rest()
    assert not (tmp_path / "work" / "a.txt").exists()
    chat.type("n")
    chat.wait_for("not allowed")


def test_typed_ahead_is_sent_after_the_answer(chat: Terminal) -> None:
    chat.send(SLOW)
    chat.wait_for("1, 2, 3, 4, 5")
    chat.send("say typed ahead")
    chat.wait_for("\ntyped ahead")


def test_a_retyped_question_replaces_the_one_that_failed(chat: Terminal) -> None:
    for _ in range(2):
        chat.send("hello sim: 400")
        chat.wait_for("rejected the request")
        chat.rest()
    chat.send("/rewind")
    chat.wait_for("goes back to before that turn.")
    assert "1  hello" in chat.text
    assert "2  hello" not in chat.text


def test_an_export_onto_a_file_asks_first(chat: Terminal, tmp_path: Path) -> None:
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
    text = chat.wait_for("goes back to before that turn.")
    assert "2  say two" not in text
    chat.send("/bookmark")
    chat.wait_for("#1  start  one")
    chat.send("/rewind nowhere")
    chat.wait_for("There is no bookmark nowhere; /bookmark lists them.")
    chat.send("/rewind #1")
    chat.wait_for("Went back to bookmark #1.")


def test_an_answer_of_another_model_names_it(chat: Terminal) -> None:
    text = send_and_wait(chat, "@haiku say hello", "hello\n")
    assert "\nanthropic:claude-haiku-4-5\n\nhello" in text
    text = send_and_wait(chat, "say goodbye", "goodbye\n")
    assert "claude" not in text.rpartition("say goodbye")[2].partition("›")[0]  # noqa: RUF001


def test_all_tools_of_the_model_are_listed(chat: Terminal) -> None:
    chat.send("/tools")
    text = chat.wait_for("run_command")
    assert "memory_" in text
