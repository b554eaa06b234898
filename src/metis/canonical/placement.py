"""Placement: which blocks may stand in a message of which role, and inside a tool result."""

from collections.abc import Iterator, Mapping
from typing import Literal

from metis.canonical.blocks import ToolResultBlock
from metis.canonical.message import Message, Role
from metis.canonical.unknown import UnknownBlock

Profile = Literal["strict", "full"]
"""`strict` is the source text to the letter; `full` knows the additions."""

_MEDIA = frozenset({"image", "document", "audio", "video"})
_SAID = frozenset({"text", "tool_use", "thinking", "redacted_thinking"})

ALLOWED: Mapping[Profile, Mapping[Role, frozenset[str]]] = {
    "strict": {
        Role.USER: frozenset({"text", "image"}),
        Role.ASSISTANT: _SAID,
        Role.SYSTEM: frozenset({"text"}),
        Role.TOOL: frozenset({"tool_result"}),
    },
    "full": {
        Role.USER: frozenset({"text", "opaque"}) | _MEDIA,
        Role.DEVELOPER: frozenset({"text", "opaque"}) | _MEDIA,
        Role.ASSISTANT: _SAID | {"artifact", "opaque"},
        Role.SYSTEM: frozenset({"text", "opaque"}),
        Role.TOOL: frozenset({"tool_result"}),
    },
}
"""The tags that a message of each role may hold."""

ALLOWED_IN_RESULT: Mapping[Profile, frozenset[str]] = {
    "strict": frozenset({"text", "image"}),
    "full": frozenset({"text", "artifact", "opaque"}) | _MEDIA,
}
"""The tags that a tool result may hold."""

_ROW_OF_ROLE = {
    Role.USER: "M-125",
    Role.ASSISTANT: "M-128",
    Role.TOOL: "M-131",
    Role.SYSTEM: "M-133",
}
_ROW_OF_PAIR = {
    (Role.USER, "tool_use"): "M-126",
    (Role.USER, "tool_result"): "M-127",
    (Role.ASSISTANT, "tool_result"): "M-129",
    (Role.ASSISTANT, "image"): "M-130",
}


def misplaced_blocks(message: Message, profile: Profile) -> Iterator[tuple[str, str, str]]:
    """Row, path and text for every block that may not stand where it stands.

    Blocks and roles that we do not know are a newer writer's business: `full` lets them be.
    """
    allowed = ALLOWED[profile].get(message.role)
    for index, block in enumerate(message.content):
        path = f"$.content[{index}]"
        if allowed is not None and not _may_stand(block, allowed, profile):
            row = _ROW_OF_PAIR.get((message.role, block.type)) or _ROW_OF_ROLE.get(message.role)
            text = f"a {message.role} message holds no {block.type} block"
            yield row or "M-125", path, text
        if isinstance(block, ToolResultBlock):
            yield from _misplaced_in_result(block, path, profile)


def _misplaced_in_result(
    result: ToolResultBlock, path: str, profile: Profile
) -> Iterator[tuple[str, str, str]]:
    for index, inner in enumerate(result.content):
        if not _may_stand(inner, ALLOWED_IN_RESULT[profile], profile):
            text = f"a tool result holds no {inner.type} block"
            yield "M-045", f"{path}.content[{index}]", text


def _may_stand(block: object, allowed: frozenset[str], profile: Profile) -> bool:
    if isinstance(block, UnknownBlock):
        return profile == "full"
    return getattr(block, "type", None) in allowed
