"""Messages of the model in OpenAI Responses: text with its annotations, and refusals.

A message of the wire may hold several parts, each of which is a block of ours. How a message was
spelled is one entry: its keys, and for each part what it says beyond its block. An empty entry is a
message that is a role and a string. What another provider said is written with its type as well:
the API does not ask for it, but servers that speak its protocol do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import Citation, TextBlock
from metis.canonical.value import made
from metis.wire.openai_responses.parts import decode_part, part_of
from metis.wire.openai_responses.types import Part
from metis.wire.shape import Wire, maybe_list

Entry = Mapping[str, Any]
"""How one message of the wire was spelled."""
EASY: Entry = {}
"""The entry of a message that is a role and a string."""
TYPED: Entry = {"keys": {"type": "message"}}
"""The entry of a message that says what it is, as all are that were not spelled here."""

_OWN_KEYS = frozenset({"role", "content"})
_TEXT = "output_text"
_KEYS_OF_TEXT = 3
_make_text = made(TextBlock)


def decode_said(wire: Wire) -> tuple[list[TextBlock], Entry] | None:
    """The texts of a message, and how it was spelled; None if it holds what is no text."""
    keys = {key: value for key, value in wire.items() if key not in _OWN_KEYS}
    content = wire.get("content")
    if isinstance(content, str):
        return [_make_text(content)], {"keys": keys} if keys else EASY
    return _decode_parts(maybe_list(content), keys)


def _decode_parts(
    parts: Sequence[Any], keys: dict[str, Any]
) -> tuple[list[TextBlock], Entry] | None:
    texts: list[TextBlock] = []
    extras: list[Any] = []
    for wire in parts:
        quick = _quick(wire)
        if quick is not None:
            texts.append(quick[0])
            extras.append(quick[1])
            continue
        part = part_of(wire)
        block = None if part is None else decode_part(part, "")
        if part is None or not isinstance(block, TextBlock):
            return None
        extra = _extra(part)
        if _encode_part(block, extra) != wire:
            extra = {"wire": wire}
        texts.append(block)
        extras.append(extra)
    return (texts, {"keys": keys, "parts": extras}) if texts else None


def _quick(wire: Any) -> tuple[TextBlock, dict[str, Any]] | None:
    """A part of text without citations, as most are; None asks for a longer look."""
    if type(wire) is not dict or wire.get("annotations") != [] or wire.get("type") != _TEXT:  # pyright: ignore[reportUnknownMemberType] - JSON
        return None
    part: Wire = wire  # pyright: ignore[reportUnknownVariableType] - JSON
    text = part.get("text")
    if type(text) is not str:
        return None
    if len(part) == _KEYS_OF_TEXT:
        return _make_text(text), {}
    if len(part) == _KEYS_OF_TEXT + 1 and type(part.get("logprobs")) is list:
        return _make_text(text), {"logprobs": part["logprobs"]}
    return None


def _extra(part: Part) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if part.type != _TEXT:
        extra["type"] = part.type
    elif part.annotations is UNSET:
        extra["bare"] = True
    if part.logprobs is not UNSET:
        extra["logprobs"] = part.logprobs
    return extra


def cite(citation: Citation) -> Wire | None:
    """The annotation for a page that another provider cited."""
    if citation.url is None:
        return None
    return {
        "type": "url_citation",
        "start_index": citation.start or 0,
        "end_index": citation.end or 0,
        "title": citation.title or "",
        "url": citation.url,
    }


def _is_own(citation: Citation) -> bool:
    """Whether a citation is in the words of this protocol; others of the name nest the page."""
    return citation.raw is not None and "url" in citation.raw and "type" in citation.raw


def _encode_part(block: TextBlock, extra: Mapping[str, Any]) -> Wire:
    whole: Wire | None = extra.get("wire")
    if whole is not None:
        part = part_of(whole)
        if part is not None and decode_part(part, "") == block:
            return whole
        extra = {}
    kind = extra.get("type", _TEXT)
    if kind == "refusal":
        return {"type": kind, "refusal": block.text}
    wire: Wire = {"type": kind, "text": block.text}
    if kind == _TEXT and not (extra.get("bare") and not block.citations):
        wire["annotations"] = [note.raw for note in block.citations if note.raw is not None]
    if "logprobs" in extra:
        wire["logprobs"] = extra["logprobs"]
    return wire


def encode_said(texts: Sequence[TextBlock], entry: Entry) -> Wire:
    """The message for texts that were spelled like this."""
    wire: Wire = {"role": "assistant", **entry.get("keys", {})}
    extras: Sequence[Any] | None = entry.get("parts")
    if extras is None:
        wire["content"] = texts[0].text
    else:
        wire["content"] = [_encode_part(*each) for each in zip(texts, extras, strict=True)]
    return wire


def encode_answered(block: TextBlock, item_id: str) -> Wire:
    """A text of another provider as a message of this one."""
    part: Wire = {
        "type": _TEXT,
        "text": block.text,
        "annotations": [note.raw for note in block.citations if _is_own(note)],
        "logprobs": [],
    }
    return {
        "type": "message",
        "id": item_id,
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


def size_of(entry: Entry) -> int:
    """How many texts a message holds."""
    parts = entry.get("parts")
    return 1 if parts is None else len(parts)


def is_refused(entries: Sequence[Entry]) -> bool:
    """Whether a model declined to answer in one of its messages."""
    return any(
        extra.get("type") == "refusal" for entry in entries for extra in entry.get("parts", ())
    )
