"""Recording: one exchange with a provider as it was, a JSON object on a line of a file."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from metis.adapters import registry
from metis.adapters.adapter import Adapter
from metis.adapters.guess import adapter_for
from metis.canonical.errors import DecodeError
from metis.wire.shape import maybe_list, maybe_object

_PROTOCOLS: Mapping[str, str] = {"anthropic_messages": "anthropic"}
"""Names of protocols in recordings that are not ours."""

HAND_MADE = "hand_made"
"""What a recording says of itself that is no true traffic."""

_TYPES = re.compile(r"`([a-z |]+)`")
_WORDS: Mapping[str, str] = {"str": "string", "int": "integer", "bool": "boolean"}


class Recording(Struct, frozen=True, kw_only=True):
    """What a client sent and what came back; docs/recordings.md describes the fields."""

    id: str = ""
    protocol: str | None = None
    provider: str | None = None
    request: dict[str, Any] | None = None
    status: int | None = 200
    response: Any = None
    sse: str | None = None
    raw_b64: str | None = None
    response_text: str | None = None
    echo_of: str | None = None
    echo: str | None = None
    recorded: str | None = None

    @property
    def body(self) -> bytes | None:
        """The bytes of a plain response; None if there was none, or if it came as a stream."""
        found: object = self.response
        if isinstance(found, dict):
            return msgspec.json.encode(maybe_object(found))
        return None if self.response_text is None else self.response_text.encode()

    @property
    def stream(self) -> bytes | None:
        """The bytes of a streamed response; None if it came whole."""
        if self.raw_b64 is not None:
            return _bytes_of(self.raw_b64)
        if self.sse is not None:
            return self.sse.encode()
        found: object = self.response
        return msgspec.json.encode(maybe_list(found)) if isinstance(found, list) else None


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise DecodeError(f"not base64: {error}", path="$.raw_b64") from None


_read = msgspec.json.Decoder(Recording).decode


def read_recording(line: bytes) -> Recording:
    """The recording on a line.

    Raises:
        DecodeError: the line is no recording; the path names the place.
    """
    try:
        recording = _read(line)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `")
        reason = _TYPES.sub(_in_words, reason)
        raise DecodeError(reason[:1].lower() + reason[1:], path=place[:-1] or "$") from None
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None
    if all(part is None for part in (recording.request, recording.body, recording.stream)):
        raise DecodeError("neither a request nor a response is recorded")
    return recording


def _in_words(types: re.Match[str]) -> str:
    """The types that an error of msgspec names, in the words of JSON."""
    return " or ".join(_WORDS.get(name, name) for name in types[1].split(" | "))


def adapter_of(recording: Recording, otherwise: str | None = None) -> Adapter | None:
    """The adapter that speaks the protocol of a recording; None if there is none.

    `otherwise` names the adapter for recordings that do not say what they are.
    """
    if recording.protocol is None:
        return _named(otherwise or recording.provider)
    protocol = _PROTOCOLS.get(recording.protocol, recording.protocol)
    adapter = _named(recording.provider)
    if adapter is not None and adapter.profile.protocol == protocol:
        return adapter
    return _named(adapter_for(protocol))


def _named(name: str | None) -> Adapter | None:
    return registry.get(name) if name is not None and name in registry.names() else None
