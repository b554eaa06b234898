"""The JSON Schema of the canonical form, derived from its types."""

import inspect
from typing import Any

import msgspec

from metis.canonical.message import SCHEMA_VERSION, Message
from metis.canonical.unknown import Extra
from metis.canonical.value import Sealed

_NAMELESS = ("extra", "sealed")


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a message.

    Objects may hold more than is listed: readers keep what they do not know.
    """
    schema = msgspec.json.schema(Message, schema_hook=_foreign)
    for definition in schema["$defs"].values():
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
        definition.pop("additionalProperties", None)
        for name in _NAMELESS:
            definition.get("properties", {}).pop(name, None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"metis canonical message, version {SCHEMA_VERSION}",
        **schema,
    }


def _foreign(kind: type) -> dict[str, Any]:
    if kind in (Extra, Sealed):
        return {"description": "has no name in JSON"}
    raise NotImplementedError(kind)
