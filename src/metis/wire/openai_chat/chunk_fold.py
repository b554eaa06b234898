"""Folding: the chunks of a stream become the body that a plain response has."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from metis.streaming.arguments import parse_arguments
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object
from metis.wire.openai_chat.assistant import DETAILS_KEY, TEXT_KEYS
from metis.wire.openai_chat.blocks import write_json

_NOISE = frozenset({"role", "channel", "token_id"})
_CHOICE_NOISE = frozenset({"delta", "message", "text", "token_ids", "logprobs"})
_ENVELOPE_NOISE = frozenset({"choices", "usage", "error", "obfuscation", "object"})
_JOINED = ("text", "summary", "data")


class CallFold:
    """One call that is coming in."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.rest: Wire = {}
        self.is_custom = self.is_legacy = False
        self.ours = ""
        self.block_index = -1

    @property
    def text(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a JSON object already."""
        text = self.text
        return bool(text.strip()) and parse_arguments(text)[1] is None

    def take(self, wire: Wire) -> str:
        """Take a fragment in; gives what it adds to the arguments."""
        if not self.ours:
            self.id = self.id or _text(wire.get("id"))
        custom = maybe_object(wire.get("custom"))
        self.is_custom = self.is_custom or wire.get("type") == "custom"
        function = custom if self.is_custom else maybe_object(wire.get("function"))
        self.name = self.name or _text(function.get("name"))
        known = ("id", "index", "function", "custom")
        for key, value in wire.items():
            if key not in known and value:
                self.rest[key] = value
        given = function.get("input" if self.is_custom else "arguments")
        # Some hosts send the arguments as an object, whole, where a string is due (T33).
        piece = write_json(given).decode() if isinstance(given, dict) else _text(given)
        if piece:
            self.pieces.append(piece)
        return piece

    def wire(self) -> Wire:
        """The call as a plain response has it."""
        if self.is_legacy:
            return {"name": self.name, "arguments": self.text}
        own: Wire = {"id": self.id} if self.id else {}
        if self.is_custom:
            return {**own, **self.rest, "custom": {"name": self.name, "input": self.text}}
        function = {"name": self.name, "arguments": self.text}
        return {**own, "type": "function", **self.rest, "function": function}


class ChoiceFold:
    """One choice that is coming in."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.clear: dict[str, list[str]] = {name: [] for name in TEXT_KEYS}
        self.calls: list[CallFold] = []
        self.at_index: dict[int, CallFold] = {}
        self._parts: list[Wire] = []
        self._refusal: list[str] = []
        self._details: list[Wire] = []
        self._audio: Wire = {}
        self._sound: list[str] = []
        self._legacy: CallFold | None = None
        self._rest: Wire = {}
        self._choice: Wire = {"index": 0}
        self._logprobs: Wire = {}

    @property
    def finish_reason(self) -> Any:
        """Why the choice ended, as soon as it is told."""
        return self._choice.get("finish_reason")

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said or called yet."""
        return not (self._parts or any(self.content) or self.calls or self.clear_pieces)

    @property
    def clear_pieces(self) -> int:
        """How many pieces of clear reasoning have come."""
        return sum(map(len, self.clear.values()))

    def take_choice(self, wire: Wire) -> None:
        """Take in what stands around the delta."""
        for key, value in wire.items():
            if key not in _CHOICE_NOISE and (value is not None or key not in self._choice):
                self._choice[key] = value
        for key, value in maybe_object(wire.get("logprobs")).items():
            self._logprobs[key] = [*maybe_list(self._logprobs.get(key)), *maybe_list(value)] or None

    def take_delta(self, delta: Wire) -> None:
        """Take in everything of a delta but its calls."""
        for key, value in delta.items():
            if value is not None and key not in _NOISE:
                self._take(key, value)

    def _take(self, key: str, value: Any) -> None:
        if key == "content":
            self._take_content(value)
        elif key in self.clear and isinstance(value, str):
            self.clear[key].append(value)
        elif key == "refusal" and isinstance(value, str):
            self._refusal.append(value)
        elif key == DETAILS_KEY:
            merge_details(self._details, maybe_list(value))
        elif key == "audio":
            self._take_audio(maybe_object(value))
        elif key not in ("tool_calls", "function_call"):
            self._rest[key] = _merged(self._rest.get(key), value)

    def _take_content(self, content: Any) -> None:
        if isinstance(content, str):
            self.content.append(content)
            return
        self._flush()
        for part in maybe_list(content):
            self._add_part(maybe_object(part))

    def _flush(self) -> None:
        """Make a part of the text that came as plain strings."""
        text = "".join(self.content)
        self.content.clear()
        if text:
            self._add_part({"type": "text", "text": text})

    def _add_part(self, part: Wire) -> None:
        last = self._parts[-1] if self._parts else {}
        if last.get("type") != part.get("type") or part.get("type") not in ("text", "thinking"):
            self._parts.append(part)
        elif part.get("type") == "text":
            self._parts[-1] = {**last, **part, "text": _text(last.get("text")) + text_of(part)}
        else:
            thoughts = [{"type": "text", "text": text_of(last) + text_of(part)}]
            self._parts[-1] = {**last, **part, "thinking": thoughts}

    def _take_audio(self, audio: Wire) -> None:
        data = audio.get("data")
        if isinstance(data, str):
            self._sound.append(data)
        told = _text(self._audio.get("transcript")) + _text(audio.get("transcript"))
        self._audio |= {key: value for key, value in audio.items() if value is not None}
        if told:
            self._audio["transcript"] = told

    def call_of(self, wire: Wire) -> CallFold:
        """The call that a fragment belongs to; a new id or a new name starts a new one (T124)."""
        index = wire.get("index")
        count = maybe_count(index)
        place = -1 if count is None else count
        known = self.at_index.get(place) or (self.calls[-1] if self.calls and place < 0 else None)
        own = _text(wire.get("id"))
        if own:
            named = next((call for call in self.calls if call.id == own), None)
            known = named or (known if known is not None and not known.id else None)
        elif known is not None and _is_other(known, wire):
            known = None
        if known is None:
            known = CallFold()
            self.calls.append(known)
        self.at_index[place] = known
        return known

    def legacy_call(self) -> CallFold:
        """The call of the time before tools."""
        if self._legacy is None:
            self._legacy = CallFold()
            self._legacy.is_legacy = True
            self.calls.append(self._legacy)
        return self._legacy

    def wire(self) -> Wire:
        """The choice as a plain response has it."""
        choice: Wire = {**self._choice, "message": self._message()}
        choice.setdefault("finish_reason", None)
        if self._logprobs:
            choice["logprobs"] = self._logprobs
        return choice

    def _message(self) -> Wire:
        calls = [call.wire() for call in self.calls if not call.is_legacy]
        refusal = "".join(self._refusal)
        if self._parts:
            self._flush()
        text: Any = list(self._parts) or "".join(self.content)
        silent = calls or refusal or self._legacy or self._audio
        message: Wire = {"role": "assistant", "content": text or (None if silent else "")}
        for name, pieces in self.clear.items():
            message[name] = "".join(pieces)
        message |= {DETAILS_KEY: self._details, "refusal": refusal, "tool_calls": calls}
        message["function_call"] = self._legacy.wire() if self._legacy else None
        message["audio"] = _audio(self._audio, self._sound)
        told = {key: value for key, value in message.items() if value or key == "content"}
        return {**self._rest, **told}


def _is_other(known: CallFold, wire: Wire) -> bool:
    """Whether a fragment without an id names another call than the one at its index."""
    name = _text(maybe_object(wire.get("function")).get("name"))
    if not name or not known.name:
        return False
    return name != known.name or known.is_whole


def merge_envelope(envelope: Wire, usage: Wire, chunk: Wire) -> None:
    """Take in what a chunk says beside its choices: per key, the last value that says anything."""
    for key, value in chunk.items():
        if key not in _ENVELOPE_NOISE and (key not in envelope or value not in (None, "")):
            envelope[key] = value
    told = maybe_object(chunk.get("usage")) or maybe_object(
        maybe_object(chunk.get("x_groq")).get("usage")
    )
    usage |= {key: value for key, value in told.items() if value is not None or key not in usage}


def fold_body(envelope: Wire, usage: Wire, choices: Iterable[ChoiceFold]) -> Wire:
    """The body that a plain response has."""
    body: Wire = {**envelope, "object": "chat.completion"}
    body["choices"] = [choice.wire() for choice in choices]
    if usage:
        body["usage"] = usage
    return body


def merge_details(details: list[Wire], more: list[Any]) -> None:
    """Add fragments of typed reasoning to those that they continue (T55)."""
    for fragment in more:
        new = maybe_object(fragment)
        old = next((detail for detail in reversed(details) if _continues(detail, new)), None)
        if old is None:
            details.append(dict(new))
            continue
        for key, value in new.items():
            if key in _JOINED and isinstance(value, str):
                old[key] = _text(old.get(key)) + value
            elif value is not None or key not in old:
                old[key] = value


def _continues(old: Wire, new: Wire) -> bool:
    same = old.get("type") == new.get("type") and old.get("index") == new.get("index")
    return same and (old.get("id") == new.get("id") or not (old.get("id") and new.get("id")))


def text_of(part: Wire) -> str:
    """The text of a text part or of a thinking part."""
    inner = part.get("thinking", part.get("text"))
    if isinstance(inner, str):
        return inner
    return "".join(_text(maybe_object(chunk).get("text")) for chunk in maybe_list(inner))


def _merged(old: Any, new: Any) -> Any:
    """Two values of an unknown key: lists add up, by index if they have one; else the last."""
    if not (isinstance(old, list) and isinstance(new, list)):
        return new
    merged: list[Any] = list(maybe_list(old))
    for item in maybe_list(new):
        index = maybe_object(item).get("index")
        place = next(
            (n for n, was in enumerate(merged) if index is not None and _at(was) == index), None
        )
        if place is None:
            merged.append(item)
        else:
            merged[place] = {**merged[place], **item}
    return merged


def _at(item: Any) -> Any:
    return maybe_object(item).get("index")


def _audio(audio: Wire, sound: list[str]) -> Wire:
    """The voice of an answer: each piece is base64 by itself."""
    if not sound:
        return audio
    try:
        whole = b"".join(base64.b64decode(piece, validate=True) for piece in sound)
    except binascii.Error:
        return {**audio, "data": "".join(sound)}
    return {**audio, "data": base64.b64encode(whole).decode()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
