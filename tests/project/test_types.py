"""Properties of the types, checked with the type checker."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

REQUEST_PROGRAM = """
from metis import adapters
from metis.canonical import Message
from metis.store.entries import MessageEntry

def ask(messages: list[Message], events: list[MessageEntry]) -> None:
    adapters.get("openai").to_wire(messages)
    adapters.get("openai").to_wire({argument})
"""

MATCHING = """
from typing import assert_never
from metis.canonical import {names}

def name(block: ContentBlock) -> str:
    match block:
        case {cases}:
            return block.type
        case _:
            assert_never(block)
"""
BLOCKS = (
    "TextBlock",
    "ToolUseBlock",
    "ToolResultBlock",
    "ImageBlock",
    "ThinkingBlock",
    "RedactedThinkingBlock",
    "DocumentBlock",
    "AudioBlock",
    "VideoBlock",
    "ArtifactBlock",
    "OpaqueBlock",
    "UnknownBlock",
)


def rules_broken(tmp_path: Path, *files: str) -> list[set[str]]:
    """Return the type checker rules that each file breaks, in one run."""
    paths = [tmp_path / f"asked_{number}.py" for number in range(len(files))]
    for path, text in zip(paths, files, strict=True):
        path.write_text(text)
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "include": ["."]}
    config |= {"extraPaths": [str(ROOT / "src")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    checker = Path(sys.executable).parent / "basedpyright"
    done = subprocess.run(  # noqa: S603 - the project's own checker
        [checker, "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)],
        check=False,
        capture_output=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        {
            each["rule"]
            for each in found
            if Path(each["file"]).name == path.name and each["severity"] == "error"
        }
        for path in paths
    ]


def matching(*blocks: str) -> str:
    names = ", ".join(("ContentBlock", *blocks))
    return MATCHING.format(names=names, cases=" | ".join(f"{name}()" for name in blocks))


@pytest.mark.row("K-081", "K-096")
@pytest.mark.skipif(
    not (Path(sys.executable).parent / "basedpyright").exists(), reason="no type checker is here"
)
def test_requests_accept_only_messages_and_unions_are_closed(tmp_path: Path) -> None:
    messages, events, whole, partial = rules_broken(
        tmp_path,
        REQUEST_PROGRAM.format(argument="messages"),
        REQUEST_PROGRAM.format(argument="events"),
        matching(*BLOCKS),
        matching(*BLOCKS[1:]),
    )
    assert messages == set()
    assert "reportArgumentType" in events
    assert whole == set()
    assert "reportArgumentType" in partial
