"""Recorded streams that are cut off, or have a key that nobody has heard of, encoded again."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from corpus import CORPUS, needs_corpus
from metis.streaming import MessageComplete
from metis.verify import adapter_of, read_recording
from metis.verify.served import read_stream, written_stream_faults
from metis.wire.json_access import maybe_object
from test_stream_round_trip import CONTEXT, RECORDINGS, Body

pytestmark = pytest.mark.slow
UNTOLD = frozenset(
    {"content_block_delta", "content_block_start", "content_block_stop", "message_start", "ping"}
)
"""Events of which only the parts count: providers put padding beside them."""


@needs_corpus
@pytest.mark.parametrize("name", RECORDINGS)
def test_stream_that_is_cut_off_is_encoded_with_everything_before_the_cut(name: str) -> None:
    path = CORPUS / f"{RECORDINGS[name]}.jsonl"
    faults: dict[str, list[str]] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        recording = read_recording(line)
        adapter, stream = adapter_of(recording), recording.stream
        if adapter is None or stream is None or recording.body is not None:
            continue
        for part in range(1, 12):
            events = read_stream(adapter, CONTEXT, stream[: len(stream) * part // 12])
            if found := list(written_stream_faults(adapter, CONTEXT, events)):
                faults[f"{recording.id} {part}"] = found[:2]
    assert faults == {}


@needs_corpus
@pytest.mark.parametrize("name", ["anthropic", "gemini", "ollama", "openai"])
def test_unknown_key_in_stream_is_in_message_and_encoded_again(name: str) -> None:
    """One new key at each place of the recorded streams, as a provider might add it tomorrow."""
    path = CORPUS / f"{RECORDINGS[name]}.jsonl"
    faults: dict[str, str] = {}
    seen: set[str] = set()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        recording = read_recording(line)
        adapter = adapter_of(recording)
        if adapter is None or not recording.sse or recording.raw_b64:
            continue
        lines = recording.sse.split("\n")
        for number, each in enumerate(lines):
            prefix = "data: " if each.startswith("data:") else ""
            body = event_of(each.removeprefix("data:"))
            for place in objects_in(body) if body else ():
                kind = f"{recording.provider} {body.get('type')} {shape(body, place)}"
                if kind in seen or (not place and body.get("type") in UNTOLD) or "error" in body:
                    continue
                seen.add(kind)
                new = json.loads(json.dumps(body))
                at(new, place)["unheard_of"] = {"a": [1, "x"]}
                changed = [*lines[:number], prefix + json.dumps(new), *lines[number + 1 :]]
                events = read_stream(adapter, CONTEXT, "\n".join(changed).encode())
                end = events[-1]
                if not isinstance(end, MessageComplete):
                    continue
                if b"unheard_of" not in adapter.encode_response(end.message, CONTEXT).body:
                    faults[kind] = f"{recording.id}: it is not in the message"
                elif found := list(written_stream_faults(adapter, CONTEXT, events)):
                    faults[kind] = f"{recording.id}: {found[0]}"
    assert {kind: fault for kind, fault in faults.items() if not is_replaced(kind)} == {}


def is_replaced(kind: str) -> bool:
    """Whether a later event replaces the object: usage so far, arguments, what a search gave."""
    ends = ("input", "usageMetadata", "promptTokensDetails.*", "search_results", "thinking.*")
    return kind.endswith(ends)


def event_of(text: str) -> Body:
    """The object of a line; empty if it is none."""
    try:
        return maybe_object(json.loads(text))
    except ValueError:
        return {}


def objects_in(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        yield place
        items = cast("dict[str | int, Any]", value).items()
    else:
        items = enumerate(cast("list[Any]", value)) if isinstance(value, list) else ()
    for key, inner in items:
        yield from objects_in(inner, (*place, key))


def at(value: Any, place: tuple[str | int, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def shape(body: Body, place: tuple[str | int, ...]) -> str:
    kinds = [at(body, place[:length]) for length in range(1, len(place) + 1)]
    types = [str(maybe_object(each).get("type", "")) for each in kinds]
    return f"{types} {'.'.join('*' if isinstance(key, int) else key for key in place)}"
