"""Tools that do the same in several programs, so that a model sees calls that it can repeat.

Names and arguments are rewritten only where the target has a tool that takes the same facts; all
other calls stay as they are, since every program accepts calls of tools that it does not have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.interchange.session_draft import foreign_data
from metis.interchange.session_format import SessionFormat
from metis.projection.loss import Change, Loss
from metis.store.entries import AnyEntry, MessageEntry
from metis.wire.json_access import maybe_list, maybe_text

Input = Mapping[str, Any]


class Tool(NamedTuple):
    """A tool of one program: its name, and how its arguments become facts and facts arguments."""

    name: str
    facts: Callable[[Input], Input | None]
    arguments: Callable[[Input], Input]


def _keys(**names: str) -> tuple[Callable[[Input], Input | None], Callable[[Input], Input]]:
    """Return both directions for arguments that differ in their names only."""
    required = next(iter(names))

    def facts(arguments: Input) -> Input | None:
        read = {fact: arguments[key] for fact, key in names.items() if key in arguments}
        is_complete = required in read and len(read) == len(arguments)
        return read if is_complete else None

    def arguments(read: Input) -> Input:
        return {key: read[fact] for fact, key in names.items() if fact in read}

    return facts, arguments


def _shell_facts(arguments: Input) -> Input | None:
    command = arguments.get("command")
    words = [maybe_text(word) for word in maybe_list(command)]
    # Codex runs a text through a shell as three words.
    if len(words) == 3 and words[0] in ("bash", "sh", "zsh") and words[1] in ("-c", "-lc"):  # noqa: PLR2004 - shell, option, text
        return {"command": words[2]} if set(arguments) <= {"command", "workdir"} else None
    return {"command": command} if isinstance(command, str) and len(arguments) == 1 else None


def _shell_arguments(facts: Input) -> Input:
    return {"command": ["bash", "-lc", facts["command"]]}


_TOOLS: Mapping[str, Mapping[str, tuple[Tool, ...]]] = {
    "shell": {
        "claude-code": (
            Tool("Bash", *_keys(command="command", description="description", timeout="timeout")),
        ),
        "codex": (
            Tool("exec_command", *_keys(command="cmd", cwd="workdir")),
            Tool("shell", _shell_facts, _shell_arguments),
            Tool("shell_command", *_keys(command="command", cwd="workdir")),
        ),
        "gemini-cli": (
            Tool("run_shell_command", *_keys(command="command", description="description")),
        ),
        "opencode": (Tool("bash", *_keys(command="command", description="description")),),
        "pi": (Tool("bash", *_keys(command="command", timeout="timeout")),),
    },
    "read": {
        "claude-code": (Tool("Read", *_keys(path="file_path", offset="offset", limit="limit")),),
        "gemini-cli": (
            Tool("read_file", *_keys(path="file_path", offset="offset", limit="limit")),
        ),
        "opencode": (Tool("read", *_keys(path="filePath", offset="offset", limit="limit")),),
        "pi": (Tool("read", *_keys(path="path", offset="offset", limit="limit")),),
    },
    "write": {
        "claude-code": (Tool("Write", *_keys(path="file_path", content="content")),),
        "gemini-cli": (Tool("write_file", *_keys(path="file_path", content="content")),),
        "opencode": (Tool("write", *_keys(path="filePath", content="content")),),
        "pi": (Tool("write", *_keys(path="path", content="content")),),
    },
    "edit": {
        "claude-code": (
            Tool(
                "Edit",
                *_keys(path="file_path", old="old_string", new="new_string", all="replace_all"),
            ),
        ),
        "gemini-cli": (
            Tool("replace", *_keys(path="file_path", old="old_string", new="new_string")),
        ),
        "opencode": (
            Tool(
                "edit", *_keys(path="filePath", old="oldString", new="newString", all="replaceAll")
            ),
        ),
        "pi": (Tool("edit", *_keys(path="path", old="oldText", new="newText")),),
    },
}


def rename_tools(
    file_format: SessionFormat, entries: Sequence[AnyEntry], losses: list[Loss]
) -> Iterator[AnyEntry]:
    """Yield entries whose calls are those of the target's tools, where it has the same ones."""
    for entry in entries:
        if not isinstance(entry, MessageEntry) or foreign_data(entry, file_format.system).get("at"):
            yield entry
            continue
        content = [
            _renamed(block, file_format.name) if isinstance(block, ToolUseBlock) else block
            for block in entry.message.content
        ]
        for index, (old, new) in enumerate(zip(entry.message.content, content, strict=True)):
            if isinstance(old, ToolUseBlock) and isinstance(new, ToolUseBlock) and old is not new:
                losses.append(_loss(file_format, entry, index, old.name, new.name))
        message = replace(entry.message, content=tuple(content))
        yield replace(entry, message=message)


def _loss(file_format: SessionFormat, entry: MessageEntry, index: int, old: str, new: str) -> Loss:
    return Loss(
        session_id=entry.session_id,
        message_id=entry.id,
        block_type="tool_use",
        adapter=file_format.name,
        reason=f"the call of {old} is written as a call of {new}",
        change=Change.ALTERED,
        path=f"$.content[{index}]",
    )


def _renamed(call: ToolUseBlock, target: str) -> ToolUseBlock:
    for programs in _TOOLS.values():
        tools = programs.get(target, ())
        if not tools or any(tool.name == call.name for tool in tools):
            continue
        for name, sources in programs.items():
            for tool in sources if name != target else ():
                facts = tool.facts(call.input) if tool.name == call.name else None
                if facts is not None:
                    return replace(call, name=tools[0].name, input=tools[0].arguments(facts))
    return call
