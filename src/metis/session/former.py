"""Former tools: what a history has called and nobody offers any more (T36, T209)."""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.session.models import Served
from metis.session.seen import Seen
from metis.wire.call import AdapterOptions, ToolChoice

_GONE = "A tool of an earlier time. It is not there any more and cannot be called."


def with_former(
    tools: Sequence[ToolDefinition], options: AdapterOptions, seen: Seen, served: Served
) -> tuple[Sequence[ToolDefinition], AdapterOptions]:
    """The tools and options of a request whose history may hold calls of tools that are gone.

    A host that wants definitions beside calls gets a placeholder for each, and none may be called.
    """
    if tools or not seen.tools or not served.adapter.profile.needs_definitions:
        return tools, options
    gone = [
        ToolDefinition(name, _GONE, {"type": "object", "properties": {}}, SideEffects.NONE)
        for name in seen.tools
    ]
    return gone, replace(options, tool_choice=ToolChoice("none"))
