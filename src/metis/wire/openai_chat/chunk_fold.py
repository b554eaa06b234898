"""Folding of a stream: its chunks are merged into the body of a plain response.

A streamed response is then decoded by the code for plain responses, so that both give the same
message.
"""

import base64
from collections.abc import Iterable
from itertools import islice
from typing import Any

from metis.streaming.arguments import parse_arguments
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.openai_chat.assistant import DETAILS_KEY, TEXT_KEYS
from metis.wire.openai_chat.blocks import write_json
from metis.wire.stream_decoder import StreamMeter

# Keys that describe a chunk and not the response: `channel` and `token_id` of some hosts,
# `token_ids` of vLLM, and `obfuscation`, OpenAI's padding against traffic analysis.
_IGNORED_DELTA_KEYS = frozenset({"role", "channel", "token_id"})
_IGNORED_CHOICE_KEYS = frozenset({"delta", "message", "text", "token_ids", "logprobs"})
_IGNORED_ENVELOPE_KEYS = frozenset({"choices", "usage", "error", "obfuscation", "object"})
_CALL_KEYS = frozenset({"id", "index", "function", "custom"})
_PART_IDENTITY = ("type", "index", "id")
_MAX_OPEN_DETAILS = 32
_MAX_FAILED_PARSES = 64
"""How often the arguments of a call are parsed to check whether they are complete: a hostile server
could end every piece with a brace, which would make parsing quadratic."""
_CONCATENATED_KEYS = ("text", "summary", "data")


class CallFold:
    """One tool call while its fragments are received."""

    def __init__(self, meter: StreamMeter) -> None:
        self._meter = meter
        self._meter_key = object()
        self.wire_id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.extra_keys: Wire = {}
        self._function_keys: Wire = {}
        """The keys of the function besides its name and arguments."""
        self.is_custom = self.is_legacy = False
        self._failed_parses = 0
        self._completeness: tuple[int, bool] = (0, False)
        """The number of pieces at the last check, and whether the arguments were complete."""
        self.tool_use_id = ""
        """The tool_use_id; empty until the start event of the call."""
        self.block_index = -1

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a complete JSON object."""
        # Later calls check this with each of their pieces. The arguments are parsed again only
        # after a piece that may have completed the object.
        count, result = self._completeness
        if count < len(self.pieces):
            last = self.pieces[-1].rstrip()
            if last:
                may_end = last.endswith("}") and self._failed_parses < _MAX_FAILED_PARSES
                result = may_end and parse_arguments(self.arguments)[1] is None
                self._failed_parses += may_end and not result
            self._completeness = len(self.pieces), result
        return result

    def add(self, wire: Wire) -> str:
        """Add a fragment; return the piece of the arguments in it."""
        if not self.tool_use_id:
            self.wire_id = self.wire_id or _text(wire.get("id"))
        custom = maybe_object(wire.get("custom"))
        self.is_custom = self.is_custom or wire.get("type") == "custom"
        function = custom if self.is_custom else maybe_object(wire.get("function"))
        self.name = self.name or _text(function.get("name"))
        for key, value in wire.items():
            if key not in _CALL_KEYS and value:
                self.extra_keys[key] = value
        argument_key = "input" if self.is_custom else "arguments"
        value = function.get(argument_key)
        if len(function) > (argument_key in function) + ("name" in function):
            keys = ("name", argument_key)
            self._function_keys |= {k: v for k, v in function.items() if k not in keys}
        # Ollama and some versions of vLLM send one object instead of pieces of a string (T33).
        piece = write_json(value).decode() if isinstance(value, dict) else _text(value)
        if piece:
            self.add_piece(piece)
        return piece

    def add_piece(self, piece: str) -> None:
        """Add a piece of the arguments."""
        self.pieces.append(piece)
        self._meter.add_arguments(self._meter_key, len(piece))

    def announcement(self) -> Wire:
        """Return the original form for the start event: kind, and keys without an event field."""
        if self.is_legacy:
            return {"function_call": {}}
        return {"type": "custom" if self.is_custom else "function", **self.extra_keys}

    def to_wire(self) -> Wire:
        """Return the call in the form of a plain response."""
        if self.is_legacy:
            return {"name": self.name, "arguments": self.arguments}
        wire: Wire = {"id": self.wire_id} if self.wire_id else {}
        if self.is_custom:
            custom = {"name": self.name, "input": self.arguments, **self._function_keys}
            return {**wire, **self.extra_keys, "custom": custom}
        function = {"name": self.name, "arguments": self.arguments, **self._function_keys}
        return {**wire, "type": "function", **self.extra_keys, "function": function}


class ChoiceFold:
    """One choice while its deltas are received."""

    def __init__(self, meter: StreamMeter) -> None:
        self._meter = meter
        self.text_pieces: list[str] = []
        self.reasoning_pieces: dict[str, list[str]] = {key: [] for key in TEXT_KEYS}
        self.calls: list[CallFold] = []
        self.call_at: dict[int, CallFold] = {}
        """The call of the last fragment with an index; -1 is the key for no index."""
        self._call_by_id: dict[str, CallFold] = {}
        self._parts: list[Wire] = []
        self._part_pieces: list[str] = []
        """The pieces of text of the last part; empty as long as it has only one."""
        self._part_chunks: list[Any] = []
        """The chunks of the last part that are not text, such as references in thinking."""
        self._refusal_pieces: list[str] = []
        self._details: list[_DetailFold] = []
        self._audio: Wire = {}
        self._audio_pieces: list[str] = []
        self._transcript_pieces: list[str] = []
        self._legacy_call: CallFold | None = None
        self._message_keys: Wire = {}
        self._lists: dict[str, _ListFold] = {}
        """The lists under unknown keys of the message that several deltas extend."""
        self._choice_keys: Wire = {"index": 0}
        self._logprobs: Wire = {}

    @property
    def finish_reason(self) -> Any:
        """The finish reason, once the provider has sent it."""
        return self._choice_keys.get("finish_reason")

    @property
    def is_empty(self) -> bool:
        """Whether no text, reasoning or call has been received."""
        has_reasoning = any(self.reasoning_pieces.values())
        return not (self._parts or any(self.text_pieces) or self.calls or has_reasoning)

    def add_choice(self, wire: Wire) -> None:
        """Add the keys of a choice besides its delta."""
        for key, value in wire.items():
            is_new = value is not None or key not in self._choice_keys
            if key not in _IGNORED_CHOICE_KEYS and is_new:
                self._choice_keys[key] = value
        for key, value in maybe_object(wire.get("logprobs")).items():
            # Extended in place: copying a list of thousands for each delta would be quadratic.
            self._logprobs[key] = _extended(self._logprobs.get(key), maybe_list(value))

    def add_delta(self, delta: Wire) -> None:
        """Add all keys of a delta except calls."""
        for key, value in delta.items():
            if value is not None and key not in _IGNORED_DELTA_KEYS:
                self._add(key, value)

    def _add(self, key: str, value: Any) -> None:
        if key == "content":
            self._add_content(value)
        elif key in self.reasoning_pieces and isinstance(value, str):
            self.reasoning_pieces[key].append(value)
        elif key == "refusal" and isinstance(value, str):
            self._refusal_pieces.append(value)
        elif key == DETAILS_KEY:
            _merge_details(self._details, maybe_list(value))
        elif key == "audio":
            self._add_audio(maybe_object(value))
        elif key not in ("tool_calls", "function_call"):
            self._add_key(key, value)

    def _add_key(self, key: str, value: Any) -> None:
        """Add an unknown key: lists are extended, other values are replaced."""
        old = self._message_keys.get(key)
        if not (isinstance(old, list) and isinstance(value, list)):
            self._message_keys[key] = value
            self._lists.pop(key, None)
            return
        fold = self._lists.get(key)
        if fold is None:
            fold = self._lists[key] = _ListFold(maybe_list(old))
            self._message_keys[key] = fold.items
        fold.extend(maybe_list(value))

    def _add_content(self, content: Any) -> None:
        if isinstance(content, str):
            if content:
                self.text_pieces.append(content)
            return
        if not isinstance(content, list):
            return
        self._flush_text()
        for part in maybe_list(content):
            self._add_part(maybe_object(part))

    def _flush_text(self) -> None:
        """Convert text that was received as plain strings into a part."""
        text = "".join(self.text_pieces)
        self.text_pieces.clear()
        if text:
            self._add_part({"type": "text", "text": text})

    def _add_part(self, part: Wire) -> None:
        """Add a content part; text and thinking continue a part of the same type."""
        kind = part.get("type")
        last = self._parts[-1] if self._parts else {}
        if last.get("type") != kind or kind not in ("text", "thinking"):
            self._meter.add_block()
            self._close_part()
            self._part_pieces = []
            self._part_chunks = []
            self._parts.append(dict(part))
            return
        # Pieces are joined once, at the end: repeated concatenation would be quadratic.
        if not self._part_pieces:
            text = _text(last.get("text")) if kind == "text" else text_of_part(last)
            self._part_pieces.append(text)
            self._part_chunks += other_chunks(last)
        self._part_pieces.append(text_of_part(part))
        self._part_chunks += other_chunks(part)
        last |= part

    def _close_part(self) -> None:
        """Set the text of the last part from its pieces."""
        if self._part_pieces:
            text, part = "".join(self._part_pieces), self._parts[-1]
            if part.get("type") == "text":
                part["text"] = text
            else:
                part["thinking"] = [{"type": "text", "text": text}, *self._part_chunks]
            self._part_pieces = [text]

    def _add_audio(self, audio: Wire) -> None:
        for key, pieces in (("data", self._audio_pieces), ("transcript", self._transcript_pieces)):
            piece = audio.get(key)
            if isinstance(piece, str) and piece:
                pieces.append(piece)
        self._audio |= {key: value for key, value in audio.items() if value is not None}

    def call_of(self, fragment: Wire) -> CallFold:
        """Return the call that a fragment belongs to; a first fragment creates its call."""
        # Ollama and others send index 0 with every parallel call: a new id or a new name starts a
        # new call regardless of the index, otherwise two calls would be merged (T124). Fragments
        # without an id are assigned by index (T126).
        count = maybe_count(fragment.get("index"))
        index = -1 if count is None else count
        call = self.call_at.get(index) or (self.calls[-1] if self.calls and index < 0 else None)
        wire_id = _text(fragment.get("id"))
        if wire_id:
            same_id = self._call_by_id.get(wire_id)
            call = same_id or (call if call is not None and not call.wire_id else None)
        elif call is not None and _starts_another(call, fragment):
            call = None
        elif call is None and not maybe_object(fragment.get("function")).get("name"):
            # Google's host omits the index of a first fragment, but not those of later ones.
            call = self.call_at.get(-1)
        if call is None:
            self._meter.add_call()
            call = CallFold(self._meter)
            self.calls.append(call)
        self.call_at[index] = call
        if wire_id:
            self._call_by_id.setdefault(call.wire_id or wire_id, call)
        return call

    def _joined_audio(self) -> Wire:
        """Return the audio of a response with its pieces of data and transcript joined."""
        audio = dict(self._audio)
        if self._audio_pieces:
            audio["data"] = _joined_base64(self._audio_pieces)
        if self._transcript_pieces:
            audio["transcript"] = "".join(self._transcript_pieces)
        return audio

    def legacy_call(self) -> CallFold:
        """Return the call of the deprecated key `function_call`; the first use creates it."""
        if self._legacy_call is None:
            self._meter.add_call()
            self._legacy_call = CallFold(self._meter)
            self._legacy_call.is_legacy = True
            self.calls.append(self._legacy_call)
        return self._legacy_call

    def to_wire(self) -> Wire:
        """Return the choice in the form of a plain response."""
        choice: Wire = {**self._choice_keys, "message": self._message()}
        choice.setdefault("finish_reason", None)
        if self._logprobs:
            choice["logprobs"] = self._logprobs
        return choice

    def _message(self) -> Wire:
        """Return the message in the form of a plain response; empty keys are left out."""
        calls = [call.to_wire() for call in self.calls if not call.is_legacy]
        refusal = "".join(self._refusal_pieces)
        if self._parts:
            self._flush_text()
            self._close_part()
        content: Any = list(self._parts) or "".join(self.text_pieces)
        # In plain responses content is null if there are only calls, a refusal or audio.
        allows_null = calls or refusal or self._legacy_call or self._audio
        message: Wire = {"role": "assistant", "content": content or (None if allows_null else "")}
        for key, pieces in self.reasoning_pieces.items():
            message[key] = "".join(pieces)
        details = [detail.to_wire() for detail in self._details]
        message |= {DETAILS_KEY: details, "refusal": refusal, "tool_calls": calls}
        message["function_call"] = self._legacy_call.to_wire() if self._legacy_call else None
        message["audio"] = self._joined_audio()
        present = {key: value for key, value in message.items() if value or key == "content"}
        return {**self._message_keys, **present}


def _extended(items: Any, new_items: list[Any]) -> list[Any] | None:
    """Extend a list in place, or create one; return it, or None if it would be empty."""
    if not isinstance(items, list):
        return list(new_items) or None
    extended = maybe_list(items)
    extended += new_items
    return extended


def _starts_another(call: CallFold, fragment: Wire) -> bool:
    """Whether a fragment without an id belongs to another call than the one at its index."""
    name = _text(maybe_object(fragment.get("function")).get("name"))
    if not name or not call.name:
        return False
    return name != call.name or call.is_complete


def thinking_keys(delta: Wire) -> Wire:
    """Return the keys of a delta that contain its thinking, with an empty text.

    OpenRouter's typed parts are included only if no other key repeats their text.
    """
    keys = {key: "" for key in TEXT_KEYS if delta.get(key)}
    if keys:
        return keys
    for part in map(maybe_object, maybe_list(delta.get(DETAILS_KEY))):
        text_key = next((key for key in ("text", "summary") if part.get(key)), None)
        if text_key is not None:
            return {DETAILS_KEY: {key: part[key] for key in _PART_IDENTITY if key in part}}
    return keys


def merge_envelope(envelope: Wire, usage: Wire, chunk: Wire) -> None:
    """Merge the keys of a chunk besides its choices; empty values do not replace earlier ones."""
    for key, value in chunk.items():
        if key in _IGNORED_ENVELOPE_KEYS or (key in envelope and value in (None, "")):
            continue
        old = envelope.get(key)
        # Groq sends its id in the first chunk and its usage in the last, both under `x_groq`.
        is_object = isinstance(value, dict) and isinstance(old, dict)
        envelope[key] = {**maybe_object(old), **maybe_object(value)} if is_object else value
    counts = maybe_object(chunk.get("usage")) or maybe_object(
        maybe_object(chunk.get("x_groq")).get("usage")
    )
    usage |= {key: value for key, value in counts.items() if value is not None or key not in usage}


def fold_body(envelope: Wire, usage: Wire, choices: Iterable[ChoiceFold]) -> Wire:
    """Return the body of the equivalent plain response."""
    body: Wire = {**envelope, "object": "chat.completion"}
    body["choices"] = [choice.to_wire() for choice in choices]
    if usage:
        body["usage"] = usage
    return body


class _DetailFold:
    """One part of OpenRouter's typed reasoning while its fragments are received."""

    def __init__(self, fragment: Wire) -> None:
        self.wire = dict(fragment)
        self._pieces: dict[str, list[str]] = {}

    def add(self, fragment: Wire) -> None:
        """Add a fragment: texts are appended, other values are replaced."""
        for key, value in fragment.items():
            if key in _CONCATENATED_KEYS and isinstance(value, str):
                pieces = self._pieces.get(key)
                if pieces is None:
                    pieces = self._pieces[key] = [_text(self.wire.get(key))]
                    self.wire.setdefault(key, "")
                pieces.append(value)
            elif value is not None or key not in self.wire:
                self.wire[key] = value
                self._pieces.pop(key, None)

    def to_wire(self) -> Wire:
        """Return the part in the form of a plain response."""
        texts = {key: "".join(pieces) for key, pieces in self._pieces.items()}
        return {**self.wire, **texts}


def _merge_details(details: list[_DetailFold], fragments: list[Any]) -> None:
    """Add fragments of OpenRouter's typed reasoning to the parts that they continue (T55)."""
    for fragment in map(maybe_object, fragments):
        # A fragment continues one of the last parts. The search is bounded, because a hostile
        # server could send thousands of parts.
        recent = islice(reversed(details), _MAX_OPEN_DETAILS)
        detail = next((part for part in recent if _continues(part.wire, fragment)), None)
        if detail is None:
            details.append(_DetailFold(fragment))
        else:
            detail.add(fragment)


def _continues(detail: Wire, fragment: Wire) -> bool:
    """Whether a fragment has the type and index of a part, and no other id."""
    is_same_part = all(detail.get(key) == fragment.get(key) for key in ("type", "index"))
    ids = detail.get("id"), fragment.get("id")
    return is_same_part and (ids[0] == ids[1] or not all(ids))


def text_of_part(part: Wire) -> str:
    """Return the text of a text part or of a thinking part."""
    value = part.get("thinking", part.get("text"))
    if isinstance(value, str):
        return value
    return "".join(_text(maybe_object(chunk).get("text")) for chunk in maybe_list(value))


def other_chunks(part: Wire) -> list[Any]:
    """Return the chunks of a thinking part that are not text, such as Mistral's references."""
    chunks = maybe_list(part.get("thinking"))
    return [chunk for chunk in chunks if maybe_text(maybe_object(chunk).get("text")) is None]


class _ListFold:
    """A list under an unknown key: items with the same `index` are merged."""

    def __init__(self, items: list[Any]) -> None:
        self.items: list[Any] = []
        self._by_index: dict[object, Wire] = {}
        for item in items:
            self._append(item)

    def extend(self, items: list[Any]) -> None:
        """Add items; the keys of an item with an existing index are merged into that item."""
        for item in items:
            index = _item_index(item)
            existing = None if index is None else self._by_index.get(index)
            if existing is None:
                self._append(item)
            else:
                existing |= item

    def _append(self, item: Any) -> None:
        index = _item_index(item)
        if index is not None and index not in self._by_index:
            # A copy, because it may be extended later, and events may contain the original.
            item = self._by_index[index] = dict(item)
        self.items.append(item)


def _item_index(item: Any) -> str | int | None:
    index = maybe_object(item).get("index")
    return index if isinstance(index, str | int) else None


def _joined_base64(pieces: list[str]) -> str:
    try:
        # OpenAI pads the base64 of every piece, so that the joined strings would be invalid.
        data = b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except ValueError:
        return "".join(pieces)
    return base64.b64encode(data).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
