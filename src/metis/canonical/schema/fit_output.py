"""Rewriting of output schemas to what a target accepts, with the changes or a refusal.

A wider schema would accept wrong output. Therefore a schema is only made narrower, or unsupported
keywords move to its description; a schema that a target cannot use is refused with a reason.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.schema.subset import FORMATS
from metis.canonical.schema.walk import (
    ANNOTATIONS,
    DEFINITIONS,
    MAX_DEPTH,
    MAX_PARTS,
    Schema,
    Walk,
    as_schema,
    encode_schema,
    is_schema,
    map_subschemas,
    required_names,
    split_reference,
    subschemas,
)

_encode = msgspec.json.Encoder().encode


class OutputSchemaRule(Struct, frozen=True, kw_only=True):
    """The part of JSON Schema that a target accepts for structured output."""

    object_root: bool = False
    """Whether the output must be an object."""
    closed_objects: bool = False
    """Whether objects must have `additionalProperties: false`."""
    all_required: bool = False
    """Whether objects must require all their properties."""
    cycles: bool = True
    """Whether a schema may refer to itself."""
    bare_references: bool = False
    """Whether `$ref` must be the only keyword of its schema."""
    any_of_only: bool = False
    """Whether `anyOf` is the only union: `oneOf` is replaced by it, `allOf` refused."""
    keywords: frozenset[str] | None = None
    """The supported keywords; None for all."""
    formats: frozenset[str] | None = None
    """The supported formats of strings; None for all."""
    max_min_items: int | None = None
    """The largest supported `minItems`; None for any."""


class FittedSchema(Struct, frozen=True):
    """A schema as a target accepts it, with the changes, or the reason of a refusal."""

    schema: Mapping[str, Any]
    changes: tuple[str, ...] = ()
    refusal: str | None = None


_KEYWORDS = frozenset(
    {
        *("$defs", "$ref", "additionalProperties", "anyOf", "const", "definitions"),
        *("description", "enum", "format", "items", "minItems", "properties", "required"),
        *("title", "type"),
    }
)
ANY_OUTPUT = OutputSchemaRule()
"""All of JSON Schema."""
OPENAI_OUTPUT = OutputSchemaRule(object_root=True)
"""OpenAI without `strict`: the output may not match its schema."""
OPENAI_STRICT_OUTPUT = OutputSchemaRule(
    object_root=True,
    closed_objects=True,
    # Strict mode rejects optional properties with 400; authors use unions with null instead.
    all_required=True,
    bare_references=True,
    any_of_only=True,
    keywords=_KEYWORDS
    | {
        *("exclusiveMaximum", "exclusiveMinimum", "maxItems", "maximum", "minimum"),
        *("multipleOf", "pattern"),
    },
    formats=frozenset(FORMATS),
)
"""OpenAI with `strict`: the output always matches its schema."""
ANTHROPIC_OUTPUT = OutputSchemaRule(
    closed_objects=True,
    # Anthropic compiles the schema to a grammar and rejects recursive ones with 400.
    cycles=False,
    bare_references=True,
    keywords=_KEYWORDS | {"allOf"},
    formats=frozenset(FORMATS),
    # Anthropic rejects larger values of `minItems` with 400.
    max_min_items=1,
)
"""Anthropic, whose output always matches its schema."""
GEMINI_OUTPUT = OutputSchemaRule(bare_references=True)
"""Gemini, which ignores keywords that it does not support."""


def fit_output_schema(schema: Mapping[str, Any], rule: OutputSchemaRule) -> FittedSchema:
    """Return the schema as a target accepts it; the same object if it needs no change."""
    data = None if rule == ANY_OUTPUT else encode_schema(schema)
    if data is None:
        return FittedSchema(schema)
    fitted = _fit_output(data, rule)
    return fitted if fitted.changes or fitted.refusal else FittedSchema(schema)


@lru_cache(maxsize=256)
def _fit_output(data: bytes, rule: OutputSchemaRule) -> FittedSchema:
    schema: Schema = msgspec.json.decode(data)
    fit = _OutputFit(schema, rule)
    try:
        fitted = fit.root()
    except _RefusedError as refusal:
        return FittedSchema(schema, refusal=str(refusal))
    return FittedSchema(fitted, tuple(fit.changes))


class _RefusedError(Exception):
    """Raised for a schema that a target cannot use."""


class _OutputFit:
    """Rewrites one schema of structured output."""

    def __init__(self, schema: Schema, rule: OutputSchemaRule) -> None:
        self._rule = rule
        self._schema = schema
        self._walk = Walk(schema, max_parts=MAX_PARTS, max_depth=MAX_DEPTH)
        self.changes: dict[str, None] = {}

    def root(self) -> Schema:
        """Return the rewritten schema; raise _RefusedError if the target cannot use it."""
        if self._rule.object_root and self._resolved(self._schema).get("type") != "object":
            raise _RefusedError("the output is not an object")
        if not self._rule.cycles:
            for name in self._references(self._schema, 0):
                self._refuse_cycle(name, ())
        return self._part(self._schema, 0)

    def _visit(self, depth: int) -> None:
        if not self._walk.visit(depth):
            raise _RefusedError("the schema is too large")

    def _resolved(self, schema: Schema) -> Schema:
        """Return the schema behind a chain of references."""
        # The chain may be circular.
        for _ in range(MAX_DEPTH):
            reference = split_reference(schema)
            if reference is None:
                break
            schema = as_schema(self._walk.resolve(reference[0]))
        return schema

    def _refuse_cycle(self, name: str, open_references: tuple[str, ...]) -> None:
        if name in open_references:
            raise _RefusedError(f"{name!r} refers to itself")
        for inner in self._references(as_schema(self._walk.resolve(name)), 0):
            self._refuse_cycle(inner, (*open_references, name))

    def _references(self, schema: Schema, depth: int) -> Iterator[str]:
        """Yield the references in a schema, except those inside of definitions."""
        self._visit(depth)
        reference = split_reference(schema)
        if reference is not None:
            yield reference[0]
        for key, value in schema.items():
            if key not in DEFINITIONS:
                for part in subschemas(key, value):
                    yield from self._references(part, depth + 1)

    def _part(self, part: Any, depth: int) -> Any:
        if not is_schema(part):
            return part
        self._visit(depth)
        if self._rule.bare_references and split_reference(part) is not None:
            part = self._bare(part)
        rewritten = {
            key: map_subschemas(key, value, lambda inner: self._part(inner, depth + 1))
            for key, value in self._supported(part).items()
        }
        if self._rule.closed_objects and _is_object_schema(rewritten):
            self._close(rewritten)
        return rewritten

    def _bare(self, schema: Schema) -> Schema:
        """Drop the keywords next to a reference, except definitions."""
        bare = {key: value for key, value in schema.items() if key[:1] == "$"}
        if len(bare) < len(schema):
            self.changes["keywords beside a reference were dropped"] = None
        return bare

    def _supported(self, schema: Schema) -> Schema:
        """Move keywords that the target does not support into the description."""
        unsupported: Schema = {}
        supported: Schema = {}
        for key, value in self._with_any_of(schema).items():
            (supported if self._supports(key, value) else unsupported)[key] = value
        for key in unsupported:
            self.changes[f"{key!r} is not supported"] = None
        note = ", ".join(
            f"{key}: {_encode(value).decode()}"
            for key, value in unsupported.items()
            if key not in ANNOTATIONS
        )
        if note:
            text = supported.get("description")
            is_described = isinstance(text, str) and text
            supported["description"] = f"{text}\n\n{note}" if is_described else note
        return supported

    def _with_any_of(self, schema: Schema) -> Schema:
        """Replace `oneOf`, which targets do not support, by `anyOf`."""
        if self._rule.any_of_only and "allOf" in schema:
            raise _RefusedError("'allOf' is not supported")
        if self._rule.keywords is None or "oneOf" not in schema or "anyOf" in schema:
            return schema
        self.changes["'oneOf' was replaced by 'anyOf'"] = None
        return {("anyOf" if key == "oneOf" else key): value for key, value in schema.items()}

    def _supports(self, key: str, value: Any) -> bool:
        rule = self._rule
        if rule.keywords is not None and key not in rule.keywords:
            return False
        if key == "format" and rule.formats is not None:
            return value in rule.formats
        if key == "minItems" and rule.max_min_items is not None:
            return value in range(rule.max_min_items + 1)
        return True

    def _close(self, schema: Schema) -> None:
        """Forbid unlisted properties; raise _RefusedError for an object that needs them."""
        properties = as_schema(schema.get("properties"))
        additional = schema.get("additionalProperties")
        # A closed free-form object would accept only `{}`.
        if is_schema(additional) or (not properties and additional is not False):
            raise _RefusedError("an object may have properties that are not listed")
        if self._rule.all_required:
            optional = properties.keys() - required_names(schema)
            if optional:
                raise _RefusedError(f"{min(optional)!r} is optional")
        if additional is not False:
            self.changes["additionalProperties: false was added"] = None
            schema["additionalProperties"] = False


def _is_object_schema(schema: Schema) -> bool:
    types = schema.get("type", "object" if "properties" in schema else None)
    return types == "object" or (isinstance(types, list) and "object" in types)
