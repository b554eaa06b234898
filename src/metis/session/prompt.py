"""The system prompt: instructions, skills and memory files, and the tools that change memory."""

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from metis.canonical.blocks import TextBlock
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.events import Bus
from metis.events.system_events import MemoryEviction, MemoryUpdated
from metis.session.events import Trace
from metis.store.private_files import make_private_directory
from metis.tools import ErrorClass, Tool, ToolContext, ToolFailedError, ToolOutput
from metis.tools.tool import object_schema, read_arguments, string_property, text_output

log = logging.getLogger("metis.session")

# Skills may come from a cloned repository, so that their files can have any size.
HEAD_BYTES = 4096
BODY_BYTES = 131_072
MAX_SKILLS = 100
DESCRIPTION_LENGTH = 1024
_FENCE = "---"
_words = re.compile(r"[^\W_]+").findall


def read_bounded(path: Path, limit: int, *, head_only: bool = False) -> str:
    """Return the text of a file up to a limit in bytes; a missing file gives an empty text.

    A longer file is logged, unless the caller needs its head only.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)  # one more byte shows whether the file is longer
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        log.warning("%s cannot be read: %s", path.name, error.strerror)
        return ""
    if len(data) > limit and not head_only:
        log.warning("%s is longer than %d bytes: the rest is left out", path.name, limit)
    # The cut may be inside a character, which "ignore" drops.
    return data[:limit].decode("utf-8", "ignore").strip()


class Skill(Struct, frozen=True):
    """A directory with a `SKILL.md`: models see the description, and load the body by a tool."""

    name: str
    description: str
    path: str
    source: Literal["workspace", "global"] = "global"

    def body(self) -> str:
        """Return the text after the front matter of the file."""
        text = read_bounded(Path(self.path), BODY_BYTES)
        lines = text.splitlines()
        if not lines or lines[0].strip() != _FENCE:
            return text
        end = next((n for n, line in enumerate(lines[1:], 1) if line.strip() == _FENCE), 0)
        return "\n".join(lines[end + 1 :]).strip()


def skill_version(body: str) -> str:
    """Return a short digest of the text of a skill, which changes with it."""
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def find_skills(home: Path | None, workspace: Path | None) -> tuple[Skill, ...]:
    """Return all skills, sorted by name; one of the workspace replaces a global one."""
    skills: dict[str, Skill] = {}
    if home is not None:
        skills |= {skill.name: skill for skill in _read_skills(home / "skills", "global")}
    if workspace is not None:
        directory = workspace / ".metis" / "skills"
        skills |= {skill.name: skill for skill in _read_skills(directory, "workspace")}
    return tuple(skills[name] for name in sorted(skills))


def matching_skills(skills: Sequence[Skill], text: str) -> frozenset[str]:
    """Return the names of the skills whose every word occurs in a text."""
    if not skills:
        return frozenset()
    words = set(_words(text.lower()))
    return frozenset(skill.name for skill in skills if words.issuperset(_words(skill.name.lower())))


def _read_skills(directory: Path, source: Literal["workspace", "global"]) -> Iterable[Skill]:
    # Sorted, so that the system prompt is the same in every session and provider caches are hit.
    for path in sorted(directory.glob("*/SKILL.md"))[:MAX_SKILLS]:
        head = read_bounded(path, HEAD_BYTES, head_only=True)
        name = _field(head, "name") or path.parent.name
        if name != path.parent.name:
            log.warning("the skill in %s has another name than its directory", path.parent.name)
        description = _field(head, "description")[:DESCRIPTION_LENGTH]
        yield Skill(name, description, str(path), source)


def _field(head: str, name: str) -> str:
    """Return a field of the front matter: the lines between two `---` at the top of a file."""
    lines = head.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return ""
    for line in lines[1:]:
        if line.strip() == _FENCE:
            break
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip().strip("\"'")
    return ""


# The files are part of every request: longer ones would fill the context window.
AGENTS_BYTES = 32_768
MEMORY_BYTES = 4096
USER_BYTES = 3072


SKILLS_LEAD = "Before you do what one of these is for, read it with `load_skill`.\n"
"""Precedes the list of skills in the system prompt."""


class SystemPrompt(Struct, frozen=True, kw_only=True):
    """The parts of the system prompt, as plain text.

    The stable part comes first, so that provider caches of the prefix are hit.
    """

    base: str = ""
    workspace: str = ""
    """The text of `AGENTS.md`."""
    skills: tuple[Skill, ...] = ()
    user: str = ""
    """The text of `USER.md`, about the user."""
    memory: str = ""
    """The text of `MEMORY.md`."""
    facts: str = ""
    """The workspace path and the date."""

    @property
    def stable(self) -> str:
        """The part that stays the same from session to session."""
        return _joined(
            self.base,
            _titled("Instructions of the workspace", self.workspace),
            _titled(
                "Skills", "\n".join([SKILLS_LEAD, *map(_line, self.skills)]) if self.skills else ""
            ),
        )

    @property
    def volatile(self) -> str:
        """The part that changes from day to day."""
        return _joined(
            _titled("The user", self.user),
            _titled("Memory", self.memory),
            _titled("The workspace", self.facts),
        )

    def texts(self) -> list[str]:
        """Return a text for each SYSTEM message, the stable one first, without empty ones."""
        return [text for text in (self.stable, self.volatile) if text]


def read_system_prompt(
    base: str = "",
    *,
    workspace: Path | None = None,
    home: Path | None = None,
    today: date | None = None,
) -> SystemPrompt:
    """Read the system prompt from a workspace and from a user's directory."""
    day = "" if today is None else f" Today is {today:%A}, {today.isoformat()}."
    return SystemPrompt(
        base=base,
        workspace="" if workspace is None else read_bounded(workspace / "AGENTS.md", AGENTS_BYTES),
        skills=find_skills(home, workspace),
        user="" if home is None else read_bounded(home / "USER.md", USER_BYTES),
        memory="" if home is None else read_bounded(home / "MEMORY.md", MEMORY_BYTES),
        facts="" if workspace is None else f"The workspace is {workspace}.{day}",
    )


def system_messages(session_id: str, texts: Sequence[str], now: datetime) -> list[Message]:
    """Return the SYSTEM messages with which a session begins."""
    return [
        Message(
            id=new_ulid(),
            session_id=session_id,
            role=Role.SYSTEM,
            content=(TextBlock(text),),
            created_at=now,
        )
        for text in texts
    ]


def _titled(title: str, text: str) -> str:
    return f"# {title}\n\n{text}" if text else ""


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _line(skill: Skill) -> str:
    return f"- {skill.name}: {skill.description}"


Operation = Literal["add", "replace", "consolidate"]


class SizeLimits(Struct, frozen=True):
    """The size from which a model should shorten a memory file, and its maximum, in bytes."""

    soft: int
    hard: int


MEMORY_FILES: Mapping[str, SizeLimits] = {
    "MEMORY.md": SizeLimits(2048, 4096),
    "USER.md": SizeLimits(1536, 3072),
}
"""The files that models may change."""


class Memory:
    """The memory files of one directory; changes are serialised by a lock."""

    def __init__(self, directory: Path, bus: Bus | None = None) -> None:
        self._directory = directory
        self._bus = bus
        self._lock = asyncio.Lock()

    async def change(
        self, file: str, operation: Operation, make: Callable[[str], str], context: ToolContext
    ) -> str:
        """Rewrite a file from its text and trace the change; return a text for the model.

        Raises:
            ToolFailedError: the file would be too large, or `make` raised; nothing was changed.
        """
        async with self._lock:
            before = await asyncio.to_thread(self._read, file)
            after = make(before)
            limits, size = MEMORY_FILES[file], len(after.encode())
            if size > limits.hard:
                text = (
                    f"{file} would have {size} bytes; the limit is {limits.hard}. "
                    "Write a shorter version with memory_consolidate."
                )
                raise ToolFailedError(text)
            await asyncio.to_thread(self._write, file, after)
        self._trace(file, operation, before.encode(), after.encode(), context)
        hint = ""
        if size > limits.soft:
            hint = " It is nearly full: shorten it with memory_consolidate."
        return f"{file} now has {size} of {limits.hard} bytes.{hint}"

    def _read(self, file: str) -> str:
        try:
            return (self._directory / file).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ToolFailedError(f"{file} cannot be read: {type(error).__name__}.") from None

    def _write(self, file: str, text: str) -> None:
        make_private_directory(self._directory)
        # Written to another file and renamed, so that a crash leaves the old or the new text.
        new_file = self._directory / f".{file}.new"
        # Memory may be personal: only its owner may read it.
        descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(text.encode())
            out.flush()
            os.fsync(out.fileno())
        new_file.replace(self._directory / file)

    def _trace(
        self, file: str, operation: Operation, before: bytes, after: bytes, context: ToolContext
    ) -> None:
        trace = Trace(self._bus, context.session_id, context.turn_id)
        trace.emit(
            MemoryUpdated(
                file=file,
                operation=operation,
                hash_before=hashlib.sha256(before).hexdigest(),
                hash_after=hashlib.sha256(after).hexdigest(),
                size_before_bytes=len(before),
                size_after_bytes=len(after),
            )
        )
        if len(before) > MEMORY_FILES[file].soft and len(after) < len(before):
            trace.emit(
                MemoryEviction(
                    file=file, size_before_bytes=len(before), size_after_bytes=len(after)
                )
            )


class _MemoryArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of the memory tools; each takes the fields that its schema names."""

    file: Literal["MEMORY.md", "USER.md"]
    text: str = ""
    old: str = ""
    new: str = ""

    def add(self, content: str) -> str:
        """Return the content of the file with one more line."""
        return f"{content.rstrip()}\n{self.text.strip()}\n".lstrip()

    def replace(self, content: str) -> str:
        """Return the content with `new` in place of `old`, which must occur exactly once."""
        count = content.count(self.old) if self.old else 0
        if count != 1:
            text = f"The text occurs {count} times in {self.file}."
            raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR)
        return content.replace(self.old, self.new)

    def consolidate(self, _: str) -> str:
        """Return the new content."""
        return f"{self.text.strip()}\n" if self.text.strip() else ""


def _definition(
    operation: Operation, description: str, **properties: Mapping[str, Any]
) -> ToolDefinition:
    file = {
        "type": "string",
        "enum": sorted(MEMORY_FILES),
        "description": "MEMORY.md for what was learned, USER.md for facts about the user.",
    }
    return ToolDefinition(
        name=f"memory_{operation}",
        description=description,
        input_schema=object_schema(("file", *properties), file=file, **properties),
        side_effects=SideEffects.WRITE,
        requires_workspace=False,
    )


_DEFINITIONS: Mapping[Operation, ToolDefinition] = {
    "add": _definition(
        "add",
        "Remember something beyond this session: adds one line to a memory file.",
        text=string_property("One plain sentence."),
    ),
    "replace": _definition(
        "replace",
        "Correct a memory file: replaces a text that occurs once in it.",
        old=string_property("The text to replace; it must occur exactly once."),
        new=string_property("The new text; empty removes the old one."),
    ),
    "consolidate": _definition(
        "consolidate",
        "Rewrite a memory file in fewer words: what the new text omits is forgotten.",
        text=string_property("The whole new content of the file."),
    ),
}


class MemoryTool:
    """A tool that changes a memory file by one operation."""

    def __init__(self, memory: Memory, operation: Operation) -> None:
        self.definition = _DEFINITIONS[operation]
        self._memory = memory
        self._operation: Operation = operation

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Change the file."""
        change = read_arguments(_MemoryArguments, arguments)
        rewrite = getattr(change, self._operation)
        text = await self._memory.change(change.file, self._operation, rewrite, context)
        return text_output(text)

    def cancel(self) -> bool:
        """Return True: a write that has started is completed, so its result is returned."""
        return True


def memory_tools(memory: Memory) -> Iterable[Callable[[], Tool]]:
    """Return the factories of the memory tools."""
    return (partial(MemoryTool, memory, operation) for operation in _DEFINITIONS)
