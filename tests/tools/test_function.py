"""Tools from Python functions: definitions, arguments, injected parameters, results, errors."""

import asyncio
import threading
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pydantic
import pytest

import metis
from metis.canonical import (
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    new_session_id,
    new_tool_use_id,
)
from metis.canonical.errors import DuplicateToolError, InvalidValueError, ToolDefinitionError
from metis.canonical.message import Message
from metis.canonical.tools import SideEffects
from metis.tools import (
    Dispatcher,
    ErrorClass,
    FunctionTool,
    Registry,
    ToolContext,
    ToolFailedError,
    ToolOutput,
    Workspace,
    error_class,
    tool,
)

pytestmark = pytest.mark.anyio


class Sky(Enum):
    SNOW = "snow"
    SUN = "sun"


@dataclass
class Point:
    x: int
    y: float = 0.5
    tags: list[str] = field(default_factory=list[str])


class Size(TypedDict, total=False):
    width: int


class Town(pydantic.BaseModel):
    name: str
    centre: "Centre | None" = None


class Centre(pydantic.BaseModel):
    size: int = pydantic.Field(ge=0)


def schema(function: Any) -> dict[str, Any]:
    """Return the schema of the parameters."""
    return dict(FunctionTool(function).definition.input_schema["properties"])


async def call(
    given: Any, arguments: dict[str, Any], workspace: Workspace | None = None
) -> Message:
    """Run one call through a dispatcher, as a session does."""
    block = ToolUseBlock(id=new_tool_use_id(), name=given.definition.name, input=arguments)
    context = ToolContext(
        session_id=new_session_id(), turn_id="1", cancel=asyncio.Event(), workspace=workspace
    )
    (message,) = await Dispatcher(Registry(given)).run([block], context)
    return message


def text(message: Message) -> str:
    """Return the text of a result."""
    (result,) = message.content
    assert isinstance(result, ToolResultBlock)
    return "".join(part.text for part in result.content if isinstance(part, TextBlock))


def test_a_definition_comes_from_the_signature_and_the_docstring() -> None:
    @tool
    def weather(town: str, days: int = 1, *, sky: Sky | None = None) -> str:
        """Return the weather of a town.

        More about it.

        Args:
            town: the name,
                in English.
            days (int): how many days ahead.

        Returns:
            The weather.
        """
        return f"{town} {days} {sky}"

    definition = weather.definition
    assert definition.name == "weather"
    assert definition.description == "Return the weather of a town.\n\nMore about it."
    assert definition.side_effects is SideEffects.NONE
    assert not definition.requires_workspace
    assert definition.input_schema == {
        "type": "object",
        "properties": {
            "town": {"type": "string", "description": "the name, in English."},
            "days": {"type": "integer", "description": "how many days ahead. (default: 1)"},
            "sky": {"enum": ["snow", "sun", None]},
        },
        "required": ["town"],
        "additionalProperties": False,
    }
    assert weather("Oslo") == "Oslo 1 None"


def test_descriptions_come_from_fields_and_annotations_too() -> None:
    def search(query: str, limit: Annotated[int, "the most results"] = 3) -> None:
        """Search.

        :param query: what to look for
        :returns: nothing
        """

    assert schema(search) == {
        "query": {"type": "string", "description": "what to look for"},
        "limit": {"type": "integer", "description": "the most results"},
    }


def test_types_become_schemas_that_every_provider_accepts() -> None:
    def place(
        point: Point, size: Size, town: Town, kind: Literal["a", "b"], rest: dict[str, int]
    ) -> None: ...

    described = schema(place)
    assert described["point"]["properties"]["x"] == {"type": "integer"}
    assert described["point"]["required"] == ["x"]
    assert described["size"]["properties"] == {"width": {"type": "integer"}}
    assert described["town"]["properties"]["centre"]["type"] == ["object", "null"]
    assert described["kind"] == {"enum": ["a", "b"]}
    assert described["rest"]["type"] == "object"


async def test_arguments_arrive_as_the_types_of_the_function() -> None:
    received: list[object] = []

    @tool
    def place(point: Point, town: Town, sky: Sky = Sky.SUN) -> None:
        """Place a point."""
        received.extend([point, town, sky])

    arguments = {"point": {"x": 1}, "town": {"name": "Oslo", "centre": {"size": 2}}, "sky": "snow"}
    assert error_class(await call(place, arguments)) is None
    assert received == [Point(1), Town(name="Oslo", centre=Centre(size=2)), Sky.SNOW]


async def test_arguments_that_only_the_type_refuses_are_reported_to_the_model() -> None:
    @tool
    def place(town: Town) -> None:
        """Place a town."""

    message = await call(place, {"town": {"name": "Oslo", "centre": {"size": -1}}})
    assert error_class(message) is ErrorClass.VALIDATION_ERROR
    assert "$.town: centre.size: Input should be greater than or equal to 0" in text(message)


async def test_defaults_are_those_of_the_function() -> None:
    marker = object()

    @tool
    def check(value: Any = marker) -> bool:
        """Check."""
        return value is marker

    assert text(await call(check, {})) == "true"


async def test_context_and_workspace_are_injected(tmp_path: Path) -> None:
    @tool
    async def look(path: str, context: ToolContext, workspace: Workspace) -> str:
        """Read a file."""
        return workspace.read_bytes(path, 10).decode() + context.turn_id

    assert list(look.definition.input_schema["properties"]) == ["path"]
    assert look.definition.requires_workspace
    (tmp_path / "a.txt").write_text("hi")
    workspace = Workspace(tmp_path)
    try:
        assert text(await call(look, {"path": "a.txt"}, workspace)) == "hi1"
    finally:
        workspace.close()
    assert error_class(await call(look, {"path": "a.txt"})) is ErrorClass.PERMISSION_DENIED


async def test_a_blocking_function_does_not_stop_the_loop() -> None:
    loop, started, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    @tool
    def wait() -> str:
        """Block until the loop has run something else."""
        loop.call_soon_threadsafe(started.set)
        return "released" if release.wait(60) else "stuck"

    running = asyncio.create_task(call(wait, {}))
    await started.wait()
    release.set()  # only reached if the loop runs while the function blocks
    assert text(await running) == "released"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("plain", "plain"),
        (None, "(no output)"),
        ({"a": 1}, '{"a":1}'),
        (Point(1), '{"x":1,"y":0.5,"tags":[]}'),
        (Town(name="Oslo"), '{"name":"Oslo","centre":null}'),
        ([1, 2], "[1,2]"),
        (TextBlock("block"), "block"),
        ([TextBlock("a"), TextBlock("b")], "ab"),
        (ToolOutput(content=(TextBlock("out"),)), "out"),
    ],
)
async def test_results_become_text_or_blocks(result: Any, expected: str) -> None:
    @tool
    def give() -> Any:
        """Give."""
        return result

    assert text(await call(give, {})) == expected


async def test_a_result_without_a_json_form_is_an_error_result() -> None:
    @tool
    def give() -> object:
        """Give."""
        return object()

    assert error_class(await call(give, {})) is ErrorClass.EXECUTION_ERROR


async def test_only_a_tool_error_shows_its_text_to_the_model() -> None:
    @tool
    def fail(secret: bool) -> None:  # noqa: FBT001 - a parameter of a tool
        """Fail."""
        raise ValueError("key=abc") if secret else ToolFailedError("No such town.")

    assert "abc" not in text(await call(fail, {"secret": True}))
    assert text(await call(fail, {"secret": False})) == "No such town."


def test_a_parameter_without_a_type_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def echo(x): return x", namespace)  # noqa: S102 - the type checker refuses it here
    with pytest.raises(InvalidValueError) as caught:
        FunctionTool(namespace["echo"])
    assert "the parameter 'x' of echo has no type; write `x: str`" in str(caught.value)


def test_parameters_without_a_name_are_refused() -> None:
    def spread(*values: int) -> None: ...

    with pytest.raises(InvalidValueError, match="named parameters only"):
        FunctionTool(spread)


def test_a_type_without_a_json_form_is_refused() -> None:
    def take(lock: threading.Event) -> None: ...

    with pytest.raises(InvalidValueError, match="cannot be described as JSON"):
        FunctionTool(take)


def test_tool_names_are_valid_for_every_provider() -> None:
    def getWeather() -> None:  # noqa: N802 - the subject of the test
        """Get."""

    with pytest.raises(ToolDefinitionError):
        Registry(FunctionTool(getWeather))
    assert Registry(tool(name="get_weather")(getWeather)).get("get_weather") is not None


def test_tools_option_accepts_functions_classes_and_registries() -> None:
    def plain(town: str) -> str:
        """Return the town."""
        return town

    registry = metis.Options(tools=[plain, tool(name="other")(plain)]).registry
    assert registry is not None
    assert list(registry) == ["plain", "other"]
    assert metis.Options(tools=registry).registry is registry
    with pytest.raises(DuplicateToolError):
        metis.Options(tools=[plain, plain])
    wrong: Any = [3]
    with pytest.raises(InvalidValueError, match=r"\$\.tools\[0\]: expected a function"):
        metis.Options(tools=wrong)
    text_instead: Any = "plain"
    with pytest.raises(InvalidValueError, match=r"\$\.tools: expected a list of functions"):
        metis.Options(tools=text_instead)
