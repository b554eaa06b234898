"""Widening of schemas of MCP servers to the tool subset; the result accepts all valid inputs.

Keywords that the subset does not have are dropped and quoted in the description, so that the model
can still follow them; the server itself checks its inputs.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from metis.canonical.schema.subset import FORMATS, TYPES, check_schema
from metis.canonical.schema.walk import (
    ANNOTATIONS,
    Schema,
    Walk,
    as_schema,
    is_array,
    is_schema,
    split_reference,
)

_MAX_PARTS = 5_000
"""How many subschemas are visited: inlined references can grow exponentially."""
_MAX_DEPTH = 24
_MAX_NOTE = 200
# Keywords without a note: those with their own handling, and annotations that do not help a model.
_SILENT = (ANNOTATIONS - {"default", "discriminator", "example", "propertyOrdering"}) | {
    *("additionalProperties", "anyOf", "const", "enum", "format", "items", "nullable", "oneOf"),
    *("properties", "required", "type"),
}


def widen_schema(schema: Mapping[str, Any]) -> Schema:
    """Return a schema of the tool subset that accepts every object of the original."""
    widened = _Widening(dict(schema)).part(schema, (), 0)
    widened["type"] = "object"
    # A server may send any JSON. If the result is not in the subset, the tool gets a free-form
    # input and remains usable.
    if check_schema(widened):
        return {"type": "object", "description": f"({_note('schema', schema)})"}
    return widened


class _Widening:
    """Rewrites one schema."""

    def __init__(self, root: Schema) -> None:
        self._walk = Walk(root, max_parts=_MAX_PARTS, max_depth=_MAX_DEPTH)

    def part(self, original: object, open_references: tuple[str, ...], depth: int) -> Schema:
        """Widen a subschema; `open_references` are the references that were followed to it."""
        is_within_limits = self._walk.visit(depth)
        if not is_schema(original):
            return {"description": "(no value is valid here)"} if original is False else {}
        if not is_within_limits:
            return {"description": "(more is not shown)"}
        schema, open_references, depth = self._flatten(original, open_references, depth)
        notes = [_note(key, value) for key, value in schema.items() if key not in _SILENT]
        part = _scalar_keywords(schema, notes)
        properties = schema.get("properties")
        if is_schema(properties):
            part["properties"] = {
                name: self.part(inner, open_references, depth + 1)
                for name, inner in properties.items()
            }
        # With `prefixItems`, `items` applies only to later items; for all items it would be
        # narrower.
        if is_schema(schema.get("items")) and "prefixItems" not in schema:
            part["items"] = self.part(schema["items"], open_references, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                members = _schemas(schema[keyword])
                branches = [self.part(member, open_references, depth + 1) for member in members]
                part = _both(part, _any_of(branches, keyword, notes))
        if "required" in part:
            part["required"] = list(dict.fromkeys(part["required"]))
        return _described(part, schema.get("description"), notes)

    def _flatten(
        self, original: Schema, open_references: tuple[str, ...], depth: int
    ) -> tuple[Schema, tuple[str, ...], int]:
        """Merge the target of its reference and the members of its `allOf` into a schema."""
        schema = dict(original)
        while (reference := split_reference(schema)) is not None:
            name, schema = reference
            target = self._walk.resolve(name)
            # A chain of references costs its square, because each is compared with those before.
            is_visited = name in open_references or not self._walk.visit(depth + 1)
            if not is_schema(target) or is_visited:
                schema.setdefault("description", f"(like {name.rpartition('/')[2]})")
                break
            open_references, depth = (*open_references, name), depth + 1
            schema = _both(schema, target)
        for branch in _schemas(schema.pop("allOf", None)):
            # The member is flattened first, so that its references are merged, too.
            if self._walk.visit(depth + 1):
                flat, _, _ = self._flatten(branch, open_references, depth + 1)
                schema = _both(schema, flat)
        return schema, open_references, depth


def _scalar_keywords(schema: Schema, notes: list[str]) -> Schema:
    """Return the keywords of the subset that contain no schemas."""
    part: Schema = {}
    is_nullable = schema.get("nullable") is True
    type_names = _list(schema.get("type"))
    types = [name for name in type_names if name in TYPES]
    if types and len(types) == len(type_names):
        unique = list(dict.fromkeys([*types, "null"] if is_nullable else types))
        part["type"] = unique[0] if len(unique) == 1 else unique
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        part["enum"] = [*values, None] if is_nullable else values
    if isinstance(schema.get("required"), list):
        names = [name for name in schema["required"] if isinstance(name, str)]
        part["required"] = list(dict.fromkeys(names))
    if schema.get("format") in FORMATS:
        part["format"] = schema["format"]
    elif "format" in schema:
        notes.append(_note("format", schema["format"]))
    additional = schema.get("additionalProperties")
    if additional is False and "patternProperties" not in schema:
        part["additionalProperties"] = False
    elif is_schema(additional) and additional:
        notes.append(_note("additionalProperties", additional))
    return part


def _note(keyword: str, value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"{keyword}: {text if len(text) <= _MAX_NOTE else text[:_MAX_NOTE] + '…'}"


def _any_of(branches: list[Schema], keyword: str, notes: list[str]) -> Schema:
    """Return a schema that accepts every value that one of the branches accepts."""
    not_null = [branch for branch in branches if branch.get("type") != "null"]
    # The usual form of an optional value.
    if len(not_null) == 1 and len(branches) > 1:
        return _or_null(not_null[0])
    common: Schema = {}
    if branches and all("type" in branch for branch in branches):
        types = [name for branch in branches for name in _list(branch["type"])]
        common["type"] = list(dict.fromkeys(types))
    if branches and all("enum" in branch for branch in branches):
        common["enum"] = [value for branch in branches for value in branch["enum"]]
    if any(branch.keys() - {"type", "enum"} for branch in branches):
        notes.append(_note(keyword, branches))
    return common


def _or_null(branch: Schema) -> Schema:
    nullable = dict(branch)
    if "type" in nullable:
        nullable["type"] = list(dict.fromkeys([*_list(nullable["type"]), "null"]))
    if "enum" in nullable:
        nullable["enum"] = [*nullable["enum"], None]
    return nullable


def _both(first: Schema, second: Schema) -> Schema:
    """Merge two schemas that both apply; for a keyword in both, the first one is used."""
    merged = {**second, **first}
    if is_schema(first.get("properties")) and is_schema(second.get("properties")):
        merged["properties"] = {**second["properties"], **first["properties"]}
    if isinstance(first.get("required"), list) and isinstance(second.get("required"), list):
        merged["required"] = [*first["required"], *second["required"]]
    if "description" in first and "description" in second:
        merged["description"] = f"{first['description']} {second['description']}"
    return merged


def _described(part: Schema, description: object, notes: list[str]) -> Schema:
    texts = [str(text) for text in (description, part.get("description")) if text]
    if notes:
        texts.append(f"({'; '.join(notes)})")
    return {**part, "description": " ".join(texts)} if texts else part


def _schemas(value: object) -> list[Schema]:
    return [as_schema(item) for item in value] if is_array(value) else []


def _list(value: object) -> list[Any]:
    """Return a list unchanged, None as an empty list, and any other value as a list of one."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    return [] if value is None else [value]
