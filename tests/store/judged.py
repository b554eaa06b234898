"""What is wrong with the next request of a conversation, on every protocol.

The judges are the official SDKs' types and, for what types cannot say, the rules of each protocol.
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
    """The faults of the request that asks one more question, by protocol; empty if all is well."""
    request = [*messages, user("and now?", session_id=messages[0].session_id)]
    result: dict[str, list[str]] = {}
    for name, rules in RULES.items():
        body = json.loads(adapters.get(name).to_wire(request).body)
        faults = complaints(name, body) + list(rules(body))
        if faults:
            result[name] = faults
    return result
