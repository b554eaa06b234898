"""Schemas of Gemini: an OpenAPI dialect with upper-case types, decoded to JSON Schema and back.

The dialect has `nullable` where JSON Schema has a list of types, writes limits as strings, and the
values of an enum as strings even where they are numbers. Types may also come as the numbers that
they have in the protocol's definition.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from metis.canonical.schema.walk import is_schema, map_subschemas
from metis.wire.gemini.key_names import camel
from metis.wire.json_access import Wire

_TYPES = ("", "string", "number", "integer", "boolean", "array", "object", "null")
"""The JSON Schema type of each number in the protocol's enum; the first one is unspecified."""
_LIMITS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
_DIALECT_ONLY = frozenset({"nullable", "propertyOrdering", "example"})
_WITH_SCHEMAS = frozenset({"additionalProperties", "anyOf", "items", "prefixItems", "properties"})
_PARSERS: Mapping[str, Callable[[str], float]] = {"integer": int, "number": float}


def decode_schema(schema: Any) -> Any:
    """Decode a schema of the dialect; what is JSON Schema already stays as it is."""
    if not is_schema(schema):
        return schema
    wire = {camel(key): value for key, value in schema.items()}
    decoded: Wire = {
        key: _decode_keyword(key, value) for key, value in wire.items() if key not in _DIALECT_ONLY
    }
    kind = decoded.get("type")
    if kind == "":
        del decoded["type"]
    parse = _PARSERS.get(str(kind))
    if parse is not None and isinstance(decoded.get("enum"), list):
        decoded["enum"] = [_number(value, parse) for value in decoded["enum"]]
    # Gemini marks the strings of an enum with a format that JSON Schema does not have.
    if decoded.get("format") == "enum":
        del decoded["format"]
    return _with_null(decoded) if wire.get("nullable") is True else decoded


def encode_schema(schema: Mapping[str, Any]) -> Wire:
    """Encode a schema in the dialect; `fit_tool_schema` has replaced all but its types before."""
    return {key: _encode_keyword(key, value) for key, value in schema.items()}


def _decode_keyword(key: str, value: Any) -> Any:
    if key in _WITH_SCHEMAS:
        return map_subschemas(key, value, decode_schema)
    if key == "type":
        return _decode_type(value)
    return _number(value, int) if key in _LIMITS else value


def _decode_type(value: Any) -> Any:
    if type(value) is int and 0 <= value < len(_TYPES):
        return _TYPES[value]
    if isinstance(value, str):
        return "" if value == "TYPE_UNSPECIFIED" else value.lower()
    return value


def _number(value: Any, parse: Callable[[str], float]) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return parse(value)
    return value


def _with_null(schema: Wire) -> Wire:
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = [kind, "null"]
    elif "anyOf" in schema:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema


def _encode_keyword(key: str, value: Any) -> Any:
    if key in _WITH_SCHEMAS:
        return map_subschemas(key, value, _encode_part)
    return value.upper() if key == "type" and isinstance(value, str) else value


def _encode_part(part: Any) -> Any:
    return encode_schema(part) if is_schema(part) else part
