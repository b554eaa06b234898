"""Output schemas rewritten to what a target accepts.

With a list of the changes or the reason for a refusal.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec
from msgspec import Struct

from metis.canonical.schema.fit import LISTS, NAMED, SINGLE, resolve_reference

_write = msgspec.json.Encoder().encode
_MOST_PARTS = 10_000
_DEEPEST = 60
_FORMATS = frozenset(
    {
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "uri",
        "ipv4",
        "ipv6",
        "uuid",
    }
)
_OPEN = "additionalProperties"
_ABOUT = frozenset({"$schema", "$id", "$comment", "default", "examples", "deprecated"})
"""Keywords that say nothing about a value."""

_Schema = dict[str, Any]


class OutputSchemaRule(Struct, frozen=True, kw_only=True):
    """What of JSON Schema a target takes for its answer."""

    object_root: bool = False
    """Whether the answer has to be an object."""
    closed_objects: bool = False
    """Whether each object has to name all that it may hold."""
    all_required: bool = False
    """Whether each object has to hold all that it may hold."""
    cycles: bool = True
    """Whether a schema may hold itself."""
    bare_references: bool = False
    """Whether a reference must have nothing beside it."""
    any_of_only: bool = False
    """Whether `anyOf` is the only union: `oneOf` is written as one, `allOf` refused."""
    keywords: frozenset[str] | None = None
    """The keywords that it knows; None for all."""
    formats: frozenset[str] | None = None
    """The formats of strings that it knows; None for all."""
    max_min_items: int | None = None
    """The most that an array may be asked to hold at least; None for any number."""


class FittedSchema(Struct, frozen=True):
    """A schema as a target takes it, what was changed, and why it does not if it does not."""

    schema: Mapping[str, Any]
    changes: tuple[str, ...] = ()
    refusal: str | None = None


ANY_OUTPUT = OutputSchemaRule()
"""All of JSON Schema."""
OPENAI_OUTPUT = OutputSchemaRule(object_root=True)
"""OpenAI, where an answer need not keep to its schema."""
OPENAI_STRICT_OUTPUT = OutputSchemaRule(
    object_root=True,
    closed_objects=True,
    all_required=True,
    bare_references=True,
    any_of_only=True,
    keywords=frozenset(
        {
            "$defs",
            "$ref",
            _OPEN,
            "anyOf",
            "const",
            "definitions",
            "description",
            "enum",
            "exclusiveMaximum",
            "exclusiveMinimum",
            "format",
            "items",
            "maxItems",
            "maximum",
            "minItems",
            "minimum",
            "multipleOf",
            "pattern",
            "properties",
            "required",
            "title",
            "type",
        }
    ),
    formats=_FORMATS,
)
"""OpenAI, where an answer must keep to its schema."""
ANTHROPIC_OUTPUT = OutputSchemaRule(
    closed_objects=True,
    cycles=False,
    bare_references=True,
    keywords=frozenset(
        {
            "$defs",
            "$ref",
            _OPEN,
            "allOf",
            "anyOf",
            "const",
            "definitions",
            "description",
            "enum",
            "format",
            "items",
            "minItems",
            "properties",
            "required",
            "title",
            "type",
        }
    ),
    formats=_FORMATS,
    max_min_items=1,
)
"""Anthropic, whose answers always keep to their schema."""
GEMINI_OUTPUT = OutputSchemaRule(bare_references=True)
"""Gemini, which passes over keywords that it does not know."""


def fit_output_schema(schema: Mapping[str, Any], rule: OutputSchemaRule) -> FittedSchema:
    """The schema as a target takes it; one that fits is given back itself."""
    if rule == ANY_OUTPUT:
        return FittedSchema(schema)
    try:
        data = _write(schema)
    except (TypeError, ValueError, RecursionError):
        # What is no JSON cannot be sent at all, and is refused where the body is written.
        return FittedSchema(schema)
    fitted = _fit(data, rule)
    return fitted if fitted.changes or fitted.refusal else FittedSchema(schema)


@lru_cache(maxsize=256)
def _fit(data: bytes, rule: OutputSchemaRule) -> FittedSchema:
    schema: _Schema = msgspec.json.decode(data)
    fitting = _Fitting(schema, rule)
    try:
        fitted = fitting.root()
    except _RefusedError as refusal:
        return FittedSchema(schema, refusal=str(refusal))
    return FittedSchema(fitted, tuple(fitting.changes))


class _RefusedError(Exception):
    """A schema that a target cannot be told."""


class _Fitting:
    """Walks one schema and writes down what it changes."""

    def __init__(self, schema: _Schema, rule: OutputSchemaRule) -> None:
        self._schema = schema
        self._rule = rule
        self._left = _MOST_PARTS
        self.changes: dict[str, None] = {}

    def root(self) -> _Schema:
        if self._rule.object_root and self._resolved(self._schema).get("type") != "object":
            raise _RefusedError("the answer is no object")
        if not self._rule.cycles:
            for name in self._references(self._schema):
                self._check_cycle(name, ())
        return self._part(self._schema, 0)

    def _tell(self, change: str) -> None:
        self.changes[change] = None

    def _resolved(self, schema: _Schema) -> _Schema:
        """What a schema is when it is only a reference."""
        for _ in range(_DEEPEST):
            name = schema.get("$ref")
            if not isinstance(name, str):
                break
            schema = _object(resolve_reference(self._schema, name))
        return schema

    def _check_cycle(self, name: str, inside: tuple[str, ...]) -> None:
        if name in inside:
            raise _RefusedError(f"{name!r} holds itself")
        for each in self._references(_object(resolve_reference(self._schema, name))):
            self._check_cycle(each, (*inside, name))

    def _references(self, schema: _Schema) -> Iterator[str]:
        """The references in a schema; definitions are looked at where they are used."""
        self._left -= 1
        if self._left < 0:
            raise _RefusedError("the schema is too large")
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for key, value in schema.items():
            if key not in ("$defs", "definitions"):
                for part in _parts(key, value):
                    yield from self._references(part)

    def _part(self, part: Any, depth: int) -> Any:
        if not isinstance(part, dict):
            return part
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise _RefusedError("the schema is too large")
        schema = cast("_Schema", part)
        if self._rule.bare_references and isinstance(schema.get("$ref"), str):
            schema = self._alone(schema)
        kept = {
            name: self._value(name, value, depth + 1) for name, value in self._known(schema).items()
        }
        if self._rule.closed_objects and _is_object(kept):
            self._close(kept)
        return kept

    def _alone(self, schema: _Schema) -> _Schema:
        """A reference with nothing beside it but definitions."""
        kept = {key: value for key, value in schema.items() if key[:1] == "$"}
        if len(kept) < len(schema):
            self._tell("what stands beside a reference is left out")
        return kept

    def _known(self, schema: _Schema) -> _Schema:
        """Without the keywords that the target does not know; a description keeps them as words."""
        unknown: _Schema = {}
        kept: _Schema = {}
        for key, value in self._united(schema).items():
            if self._takes(key, value):
                kept[key] = value
            else:
                unknown[key] = value
        for key in unknown:
            self._tell(f"{key!r} is not known there")
        words = ", ".join(
            f"{key}: {_write(value).decode()}"
            for key, value in unknown.items()
            if key not in _ABOUT
        )
        if words:
            said = kept.get("description")
            kept["description"] = f"{said}\n\n{words}" if isinstance(said, str) and said else words
        return kept

    def _united(self, schema: _Schema) -> _Schema:
        """With `anyOf` for `oneOf`, which asks for more than targets can promise."""
        rule = self._rule
        if rule.any_of_only and "allOf" in schema:
            raise _RefusedError("'allOf' is not known there")
        if rule.keywords is None or "oneOf" not in schema or "anyOf" in schema:
            return schema
        self._tell("'oneOf' is written as 'anyOf'")
        return {("anyOf" if key == "oneOf" else key): value for key, value in schema.items()}

    def _takes(self, key: str, value: Any) -> bool:
        rule = self._rule
        if rule.keywords is not None and key not in rule.keywords:
            return False
        if key == "format" and rule.formats is not None:
            return value in rule.formats
        if key == "minItems" and rule.max_min_items is not None:
            return value in range(rule.max_min_items + 1)
        return True

    def _value(self, key: str, value: Any, depth: int) -> Any:
        if key in NAMED and isinstance(value, dict):
            named = cast("_Schema", value).items()
            return {name: self._part(part, depth) for name, part in named}
        if key in LISTS and isinstance(value, list):
            return [self._part(part, depth) for part in cast("list[Any]", value)]
        return self._part(value, depth) if key in SINGLE else value

    def _close(self, schema: _Schema) -> None:
        """An object that holds what it names; one that may hold anything cannot be told."""
        properties = _object(schema.get("properties"))
        given = schema.get(_OPEN)
        if isinstance(given, dict) or (not properties and given is not False):
            raise _RefusedError("an object may hold what nobody has named")
        if self._rule.all_required:
            required: object = schema.get("required")
            stated = cast("list[Any]", required) if isinstance(required, list) else []
            missing = [name for name in properties if name not in stated]
            if missing:
                raise _RefusedError(f"{min(missing)!r} may be left out")
        if given is not False:
            self._tell("objects hold nothing that is not named")
            schema[_OPEN] = False


def _parts(key: str, value: Any) -> list[_Schema]:
    """The schemas that a keyword holds."""
    found: list[Any] = []
    if key in NAMED and isinstance(value, dict):
        found = list(cast("_Schema", value).values())
    elif key in LISTS and isinstance(value, list):
        found = cast("list[Any]", value)
    elif key in SINGLE or key == _OPEN:
        found = [value]
    return [cast("_Schema", part) for part in found if isinstance(part, dict)]


def _is_object(schema: _Schema) -> bool:
    kinds = schema.get("type", "object" if "properties" in schema else None)
    return kinds == "object" or (isinstance(kinds, list) and "object" in kinds)


def _object(value: Any) -> _Schema:
    return cast("_Schema", value) if isinstance(value, dict) else {}
