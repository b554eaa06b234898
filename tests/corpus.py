"""Recorded exchanges with real providers, where they lie beside the checkout."""

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

# A quick look takes every tenth exchange or so; the laws are proved with all of them.
STEP = int(os.environ.get("METIS_CORPUS_STEP", "1"))
needs_whole_corpus = pytest.mark.skipif(
    STEP > 1 or not CORPUS.exists(), reason="not all recorded exchanges are read"
)
"""For tests that count them."""

Exchange = dict[str, Any]


@cache
def exchanges(protocol: str) -> list[Exchange]:
    """Every exchange of a protocol."""
    path = CORPUS / f"{protocol}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()[::STEP]]


def requests(protocol: str) -> Iterator[tuple[str, Any]]:
    """The ids and the bodies of all requests."""
    for exchange in exchanges(protocol):
        if exchange["request"]:
            yield exchange["id"], exchange["request"]


def responses(protocol: str) -> Iterator[Exchange]:
    """The exchanges that were answered by a plain JSON body."""
    for exchange in exchanges(protocol):
        if isinstance(exchange["response"], dict):
            yield exchange


def streams(protocol: str) -> Iterator[tuple[str, bytes]]:
    """The ids and the bytes of all streams."""
    for exchange in exchanges(protocol):
        if exchange["sse"]:
            yield exchange["id"], exchange["sse"].encode()


def body_of(value: Any) -> bytes:
    """A JSON value as it would come over the wire."""
    return json.dumps(value, ensure_ascii=False).encode()
