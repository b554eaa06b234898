"""Tools from typed Python functions: the signature and the docstring become the definition."""

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, ParamSpec, TypeVar, cast, get_type_hints, overload

import msgspec
from msgspec import UNSET, Struct, UnsetType

from metis.canonical.blocks import Block, ContentBlock, TextBlock
from metis.canonical.errors import InvalidValueError, ToolError
from metis.canonical.schema.python_types import convert, described, schema_of, to_json_value
from metis.canonical.schema.widen import widen_schema
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.tool import ErrorClass, Tool, ToolContext, ToolFailedError, ToolOutput
from metis.tools.workspace import Workspace

P = ParamSpec("P")
R = TypeVar("R")

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):?$")
_GOOGLE_PARAMETER = re.compile(r"^\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
_FIELD_PARAMETER = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


class FunctionTool(Generic[P, R]):
    """A function that models may call; Python code calls it like the function itself.

    Created by `metis.tool`.
    """

    definition: ToolDefinition

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        side_effects: SideEffects | str = SideEffects.NONE,
    ) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = name or getattr(function, "__name__", type(function).__name__)
        signature = _Signature(function, self.__name__)
        self._signature = signature
        self.definition = ToolDefinition(
            name=self.__name__,
            description=description or signature.description or f"Call {self.__name__}.",
            input_schema=signature.input_schema(),
            side_effects=SideEffects(side_effects),
            requires_workspace=signature.takes_workspace,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.__name__}>"

    def make(self) -> Tool:
        """Return the tool for one call."""
        return _FunctionCall(self.definition, self.function, self._signature)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: SideEffects | str = SideEffects.NONE,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    side_effects: SideEffects | str = SideEffects.NONE,
) -> Any:
    """Make a typed function a tool that models may call: `@metis.tool`.

    The docstring becomes the description, its `Args:` section and the texts of `Annotated` describe
    the parameters. Types may be dataclasses, TypedDicts, enums, literals, Structs and pydantic
    models. A parameter of type `ToolContext` gets the context of the call and one of type
    `Workspace` the directory of the session; models see neither. A plain function runs in a thread.
    A function that raises `metis.tools.ToolFailedError` sends its text to the model; of any other
    exception the model gets the class only, since a message may hold secrets, and the log has all.

    Args:
        function: the function; it may be async.
        name: the name for models; by default the function's.
        description: the description for models; by default the docstring.
        side_effects: the strongest effect. Calls of a tool that writes, executes or changes
            something over the network are confirmed by `Options.confirmation`.

    Raises:
        InvalidValueError: a parameter has no type, or one that JSON cannot express.
    """

    def make(target: Callable[..., Any]) -> FunctionTool[..., Any]:
        if not callable(target):
            fault = f"expected a function, got {type(target).__name__}"
            raise InvalidValueError(fault, path="$.function")
        return FunctionTool(target, name=name, description=description, side_effects=side_effects)

    return make if function is None else make(function)


class _Signature:
    """The parameters of a function: those that a model fills, and those that are injected."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self.description, texts = _read_docstring(inspect.getdoc(function) or "")
        self.injected: dict[str, type] = {}
        fields: list[tuple[str, Any, Any]] = []
        for parameter, hint in _parameters(function, name):
            if hint in (ToolContext, Workspace):
                self.injected[parameter.name] = hint
                continue
            kind = described(hint, _with_default(texts.get(parameter.name, ""), parameter.default))
            if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, kind, msgspec.NODEFAULT))
            else:
                # Unset if omitted, so that the function uses its default, which JSON may not have.
                fields.append((parameter.name, kind | UnsetType, UNSET))
        self.arguments = msgspec.defstruct(
            name, cast("Any", fields), kw_only=True, forbid_unknown_fields=True
        )

    @property
    def takes_workspace(self) -> bool:
        return Workspace in self.injected.values()

    def input_schema(self) -> Mapping[str, Any]:
        schema = schema_of(self.arguments)
        # The schemas of Python types may have keywords outside of the tool subset.
        return {**widen_schema(schema), "additionalProperties": False}

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Return the keyword arguments of a call."""
        try:
            values: Struct = convert(dict(arguments), self.arguments)
        except InvalidValueError as error:
            text = f"The arguments of {self.name} do not match its types: {error}"
            raise ToolFailedError(text, ErrorClass.VALIDATION_ERROR) from None
        keywords = {
            field: value
            for field in self.arguments.__struct_fields__
            if (value := getattr(values, field)) is not UNSET
        }
        for parameter, kind in self.injected.items():
            keywords[parameter] = context if kind is ToolContext else context.workspace
        return keywords


class _FunctionCall:
    """One call of a function."""

    def __init__(
        self, definition: ToolDefinition, function: Callable[..., Any], signature: _Signature
    ) -> None:
        self.definition = definition
        self._function = function
        self._signature = signature

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call the function; its result is sent to the model as text or as JSON."""
        keywords = self._signature.bind(arguments, context)
        if inspect.iscoroutinefunction(self._function):
            result: object = await self._function(**keywords)
        else:
            # In a thread: a blocking function must not stop other sessions of the event loop.
            result = await asyncio.to_thread(self._function, **keywords)
            if inspect.isawaitable(result):
                result = await result
        return _to_output(result, self.definition.name)

    def cancel(self) -> bool:
        """Return False: the task is cancelled; the result of a function in a thread is ignored."""
        return False


def _parameters(function: Callable[..., Any], name: str) -> list[tuple[inspect.Parameter, Any]]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        fault = f"the annotations of {name} cannot be read: {error}"
        raise InvalidValueError(fault, path=f"$.{name}") from None
    parameters: list[tuple[inspect.Parameter, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            fault = f"a tool has named parameters only, and {parameter} of {name} is none"
            raise InvalidValueError(fault, path=f"$.{name}.{parameter.name}")
        if parameter.name not in hints:
            fault = (
                f"the parameter {parameter.name!r} of {name} has no type; "
                f"write `{parameter.name}: str` or another type"
            )
            raise InvalidValueError(fault, path=f"$.{name}.{parameter.name}")
        parameters.append((parameter, hints[parameter.name]))
    return parameters


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description of a docstring and the descriptions of its parameters."""
    description: list[str] = []
    parameters: dict[str, str] = {}
    section, current = "", ""
    for line in text.splitlines():
        stripped = line.strip()
        header = _SECTION.match(stripped)
        field = _FIELD_PARAMETER.match(stripped)
        if field:
            section, current = "Args", field[1]
            parameters[current] = field[2]
        elif stripped.startswith(":") or (header and not line.startswith(" ")):
            section, current = (header[1] if header else "other"), ""
        elif not section:
            description.append(line)
        elif section in ("Args", "Arguments", "Parameters"):
            entry = _GOOGLE_PARAMETER.match(stripped)
            if entry and _indent(line) <= _PARAMETER_INDENT:
                current = entry[1]
                parameters[current] = entry[2]
            elif current and stripped:
                parameters[current] = f"{parameters[current]} {stripped}".strip()
    return "\n".join(description).strip(), parameters


_PARAMETER_INDENT = 4
"""The maximum indentation of entries of `Args:`; lines that are indented more continue one."""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _with_default(text: str, default: object) -> str | None:
    """Return the description of a parameter with its default, if that is a plain value."""
    if isinstance(default, str | int | float) and not isinstance(default, Enum):
        text = f"{text} (default: {msgspec.json.encode(default).decode()})".strip()
    return text or None


def _to_output(result: object, name: str) -> ToolOutput:
    if isinstance(result, ToolOutput):
        return result
    if result is None:
        return ToolOutput(content=())
    if isinstance(result, str):
        return ToolOutput(content=(TextBlock(result),))
    blocks = _blocks(result)
    if blocks is not None:
        return ToolOutput(content=blocks)
    try:
        value = to_json_value(result)
    except InvalidValueError as error:
        raise ToolError(f"{name} returned what has no form in JSON: {error}") from None
    return ToolOutput(content=(TextBlock(msgspec.json.encode(value).decode()),), value=value)


def _blocks(result: object) -> tuple[ContentBlock, ...] | None:
    items = cast("Sequence[object]", result) if isinstance(result, Sequence) else (result,)
    if items and all(isinstance(item, Block) for item in items):
        return cast("tuple[ContentBlock, ...]", tuple(items))
    return None
