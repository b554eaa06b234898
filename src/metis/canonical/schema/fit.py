"""Tool schemas rewritten to what a target accepts, with a list of the changes."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

import msgspec
from msgspec import Struct

_write = msgspec.json.Encoder().encode
_MOST_PARTS = 10_000
_DEEPEST = 60
_DEFINITIONS = ("$defs", "definitions")
_UNIONS = ("anyOf", "oneOf", "allOf")
_FOLDED = frozenset({"$ref", *_UNIONS})
SINGLE = frozenset({"items", "not", "if", "then", "else", "contains", "propertyNames"})
LISTS = frozenset({*_UNIONS, "prefixItems", "items"})
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})
"""The keywords that hold one schema, a list of them, and schemas by name."""
_LIMITS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)

_Schema = dict[str, Any]


class ToolSchemaRule(Struct, frozen=True, kw_only=True):
    """What of JSON Schema a target takes in the definition of a tool."""

    plain_root: bool = False
    """Whether the root must be an object itself: no union, and no reference to one (T107)."""
    references: bool = True
    """Whether a part may be told by reference (T104)."""
    booleans: bool = True
    """Whether true and false may stand for a schema (T110)."""
    type_lists: bool = True
    """Whether a part may have several types; else `nullable` says that null is one (T103)."""
    number_enums: bool = True
    """Whether the values of an enum may be numbers, and limits be written as floats (T106)."""


_ANY = ToolSchemaRule()
_ROOT_ONLY = ToolSchemaRule(plain_root=True)


def fit_tool_schema(
    schema: Mapping[str, Any], rule: ToolSchemaRule
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The schema as a target takes it, and what was changed; one that fits is given back itself."""
    if rule == _ANY or (rule == _ROOT_ONLY and _is_plain(schema)):
        return schema, ()
    try:
        data = _write(schema)
    except (TypeError, ValueError, RecursionError):
        # What is no JSON cannot be sent at all, and is refused where the body is written.
        return schema, ()
    fitted, changes = _fit(data, rule)
    return (fitted, changes) if changes else (schema, ())


@lru_cache(maxsize=1024)
def _fit(data: bytes, rule: ToolSchemaRule) -> tuple[_Schema, tuple[str, ...]]:
    """One shaping for each tool and target, however many requests it goes with."""
    shaping = _Shaping(msgspec.json.decode(data), rule)
    return shaping.root(), tuple(shaping.changes)


def _is_plain(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and _FOLDED.isdisjoint(schema)


class _Shaping:
    """Walks one schema and writes down what it changes."""

    def __init__(self, schema: _Schema, rule: ToolSchemaRule) -> None:
        self._schema = schema
        self._rule = rule
        self._left = _MOST_PARTS
        self.changes: dict[str, None] = {}

    def root(self) -> _Schema:
        found = self._part(self._schema, (), 0)
        schema = _object(found)
        if self._rule.plain_root and not _is_plain(schema):
            schema = self._folded(schema, 0)
        return schema

    def _tell(self, change: str) -> None:
        self.changes[change] = None

    def _part(self, part: Any, inside: tuple[str, ...], depth: int) -> Any:
        """One part of a schema; `inside` are the references that led to it."""
        if isinstance(part, bool) and not self._rule.booleans:
            self._tell("a schema that is true or false is written as an object")
            return {} if part else {"not": {}}
        if not isinstance(part, dict):
            return part
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            self._tell("parts beyond the largest size are left open")
            return {}
        schema = cast("_Schema", part)
        if not self._rule.references and isinstance(schema.get("$ref"), str):
            return self._resolved(schema, inside, depth)
        return self._scalars(dict(self._keys(schema, inside, depth)))

    def _keys(
        self, schema: _Schema, inside: tuple[str, ...], depth: int
    ) -> Iterator[tuple[str, Any]]:
        for key, value in schema.items():
            if key in _DEFINITIONS and not self._rule.references:
                self._tell("definitions are written where they are used")
                continue
            yield key, self._value(key, value, inside, depth + 1)

    def _value(self, key: str, value: Any, inside: tuple[str, ...], depth: int) -> Any:
        if key in NAMED and isinstance(value, dict):
            named = cast("_Schema", value).items()
            return {name: self._part(part, inside, depth) for name, part in named}
        if key in LISTS and isinstance(value, list):
            return [self._part(part, inside, depth) for part in cast("list[Any]", value)]
        if key in SINGLE or (key == "additionalProperties" and isinstance(value, dict)):
            return self._part(value, inside, depth)
        return value

    def _resolved(self, schema: _Schema, inside: tuple[str, ...], depth: int) -> Any:
        """A reference as what it stands for; a definition within itself is left open."""
        name = schema["$ref"]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = self._definition(name)
        if target is None:
            self._tell(f"{name!r} leads nowhere in the schema and is left open")
            return self._part(beside, inside, depth + 1)
        self._tell("definitions are written where they are used")
        if name in inside:
            self._tell(f"{name!r} holds itself and is left open there")
            kind = _object(target).get("type")
            opened = {"type": kind} if isinstance(kind, str) and kind != "array" else {}
            return opened | self._part(beside, inside, depth + 1)
        found = self._part(target, (*inside, name), depth + 1)
        if not beside or not isinstance(found, dict):
            return found
        return {**_object(found), **self._part(beside, inside, depth + 1)}

    def _definition(self, name: str) -> Any:
        return resolve_reference(self._schema, name)

    def _scalars(self, schema: _Schema) -> _Schema:
        """Types, enums and limits as the target writes them."""
        rule = self._rule
        if not rule.type_lists:
            self._one_type(schema)
            self._nullable(schema)
        if not rule.number_enums:
            self._texts(schema)
        return schema

    def _one_type(self, schema: _Schema) -> None:
        kinds = schema.get("type")
        if not isinstance(kinds, list):
            return
        self._tell("several types are written as one that may be null, or as a union")
        named = [kind for kind in cast("list[Any]", kinds) if kind != "null"]
        del schema["type"]
        if len(named) == 1:
            schema["type"] = named[0]
        elif named and "anyOf" in schema:
            # A part has one union; the types of its members say more than its own.
            self._tell("the types of a part that is a union are left to its members")
        elif named:
            schema["anyOf"] = [{"type": kind} for kind in named]
        if len(named) < len(cast("list[Any]", kinds)):
            schema["nullable"] = True

    def _nullable(self, schema: _Schema) -> None:
        for union in ("anyOf", "oneOf"):
            members = schema.get(union)
            if not isinstance(members, list) or {"type": "null"} not in members:
                continue
            self._tell("a union with null is written as what may be null")
            others = [each for each in cast("list[Any]", members) if each != {"type": "null"}]
            del schema[union]
            if len(others) == 1 and isinstance(others[0], dict):
                for key, value in cast("_Schema", others[0]).items():
                    schema.setdefault(key, value)
            elif others:
                schema[union] = others
            schema["nullable"] = True

    def _texts(self, schema: _Schema) -> None:
        values = schema.get("enum")
        if isinstance(values, list) and any(map(_is_number, cast("list[Any]", values))):
            self._tell("the numbers of an enum are written as texts")
            written = [_text(value) for value in cast("list[Any]", values)]
            schema["enum"] = written
            schema["type"] = "string"
        for key in _LIMITS & schema.keys():
            limit = schema[key]
            if isinstance(limit, float | str):
                whole = _whole(limit)
                if whole is not None:
                    schema[key] = whole
                    self._tell("limits are written as whole numbers")

    def _folded(self, schema: _Schema, depth: int) -> _Schema:
        """A schema as one object that takes all which any part of its union took."""
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            self._tell("parts beyond the largest size are left open")
            return {"type": "object"}
        if isinstance(schema.get("$ref"), str):
            target = self._definition(schema["$ref"])
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            self._tell("the root is written as the object that it refers to")
            return self._folded({**_object(target), **beside}, depth + 1)
        plain = {key: value for key, value in schema.items() if key not in _UNIONS}
        if plain.get("type") != "object":
            self._tell("the root is said to be an object")
        plain["type"] = "object"
        for union in _UNIONS:
            members = schema.get(union)
            if isinstance(members, list):
                self._tell(f"{union!r} at the root is folded into one object")
                objects = [
                    self._folded(_object(each), depth + 1)
                    for each in cast("list[Any]", members)
                    if _takes_objects(each)
                ]
                plain = _merged(plain, objects, needs_all=union == "allOf")
        return plain


def resolve_reference(schema: Mapping[str, Any], name: str) -> Any:
    """What a local reference of a schema points to; None if it points to nothing there."""
    if not name.startswith("#"):
        return None
    found: Any = schema
    for step in unquote(name[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = dict(enumerate(cast("list[Any]", found)))
            found = found.get(int(key)) if key.isdecimal() else None
        else:
            found = _object(found).get(key)
    return cast("Any", found) if isinstance(found, dict | bool) else None


def _merged(schema: _Schema, objects: list[_Schema], *, needs_all: bool) -> _Schema:
    """One object with the properties of all; needed is what every choice needs, or any part."""
    properties: dict[str, Any] = dict(_properties(schema))
    for each in objects:
        for name, part in _properties(each).items():
            known = properties.get(name)
            if known is None:
                properties[name] = part
            elif known != part:
                properties[name] = _either(known, part)
    needed = [_required(each) for each in objects] or [set[str]()]
    more = set[str]().union(*needed) if needs_all else needed[0].intersection(*needed)
    required = _required(schema) | more
    merged = {**schema, "properties": properties}
    if required:
        named = [name for name in properties if name in required]
        merged["required"] = [*named, *sorted(required - properties.keys())]
    return merged


def _object(value: Any) -> _Schema:
    return cast("_Schema", value) if isinstance(value, dict) else {}


def _takes_objects(part: Any) -> bool:
    """Whether a schema takes objects at all; `true` takes everything."""
    if not isinstance(part, dict):
        return part is True
    kinds = cast("_Schema", part).get("type", "object")
    return "object" in (kinds if isinstance(kinds, list) else (kinds,))


def _properties(schema: _Schema) -> Mapping[str, Any]:
    return _object(schema.get("properties"))


def _required(schema: _Schema) -> set[str]:
    names = schema.get("required")
    return set(cast("list[str]", names)) if isinstance(names, list) else set()


def _either(one: Any, other: Any) -> _Schema:
    """A part that takes what one of two took."""
    known = _object(one).get("anyOf") if len(_object(one)) == 1 else None
    members: list[Any] = cast("list[Any]", known) if isinstance(known, list) else [one]
    return {"anyOf": members if other in members else [*members, other]}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> Any:
    return _write(value).decode() if _is_number(value) else value


def _whole(value: float | str) -> int | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
