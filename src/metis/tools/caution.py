r"""Warnings about unusual tool calls, for the user who decides whether they run.

The checks read text that a model wrote, which may have megabytes and may be obfuscated: every
search takes time in proportion to the text. The checks only warn: a call without a warning is not
necessarily safe.
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

# Names of arguments that are paths, also in tools of other programs.
_PATH_ARGUMENT = re.compile(
    r"path|file|name|target|dest|dir|uri|output|location|folder|^to$", re.IGNORECASE
)


def cautions(
    call: ToolUseBlock, definition: ToolDefinition, workspace: Workspace | None
) -> list[str]:
    """Return the warnings about a call, one sentence each."""
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
    """Return whether a call names a file that changes later runs, such as a hook."""
    return any(_steering_notes(call, definition, workspace))


def _steering_notes(
    call: ToolUseBlock, definition: ToolDefinition, workspace: Workspace | None
) -> Iterator[str]:
    match definition.side_effects:
        # The tools of a server may also write files.
        case SideEffects.WRITE | SideEffects.NETWORK:
            for name, text in _texts(call.input):
                if _PATH_ARGUMENT.search(name):
                    yield from written_notes(text, workspace)
        case SideEffects.EXECUTE:
            for _, text in _texts(call.input):
                plain = plain_text(text)
                # A backslash may be a path separator, or an escape that a shell removes.
                spellings = (text,) if plain == text else (plain, text)
                yield from mentioned_notes(spellings, workspace)
                yield from setting_notes(text)
        case _:
            return


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string of the arguments, keys too, with the name of its argument."""
    pending: list[tuple[str, Any]] = [(name, value)]
    while pending:
        argument, item = pending.pop()
        if isinstance(item, str):
            yield argument, item
        elif isinstance(item, Mapping):
            for key, child in item.items():  # pyright: ignore[reportUnknownVariableType] - JSON
                yield "", str(key)  # pyright: ignore[reportUnknownArgumentType] - JSON
                pending.append((str(key), child))  # pyright: ignore[reportUnknownArgumentType] - JSON
        elif isinstance(item, list | tuple):
            pending += [(argument, child) for child in item]  # pyright: ignore[reportUnknownVariableType] - JSON
