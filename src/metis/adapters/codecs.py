"""The codecs by the names of their protocols."""

from collections.abc import Mapping

from metis.wire.anthropic.codec import CODEC as ANTHROPIC
from metis.wire.codec import Codec
from metis.wire.gemini.codec import CODEC as GEMINI
from metis.wire.ollama.codec import CODEC as OLLAMA
from metis.wire.openai_chat.codec import CODEC as OPENAI_CHAT
from metis.wire.openai_responses.codec import CODEC as OPENAI_RESPONSES

CODECS: Mapping[str, Codec] = {
    codec.protocol: codec
    for codec in (
        ANTHROPIC,
        GEMINI,
        OLLAMA,
        OPENAI_CHAT,
        OPENAI_RESPONSES,
    )
}
"""Every protocol that is spoken."""
