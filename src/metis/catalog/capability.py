"""Capability: what a model can do, one word each, for whoever asks for models by what they do."""

from collections.abc import Mapping
from enum import StrEnum

from metis.catalog.models import AdapterCapabilities, ModelInfo


class Capability(StrEnum):
    """One thing that a model can do or not."""

    AUDIO = "audio"
    CACHING = "caching"
    DOCUMENTS = "documents"
    EMBEDDINGS = "embeddings"
    JSON_MODE = "json_mode"
    PARALLEL_TOOLS = "parallel_tools"
    STREAMING = "streaming"
    THINKING = "thinking"
    TOOLS = "tools"
    VIDEO = "video"
    VISION = "vision"


_FIELDS: Mapping[Capability, str] = {
    Capability.CACHING: "supports_prompt_caching",
    Capability.JSON_MODE: "supports_structured_output",
    Capability.PARALLEL_TOOLS: "supports_parallel_tool_calls",
    Capability.STREAMING: "supports_streaming",
    Capability.THINKING: "supports_thinking",
    Capability.TOOLS: "supports_tools",
    Capability.VISION: "supports_images",
}
_LISTED: Mapping[Capability, str] = {
    Capability.AUDIO: "supports_audio",
    Capability.DOCUMENTS: "supports_documents",
    Capability.EMBEDDINGS: "supports_embeddings",
    Capability.VIDEO: "supports_video",
}


def abilities_of(
    capabilities: AdapterCapabilities, info: ModelInfo | None = None
) -> frozenset[Capability]:
    """What a model can do; some of it is known only of models that a catalogue lists."""
    found = {each for each, field in _FIELDS.items() if getattr(capabilities, field)}
    if info is not None:
        found |= {each for each, field in _LISTED.items() if getattr(info, field)}
    return frozenset(found)
