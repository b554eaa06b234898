"""Schemas of Gemini: an OpenAPI dialect with upper-case types, read as JSON Schema.

The dialect says `nullable` where JSON Schema has a list of types, writes limits as strings, and
the values of an enum as strings even where they are numbers. Types may also come as the numbers
that they have in the protocol's definition.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from metis.wire.gemini.key_names import camel
from metis.wire.json_access import Wire

_TYPES = ("", "string", "number", "integer", "boolean", "array", "object", "null")
_LIMITS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
_UNKNOWN_TO_JSON_SCHEMA = frozenset({"nullable", "propertyOrdering", "example"})
_NUMBERS: Mapping[str, Callable[[str], float]] = {"integer": int, "number": float}


def decode_schema(schema: Any) -> Any:
    """The JSON Schema of a schema in the dialect; what is JSON Schema already stays as it is."""
    if not isinstance(schema, dict):
        return schema
    wire = {camel(key): value for key, value in cast("Wire", schema).items()}
    found: Wire = {
        key: _READERS.get(key, _same)(value)
        for key, value in wire.items()
        if key not in _UNKNOWN_TO_JSON_SCHEMA
    }
    kind = found.get("type")
    if kind == "":
        del found["type"]
    read = _NUMBERS.get(str(kind))
    if read is not None and isinstance(found.get("enum"), list):
        found["enum"] = [_number(value, read) for value in found["enum"]]
    if found.get("format") == "enum":
        del found["format"]
    return _nullable(found) if wire.get("nullable") is True else found


def _nullable(schema: Wire) -> Wire:
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = [kind, "null"]
    elif "anyOf" in schema:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema


def _type(value: Any) -> Any:
    if type(value) is int and 0 <= value < len(_TYPES):
        return _TYPES[value]
    if isinstance(value, str):
        return "" if value == "TYPE_UNSPECIFIED" else value.lower()
    return value


def _number(value: Any, read: Callable[[str], float]) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return read(value)
    return value


def _limit(value: Any) -> Any:
    return _number(value, int)


def _same(value: Any) -> Any:
    return value


def _schemas(value: Any) -> Any:
    return [decode_schema(item) for item in cast("list[Any]", value)] if _is_list(value) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _named(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: decode_schema(item) for name, item in cast("Wire", value).items()}


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "type": _type,
    "items": decode_schema,
    "additionalProperties": decode_schema,
    "properties": _named,
    "anyOf": _schemas,
    "prefixItems": _schemas,
    **dict.fromkeys(_LIMITS, _limit),
}


def encode_schema(schema: Mapping[str, Any]) -> Wire:
    """The same in the dialect of a schema that was brought there but for its types."""
    return {key: _WRITERS.get(key, _same)(value) for key, value in schema.items()}


def _capital(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _written(value: Any) -> Any:
    return encode_schema(cast("Wire", value)) if isinstance(value, dict) else value


def _all_written(value: Any) -> Any:
    return [_written(item) for item in cast("list[Any]", value)] if _is_list(value) else value


def _named_written(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _written(item) for name, item in cast("Wire", value).items()}


_WRITERS: Mapping[str, Callable[[Any], Any]] = {
    "type": _capital,
    "items": _written,
    "properties": _named_written,
    "anyOf": _all_written,
    "prefixItems": _all_written,
}
