"""One canonical form for conversations with language models, and codecs for their wire formats.

Names are imported when they are first used, so that `import metis` is fast.
"""

from importlib import import_module

from metis.version import SPEC_VERSION, __version__

TYPE_CHECKING = False  # as in typing, which would cost more to import than all of this
if TYPE_CHECKING:
    from metis import adapters, canonical, catalog, session, store
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
    from metis.session import Metis, Options, Reply, Session, ask, open_sync
    from metis.session import open_metis as open  # noqa: A004 - called as `metis.open`
    from metis.tools import tool

_MODULE_OF: dict[str, str] = {
    **dict.fromkeys(("cost", "price", "reprice"), "metis.catalog"),
    "tool": "metis.tools",
    **dict.fromkeys(
        ("Metis", "Options", "Reply", "Session", "ask", "open", "open_sync"), "metis.session"
    ),
}
"""The modules of the names that `metis.canonical` does not define."""
_NAME_IN_MODULE = {"open": "open_metis"}
"""The names in those modules, where they differ."""

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
    "Metis",
    "MetisError",
    "OpaqueBlock",
    "Options",
    "Problem",
    "RedactedThinkingBlock",
    "Reply",
    "Role",
    "RoutingDecisionRecord",
    "RoutingMode",
    "Session",
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
    "ask",
    "canonical",
    "catalog",
    "cost",
    "decode",
    "encode",
    "new_session_id",
    "new_tool_use_id",
    "new_ulid",
    "open",
    "open_sync",
    "price",
    "reprice",
    "session",
    "store",
    "tool",
    "validate",
    "validate_session",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'metis' has no attribute {name!r}")
    if name in ("adapters", "canonical", "catalog", "session", "store"):
        return import_module(f"metis.{name}")
    module = import_module(_MODULE_OF.get(name, "metis.canonical"))
    value = getattr(module, _NAME_IN_MODULE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
