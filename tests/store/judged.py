"""Validate the next request of a conversation in every protocol.

The official SDKs' types and, for what types cannot express, the rules of each protocol decide.
"""

import json
from collections.abc import Sequence

import anthropic_shape
import gemini_shape
import ollama_shape
import openai_chat_shape
import openai_responses_shape
from build import user
from judges import complaints
from metis import adapters
from metis.canonical import Message

RULES = {
    "anthropic": anthropic_shape.faults,
    "gemini": gemini_shape.faults,
    "ollama": ollama_shape.faults,
    "openai": openai_chat_shape.faults,
    "openai-responses": openai_responses_shape.faults,
}


def request_faults(messages: Sequence[Message]) -> dict[str, list[str]]:
    """Return the faults of a request with one more prompt, by protocol; empty if valid."""
    request = [*messages, user("and now?", session_id=messages[0].session_id)]
    result: dict[str, list[str]] = {}
    for name, rules in RULES.items():
        body = json.loads(adapters.get(name).to_wire(request).body)
        faults = complaints(name, body) + list(rules(body))
        if faults:
            result[name] = faults
    return result
