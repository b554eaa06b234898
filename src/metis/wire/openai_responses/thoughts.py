"""Reasoning items of OpenAI Responses, to and from our thoughts.

What can be read of a thought is its content, or else its summary; what is sealed is its signature.
A thought of which nothing can be read is a redacted one.

A client of this protocol can keep the thoughts of another provider for us: they travel in an
envelope where its own would be sealed, and are opened when they come back (T71).
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from metis.canonical.blocks import RedactedThinkingBlock, ThinkingBlock
from metis.wire.shape import Wire, maybe_list, maybe_object

Thought = ThinkingBlock | RedactedThinkingBlock
Extra = dict[str, Any]

_ENVELOPE = "metis1:"
_BETWEEN = "\n\n"


class _Envelope(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A thought of another provider, on its way through a client."""

    issuer: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    format: str | None = None


_open = msgspec.json.Decoder(_Envelope).decode
_write = msgspec.json.Encoder().encode


def decode_thought(wire: Wire, issuer: str) -> tuple[Thought, Extra] | None:
    """A thought, and what it says beyond the block; None if it cannot be told what it says."""
    sealed, own = wire.get("encrypted_content"), wire.get("id")
    if not isinstance(sealed, str | None) or not isinstance(own, str | None):
        return None
    text = readable(wire)
    if text is None:
        return None
    envelope = _opened(sealed)
    if envelope is not None:
        block = _from_envelope(envelope, text)
    elif sealed and not text:
        block = RedactedThinkingBlock(sealed, own, issuer=issuer)
    else:
        block = ThinkingBlock(text, sealed or None, own, issuer=issuer)
    plain = encode_plain(block)
    if plain == wire:
        return block, {}
    if own is None or envelope is not None:
        return block, {"wire": wire}
    changed = {key: value for key, value in wire.items() if plain.get(key, UNSET) != value}
    return block, {"keys": changed, "absent": [key for key in plain if key not in wire]}


def readable(wire: Wire) -> str | None:
    """What can be read of a reasoning item; None if its parts are not such as we know."""
    content, summary = _texts(wire.get("content")), _texts(wire.get("summary"))
    if content is None or summary is None:
        return None
    return "".join(content) or _BETWEEN.join(summary)


def _texts(parts: Any) -> list[str] | None:
    if not isinstance(parts, list | None):
        return None
    texts = [maybe_object(part).get("text") for part in maybe_list(parts)]
    return [text for text in texts if isinstance(text, str)] if _are_texts(texts) else None


def _are_texts(texts: list[Any]) -> bool:
    return all(isinstance(text, str) for text in texts)


def encode_thought(block: Thought, extra: Mapping[str, Any]) -> Wire:
    """The reasoning item for a thought; what was kept of it is used while it says the same."""
    whole: Wire | None = extra.get("wire")
    if whole is not None:
        found = decode_thought(whole, block.issuer or "")
        return whole if found is not None and found[0] == block else encode_plain(block)
    wire = encode_plain(block)
    if not extra:
        return wire
    kept = {k: v for k, v in wire.items() if k not in extra.get("absent", ())}
    kept |= extra.get("keys", {})
    return kept if readable(kept) == _text(block) and _seal(kept) == _sealed(block) else wire


def encode_plain(block: Thought) -> Wire:
    """The item for a thought of which nothing more is known; it always has a summary (T66)."""
    text = _text(block)
    wire: Wire = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}] if text else [],
    }
    if block.id is not None:
        wire["id"] = block.id
    sealed = _sealed(block)
    if sealed is not None:
        wire["encrypted_content"] = sealed
    return wire


def encode_foreign(block: Thought, item_id: str) -> Wire:
    """A thought of another provider for a client to keep: readable, its seal in an envelope."""
    redacted = isinstance(block, RedactedThinkingBlock)
    envelope = _Envelope(
        issuer=block.issuer,
        signature=None if redacted else block.signature,
        data=block.data if redacted else None,
        id=block.id,
        format=block.format,
    )
    wire = encode_plain(ThinkingBlock(_text(block), id=item_id))
    if envelope.signature or envelope.data:
        wire["encrypted_content"] = _ENVELOPE + base64.b64encode(_write(envelope)).decode()
    return wire


def _opened(sealed: str | None) -> _Envelope | None:
    if sealed is None or not sealed.startswith(_ENVELOPE):
        return None
    try:
        return _open(base64.b64decode(sealed.removeprefix(_ENVELOPE), validate=True))
    except (binascii.Error, ValueError):
        return None


def _from_envelope(envelope: _Envelope, text: str) -> Thought:
    own, kind, issuer = envelope.id, envelope.format, envelope.issuer
    if envelope.data is not None:
        return RedactedThinkingBlock(envelope.data, own, kind, issuer)
    return ThinkingBlock(text, envelope.signature, own, kind, issuer)


def _text(block: Thought) -> str:
    return block.text if isinstance(block, ThinkingBlock) else ""


def _sealed(block: Thought) -> str | None:
    return block.signature if isinstance(block, ThinkingBlock) else block.data


def _seal(wire: Wire) -> Any:
    return wire.get("encrypted_content") or None
