"""Context: what a model is told before anybody speaks; it knows files and no provider.

The stable part comes first, the part that changes from day to day last, so that caches hit.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

log = logging.getLogger("metis.session")

AGENTS_BYTES = 32_768
MEMORY_BYTES = 4096
USER_BYTES = 3072
SKILL_HEAD_BYTES = 4096
MOST_SKILLS = 100
_FENCE = "---"


class Skill(Struct, frozen=True):
    """A folder with a `SKILL.md`: what it is for, and where its body is."""

    name: str
    description: str
    path: str


class Context(Struct, frozen=True, kw_only=True):
    """The parts of the instructions, as plain text."""

    base: str = ""
    workspace: str = ""
    """What `AGENTS.md` says."""
    skills: tuple[Skill, ...] = ()
    user: str = ""
    """What `USER.md` says of the person."""
    memory: str = ""
    """What `MEMORY.md` remembers."""
    facts: str = ""
    """Where and when the work is done."""

    @property
    def stable(self) -> str:
        """What stays the same from turn to turn and from session to session."""
        return _joined(
            self.base,
            _titled("Instructions of the workspace", self.workspace),
            _titled("Skills", "\n".join(_line(skill) for skill in self.skills)),
        )

    @property
    def volatile(self) -> str:
        """What may be another tomorrow."""
        return _joined(
            _titled("The user", self.user),
            _titled("Memory", self.memory),
            _titled("The workspace", self.facts),
        )

    def texts(self) -> list[str]:
        """One text for each SYSTEM message, the stable one first; empty ones are left out."""
        return [text for text in (self.stable, self.volatile) if text]


def read_context(
    base: str = "", *, workspace: Path | None = None, home: Path | None = None
) -> Context:
    """The context of a workspace, and of a folder with the memory and the skills of a user."""
    skill_folders = [
        folder / "skills" for folder in (home, workspace and workspace / ".metis") if folder
    ]
    return Context(
        base=base,
        workspace="" if workspace is None else _bounded(workspace / "AGENTS.md", AGENTS_BYTES),
        skills=tuple(_skills(skill_folders)),
        user="" if home is None else _bounded(home / "USER.md", USER_BYTES),
        memory="" if home is None else _bounded(home / "MEMORY.md", MEMORY_BYTES),
        facts="" if workspace is None else f"The workspace is {workspace}.",
    )


def _skills(folders: Iterable[Path]) -> Iterable[Skill]:
    """The skills of some folders, by name; of two with one name the later folder's counts."""
    found: dict[str, Skill] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/SKILL.md"))[:MOST_SKILLS]:
            head = _bounded(path, SKILL_HEAD_BYTES)
            name = _field(head, "name") or path.parent.name
            found[name] = Skill(name, _field(head, "description"), str(path))
    return (found[name] for name in sorted(found))


def _field(head: str, name: str) -> str:
    """A field of the lines between two fences at the top of a file."""
    lines = head.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return ""
    for line in lines[1:]:
        if line.strip() == _FENCE:
            break
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _bounded(path: Path, limit: int) -> str:
    """The text of a file up to a limit; a file that is not there is empty, a longer one is told."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        log.warning("%s cannot be read: %s", path.name, error.strerror)
        return ""
    if len(data) > limit:
        log.warning("%s is longer than %d bytes: the rest is left out", path.name, limit)
    return data[:limit].decode("utf-8", "ignore").strip()


def _titled(title: str, text: str) -> str:
    return f"# {title}\n\n{text}" if text else ""


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _line(skill: Skill) -> str:
    return f"- {skill.name}: {skill.description} ({skill.path})"
