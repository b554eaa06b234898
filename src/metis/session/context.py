"""Context: what a model is told before anybody speaks; it knows files and no provider.

The stable part comes first, the part that changes from day to day last, so that caches hit.
"""

from pathlib import Path

from msgspec import Struct

from metis.session.bounded import read_bounded
from metis.session.skills import Skill, find_skills

AGENTS_BYTES = 32_768
MEMORY_BYTES = 4096
USER_BYTES = 3072


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
    return Context(
        base=base,
        workspace="" if workspace is None else read_bounded(workspace / "AGENTS.md", AGENTS_BYTES),
        skills=find_skills(home, workspace),
        user="" if home is None else read_bounded(home / "USER.md", USER_BYTES),
        memory="" if home is None else read_bounded(home / "MEMORY.md", MEMORY_BYTES),
        facts="" if workspace is None else f"The workspace is {workspace}.",
    )


def _titled(title: str, text: str) -> str:
    return f"# {title}\n\n{text}" if text else ""


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _line(skill: Skill) -> str:
    return f"- {skill.name}: {skill.description} ({skill.path})"
