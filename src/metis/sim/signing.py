"""Signatures of thinking blocks, which only the simulator can create and verify."""

import base64
import hashlib
import hmac

from metis.sim.media import decode_base64

_PREFIX = b"metis-sim"
_DIGEST_BYTES = 16
_MAC_BYTES = 32
_SIGNATURE_BYTES = len(_PREFIX) + _DIGEST_BYTES + _MAC_BYTES


class ThinkingSigner:
    """Signs thinking with a secret; simulators with the same secret accept the signatures."""

    def __init__(self, secret: bytes = b"a simulator has no secrets") -> None:
        self._secret = secret

    def sign(self, thinking: str) -> str:
        """Return the signature of a text."""
        head = _PREFIX + _digest(thinking)
        return base64.b64encode(head + self._mac(head)).decode()

    def is_issued_here(self, signature: object) -> bool:
        """Return whether a signature was made with this secret, for any text."""
        return self._verified_head(signature) is not None

    def verify(self, signature: object, thinking: str) -> bool:
        """Return whether a signature was made with this secret for exactly this text.

        >>> signer = ThinkingSigner()
        >>> signer.verify(signer.sign("a"), "a"), signer.verify(signer.sign("a"), "b")
        (True, False)
        """
        head = self._verified_head(signature)
        return head is not None and head[len(_PREFIX) :] == _digest(thinking)

    def _verified_head(self, signature: object) -> bytes | None:
        """Return the signed part of a signature, or None if it was not made with this secret."""
        if not isinstance(signature, str):
            return None
        raw = decode_base64(signature) or b""
        head, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        # Signatures of real providers are refused by their length or prefix.
        if len(raw) != _SIGNATURE_BYTES or not raw.startswith(_PREFIX):
            return None
        return head if hmac.compare_digest(mac, self._mac(head)) else None

    def _mac(self, head: bytes) -> bytes:
        return hmac.digest(self._secret, head, "sha256")


def _digest(thinking: str) -> bytes:
    # JSON escapes may give lone surrogates, which plain UTF-8 cannot encode.
    return hashlib.sha256(thinking.encode(errors="surrogatepass")).digest()[:_DIGEST_BYTES]
