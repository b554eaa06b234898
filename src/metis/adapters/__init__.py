"""Adapters: a wire protocol bound to a provider, with every type of the adapter contract.

Names are loaded when they are first used, so that listing the providers imports no protocol.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which would cost more to import than all of this
if TYPE_CHECKING:
    from metis.adapters.adapter import Adapter, get
    from metis.adapters.embeddings import Embeddings
    from metis.adapters.hosts import chat_host, names, profile_of
    from metis.adapters.profile import Auth, Profile
    from metis.adapters.request_reader import RequestReader
    from metis.catalog.models import AdapterCapabilities
    from metis.projection.loss import Change, Loss
    from metis.streaming import (
        BlockAdded,
        MessageComplete,
        MessageStart,
        StreamError,
        StreamEvent,
        TextDelta,
        ThinkingDelta,
        ToolUseEnd,
        ToolUseInputDelta,
        ToolUseStart,
        UsageUpdate,
    )
    from metis.wire.call import (
        AdapterOptions,
        CanonicalRequest,
        RequestContext,
        SealRecord,
        ServedResponse,
        ToolChoice,
        WireRequest,
    )
    from metis.wire.codec import StreamDecoder, StreamEncoder
    from metis.wire.output_format import OutputFormat
    from metis.wire.reasoning import Reasoning

_MODULES = (
    "metis.adapters.hosts",
    "metis.adapters.profile",
    "metis.catalog.models",
    "metis.streaming",
    "metis.projection.loss",
    "metis.wire.reasoning",
    "metis.wire.output_format",
    "metis.wire.call",
    "metis.wire.codec",
    "metis.adapters.adapter",
    "metis.adapters.request_reader",
    "metis.adapters.embeddings",
)
"""The modules that define the exported names; those that import least come first."""

__all__ = [
    "Adapter",
    "AdapterCapabilities",
    "AdapterOptions",
    "Auth",
    "BlockAdded",
    "CanonicalRequest",
    "Change",
    "Embeddings",
    "Loss",
    "MessageComplete",
    "MessageStart",
    "OutputFormat",
    "Profile",
    "Reasoning",
    "RequestContext",
    "RequestReader",
    "SealRecord",
    "ServedResponse",
    "StreamDecoder",
    "StreamEncoder",
    "StreamError",
    "StreamEvent",
    "TextDelta",
    "ThinkingDelta",
    "ToolChoice",
    "ToolUseEnd",
    "ToolUseInputDelta",
    "ToolUseStart",
    "UsageUpdate",
    "WireRequest",
    "chat_host",
    "get",
    "names",
    "profile_of",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module 'metis.adapters' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
