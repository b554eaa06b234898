"""Exports: content and safety of each format, and reported losses."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from pydantic import TypeAdapter

from build import assistant, call, numbered, provenance, tool, tool_id
from build import user as user_message
from metis.canonical import (
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    Message,
    TextBlock,
    ThinkingBlock,
    decode,
    encode,
)
from metis.canonical.errors import EncodeError
from metis.cli.main import cli
from metis.interchange.export import Conversation
from metis.interchange.writers import WRITERS, fenced
from metis.store import SessionRecord
from metis.tools.builtin import BUILTINS

NOW = datetime(2026, 5, 8, tzinfo=UTC)
RECORD = SessionRecord(
    id="sess_42", workspace_path="/work", schema_version=1, created_at=NOW, updated_at=NOW
)
PNG = ImageBlock(ImageSource("base64", "iVBORw0KGgo="), "image/png")
PDF = DocumentBlock(MediaSource("base64", "JVBERi0="), "application/pdf", name="a.pdf")
MESSAGES = numbered(
    user_message("look at this", PNG, PDF),
    assistant(
        ThinkingBlock("hm", signature="seal", issuer="anthropic"),
        "I read it.",
        call("read_file", tool_id(7), path="a.txt"),
        call("owl", tool_id(8), loud=True, times=2),
        metadata=provenance(),
    ),
    tool("hoot ``` hoot", answers=tool_id(7)),
    tool("hoot", answers=tool_id(8)),
    assistant("It says:\n```\nhoot\n```\n`ok`", metadata=provenance()),
    user_message("thanks"),
)


def written(form: str, messages: Sequence[Message] = MESSAGES) -> tuple[str, list[str]]:
    result = WRITERS[form](Conversation(RECORD, messages, [tool().definition for tool in BUILTINS]))
    return result.data.decode(), [f"{loss.change} {loss.block_type}" for loss in result.losses]


def test_markdown_export_is_readable() -> None:
    text, losses = written("markdown")
    assert text.startswith("# sess_42\n\n*2026-05-08 00:00 UTC, 6 messages*\n\n## User\n")
    assert "> hm" in text
    assert '**calls `read_file`**\n\n```json\n{\n  "path": "a.txt"\n}\n```' in text
    assert "````\nhoot ``` hoot\n````" in text
    assert "## Assistant (anthropic:claude" in text
    assert losses == ["altered image", "altered document"]


@given(st.text(alphabet="`a\n", max_size=30))
def test_code_fence_cannot_be_closed_by_content(text: str) -> None:
    lines = fenced(text).split("\n")
    assert lines[0] == lines[-1]
    assert not any(line.startswith(lines[0]) for line in lines[1:-1])


class Page(HTMLParser):
    """Parses a page as a browser would."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "p", "em", "article", "header"),
    *("footer", "div", "pre", "code", "img", "details", "summary"),
    *("strong", "s", "ul", "ol", "li", "blockquote", "hr", "br", "a", "h2", "h3", "h4", "h5", "h6"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><script>x</script>",
    "```\n</code></pre><script>x</script>\n```",
    "`<b onmouseover=x>`",
    "<!--",
    "javascript:alert(1)",
    "[x](javascript:alert(1)) [y](data:text/html,<script>x</script>) <javascript:alert(1)>",
    "![x](http://127.0.0.1/x.png) ![y](javascript:x)",
    '[x]: javascript:x "><script>"\n\n[x]',
    "| a |\n|:-:|\n| <script> |",
]


def page(messages: Sequence[Message]) -> Page:
    result = Page()
    result.feed(written("html", messages)[0])
    result.close()
    return result


def check_harmless(result: Page) -> None:
    assert result.tags <= ALLOWED
    names = {name for name, _ in result.attributes}
    assert names <= {
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "class",
        "open",
        "alt",
        "src",
        "href",
        "start",
        "style",
    }
    links = [value for name, value in result.attributes if name == "href"]
    assert all(link.startswith(("http://", "https://", "mailto:")) for link in links)
    styles = {value for name, value in result.attributes if name == "style"}
    assert styles <= {f"text-align:{side}" for side in ("left", "right", "center")}
    sources = [value for name, value in result.attributes if name == "src"]
    assert all(source.startswith("data:image/") for source in sources)


@pytest.mark.parametrize("attack", ATTACKS)
def test_html_export_executes_no_content(attack: str) -> None:
    evil = ImageBlock(ImageSource("base64", '"><script>'), "image/png")
    linked = ImageBlock(ImageSource("url", attack), "image/*")
    drawn = ImageBlock(ImageSource("base64", "PHN2Zz4="), "image/svg+xml")
    result = page(
        numbered(
            user_message(attack, evil, linked, drawn, PNG),
            assistant(
                TextBlock(attack),
                ThinkingBlock(attack, issuer="anthropic"),
                call("t", tool_id(7), **{attack: attack}),
                metadata=provenance(),
            ),
            tool(attack, answers=tool_id(7)),
        )
    )
    check_harmless(result)
    assert "Content-Security-Policy" in {value for _, value in result.attributes}


@given(st.text(max_size=200))
def test_html_export_has_any_text_unchanged(text: str) -> None:
    check_harmless(page(numbered(user_message(TextBlock(text + ".")))))
    check_harmless(page(numbered(assistant(TextBlock(text + "."), metadata=provenance()))))


def test_html_export_shows_images_and_lists_omissions() -> None:
    text, losses = written("html")
    assert "data:image/png;base64,iVBORw0KGgo=" in text
    assert "<pre><code>hoot\n</code></pre>" in text
    assert losses == ["altered document"]


def test_json_export_has_every_message() -> None:
    text, losses = written("json")
    document = json.loads(text)
    assert document["session"]["id"] == "sess_42"
    assert [decode(encode(m)) for m in MESSAGES] == [
        decode(json.dumps(message)) for message in document["messages"]
    ]
    assert losses == []


def test_fine_tuning_example_is_valid_for_sdk() -> None:
    text, losses = written("openai-finetune")
    (line,) = text.splitlines()
    example: dict[str, Any] = json.loads(line)
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(example["messages"])
    TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(example["tools"])
    roles = [message["role"] for message in example["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert [message["function"]["name"] for message in example["tools"]] == ["read_file", "owl"]
    owl = example["tools"][1]["function"]["parameters"]["properties"]
    assert owl == {"loud": {"type": "boolean"}, "times": {"type": "integer"}}
    assert "dropped document" in losses
    assert "synthesised tool_use" in losses
    assert "dropped thinking" in losses


def test_no_fine_tuning_example_without_response() -> None:
    with pytest.raises(EncodeError, match="has no response"):
        written("openai-finetune", numbered(user_message("hello?")))


def test_sharegpt_roles() -> None:
    text, losses = written("sharegpt")
    document = json.loads(text)
    speakers = [turn["from"] for turn in document["conversations"]]
    assert speakers == [
        "human",
        "gpt",
        "function_call",
        "function_call",
        "observation",
        "gpt",
        "human",
    ]
    called = json.loads(document["conversations"][2]["value"])
    assert called == {"name": "read_file", "arguments": {"path": "a.txt"}}
    assert losses == ["dropped image", "dropped document", "dropped thinking"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.mark.parametrize("form", ["jsonl", *WRITERS])
def test_session_is_exported_in_every_format(user: Path, form: str) -> None:
    run("-m", "sim", "say hoot")
    session = run("sessions").stdout.split()[0]
    done = run("export", session[-8:], "--format", form)
    assert done.exit_code == 0
    assert "hoot" in done.stdout
    target = Path("out")
    assert run("export", session, "--format", form, "-o", str(target)).exit_code == 0
    assert target.read_bytes() == done.stdout_bytes


def test_export_losses_are_printed_to_stderr(user: Path) -> None:
    Path("a.pdf").write_bytes(b"%PDF-1.4 hoot")
    run("-m", "sim", "-a", "a.pdf", "what is it?")
    session = run("sessions").stdout.split()[0]
    done = run("export", session, "--format", "sharegpt")
    assert "dropped: document at message 2 $.content[1]" in done.stderr
