"""Adapters: a wire protocol bound to a provider, with the types of its whole contract.

Names are loaded when they are first used: to list the providers loads no protocol.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which would cost more to import than all of this
if TYPE_CHECKING:
    from metis.adapters.adapter import Adapter, get
    from metis.adapters.hosts import names, profile_of
    from metis.adapters.profile import Auth, Profile
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
        ToolChoice,
        WireRequest,
    )
    from metis.wire.codec import StreamDecoder, StreamEncoder
    from metis.wire.output_format import OutputFormat
    from metis.wire.reasoning import Reasoning

_MODULES: dict[str, tuple[str, ...]] = {
    "metis.adapters.adapter": ("Adapter", "get"),
    "metis.adapters.hosts": ("names", "profile_of"),
    "metis.adapters.profile": ("Auth", "Profile"),
    "metis.catalog.models": ("AdapterCapabilities",),
    "metis.projection.loss": ("Change", "Loss"),
    "metis.wire.call": (
        "AdapterOptions",
        "CanonicalRequest",
        "RequestContext",
        "ToolChoice",
        "WireRequest",
    ),
    "metis.wire.codec": ("StreamDecoder", "StreamEncoder"),
    "metis.wire.output_format": ("OutputFormat",),
    "metis.wire.reasoning": ("Reasoning",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Adapter",
    "AdapterCapabilities",
    "AdapterOptions",
    "Auth",
    "BlockAdded",
    "CanonicalRequest",
    "Change",
    "Loss",
    "MessageComplete",
    "MessageStart",
    "OutputFormat",
    "Profile",
    "Reasoning",
    "RequestContext",
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
    "get",
    "names",
    "profile_of",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'metis.adapters' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF.get(name, "metis.streaming")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
