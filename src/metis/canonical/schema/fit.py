"""Rewriting of tool schemas to what a target accepts, with a list of the changes.

Providers support different parts of JSON Schema: some reject a union at the root, some references,
some boolean schemas or several types. Calls are always checked against the original schema of the
tool, so that a wider schema for the target lets no wrong input through.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec
from msgspec import Struct

from metis.canonical.schema.walk import (
    DEFINITIONS,
    MAX_DEPTH,
    MAX_PARTS,
    UNIONS,
    Schema,
    Walk,
    as_schema,
    encode_schema,
    is_schema,
    map_subschemas,
    required_names,
    split_reference,
)

_encode = msgspec.json.Encoder().encode
_NOT_AT_ROOT = frozenset({"$ref", *UNIONS})
_SIZE_LIMITS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
_NULL = {"type": "null"}
_INLINED = "references were replaced by their definitions"
_TOO_LARGE = "parts beyond the size limit accept anything"


class ToolSchemaRule(Struct, frozen=True, kw_only=True):
    """The part of JSON Schema that a target accepts in the definition of a tool."""

    plain_root: bool = False
    """Whether the root must have `type: object`, without a union or a reference (T107)."""
    references: bool = True
    """Whether a subschema may be a reference (T104)."""
    booleans: bool = True
    """Whether true and false are accepted as schemas (T110)."""
    type_lists: bool = True
    """Whether a subschema may have several types; otherwise `nullable` allows null (T103)."""
    number_enums: bool = True
    """Whether enum values may be numbers, and limits may be floats (T106)."""


_ANY_TOOL = ToolSchemaRule()
_PLAIN_ROOT_ONLY = ToolSchemaRule(plain_root=True)


def fit_tool_schema(
    schema: Mapping[str, Any], rule: ToolSchemaRule
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return a schema as a target accepts it, and the changes; the same object without changes."""
    if rule == _ANY_TOOL or (rule == _PLAIN_ROOT_ONLY and _is_plain_root(schema)):
        return schema, ()
    data = encode_schema(schema)
    if data is None:
        return schema, ()
    fitted, changes = _fit_tool(data, rule)
    return (fitted, changes) if changes else (schema, ())


@lru_cache(maxsize=1024)
def _fit_tool(data: bytes, rule: ToolSchemaRule) -> tuple[Schema, tuple[str, ...]]:
    """Rewrite a tool schema; cached, because every request of a session repeats the schemas."""
    fit = _ToolFit(msgspec.json.decode(data), rule)
    return fit.root(), tuple(fit.changes)


def _is_plain_root(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and _NOT_AT_ROOT.isdisjoint(schema)


class _ToolFit:
    """Rewrites the schema of one tool."""

    def __init__(self, schema: Schema, rule: ToolSchemaRule) -> None:
        self._rule = rule
        self._walk = Walk(schema, max_parts=MAX_PARTS, max_depth=MAX_DEPTH)
        self.changes: dict[str, None] = {}

    def root(self) -> Schema:
        """Return the rewritten schema."""
        schema = as_schema(self._part(self._walk.root, (), 0))
        if self._rule.plain_root and not _is_plain_root(schema):
            schema = self._merge_root(schema, 0)
        return schema

    def _changed(self, change: str) -> None:
        self.changes[change] = None

    def _part(self, part: Any, open_references: tuple[str, ...], depth: int) -> Any:
        """Rewrite a subschema; `open_references` are the references that were followed to it."""
        if isinstance(part, bool) and not self._rule.booleans:
            self._changed("a boolean schema was replaced by an object")
            return {} if part else {"not": {}}
        if not is_schema(part):
            return part
        if not self._walk.visit(depth):
            self._changed(_TOO_LARGE)
            return {}
        if not self._rule.references:
            reference = split_reference(part)
            if reference is not None:
                return self._inline(*reference, open_references, depth)
            if not part.keys().isdisjoint(DEFINITIONS):
                self._changed(_INLINED)
                part = {key: value for key, value in part.items() if key not in DEFINITIONS}
        rewritten = {
            key: map_subschemas(
                key, value, lambda inner: self._part(inner, open_references, depth + 1)
            )
            for key, value in part.items()
        }
        if not self._rule.type_lists:
            self._use_one_type(rewritten)
            self._use_nullable(rewritten)
        if not self._rule.number_enums:
            self._use_strings_and_integers(rewritten)
        return rewritten

    def _inline(
        self, name: str, other_keywords: Schema, open_references: tuple[str, ...], depth: int
    ) -> Any:
        """Replace a reference by its definition; a recursive reference accepts any value."""
        target = self._walk.resolve(name)
        if target is None:
            self._changed(f"{name!r} is not defined in the schema and accepts anything")
            return self._part(other_keywords, open_references, depth + 1)
        self._changed(_INLINED)
        if name in open_references:
            self._changed(f"{name!r} refers to itself and accepts anything there")
            kind = as_schema(target).get("type")
            # Some targets reject an array without `items`.
            any_value = {"type": kind} if isinstance(kind, str) and kind != "array" else {}
            return any_value | self._part(other_keywords, open_references, depth + 1)
        definition = self._part(target, (*open_references, name), depth + 1)
        # Since draft 2019-09 keywords next to a reference apply, too; here they override those of
        # the definition.
        if not other_keywords or not is_schema(definition):
            return definition
        return {**definition, **self._part(other_keywords, open_references, depth + 1)}

    def _use_one_type(self, schema: Schema) -> None:
        """Replace a list of types by one type, `nullable`, or a union."""
        types = schema.get("type")
        if not isinstance(types, list):
            return
        self._changed("a list of types was replaced by `nullable` or by a union")
        others = [name for name in cast("list[Any]", types) if name != "null"]
        del schema["type"]
        if len(others) == 1:
            schema["type"] = others[0]
        elif others and "anyOf" in schema:
            # A subschema can have only one union; that of `anyOf` is more specific than the types.
            self._changed("a list of types beside `anyOf` was dropped")
        elif others:
            schema["anyOf"] = [{"type": name} for name in others]
        if len(others) < len(cast("list[Any]", types)):
            schema["nullable"] = True

    def _use_nullable(self, schema: Schema) -> None:
        """Replace a union with null by `nullable`."""
        # Pydantic and other libraries express an optional value as a union with null.
        for union in ("anyOf", "oneOf"):
            members = schema.get(union)
            if not isinstance(members, list) or _NULL not in members:
                continue
            self._changed("a union with null was replaced by `nullable`")
            others = [member for member in cast("list[Any]", members) if member != _NULL]
            del schema[union]
            if len(others) == 1 and is_schema(others[0]):
                for key, value in others[0].items():
                    schema.setdefault(key, value)
            elif others:
                schema[union] = others
            schema["nullable"] = True

    def _use_strings_and_integers(self, schema: Schema) -> None:
        """Replace numbers in enums by strings, and float limits by integers."""
        values = schema.get("enum")
        if isinstance(values, list) and any(map(_is_number, cast("list[Any]", values))):
            self._changed("numbers of an enum were replaced by strings")
            schema["enum"] = [
                _encode(value).decode() if _is_number(value) else value
                for value in cast("list[Any]", values)
            ]
            schema["type"] = "string"
        for key in _SIZE_LIMITS & schema.keys():
            limit = _integer(schema[key])
            if limit is not None:
                schema[key] = limit
                self._changed("limits were replaced by integers")

    def _merge_root(self, schema: Schema, depth: int) -> Schema:
        """Merge the unions of the root into one object that accepts what any member accepts."""
        if not self._walk.visit(depth):
            self._changed(_TOO_LARGE)
            return {"type": "object"}
        reference = split_reference(schema)
        if reference is not None:
            name, other_keywords = reference
            self._changed("the reference at the root was replaced by its definition")
            return self._merge_root(
                {**as_schema(self._walk.resolve(name)), **other_keywords}, depth + 1
            )
        merged = {key: value for key, value in schema.items() if key not in UNIONS}
        if merged.get("type") != "object":
            self._changed("the root was declared an object")
        merged["type"] = "object"
        for union in UNIONS:
            members = schema.get(union)
            if isinstance(members, list):
                self._changed(f"{union!r} at the root was merged into one object")
                objects = [
                    self._merge_root(as_schema(member), depth + 1)
                    for member in cast("list[Any]", members)
                    if _accepts_objects(member)
                ]
                merged = _merge(merged, objects, needs_all=union == "allOf")
        return merged


def _merge(schema: Schema, objects: list[Schema], *, needs_all: bool) -> Schema:
    """Add the properties of `objects` to an object schema.

    With `needs_all` (`allOf`), a property is required if any of the objects requires it, otherwise
    only if all of them do.
    """
    properties: Schema = dict(as_schema(schema.get("properties")))
    for member in objects:
        for name, part in as_schema(member.get("properties")).items():
            existing = properties.get(name)
            if existing is None:
                properties[name] = part
            elif existing != part:
                properties[name] = _either(existing, part)
    if not needs_all and any("properties" not in member for member in objects):
        # A member without properties accepts any value for those of the others.
        declared = as_schema(schema.get("properties"))
        properties = {name: declared.get(name, {}) for name in properties}
    requirements = [required_names(member) for member in objects] or [set[str]()]
    shared = requirements[0].intersection(*requirements)
    required = required_names(schema) | (set[str]().union(*requirements) if needs_all else shared)
    merged = {**schema, "properties": properties}
    if required:
        listed = [name for name in properties if name in required]
        merged["required"] = [*listed, *sorted(required - properties.keys())]
    return merged


def _accepts_objects(part: Any) -> bool:
    if not is_schema(part):
        return part is True
    types = part.get("type", "object")
    return "object" in (types if isinstance(types, list) else (types,))


def _either(first: Any, second: Any) -> Schema:
    """Return a schema that accepts the values of either of two schemas."""
    union = as_schema(first).get("anyOf") if len(as_schema(first)) == 1 else None
    members: list[Any] = cast("list[Any]", union) if isinstance(union, list) else [first]
    return {"anyOf": members if second in members else [*members, second]}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: Any) -> int | None:
    """Return a float or a numeric string as an integer; None for other values."""
    if not isinstance(value, float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
