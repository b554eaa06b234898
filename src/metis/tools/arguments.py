"""Arguments: what a model wrote, as the typed value that a tool of ours reads."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from metis.tools.tool import ErrorClass, ToolContext, ToolFailedError
from metis.tools.workspace import Workspace

A = TypeVar("A", bound=Struct)


def read(kind: type[A], arguments: Mapping[str, Any]) -> A:
    """The arguments as a Struct; what its types forbid beyond the schema is told to the model."""
    try:
        return msgspec.convert(dict(arguments), kind)
    except msgspec.ValidationError as error:
        raise ToolFailedError(f"{error}.", ErrorClass.VALIDATION_ERROR) from None


def workspace_of(context: ToolContext) -> Workspace:
    """The workspace of a call."""
    if context.workspace is None:
        raise ToolFailedError("This session has no workspace.", ErrorClass.PERMISSION_DENIED)
    return context.workspace


def schema(required: tuple[str, ...], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def string(description: str) -> Mapping[str, Any]:
    """The schema of a text."""
    return {"type": "string", "description": description}


def integer(description: str) -> Mapping[str, Any]:
    """The schema of a whole number."""
    return {"type": "integer", "description": description}


def boolean(description: str) -> Mapping[str, Any]:
    """The schema of a yes or no."""
    return {"type": "boolean", "description": description}
