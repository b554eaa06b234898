"""The tool interface: definition, arguments, context and output of a call."""

import asyncio
import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Struct

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import ToolError
from metis.canonical.tools import ToolDefinition
from metis.tools.workspace import Workspace

log = logging.getLogger("metis.tools")

A = TypeVar("A", bound=Struct)


class ErrorClass(StrEnum):
    """Why a call has an error result."""

    NOT_FOUND = "not_found"
    VALIDATION_ERROR = "validation_error"
    PERMISSION_DENIED = "permission_denied"
    USER_DENIED = "user_denied"
    TIMEOUT = "timeout"
    EXECUTION_ERROR = "execution_error"
    CANCELLED = "cancelled"
    CONFIRMATION_TIMEOUT = "confirmation_timeout"


class ToolFailedError(ToolError):
    """A call failed; its error result contains the text, which is for the model."""

    def __init__(self, text: str, kind: ErrorClass = ErrorClass.EXECUTION_ERROR) -> None:
        self.text = text
        self.kind = kind
        super().__init__(text)


class ToolContext(Struct, frozen=True, kw_only=True):
    """The context of a call; `cancel` is set when the turn is cancelled."""

    session_id: str
    turn_id: str
    # An event, because cancelling the task could stop a tool in the middle of a write.
    cancel: asyncio.Event
    workspace: Workspace | None = None
    tool_use_id: str = ""
    """The id of the call; empty in the context of a turn."""
    log: logging.Logger | logging.LoggerAdapter[logging.Logger] = log


class ToolOutput(Struct, frozen=True, kw_only=True):
    """The output of a call: blocks for the model, and facts for users and programs."""

    content: tuple[ContentBlock, ...]
    success: bool = True
    value: Any = UNSET
    """The result as a structured value."""
    ui: Any = UNSET
    """Data for a user interface to show the result; models never receive it."""
    files_modified: tuple[str, ...] = ()
    command: str | None = None
    """The command that was run."""


class Tool(Protocol):
    """A tool that a model may call; each call gets a new one."""

    @property
    def definition(self) -> ToolDefinition:
        """The definition that is sent to the model."""
        ...

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the call; the arguments match the schema."""
        ...

    def cancel(self) -> bool:
        """Ask the call to end; return true if `execute` will return soon.

        If this returns false, the task that runs `execute` is cancelled.
        """
        ...


def text_output(text: str, **facts: Any) -> ToolOutput:
    """Return an output of one text block."""
    return ToolOutput(content=(TextBlock(text),), **facts)


def read_arguments(kind: type[A], arguments: Mapping[str, Any]) -> A:
    """Convert arguments to a Struct, which also checks limits that the schema cannot state.

    Raises:
        ToolFailedError: the arguments do not match.
    """
    try:
        return msgspec.convert(dict(arguments), kind)
    except msgspec.ValidationError as error:
        raise ToolFailedError(f"{error}.", ErrorClass.VALIDATION_ERROR) from None


def require_workspace(context: ToolContext) -> Workspace:
    """Return the workspace of a call.

    Raises:
        ToolFailedError: the session has no workspace.
    """
    if context.workspace is None:
        raise ToolFailedError("This session has no workspace.", ErrorClass.PERMISSION_DENIED)
    return context.workspace


def object_schema(required: tuple[str, ...], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def string_property(description: str) -> Mapping[str, Any]:
    """Return the schema of a string."""
    return {"type": "string", "description": description}


def integer_property(description: str) -> Mapping[str, Any]:
    """Return the schema of an integer."""
    return {"type": "integer", "description": description}


def boolean_property(description: str) -> Mapping[str, Any]:
    """Return the schema of a boolean."""
    return {"type": "boolean", "description": description}
