"""Thinking, as Anthropic Messages is told of it."""

from collections.abc import Mapping
from typing import Any

from metis.wire.claude import OUTPUT, THINKING, decode_thinking, spell_thinking
from metis.wire.reasoning import SILENT, ReasoningKeys, Spoken


def _decode(wire: Mapping[str, Any]) -> Spoken:
    return decode_thinking(wire) if THINKING in wire or OUTPUT in wire else SILENT


REASONING = ReasoningKeys(_decode, spell_thinking)
