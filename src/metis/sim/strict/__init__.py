"""Strict: what the real APIs refuse, one file a protocol."""

from collections.abc import Callable, Mapping

from metis.sim.strict import (
    anthropic,
    bedrock_converse,
    gemini,
    ollama,
    openai_chat,
    openai_responses,
)
from metis.sim.strict.checks import CheckContext
from metis.wire.json_access import Wire

CHECKS: Mapping[str, Callable[[Wire, CheckContext], None]] = {
    "anthropic": anthropic.check,
    "bedrock_converse": bedrock_converse.check,
    "openai_chat": openai_chat.check,
    "openai_responses": openai_responses.check,
    "gemini": gemini.check,
    "ollama": ollama.check,
}
"""The check of each protocol: raises an InvalidRequestError in the provider's words."""

__all__ = ["CHECKS", "CheckContext"]
