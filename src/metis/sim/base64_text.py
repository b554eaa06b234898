"""Base64 in both of its alphabets: Google's clients write the one for addresses."""

import base64
import binascii

_PLAIN = str.maketrans("-_", "+/")


def plain_base64(text: str) -> str:
    """The same bytes in the usual alphabet, padded.

    >>> plain_base64("_-8")
    '/+8='
    """
    bare = text.translate(_PLAIN).rstrip("=")
    return bare + "=" * (-len(bare) % 4)


def bytes_of(text: str) -> bytes | None:
    """The bytes that a text stands for, in either alphabet; None if it is no base64."""
    try:
        return base64.b64decode(plain_base64(text), validate=True)
    except (binascii.Error, ValueError):
        return None
