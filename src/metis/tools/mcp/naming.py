"""Names: what a server calls its tools, in our alphabet, and what their hints say."""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any

from metis.canonical.tools import MAX_NAME_LENGTH, SideEffects

SEPARATOR = "___"
"""Three, so that a name tells where it is cut: names of servers and tools have single ones only."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FOREIGN = re.compile(r"[^a-z0-9]+")
_MARK_LENGTH = 6


def tool_name(server: str, tool: str, taken: Collection[str] = ()) -> str:
    """`server___tool` in our alphabet; a mark is added where the name is too long or taken."""
    name = f"{snake_case(server)}{SEPARATOR}{snake_case(tool)}"
    if len(name) <= MAX_NAME_LENGTH and name not in taken:
        return name
    mark = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:_MARK_LENGTH]
    return f"{name[: MAX_NAME_LENGTH - _MARK_LENGTH - 1].rstrip('_')}_{mark}"


def snake_case(name: str) -> str:
    """A name of any kind in small letters, digits and single underscores, a letter first."""
    plain = _FOREIGN.sub("_", _HUMP.sub("_", name).lower()).strip("_")
    return plain if plain[:1].isalpha() else f"x_{plain}".rstrip("_")


def side_effects(
    annotations: Mapping[str, Any] | None, *, is_trusted: bool, otherwise: SideEffects
) -> SideEffects:
    """The strongest effect of a tool: its hints if the server is trusted, else the worst."""
    if not is_trusted or annotations is None:
        return otherwise
    if annotations.get("readOnlyHint") is True:
        return SideEffects.READ
    return SideEffects.WRITE if annotations.get("openWorldHint") is False else otherwise
