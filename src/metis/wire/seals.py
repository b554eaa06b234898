"""Seals of other providers, in an envelope that a client holds for us.

A seal is a part of a response that only its issuer can read: the signature of thinking, redacted
thinking, encrypted reasoning. Clients send it back with their history. A client of another protocol
than the issuer's has a field for seals of its own provider; a foreign seal goes there in an
envelope, never as it is, because whoever receives it next would take it for genuine.

An envelope is standard base64, because some of these fields hold bytes and SDKs decode them: 12
bytes that no provider begins a seal with (the last is the version), a checksum, and JSON that names
the issuer. Nothing is stored for it. It is not encrypted: its bytes are those that the client would
have received anyway, and a client that forges one has only its own bytes sent to the issuer that it
names.
"""

import binascii
import hashlib
from typing import Final, Literal

import msgspec
import pybase64
from msgspec import Struct

from metis.canonical.blocks import RedactedThinkingBlock, ThinkingBlock

Thinking = ThinkingBlock | RedactedThinkingBlock

MAX_ENVELOPE_CHARS: Final = 1 << 23
"""How long an envelope may be; encrypted reasoning of a long response has some 100,000."""
DAMAGED_ISSUER: Final = "damaged envelope"
"""The issuer of an envelope that cannot be opened: no provider, so that it is never sent."""

_MAGIC: Final = b"metis\0seal\0\x01"
_PREFIX: Final = pybase64.b64encode_as_string(_MAGIC)
_OLD_PREFIX: Final = "metis1:"
_MARKS: Final = (_PREFIX.encode(), f'"{_OLD_PREFIX}'.encode())
_CHECKSUM_BYTES = 16
_URLSAFE = str.maketrans("-_", "+/")


class Seal(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What an envelope holds: a seal with the fields of its block that only the issuer reads."""

    issuer: str
    value: str
    kind: Literal["signature", "data"] = "signature"
    id: str | None = None
    format: str | None = None
    length: int = 0
    """How many characters the thinking has, which some clients get as parts of their own."""
    place: tuple[int, int] | None = None
    """How many characters of text, without blanks, and how many calls came before it; for protocols
    in which thinking has no place among the other blocks."""

    def block(self, text: str) -> Thinking:
        """Return the block with this seal."""
        if self.kind == "data":
            return RedactedThinkingBlock(self.value, self.id, self.format, self.issuer)
        return ThinkingBlock(text, self.value, self.id, self.format, self.issuer)


class _OldEnvelope(Struct, forbid_unknown_fields=True):
    """The envelope that clients of OpenAI Responses got before; they may still hold it."""

    issuer: str
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    format: str | None = None


_read_seal = msgspec.json.Decoder(Seal).decode
_read_old = msgspec.json.Decoder(_OldEnvelope).decode
_write = msgspec.json.Encoder().encode


def value_of(block: Thinking) -> str | None:
    """Return the seal of a block; None if it has none."""
    if type(block) is RedactedThinkingBlock:
        return block.data
    return block.signature if type(block) is ThinkingBlock else None


def write_envelope(seal: Seal) -> str | None:
    """Return the envelope of a seal; None if it would be too long."""
    body = _write(seal)
    checksum = hashlib.sha256(_MAGIC + body).digest()[:_CHECKSUM_BYTES]
    envelope = pybase64.b64encode_as_string(_MAGIC + checksum + body)
    return envelope if len(envelope) <= MAX_ENVELOPE_CHARS else None


def is_envelope(value: str | None) -> bool:
    """Whether a seal is one of our envelopes, intact or not."""
    return value is not None and value.startswith((_PREFIX, _OLD_PREFIX))


def may_have_envelope(body: bytes) -> bool:
    """Whether the bytes of a request may hold one of our envelopes, which no provider reads."""
    return any(mark in body for mark in _MARKS)


def read_envelope(value: str) -> Seal | None:
    """Open an envelope; None if it is damaged, or of a later version."""
    if len(value) > MAX_ENVELOPE_CHARS:
        return None
    if value.startswith(_OLD_PREFIX):
        return _read_old_envelope(value.removeprefix(_OLD_PREFIX))
    # SDKs that decode the field may write it with the other alphabet, or without padding.
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
