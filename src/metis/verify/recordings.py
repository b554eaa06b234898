"""Recorded exchanges with a provider, one JSON object per line, and the protocol of a body."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from metis.adapters import Adapter, get, names
from metis.adapters.profiles import PROFILES
from metis.canonical.errors import DecodeError
from metis.wire.json_access import maybe_list, maybe_object

PROTOCOL_NAMES: Mapping[str, str] = {
    "anthropic": "Anthropic Messages",
    "bedrock_converse": "Bedrock Converse",
    "gemini": "Gemini",
    "ollama": "Ollama",
    "openai_chat": "Chat Completions",
    "openai_responses": "OpenAI Responses",
}
"""The protocols that can be recognised, with their names for users."""

_KEYS: Mapping[str, frozenset[str]] = {
    "anthropic": frozenset(
        {"anthropic_version", "max_tokens", "mcp_servers", "stop_sequences", "system"}
    ),
    "bedrock_converse": frozenset(
        {"additionalModelRequestFields", "guardrailConfig", "inferenceConfig", "system"}
    ),
    "gemini": frozenset(
        {"contents", "generationConfig", "generation_config", "safetySettings", "systemInstruction"}
    ),
    "ollama": frozenset({"format", "keep_alive", "options", "prompt", "raw", "template", "think"}),
    "openai_chat": frozenset(
        {
            "frequency_penalty",
            "logit_bias",
            "max_completion_tokens",
            "n",
            "presence_penalty",
            "reasoning_effort",
            "response_format",
            "stop",
            "stream_options",
        }
    ),
    "openai_responses": frozenset(
        {"include", "input", "instructions", "max_output_tokens", "previous_response_id", "store"}
    ),
}
_PARTS: Mapping[str, str] = {
    "document": "anthropic",
    "image": "anthropic",
    "redacted_thinking": "anthropic",
    "tool_result": "anthropic",
    "tool_use": "anthropic",
    "file": "openai_chat",
    "image_url": "openai_chat",
    "input_audio": "openai_chat",
    "bedrock": "bedrock_converse",
}
"""The protocol of part types that only one protocol has; `bedrock` stands for a missing type."""
# A feature of only one protocol counts more than a key that others may have, too.
_STRONG = 3
# Enough to recognise a protocol; a history may have thousands of messages.
_MAX_ITEMS = 100


def guess_protocol(body: Any) -> str | None:
    """Return the protocol that fits a request body best; None if none or several fit."""
    scores = dict.fromkeys(_KEYS, 0)
    wire = maybe_object(body)
    for protocol, keys in _KEYS.items():
        scores[protocol] += len(keys & wire.keys())
    for protocol in _unique_features(wire):
        scores[protocol] += _STRONG
    best = max(scores.values())
    matches = [protocol for protocol, score in scores.items() if score == best]
    return matches[0] if best and len(matches) == 1 else None


def adapter_for(protocol: str) -> str | None:
    """Return the name of the first adapter for a protocol; None if there is none."""
    profiles = PROFILES.items()
    return next((name for name, profile in profiles if profile.protocol == protocol), None)


def _unique_features(wire: Mapping[str, Any]) -> Iterator[str]:
    """Yield a protocol for each feature of a request that only this protocol has."""
    for tool in maybe_list(wire.get("tools"))[:_MAX_ITEMS]:
        if "input_schema" in maybe_object(tool):
            yield "anthropic"
    for item in maybe_list(wire.get("messages"))[:_MAX_ITEMS]:
        message = maybe_object(item)
        for part in maybe_list(message.get("content")):
            kind = maybe_object(part).get("type", "bedrock")
            if isinstance(kind, str) and kind in _PARTS:
                yield _PARTS[kind]
        if "images" in message or "tool_name" in message:
            yield "ollama"
        for call in maybe_list(message.get("tool_calls")):
            arguments = maybe_object(maybe_object(call).get("function")).get("arguments")
            yield "ollama" if isinstance(arguments, dict) else "openai_chat"
        if message.get("role") in ("developer", "function"):
            yield "openai_chat"


_PROTOCOLS: Mapping[str, str] = {"anthropic_messages": "anthropic"}
"""Other names of protocols in recordings."""

SYNTHETIC = "hand_made"
"""The value of `recorded` for an exchange that was written by hand."""

_TYPES = re.compile(r"`([a-z |]+)`")
_JSON_TYPES: Mapping[str, str] = {"str": "string", "int": "integer", "bool": "boolean"}


class Recording(Struct, frozen=True, kw_only=True):
    """A recorded request and response; docs/recordings.md describes the fields."""

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
        """The bytes of a plain response; None if there is none or it was streamed."""
        response: object = self.response
        if isinstance(response, dict):
            return msgspec.json.encode(maybe_object(response))
        return None if self.response_text is None else self.response_text.encode()

    @property
    def stream(self) -> bytes | None:
        """The bytes of a streamed response; None if it was not streamed."""
        if self.raw_b64 is not None:
            return _bytes_of(self.raw_b64)
        if self.sse is not None:
            return self.sse.encode()
        response: object = self.response
        return msgspec.json.encode(maybe_list(response)) if isinstance(response, list) else None


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise DecodeError(f"not base64: {error}", path="$.raw_b64") from None


_read = msgspec.json.Decoder(Recording).decode


def read_recording(line: bytes) -> Recording:
    """Return the recording on a line of a file.

    Raises:
        DecodeError: the line is not a recording; `path` is the place of the fault.
    """
    try:
        recording = _read(line)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        reason = _TYPES.sub(_as_json_types, reason)
        raise DecodeError(reason[:1].lower() + reason[1:], path=path[:-1] or "$") from None
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None
    if all(part is None for part in (recording.request, recording.body, recording.stream)):
        raise DecodeError("the recording has neither a request nor a response")
    return recording


def _as_json_types(types: re.Match[str]) -> str:
    # Messages of msgspec contain Python types; authors of JSON files expect JSON types.
    return " or ".join(_JSON_TYPES.get(name, name) for name in types[1].split(" | "))


def adapter_of(recording: Recording, default: str | None = None) -> Adapter | None:
    """Return the adapter for the protocol of a recording; None if there is none.

    `default` names the adapter for recordings without a protocol.
    """
    if recording.protocol is None:
        return _get(default or recording.provider)
    protocol = _PROTOCOLS.get(recording.protocol, recording.protocol)
    adapter = _get(recording.provider)
    if adapter is not None and adapter.profile.protocol == protocol:
        return adapter
    return _get(adapter_for(protocol))


def _get(name: str | None) -> Adapter | None:
    return get(name) if name is not None and name in names() else None
