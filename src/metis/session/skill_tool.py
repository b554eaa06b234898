"""load_skill: the text of a skill, brought into the conversation when a model asks for it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.load import token_table
from metis.events import Bus
from metis.events.house import SkillLoaded
from metis.session.skills import Skill, version_of
from metis.session.trace import Trace
from metis.tools import ErrorClass, ToolContext, ToolFailedError, ToolOutput
from metis.tools.arguments import read, schema, string
from metis.tools.tool import said


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What load_skill takes."""

    name: str


class LoadSkill:
    """Gives the text of a skill."""

    definition = ToolDefinition(
        name="load_skill",
        description="Read the text of a skill of the list before you do what it is for.",
        input_schema=schema(("name",), name=string("The name in the list of skills.")),
        side_effects=SideEffects.READ,
        requires_workspace=False,
    )

    def __init__(self, skills: Sequence[Skill], bus: Bus | None = None) -> None:
        self._skills = {skill.name: skill for skill in skills}
        self._bus = bus

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Read the skill."""
        asked = read(Arguments, arguments)
        skill = self._skills.get(asked.name)
        if skill is None:
            known = ", ".join(self._skills)
            text = f"There is no skill named {asked.name!r}; there are: {known}."
            raise ToolFailedError(text, ErrorClass.NOT_FOUND)
        body = await asyncio.to_thread(skill.body)
        if not body:
            raise ToolFailedError(f"The skill {skill.name} has no text.")
        version = version_of(body)
        loaded = SkillLoaded(
            skill_id=skill.name,
            skill_version=version,
            load_reason="on_demand",
            load_size_tokens=round(token_table().rates("").of_text(body)),
            source=skill.source,
            triggered_by_tool_use_id=context.tool_use_id or None,
        )
        Trace(self._bus, context.session_id, context.turn_id).emit(loaded)
        return said(body, value={"skill": skill.name, "version": version})

    def cancel(self) -> bool:
        """Nothing is left behind."""
        return False
