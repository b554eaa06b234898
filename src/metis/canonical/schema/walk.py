"""The one walker for JSON Schema: subschemas, references, and limits on depth and size.

Everything that checks, compiles or rewrites a schema goes through this module, so that a hostile or
broken schema (endless references, huge unions, deep nesting) is bounded in one place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeGuard, cast
from urllib.parse import unquote

import msgspec

Schema = dict[str, Any]

MAX_PARTS = 10_000
"""How many subschemas a rewriter visits: references that are written out can grow without end."""
MAX_DEPTH = 60
"""How deep a rewriter goes."""

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
    """Return a value that is a schema object, else an empty schema, which accepts anything."""
    return cast("Schema", value) if isinstance(value, dict) else {}


def keyword_shape(keyword: str, value: object) -> Literal["named", "list", "single"] | None:
    """Return how a keyword holds subschemas: by name, in a list, as one; None if it holds none."""
    if keyword in _NAMED and is_object(value):
        return "named"
    if keyword in _LISTS and is_array(value):
        return "list"
    # `additionalProperties: false` is a flag to most readers, not a schema.
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
    """Return the schema objects that the value of a keyword holds."""
    # `rewrite` is called for every subschema, so collecting them is one way to list them.
    collected: list[Any] = []
    map_subschemas(keyword, value, collected.append)
    return [part for part in collected if is_schema(part)]


def is_schema(value: object) -> TypeGuard[Schema]:
    """Return whether a value is a schema object; booleans are schemas, too, but not objects."""
    return isinstance(value, dict)


class Walk:
    """One bounded pass over a schema."""

    def __init__(self, root: object, *, max_parts: int, max_depth: int) -> None:
        self.root = root
        self._max_parts = max_parts
        self._max_depth = max_depth
        self._part_count = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether more subschemas were visited than one pass may read."""
        return self._part_count > self._max_parts

    def visit(self, depth: int) -> bool:
        """Count one subschema; return False if it is too deep or one too many."""
        self._part_count += 1
        return depth <= self._max_depth and not self.is_exhausted

    def resolve(self, reference: str) -> Schema | bool | None:
        """Return what a reference inside this schema points to; None if it points to no schema.

        References to other documents are never loaded.
        """
        if not reference.startswith("#"):
            return None
        target: object = self.root
        # A JSON pointer in a URL fragment: percent-encoded, with ~1 for a slash and ~0 for a tilde.
        for step in unquote(reference[1:]).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if is_array(target):
                inside = key.isdecimal() and int(key) < len(target)
                target = target[int(key)] if inside else None
            else:
                target = as_schema(target).get(key)
        return target if is_schema(target) or isinstance(target, bool) else None


def split_reference(schema: Schema) -> tuple[str, Schema] | None:
    """Return the reference of a schema and the keywords beside it; None if it has no reference."""
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
    """Return a schema as JSON, which serves as the key of caches; None if it is not JSON.

    What is not JSON cannot be sent at all, and is refused where the request body is encoded.
    """
    try:
        return _encode(schema)
    except (TypeError, ValueError, RecursionError):
        return None
