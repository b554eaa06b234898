"""Blocks of a stream of Bedrock Converse, until they are those that a plain answer would hold."""

import base64
import binascii
from typing import Any, Literal

from metis.streaming import read_arguments
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text

Kind = Literal["text", "thought", "call", "result", "picture", "other"]
"""What a block is, as far as deltas tell it."""

_KINDS: dict[str, Kind] = {
    "text": "text",
    "citation": "text",
    "reasoningContent": "thought",
    "toolUse": "call",
    "toolResult": "result",
    "image": "picture",
}


def kind_of(wire: Wire) -> Kind:
    """What a start or a delta is of."""
    return _KINDS.get(next(iter(wire), ""), "other")


class Growing:
    """A block of the wire that is still coming in."""

    __slots__ = (
        "arguments",
        "citations",
        "kind",
        "other",
        "place",
        "results",
        "sealed",
        "signature",
        "start",
        "texts",
        "tool_use_id",
    )

    def __init__(self, kind: Kind, place: int, start: Wire) -> None:
        self.kind: Kind = kind
        self.place = place
        self.start = start
        """What the block began with."""
        self.texts: list[str] = []
        self.arguments: list[str] = []
        self.citations: list[Any] = []
        self.results: list[Any] = []
        self.sealed: list[str] = []
        self.signature: str | None = None
        self.other: Wire = {}
        self.tool_use_id = ""

    def add(self, delta: Wire) -> None:
        """Take a delta of any kind into account."""
        for key, value in delta.items():
            match key, value:
                case "text", str():
                    self.texts.append(value)
                case "citation", _:
                    self.citations.append(value)
                case "toolUse", {"input": str(text)}:
                    self.arguments.append(text)
                case "reasoningContent", dict():
                    self._add_thought(maybe_object(value))
                case "toolResult", list():
                    self._add_results(maybe_list(value))
                case "image", dict():
                    self.other |= maybe_object(value)
                case _:
                    self.other[key] = value

    def _add_thought(self, delta: Wire) -> None:
        """A thought, its seal, or both at once (T42)."""
        text, sealed = maybe_text(delta.get("text")), maybe_text(delta.get("redactedContent"))
        if text is not None:
            self.texts.append(text)
        if sealed is not None:
            self.sealed.append(sealed)
        signature = maybe_text(delta.get("signature"))
        if signature is not None:
            self.signature = (self.signature or "") + signature

    def _add_results(self, parts: list[Any]) -> None:
        for part in parts:
            text = maybe_text(maybe_object(part).get("text"))
            last = maybe_object(self.results[-1]) if self.results else {}
            if text is not None and isinstance(last.get("text"), str):
                self.results[-1] = {"text": last["text"] + text}
            else:
                self.results.append(part)

    def whole(self) -> Wire:
        """The block as a plain response would hold it."""
        if self.kind == "picture":
            return {"image": {**maybe_object(self.start.get("image")), **self.other}}
        return {**self._known(), **self.other}

    def _known(self) -> Wire:
        match self.kind:
            case "text" if not self.citations:
                return {"text": "".join(self.texts)}
            case "text":
                content = [{"text": "".join(self.texts)}]
                return {"citationsContent": {"citations": self.citations, "content": content}}
            case "thought":
                return {"reasoningContent": self._thought()}
            case "call":
                call, given = self.start.get("toolUse"), read_arguments("".join(self.arguments))[0]
                return {"toolUse": {**maybe_object(call), "input": given}}
            case "result":
                answer = maybe_object(self.start.get("toolResult"))
                return {"toolResult": {**answer, "content": self.results}}
            case _:
                return self.start

    def _thought(self) -> Wire:
        wire: Wire = {}
        if self.texts or self.signature is not None:
            wire["reasoningText"] = {"text": "".join(self.texts)}
            if self.signature is not None:
                wire["reasoningText"]["signature"] = self.signature
        if self.sealed:
            wire["redactedContent"] = _joined(self.sealed)
        return wire


def _joined(pieces: list[str]) -> str:
    """Bytes that came in pieces, each of which is base64."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return base64.b64encode(b"".join(map(base64.b64decode, pieces))).decode()
    except (binascii.Error, ValueError):
        return "".join(pieces)
