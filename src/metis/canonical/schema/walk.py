"""Traversal of JSON Schema: subschemas, references, and limits on depth and size.

All code that checks, compiles or rewrites schemas uses this module, so that a hostile or broken
schema (endless references, huge unions, deep nesting) is bounded in one place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeGuard, cast
from urllib.parse import unquote

import msgspec

Schema = dict[str, Any]

MAX_PARTS = 10_000
"""How many subschemas a rewriter visits: inlined references can grow exponentially."""
MAX_DEPTH = 60
"""The depth up to which a rewriter visits subschemas."""

_encode = msgspec.json.Encoder().encode

DEFINITIONS = ("$defs", "definitions")
UNIONS = ("anyOf", "oneOf", "allOf")
_SINGLE = frozenset(
    {
        *("additionalProperties", "contains", "else", "if", "items", "not"),
        *("propertyNames", "then"),
    }
)
_LISTS = frozenset({*UNIONS, "prefixItems", "items"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", *DEFINITIONS})

ANNOTATIONS = frozenset(
    {
        *("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions"),
        *("deprecated", "description", "discriminator", "example", "examples"),
        *("propertyOrdering", "readOnly", "title", "writeOnly"),
    }
)
"""Keywords that do not restrict a value."""


def is_object(value: object) -> TypeGuard[dict[object, object]]:
    """Return whether a value is a JSON object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a value is a JSON array."""
    return isinstance(value, list | tuple)


def as_schema(value: object) -> Schema:
    """Return a value if it is a schema object, else an empty schema, which accepts any value."""
    return cast("Schema", value) if isinstance(value, dict) else {}


def keyword_shape(keyword: str, value: object) -> Literal["named", "list", "single"] | None:
    """Return how a keyword contains subschemas: by name, in a list, or one; None if not at all."""
    if keyword in _NAMED and is_object(value):
        return "named"
    if keyword in _LISTS and is_array(value):
        return "list"
    # Most rewriters treat `additionalProperties: false` as a flag, not as a schema.
    if keyword in _SINGLE and (is_object(value) or keyword != "additionalProperties"):
        return "single"
    return None


def map_subschemas(keyword: str, value: Any, rewrite: Callable[[Any], Any]) -> Any:
    """Return the value of a keyword with every subschema in it rewritten."""
    match keyword_shape(keyword, value):
        case "named":
            return {name: rewrite(part) for name, part in value.items()}
        case "list":
            return [rewrite(part) for part in value]
        case "single":
            return rewrite(value)
        case _:
            return value


def subschemas(keyword: str, value: Any) -> list[Schema]:
    """Return the schema objects in the value of a keyword."""
    # `map_subschemas` calls its argument with every subschema, which collects them.
    collected: list[Any] = []
    map_subschemas(keyword, value, collected.append)
    return [part for part in collected if is_schema(part)]


def is_schema(value: object) -> TypeGuard[Schema]:
    """Return whether a value is a schema object; boolean schemas are not."""
    return isinstance(value, dict)


class Walk:
    """One traversal of a schema, with limits on the number and depth of subschemas."""

    def __init__(self, root: object, *, max_parts: int, max_depth: int) -> None:
        self.root = root
        self._max_parts = max_parts
        self._max_depth = max_depth
        self._part_count = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether more than `max_parts` subschemas were visited."""
        return self._part_count > self._max_parts

    def visit(self, depth: int) -> bool:
        """Count one subschema; return False if it exceeds the depth or the number."""
        self._part_count += 1
        return depth <= self._max_depth and not self.is_exhausted

    def resolve(self, reference: str) -> Schema | bool | None:
        """Return the target of a reference inside this schema; None if it is not a schema.

        References to other documents are never loaded.
        """
        if not reference.startswith("#"):
            return None
        target: object = self.root
        # A JSON pointer in a URL fragment: percent-encoded, with ~1 for a slash and ~0 for a tilde.
        for step in unquote(reference[1:]).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if is_array(target):
                is_valid_index = key.isdecimal() and int(key) < len(target)
                target = target[int(key)] if is_valid_index else None
            else:
                target = as_schema(target).get(key)
        return target if is_schema(target) or isinstance(target, bool) else None


def split_reference(schema: Schema) -> tuple[str, Schema] | None:
    """Return the reference of a schema and its other keywords; None if it has no reference."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return None
    return reference, {key: value for key, value in schema.items() if key != "$ref"}


def required_names(schema: Schema) -> set[str]:
    """Return the names of the properties that a schema requires."""
    names = schema.get("required")
    listed = cast("list[object]", names) if isinstance(names, list) else []
    return {name for name in listed if isinstance(name, str)}


def encode_schema(schema: Mapping[str, Any]) -> bytes | None:
    """Return a schema as JSON, as the key of a cache; None if it is not JSON.

    For a schema that is not JSON, encoding the request body raises the error.
    """
    try:
        return _encode(schema)
    except (TypeError, ValueError, RecursionError):
        return None
