"""Guessing whose request a body is, to help somebody who named the wrong protocol."""

from collections.abc import Iterator, Mapping
from typing import Any

from metis.adapters.profiles import PROFILES
from metis.wire.shape import maybe_list, maybe_object

PROTOCOL_NAMES: Mapping[str, str] = {
    "anthropic": "Anthropic Messages",
    "bedrock_converse": "Bedrock Converse",
    "gemini": "Gemini",
    "ollama": "Ollama",
    "openai_chat": "Chat Completions",
    "openai_responses": "OpenAI Responses",
}
"""The protocols that are told apart, with the names that people call them by."""

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
"""Which kinds of parts only one protocol has; Bedrock's parts have no kind."""
_STRONG = 3
_LOOKED_AT = 100


def guess_protocol(body: Any) -> str | None:
    """The protocol that a request body looks like; None if it could be several, or is none."""
    scores = dict.fromkeys(_KEYS, 0)
    wire = maybe_object(body)
    for protocol, keys in _KEYS.items():
        scores[protocol] += len(keys & wire.keys())
    for protocol in _marks(wire):
        scores[protocol] += _STRONG
    best = max(scores.values())
    found = [protocol for protocol, score in scores.items() if score == best]
    return found[0] if best and len(found) == 1 else None


def adapter_for(protocol: str) -> str | None:
    """The name of the first adapter that speaks a protocol."""
    return next((name for name, one in PROFILES.items() if one.protocol == protocol), None)


def _marks(wire: Mapping[str, Any]) -> Iterator[str]:
    """A protocol for everything in a request that only this one says in that way."""
    for tool in maybe_list(wire.get("tools"))[:_LOOKED_AT]:
        if "input_schema" in maybe_object(tool):
            yield "anthropic"
    for turn in maybe_list(wire.get("messages"))[:_LOOKED_AT]:
        message = maybe_object(turn)
        for part in maybe_list(message.get("content")):
            kind = maybe_object(part).get("type", "bedrock")
            if kind in _PARTS:
                yield _PARTS[kind]
        if "images" in message or "tool_name" in message:
            yield "ollama"
        for call in maybe_list(message.get("tool_calls")):
            arguments = maybe_object(maybe_object(call).get("function")).get("arguments")
            yield "ollama" if isinstance(arguments, dict) else "openai_chat"
        if message.get("role") in ("developer", "function"):
            yield "openai_chat"
