"""Envelopes: seals of one provider, wrapped for a client of another provider's protocol.

A seal is a part of a response that only its issuer can read: the signature of thinking, redacted
thinking, encrypted reasoning. Clients return it with their history. The protocol of the client has
a field for seals of its own provider. A foreign seal is sent in this field inside an envelope:
unchanged, the client's provider would later treat it as its own and reject the request.

An envelope is standard base64, because some of these fields contain bytes that SDKs decode: 12
bytes that no provider's seal begins with (the last is the version), a checksum, and JSON that names
the issuer. The envelope is self-contained, so that nothing is stored for it. It is not encrypted:
the client would receive the same bytes from the issuer. A forged envelope only causes the client's
bytes to be sent to the issuer that it names.
"""

import binascii
import hashlib
from typing import Final, Literal

import msgspec
import pybase64
from msgspec import Struct

from metis.canonical.blocks import ContentBlock, RedactedThinkingBlock, ThinkingBlock

Thinking = ThinkingBlock | RedactedThinkingBlock

MAX_ENVELOPE_CHARS: Final = 1 << 23
"""The longest envelope; encrypted reasoning of a long response has some 100,000 characters."""
DAMAGED_ISSUER: Final = "damaged envelope"
"""The issuer of a seal whose envelope cannot be read: matches no provider, so it is never sent."""

_MAGIC: Final = b"metis\0seal\0\x01"
_PREFIX: Final = pybase64.b64encode_as_string(_MAGIC)
_OLD_PREFIX: Final = "metis1:"
_MARKS: Final = (_PREFIX.encode(), f'"{_OLD_PREFIX}'.encode())
# The checksum detects truncation and other damage by clients; it does not prevent forgery.
_CHECKSUM_BYTES = 16
_URLSAFE = str.maketrans("-_", "+/")


class Seal(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The content of an envelope: a seal and the fields of its block that only the issuer reads."""

    issuer: str
    value: str
    kind: Literal["signature", "data"] = "signature"
    id: str | None = None
    format: str | None = None
    length: int = 0
    """The number of characters of the thinking, for clients that get its text in other parts."""
    place: tuple[int, int] | None = None
    """The position of the thinking in its message: the characters of text before it, without
    whitespace, and the calls before it. For protocols where thinking is not in the block list."""

    def block(self, text: str) -> Thinking:
        """Return the thinking block with this seal; `text` is ignored for redacted thinking."""
        if self.kind == "data":
            return RedactedThinkingBlock(self.value, self.id, self.format, self.issuer)
        return ThinkingBlock(text, self.value, self.id, self.format, self.issuer)


class _OldEnvelope(Struct, forbid_unknown_fields=True):
    """An earlier format, which stored histories of OpenAI Responses clients may still contain."""

    issuer: str
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    format: str | None = None


_read_seal = msgspec.json.Decoder(Seal).decode
_read_old = msgspec.json.Decoder(_OldEnvelope).decode
_write = msgspec.json.Encoder().encode


def value_of(block: ContentBlock) -> str | None:
    """Return the seal of a thinking block; None if it has no seal."""
    if type(block) is RedactedThinkingBlock:
        return block.data
    return block.signature if type(block) is ThinkingBlock else None


def write_envelope(seal: Seal) -> str | None:
    """Return the envelope of a seal; None if it is longer than `MAX_ENVELOPE_CHARS`."""
    body = _write(seal)
    checksum = hashlib.sha256(_MAGIC + body).digest()[:_CHECKSUM_BYTES]
    envelope = pybase64.b64encode_as_string(_MAGIC + checksum + body)
    return envelope if len(envelope) <= MAX_ENVELOPE_CHARS else None


def is_envelope(value: str | None) -> bool:
    """Whether a seal begins like an envelope; it may still be damaged."""
    return value is not None and value.startswith((_PREFIX, _OLD_PREFIX))


def may_have_envelope(body: bytes) -> bool:
    """Whether the bytes of a request may contain an envelope, which no provider could read."""
    return any(mark in body for mark in _MARKS)


def read_envelope(value: str) -> Seal | None:
    """Return the seal in an envelope; None if it is damaged or of a later version."""
    if len(value) > MAX_ENVELOPE_CHARS:
        return None
    if value.startswith(_OLD_PREFIX):
        return _read_old_envelope(value.removeprefix(_OLD_PREFIX))
    # SDKs that decode the field (Gemini's) write it back in the URL-safe alphabet or unpadded.
    text = value.translate(_URLSAFE).rstrip("=")
    try:
        data = pybase64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        head = len(_MAGIC) + _CHECKSUM_BYTES
        body = data[head:]
        checksum = hashlib.sha256(_MAGIC + body).digest()[:_CHECKSUM_BYTES]
        return _read_seal(body) if data[len(_MAGIC) : head] == checksum else None
    except (binascii.Error, ValueError):
        return None


def _read_old_envelope(text: str) -> Seal | None:
    try:
        old = _read_old(pybase64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None
    value = old.signature if old.data is None else old.data
    if value is None:
        return None
    kind = "signature" if old.data is None else "data"
    return Seal(old.issuer, value, kind, old.id, old.format)
