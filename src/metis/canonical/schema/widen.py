"""Schemas of MCP servers widened to the tool subset.

the result accepts everything that the original accepts.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from metis.canonical.schema.subset import FORMATS, TYPES, check_schema

Schema = dict[str, Any]

MAX_PARTS = 5_000
"""How many parts of one schema are kept; written out, references can make it grow without end."""
MAX_LEVELS = 24
_MAX_NOTE = 200
_SILENT = frozenset(
    {
        *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "examples"),
        *("deprecated", "readOnly", "writeOnly", "description", "type", "enum", "nullable"),
        *("properties", "required", "items", "format", "additionalProperties"),
    }
)


def widen_schema(schema: Mapping[str, Any]) -> Schema:
    """A schema of our subset that takes every object which the given one takes."""
    result = _Relaxing(dict(schema)).whole()
    result["type"] = "object"
    if check_schema(result):
        return {"type": "object", "description": f"({_note('schema', schema)})"}
    return result


class _Relaxing:
    """The work on one schema: its definitions, and how much was written out already."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._parts = 0

    def whole(self) -> Schema:
        return self._part(self._root, ())

    def _part(self, given: object, way: tuple[str, ...]) -> Schema:
        """One schema; `way` holds the references that lead to it, and a mark for each level."""
        self._parts += 1
        if not _is_schema(given):
            return {"description": "(nothing fits here)"} if given is False else {}
        if self._parts > MAX_PARTS or len(way) > MAX_LEVELS:
            return {"description": "(more is not told)"}
        schema, way = self._gathered(given, way)
        notes = _notes(schema)
        part = self._kept(schema, way, notes)
        return _described(part, schema.get("description"), notes)

    def _gathered(self, given: Schema, way: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """The schema with what it refers to and what it is made of merged into it."""
        schema = dict(given)
        while "$ref" in schema:
            name = str(schema.pop("$ref"))
            target = self._target(name)
            if target is None or name in way:
                schema.setdefault("description", f"(like {name.rpartition('/')[2]})")
                break
            way = (*way, name)
            schema = _merged(schema, target)
        for branch in _schemas(schema.pop("allOf", None)):
            # The branch is gathered first, so that references in it are merged too.
            self._parts += 1
            inner = self._gathered(branch, (*way, ""))[0] if len(way) < MAX_LEVELS else {}
            schema = _merged(schema, inner)
        return schema, way

    def _target(self, reference: str) -> Schema | None:
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
            return None
        found: object = self._root
        for name in reference[2:].split("/"):
            plain = name.replace("~1", "/").replace("~0", "~")
            found = found.get(plain) if _is_schema(found) else None
        return found if _is_schema(found) else None

    def _kept(self, schema: Schema, way: tuple[str, ...], notes: list[str]) -> Schema:
        deeper = (*way, "")
        part = _own(schema, notes)
        properties = schema.get("properties")
        if _is_schema(properties):
            part["properties"] = {
                name: self._part(inner, deeper) for name, inner in properties.items()
            }
        if _is_schema(schema.get("items")) and "prefixItems" not in schema:
            part["items"] = self._part(schema["items"], deeper)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                branches = [self._part(one, deeper) for one in _schemas(schema[keyword])]
                part = _merged(part, _either(branches, keyword, notes))
        if "required" in part:
            part["required"] = list(dict.fromkeys(part["required"]))
        return part


def _own(schema: Schema, notes: list[str]) -> Schema:
    """The keywords of one level that say something about the value itself."""
    part: Schema = {}
    types = [name for name in _several(schema.get("type")) if name in TYPES]
    if schema.get("nullable") is True and types:
        types.append("null")
    if types and len(types) >= len(_several(schema.get("type"))):
        unique = list(dict.fromkeys(types))
        part["type"] = unique[0] if len(unique) == 1 else unique
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        part["enum"] = [*values, None] if schema.get("nullable") is True else values
    required = schema.get("required")
    if isinstance(required, list):
        names = cast("list[object]", required)
        part["required"] = list(dict.fromkeys(name for name in names if isinstance(name, str)))
    _keep_format(schema, part, notes)
    _keep_additional(schema, part, notes)
    return part


def _keep_format(schema: Schema, part: Schema, notes: list[str]) -> None:
    if schema.get("format") in FORMATS:
        part["format"] = schema["format"]
    elif "format" in schema:
        notes.append(_note("format", schema["format"]))


def _keep_additional(schema: Schema, part: Schema, notes: list[str]) -> None:
    additional = schema.get("additionalProperties")
    if additional is False and "patternProperties" not in schema:
        part["additionalProperties"] = False
    elif _is_schema(additional) and additional:
        notes.append(_note("additionalProperties", additional))


def _notes(schema: Schema) -> list[str]:
    """What the subset has no word for."""
    known = _SILENT | {"const", "anyOf", "oneOf"}
    return [_note(keyword, value) for keyword, value in schema.items() if keyword not in known]


def _note(keyword: str, value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"{keyword}: {text if len(text) <= _MAX_NOTE else text[:_MAX_NOTE] + '…'}"


def _either(branches: list[Schema], keyword: str, notes: list[str]) -> Schema:
    """What is true of a value that fits one of the branches."""
    real = [branch for branch in branches if branch.get("type") != "null"]
    if len(real) == 1 and len(branches) > 1:
        return _or_null(real[0])
    common: Schema = {}
    if branches and all("type" in branch for branch in branches):
        types = [name for branch in branches for name in _several(branch["type"])]
        common["type"] = list(dict.fromkeys(types))
    if branches and all("enum" in branch for branch in branches):
        common["enum"] = [value for branch in branches for value in branch["enum"]]
    if any(set(branch) - {"type", "enum"} for branch in branches):
        notes.append(_note(keyword, branches))
    return common


def _or_null(branch: Schema) -> Schema:
    opened = dict(branch)
    if "type" in opened:
        opened["type"] = list(dict.fromkeys([*_several(opened["type"]), "null"]))
    if "enum" in opened:
        opened["enum"] = [*opened["enum"], None]
    return opened


def _merged(first: Schema, second: Schema) -> Schema:
    """What both ask for; where they speak of the same, the first is heard."""
    merged = {**second, **first}
    if _is_schema(first.get("properties")) and _is_schema(second.get("properties")):
        merged["properties"] = {**second["properties"], **first["properties"]}
    if isinstance(first.get("required"), list) and isinstance(second.get("required"), list):
        merged["required"] = [*first["required"], *second["required"]]
    if "description" in first and "description" in second:
        merged["description"] = f"{first['description']} {second['description']}"
    return merged


def _described(part: Schema, description: object, notes: list[str]) -> Schema:
    words = [str(text) for text in (description, part.get("description")) if text]
    told = [*words, *([f"({'; '.join(notes)})"] if notes else [])]
    return {**part, "description": " ".join(told)} if told else part


def _is_schema(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def _schemas(value: object) -> list[Schema]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [item if _is_schema(item) else {} for item in items]


def _several(value: object) -> list[Any]:
    if isinstance(value, list):
        return cast("list[Any]", value)
    return [] if value is None else [value]
