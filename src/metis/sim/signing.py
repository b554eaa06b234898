"""Signatures of thinking blocks that only the simulator can make and verify."""

import base64
import hashlib
import hmac

from metis.sim.media import decode_base64

_MARK = b"metis-sim"
_DIGEST_BYTES = 16
_MAC_BYTES = 32
_SIZE = len(_MARK) + _DIGEST_BYTES + _MAC_BYTES


class ThinkingSigner:
    """Signs thoughts under a secret; two simulators with the same secret know each other's."""

    def __init__(self, secret: bytes = b"a simulator has no secrets") -> None:
        self._secret = secret

    def sign(self, thought: str) -> str:
        """The signature of a thought."""
        head = _MARK + _digest(thought)
        return base64.b64encode(head + self._mac(head)).decode()

    def is_issued_here(self, signature: object) -> bool:
        """Whether a signature was made here, whatever it signs."""
        return self._head(signature) is not None

    def verify(self, signature: object, thought: str) -> bool:
        """Whether a signature was made here for exactly this thought.

        >>> Seal().signs(Seal().sign("a"), "a"), Seal().signs(Seal().sign("a"), "b")
        (True, False)
        """
        head = self._head(signature)
        return head is not None and head[len(_MARK) :] == _digest(thought)

    def _head(self, signature: object) -> bytes | None:
        if not isinstance(signature, str):
            return None
        raw = decode_base64(signature) or b""
        head = raw[:-_MAC_BYTES]
        is_whole = len(raw) == _SIZE and raw.startswith(_MARK)
        return (
            head if is_whole and hmac.compare_digest(raw[-_MAC_BYTES:], self._mac(head)) else None
        )

    def _mac(self, head: bytes) -> bytes:
        return hmac.digest(self._secret, head, "sha256")


def _digest(thought: str) -> bytes:
    return hashlib.sha256(thought.encode(errors="surrogatepass")).digest()[:_DIGEST_BYTES]
