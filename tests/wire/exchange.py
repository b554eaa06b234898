"""Load exchanges with providers: handwritten ones in `exchanges/`, and recorded ones.

There is a folder per protocol and a file per group of features. A stream is a list of events; a
string in the list is sent verbatim, so that comments, markers and broken frames can be written too.
An exchange states its framing where it is unusual. An exchange with a `dialect` deviates from the
provider's format, and the SDK types do not check it.
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
"""The key of the turns of a conversation in each protocol."""
_FOLDER = Path(__file__).parent / "exchanges"


class Expected(Struct, frozen=True, forbid_unknown_fields=True):
    """Facts that must hold for an exchange in canonical form; unset fields are not checked."""

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
    """The raw arguments that are not a JSON object."""
    stop_reason: str | None = None
    usage: dict[str, Any] = {}
    error: str | None = None
    """The class of the error."""


class Exchange(Struct, frozen=True, forbid_unknown_fields=True):
    """One request and its response: as a body, as a stream, or both."""

    name: str
    feature: str
    dialect: str | None = None
    adapter: str | None = None
    """The host, if it differs from the provider that the protocol is named after."""
    path: str | None = None
    """The request path, in protocols whose path carries information."""
    request: dict[str, Any] | None = None
    status: int | None = None
    response: dict[str, Any] | str | None = None
    """The body of the response; a string is a body that is not JSON."""
    framing: Literal["events", "array", "lines", "frames"] = "events"
    stream: list[dict[str, Any] | str] | None = None
    expect: Expected = Expected()

    @property
    def is_failure(self) -> bool:
        """Return whether the response is an error."""
        return self.expect.error is not None

    def body(self) -> bytes:
        """Return the bytes of the response."""
        if isinstance(self.response, str):
            return self.response.encode()
        return corpus.body_of(self.response)

    def stream_bytes(self) -> bytes:
        """Return the bytes of the stream."""
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
    """Return an AWS event frame; the event is an object whose only key is its name."""
    if isinstance(event, str):
        return event.encode()
    name = next(iter(event), "")
    body: Any = event.get(name, {})
    kind = "exception" if name.endswith("Exception") else "event"
    headers = {
        f":{kind}-type": name,
        ":content-type": "application/json",
        ":message-type": kind,
    }
    return encode_event_frame(headers, json.dumps(body, ensure_ascii=False).encode())


@cache
def handwritten(protocol: str) -> dict[str, Exchange]:
    """Return the handwritten exchanges by file and name."""
    found: dict[str, Exchange] = {}
    for path in sorted((_FOLDER / protocol).glob("*.json")):
        for exchange in msgspec.json.decode(path.read_bytes(), type=list[Exchange]):
            key = f"{path.stem}: {exchange.name}"
            assert key not in found, key
            found[key] = exchange
    return found


def requests(protocol: str) -> Iterator[tuple[str, Any]]:
    """Return request bodies by name: the handwritten ones, and recorded ones where available."""
    for name, exchange in handwritten(protocol).items():
        if exchange.request is not None:
            yield name, exchange.request
    yield from corpus.requests(protocol)


def turns_of(body: dict[str, Any]) -> list[Any]:
    """Return the turns of a request body."""
    return next(body[name] for name in LISTS if name in body)
