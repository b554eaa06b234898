"""Exchanges with providers: those written by hand in `exchanges/`, and recorded ones.

A folder a protocol, a file a group of features. A stream is a list of events; a text in it stands
for itself, so that comments, marks and broken frames can be written down too. How events are framed
is said where it is not the usual way. An exchange with a `dialect` is not in the provider's own
words, and its types do not judge it.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

import corpus
from metis.streaming.aws_event_stream import encode_event_frame

LISTS = ("messages", "contents", "input")
"""The names under which protocols keep the turns of a conversation."""
_FOLDER = Path(__file__).parent / "exchanges"


class Expected(Struct, frozen=True, forbid_unknown_fields=True):
    """What must be true of an exchange in the canonical form; what is not named may be anything."""

    roles: list[str] | None = None
    """The roles of the messages of the request."""
    sent: list[str] | None = None
    """The tags of the blocks of the last message of the request."""
    blocks: list[str] | None = None
    """The tags of the blocks of the answer."""
    text: str | None = None
    thoughts: list[str] | None = None
    signatures: list[str] | None = None
    citations: list[str] | None = None
    calls: list[tuple[str, dict[str, Any]]] | None = None
    invalid: list[str] | None = None
    """The raw arguments that were no JSON object."""
    stop_reason: str | None = None
    usage: dict[str, Any] = {}
    error: str | None = None
    """The class of the error."""


class Exchange(Struct, frozen=True, forbid_unknown_fields=True):
    """One request, and how it was answered: by a body, by a stream, or both ways."""

    name: str
    feature: str
    dialect: str | None = None
    adapter: str | None = None
    """The host, if it is not the one that the protocol is named after."""
    path: str | None = None
    """Where the request goes, in protocols that say something by it."""
    request: dict[str, Any] | None = None
    status: int | None = None
    response: dict[str, Any] | str | None = None
    """The body of the answer; a text is no JSON."""
    framing: Literal["events", "array", "lines", "frames"] = "events"
    stream: list[dict[str, Any] | str] | None = None
    expect: Expected = Expected()

    @property
    def is_failure(self) -> bool:
        """Whether the answer is an error."""
        return self.expect.error is not None

    def body(self) -> bytes:
        """The bytes of the answer."""
        if isinstance(self.response, str):
            return self.response.encode()
        return corpus.body_of(self.response)

    def stream_bytes(self) -> bytes:
        """The bytes of the stream."""
        if self.framing == "array":
            return json.dumps(self.stream, ensure_ascii=False, indent=1).encode()
        if self.framing == "frames":
            return b"".join(_aws_frame(event) for event in self.stream or ())
        end = "\n" if self.framing == "lines" else ""
        return b"".join(_frame(event, end) for event in self.stream or ())


def _frame(event: dict[str, Any] | str, end: str) -> bytes:
    if isinstance(event, str):
        return event.encode()
    text = json.dumps(event, ensure_ascii=False)
    if end:
        return f"{text}{end}".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {text}\n\n".encode()


def _aws_frame(event: dict[str, Any] | str) -> bytes:
    """An event of AWS, which is an object with its name for the only key."""
    if isinstance(event, str):
        return event.encode()
    ((name, body),) = event.items()
    kind = "exception" if name.endswith("Exception") else "event"
    headers = {
        f":{kind}-type": name,
        ":content-type": "application/json",
        ":message-type": kind,
    }
    return encode_event_frame(headers, json.dumps(body, ensure_ascii=False).encode())


@cache
def handwritten(protocol: str) -> dict[str, Exchange]:
    """The exchanges that were written by hand, by file and name."""
    found: dict[str, Exchange] = {}
    for path in sorted((_FOLDER / protocol).glob("*.json")):
        for exchange in msgspec.json.decode(path.read_bytes(), type=list[Exchange]):
            key = f"{path.stem}: {exchange.name}"
            assert key not in found, key
            found[key] = exchange
    return found


def requests(protocol: str) -> Iterator[tuple[str, Any]]:
    """The bodies of requests with their names: written by hand always, recorded where there are."""
    for name, exchange in handwritten(protocol).items():
        if exchange.request is not None:
            yield name, exchange.request
    yield from corpus.requests(protocol)


def turns_of(body: dict[str, Any]) -> list[Any]:
    """The turns in the body of a request."""
    return next(body[name] for name in LISTS if name in body)
