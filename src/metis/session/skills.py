"""Skills: folders with a `SKILL.md`; models see what they are for, and load the rest by a tool."""

import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from metis.session.bounded import read_bounded

log = logging.getLogger("metis.session")

HEAD_BYTES = 4096
BODY_BYTES = 131_072
MOST_SKILLS = 100
DESCRIPTION_LENGTH = 1024
_FENCE = "---"
_words = re.compile(r"[^\W_]+").findall


class Skill(Struct, frozen=True):
    """A folder with a `SKILL.md`: what it is for, and where its body is."""

    name: str
    description: str
    path: str
    source: Literal["workspace", "global"] = "global"

    def body(self) -> str:
        """Everything behind the head of the file."""
        text = read_bounded(Path(self.path), BODY_BYTES)
        lines = text.splitlines()
        if not lines or lines[0].strip() != _FENCE:
            return text
        end = next((n for n, line in enumerate(lines[1:], 1) if line.strip() == _FENCE), 0)
        return "\n".join(lines[end + 1 :]).strip()


def version_of(body: str) -> str:
    """A short name for the words of a skill, so that a change is seen."""
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def find_skills(home: Path | None, workspace: Path | None) -> tuple[Skill, ...]:
    """All skills by name; of two with one name the one of the workspace counts."""
    found: dict[str, Skill] = {}
    if home is not None:
        found |= {skill.name: skill for skill in _in(home / "skills", "global")}
    if workspace is not None:
        folder = workspace / ".metis" / "skills"
        found |= {skill.name: skill for skill in _in(folder, "workspace")}
    return tuple(found[name] for name in sorted(found))


def matching(skills: Sequence[Skill], text: str) -> frozenset[str]:
    """The skills that a text speaks of: all words of the name are in it."""
    if not skills:
        return frozenset()
    said = set(_words(text.lower()))
    return frozenset(skill.name for skill in skills if said.issuperset(_words(skill.name.lower())))


def _in(folder: Path, source: Literal["workspace", "global"]) -> Iterable[Skill]:
    for path in sorted(folder.glob("*/SKILL.md"))[:MOST_SKILLS]:
        head = read_bounded(path, HEAD_BYTES, is_head=True)
        name = _field(head, "name") or path.parent.name
        if name != path.parent.name:
            log.warning("the skill %s stands in a folder of another name", path.parent.name)
        description = _field(head, "description")[:DESCRIPTION_LENGTH]
        yield Skill(name, description, str(path), source)


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
            return value.strip().strip("\"'")
    return ""
