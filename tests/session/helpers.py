"""Options, a tool and event helpers for session tests."""

from collections.abc import Mapping
from typing import Any

from metis.canonical import SideEffects, ToolDefinition
from metis.session import Options, Session, TurnEvent
from metis.tools import Registry, ToolContext, ToolOutput
from metis.tools.tool import text_output
from metis.transport import Retry
from session.fake import Fake

SONNET = "anthropic:claude-sonnet-4-6"
GPT = "openai:gpt-5"


class ReadFile:
    """A tool that returns a fixed text."""

    ran: list[Mapping[str, Any]] = []  # noqa: RUF012 - shared by all on purpose, cleared by tests

    @property
    def definition(self) -> ToolDefinition:
        schema = {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        }
        return ToolDefinition(
            "read_file", "Reads a file.", schema, SideEffects.READ, requires_workspace=False
        )

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        del context
        self.ran.append(arguments)
        return text_output(f"contents of {arguments['path']}")

    def cancel(self) -> bool:
        return False


def options(fake: Fake, **fields: Any) -> Options:
    given: dict[str, Any] = {
        "base_urls": fake.base_urls,
        "retry": Retry(attempts=1),
        "tools": Registry(ReadFile),
    }
    return Options(**given | fields)


async def events_of(session: Session, prompt: Any) -> list[TurnEvent]:
    return [event async for event in session.send(prompt)]
