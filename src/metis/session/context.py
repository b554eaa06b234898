"""Context: what a model is told before anybody speaks; it knows files and no provider.

The stable part comes first, the part that changes from day to day last, so that caches hit.
"""

from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

from msgspec import Struct

from metis.canonical.blocks import TextBlock
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.session.bounded import read_bounded
from metis.session.skills import Skill, find_skills

AGENTS_BYTES = 32_768
MEMORY_BYTES = 4096
USER_BYTES = 3072


LOAD = "Before you do what one of these is for, read it with `load_skill`.\n"
"""What a model is told above the list of skills."""


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
            _titled("Skills", "\n".join([LOAD, *map(_line, self.skills)]) if self.skills else ""),
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
    base: str = "",
    *,
    workspace: Path | None = None,
    home: Path | None = None,
    today: date | None = None,
) -> Context:
    """The context of a workspace, and of a folder with the memory and the skills of a user."""
    day = "" if today is None else f" Today is {today:%A}, {today.isoformat()}."
    return Context(
        base=base,
        workspace="" if workspace is None else read_bounded(workspace / "AGENTS.md", AGENTS_BYTES),
        skills=find_skills(home, workspace),
        user="" if home is None else read_bounded(home / "USER.md", USER_BYTES),
        memory="" if home is None else read_bounded(home / "MEMORY.md", MEMORY_BYTES),
        facts="" if workspace is None else f"The workspace is {workspace}.{day}",
    )


def instructions(session_id: str, texts: Sequence[str], now: datetime) -> list[Message]:
    """The texts as the SYSTEM messages with which a session begins."""
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
