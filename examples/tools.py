"""Define a tool, check arguments against its schema, and run calls with confirmation."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metis import (
    ImageBlock,
    ImageSource,
    Message,
    SideEffects,
    TextBlock,
    ToolDefinition,
    ToolSet,
    ToolUseBlock,
    canonical,
    new_session_id,
    new_tool_use_id,
)
from metis.tools import (
    Answer,
    Ask,
    Confirmation,
    Dispatcher,
    ErrorClass,
    Factory,
    Question,
    Registry,
    Rule,
    Tool,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    Verdict,
    Watcher,
    Workspace,
    WorkspaceError,
    embed,
    error_class,
    plugin_tools,
)

weather = ToolDefinition(
    name="weather",
    description="Return the weather of a town.",
    input_schema={
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
    },
    side_effects=SideEffects.NETWORK,
    requires_workspace=False,
)
tools = ToolSet([weather])
assert tools["weather"] is weather
assert tools.check_input("weather", {"town": "Oslo"}) == []
print(tools.check_input("weather", {"city": "Oslo"}))
assert canonical.SideEffects is SideEffects


class Weather:
    """A tool: its definition, and the function that runs a call."""

    definition = weather

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Return the weather; a failure is reported to the model."""
        context.log.info("asked for %s", arguments["town"])
        if arguments["town"] != "Oslo":
            raise ToolFailedError(f"There is no weather station in {arguments['town']}.")
        return ToolOutput(content=(TextBlock("Snow."),), value={"sky": "snow"})

    def cancel(self) -> bool:
        """Return whether `execute` ends soon; here the task is cancelled."""
        return False


def make_weather() -> Tool:
    """Return a new tool for each call."""
    return Weather()


async def decide(question: Question) -> Answer:
    """Allow calls about Oslo, as a user at a screen would."""
    is_fine = question.call.input["town"] != "Paris"
    return Answer(Verdict.ALLOW_ONCE) if is_fine else Answer(Verdict.DENY, "not Paris, please")


class Log:
    """Prints what happens to each call."""

    def on_call_started(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        """Report a call that starts."""
        print("start", call.input, definition.name)

    def on_call_ended(self, call: ToolUseBlock, message: Message, latency_ms: int) -> None:
        """Report the result of a call."""
        print("end", call.input, error_class(message), latency_ms >= 0)

    def on_question(self, question: Question) -> None:
        """Report that the user has to decide."""
        print("question", question.call.input)

    def on_answer(self, question: Question, answer: Answer | None) -> None:
        """Report what the user decided."""
        print("answer", question.call.input, answer and answer.verdict)

    def on_invalid_arguments(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        """Report arguments that do not match the schema."""
        print("invalid", call.input, problems)


async def run_calls() -> None:
    """Run four calls: one works, one fails, one is denied, one has wrong arguments."""
    factory: Factory = make_weather
    ask: Ask = decide
    watcher: Watcher = Log()
    confirmation = Confirmation(ask, tools={"weather": Rule.ASK})
    dispatcher = Dispatcher(Registry(factory, *plugin_tools()), confirmation)
    context = ToolContext(session_id=new_session_id(), turn_id="1", cancel=asyncio.Event())
    inputs = ({"town": "Oslo"}, {"town": "Bergen"}, {"town": "Paris"}, {"city": "Oslo"})
    calls = [ToolUseBlock(id=new_tool_use_id(), name="weather", input=each) for each in inputs]
    results = await dispatcher.run(calls, context, watcher)
    assert [error_class(result) for result in results] == [
        None,
        ErrorClass.EXECUTION_ERROR,
        ErrorClass.USER_DENIED,
        ErrorClass.VALIDATION_ERROR,
    ]


asyncio.run(run_calls())

# Files are read inside of one directory only.
with tempfile.TemporaryDirectory() as directory:
    (Path(directory) / "owl.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    workspace = Workspace(directory)
    image = ImageBlock(ImageSource("file_ref", "owl.png"), "image/png")
    (embedded,) = embed((image,), workspace)
    assert isinstance(embedded, ImageBlock)
    assert embedded.source.kind == "base64"
    try:
        workspace.read_bytes("../secret", 100)
    except WorkspaceError as error:
        print(error.reason)
    workspace.close()
