r"""What is unusual about a tool call, for the person who decides about it.

The checks read text that a model wrote, which may have megabytes and may try to hide: every search
here takes time in proportion to the text. They warn and never allow: a call without a warning is
not thereby safe.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.command_caution import command_notes, plain_text, setting_notes
from metis.tools.hidden_text import hidden_notes, mixed_script_notes
from metis.tools.startup_files import mentioned_notes, written_notes
from metis.tools.workspace import Workspace

# Names of arguments that hold a path, in tools of other programs too.
_PATH_ARGUMENT = re.compile(
    r"path|file|name|target|dest|dir|uri|output|location|folder|^to$", re.IGNORECASE
)


def cautions(
    call: ToolUseBlock, definition: ToolDefinition, workspace: Workspace | None
) -> list[str]:
    """Return what a person should notice before a call runs, one sentence each."""
    texts = list(_texts(call.input))
    notes = [*_steering_notes(call, definition, workspace)]
    if definition.side_effects is SideEffects.EXECUTE:
        for _, text in texts:
            notes += [*command_notes(text), *mixed_script_notes(text)]
    notes += hidden_notes(text for _, text in texts)
    return list(dict.fromkeys(notes))


def steers_later_runs(
    call: ToolUseBlock, definition: ToolDefinition, workspace: Workspace | None
) -> bool:
    """Return whether a call names a file that changes what later runs do."""
    return any(_steering_notes(call, definition, workspace))


def _steering_notes(
    call: ToolUseBlock, definition: ToolDefinition, workspace: Workspace | None
) -> Iterator[str]:
    match definition.side_effects:
        # The tools of a server may write files, whatever else they do.
        case SideEffects.WRITE | SideEffects.NETWORK:
            for name, text in _texts(call.input):
                if _PATH_ARGUMENT.search(name):
                    yield from written_notes(text, workspace)
        case SideEffects.EXECUTE:
            for _, text in _texts(call.input):
                plain = plain_text(text)
                # A backslash is a separator of paths, or an escape that a shell removes.
                spellings = (text,) if plain == text else (plain, text)
                yield from mentioned_notes(spellings, workspace)
                yield from setting_notes(text)
        case _:
            return


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string of the arguments, keys too, with the name of its argument."""
    pending: list[tuple[str, Any]] = [(name, value)]
    while pending:
        place, item = pending.pop()
        if isinstance(item, str):
            yield place, item
        elif isinstance(item, Mapping):
            for key, child in item.items():  # pyright: ignore[reportUnknownVariableType] - JSON
                yield "", str(key)  # pyright: ignore[reportUnknownArgumentType] - JSON
                pending.append((str(key), child))  # pyright: ignore[reportUnknownArgumentType] - JSON
        elif isinstance(item, list | tuple):
            pending += [(place, child) for child in item]  # pyright: ignore[reportUnknownVariableType] - JSON
