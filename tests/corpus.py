"""Recorded exchanges with real providers, if they are beside the checkout."""

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(
    os.environ.get("METIS_CORPUS") or Path(__file__).parent.parent.parent / "shared" / "corpus"
)
needs_corpus = pytest.mark.skipif(
    not CORPUS.exists(), reason="the recorded exchanges are not beside this checkout"
)

# The default run uses about every tenth exchange; the slow tests use all.
STEP = int(os.environ.get("METIS_CORPUS_STEP", "1"))
needs_whole_corpus = pytest.mark.skipif(
    STEP > 1 or not CORPUS.exists(), reason="not all recorded exchanges are read"
)
"""For tests that count them."""

Exchange = dict[str, Any]


@cache
def exchanges(protocol: str) -> list[Exchange]:
    """Return every exchange of a protocol."""
    path = CORPUS / f"{protocol}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()[::STEP]]


def requests(protocol: str) -> Iterator[tuple[str, Any]]:
    """Return the ids and bodies of all requests."""
    for exchange in exchanges(protocol):
        if exchange["request"]:
            yield exchange["id"], exchange["request"]


def responses(protocol: str) -> Iterator[Exchange]:
    """Return the exchanges with a plain JSON response."""
    for exchange in exchanges(protocol):
        if isinstance(exchange["response"], dict):
            yield exchange


def streams(protocol: str) -> Iterator[tuple[str, bytes]]:
    """Return the ids and bytes of all streams."""
    for exchange in exchanges(protocol):
        if exchange["sse"]:
            yield exchange["id"], exchange["sse"].encode()


def body_of(value: Any) -> bytes:
    """Return a JSON value as wire bytes."""
    return json.dumps(value, ensure_ascii=False).encode()
