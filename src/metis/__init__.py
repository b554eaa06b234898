"""One canonical form for conversations with language models, and every wire format from it.

Names are loaded when they are first used, so that `import metis` costs next to nothing.
"""

from importlib import import_module

from metis.version import SPEC_VERSION, __version__

TYPE_CHECKING = False  # as in typing, which would cost more to import than all of this
if TYPE_CHECKING:
    from metis import adapters, canonical, catalog, store
    from metis.canonical import (
        ArtifactBlock,
        AudioBlock,
        ContentBlock,
        DocumentBlock,
        Extra,
        ImageBlock,
        ImageSource,
        MediaSource,
        Message,
        MessageMetadata,
        MessageStatus,
        MetisError,
        OpaqueBlock,
        Problem,
        RedactedThinkingBlock,
        Role,
        RoutingDecisionRecord,
        RoutingMode,
        SideEffects,
        StopReason,
        TextBlock,
        ThinkingBlock,
        ToolDefinition,
        ToolResultBlock,
        ToolSet,
        ToolUseBlock,
        UnknownBlock,
        Usage,
        VideoBlock,
        decode,
        encode,
        new_session_id,
        new_tool_use_id,
        new_ulid,
        validate,
        validate_session,
    )
    from metis.catalog import cost, price, reprice

_HOME: dict[str, str] = dict.fromkeys(("cost", "price", "reprice"), "metis.catalog")

__all__ = [
    "SPEC_VERSION",
    "ArtifactBlock",
    "AudioBlock",
    "ContentBlock",
    "DocumentBlock",
    "Extra",
    "ImageBlock",
    "ImageSource",
    "MediaSource",
    "Message",
    "MessageMetadata",
    "MessageStatus",
    "MetisError",
    "OpaqueBlock",
    "Problem",
    "RedactedThinkingBlock",
    "Role",
    "RoutingDecisionRecord",
    "RoutingMode",
    "SideEffects",
    "StopReason",
    "TextBlock",
    "ThinkingBlock",
    "ToolDefinition",
    "ToolResultBlock",
    "ToolSet",
    "ToolUseBlock",
    "UnknownBlock",
    "Usage",
    "VideoBlock",
    "__version__",
    "adapters",
    "canonical",
    "catalog",
    "cost",
    "decode",
    "encode",
    "new_session_id",
    "new_tool_use_id",
    "new_ulid",
    "price",
    "reprice",
    "store",
    "validate",
    "validate_session",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'metis' has no attribute {name!r}")
    if name in ("adapters", "canonical", "catalog", "store"):
        return import_module(f"metis.{name}")
    value = getattr(import_module(_HOME.get(name, "metis.canonical")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
