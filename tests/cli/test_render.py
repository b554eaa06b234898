"""One-line rendering of blocks."""

import pytest
from msgspec import Raw

from metis.canonical import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidInput,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UnknownBlock,
    VideoBlock,
)
from metis.cli.render import render_block, shorten
from metis.cli.text import unstyled

CASES: list[tuple[ContentBlock, str]] = [
    (TextBlock("hi"), "hi"),
    (
        ToolUseBlock("tu_1", "grep", {"pattern": "x", "deep": {"a": [1]}}),
        '→ grep(pattern="x", deep={"a":[1]})',
    ),
    (
        ToolUseBlock("tu_1", "grep", {}, InvalidInput('{"a', "not JSON")),
        "→ grep: invalid arguments, not JSON: '{\"a'",
    ),
    (ToolResultBlock("tu_1", ()), "← (empty)"),
    (ToolResultBlock("tu_1", (TextBlock("no such file"),), is_error=True), "✗ error no such file"),
    (
        ImageBlock(ImageSource("url", "http://x/y.png"), "image/png"),
        "[image image/png, http://x/y.png]",
    ),
    (
        DocumentBlock(MediaSource("text", "abc"), "text/plain", "notes"),
        "[document notes text/plain, 3 characters inline]",
    ),
    (AudioBlock(MediaSource("base64", "AAAA"), "audio/wav"), "[audio audio/wav, 3 bytes inline]"),
    (VideoBlock(MediaSource("file_ref", "a.mp4"), "video/mp4"), "[video video/mp4, a.mp4]"),
    (ArtifactBlock(MediaSource("file_id", "f_1"), "image/png"), "[artifact image/png, f_1]"),
    (OpaqueBlock("anthropic", Raw(b'{"a":1}')), "[opaque part of anthropic, 7 bytes]"),
    (RedactedThinkingBlock("x"), "(thinking, encrypted by its provider)"),
    (UnknownBlock(b'{"type":"hologram"}'), "[unknown block 'hologram', stored unchanged]"),
]


@pytest.mark.parametrize(("block", "shown"), CASES, ids=[block.type for block, _ in CASES])
def test_every_block_has_a_readable_line(block: ContentBlock, shown: str) -> None:
    assert unstyled(render_block(block)) == shown


def test_truncated_text_states_omitted_length() -> None:
    assert shorten("abcdef", 4) == "abcd… (2 more characters)"
