"""Output schemas are narrowed for a target or refused; the official SDKs validate them."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import transform_schema
from openai.lib._pydantic import (
    _ensure_strict_json_schema as ensure_strict,  # pyright: ignore[reportPrivateUsage] - the judge
)

from metis.canonical.schema.fit_output import (
    ANTHROPIC_OUTPUT,
    ANY_OUTPUT,
    GEMINI_OUTPUT,
    OPENAI_OUTPUT,
    OPENAI_STRICT_OUTPUT,
    OutputSchemaRule,
    fit_output_schema,
)
from metis.canonical.schema.walk import MAX_DEPTH

PLACE: dict[str, Any] = {
    "type": "object",
    "title": "Place",
    "properties": {
        "city": {"type": "string", "minLength": 1, "description": "Its name."},
        "kind": {"enum": ["town", "village"], "type": "string"},
        "size": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
        "near": {"type": "array", "items": {"$ref": "#/$defs/Near"}, "minItems": 2},
        "seen": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "host": {"type": "string", "format": "idn-hostname"},
    },
    "required": ["city", "kind", "size", "near", "seen", "host"],
    "$defs": {
        "Near": {
            "type": "object",
            "properties": {"km": {"oneOf": [{"type": "number"}, {"type": "null"}]}},
            "required": ["km"],
        }
    },
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["children"],
    "additionalProperties": False,
}
OPEN: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}


def test_valid_schema_is_returned_unchanged() -> None:
    for rule in (ANY_OUTPUT, GEMINI_OUTPUT, OPENAI_OUTPUT):
        assert fit_output_schema(PLACE, rule).schema is PLACE
    closed: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    assert fit_output_schema(closed, ANTHROPIC_OUTPUT).schema is closed
    assert fit_output_schema(closed, OPENAI_STRICT_OUTPUT).schema is closed


def test_anthropic_sdk_leaves_fitted_schema_unchanged() -> None:
    fitted = fit_output_schema(PLACE, ANTHROPIC_OUTPUT)
    assert fitted.refusal is None
    # The SDK moves unsupported keywords into descriptions: there is nothing to move.
    judged = transform_schema(copy.deepcopy(dict(fitted.schema)))
    assert list(described(judged)) == list(described(fitted.schema))
    assert set(fitted.changes) == {
        "additionalProperties: false was added",
        "'default' is not supported",
        "'format' is not supported",
        "'maximum' is not supported",
        "'minItems' is not supported",
        "'minLength' is not supported",
        "'minimum' is not supported",
        "'oneOf' was replaced by 'anyOf'",
    }
    size = fitted.schema["properties"]["size"]
    assert size == {"type": "integer", "description": "minimum: 1, maximum: 9"}
    assert fitted.schema["properties"]["city"]["description"] == "Its name.\n\nminLength: 1"


def described(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in sorted(schema.items()):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
            if key == "description" and isinstance(value, str):
                yield value
            yield from described(value)
    if isinstance(schema, list):
        for item in schema:  # pyright: ignore[reportUnknownVariableType] - JSON
            yield from described(item)


def test_openai_sdk_leaves_fitted_strict_schema_unchanged() -> None:
    fitted = fit_output_schema(PLACE, OPENAI_STRICT_OUTPUT)
    assert fitted.refusal is None
    root: Any = copy.deepcopy(dict(fitted.schema))
    assert ensure_strict(copy.deepcopy(root), path=(), root=root) == fitted.schema
    assert "minLength" not in fitted.schema["properties"]["city"]
    assert fitted.schema["properties"]["size"]["minimum"] == 1


def test_reference_has_no_sibling_keys() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A", "description": "the first"}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"A": {"type": "string"}},
    }
    for rule in (ANTHROPIC_OUTPUT, GEMINI_OUTPUT, OPENAI_STRICT_OUTPUT):
        fitted = fit_output_schema(schema, rule)
        assert fitted.schema["properties"]["a"] == {"$ref": "#/$defs/A"}
        assert fitted.changes == ("keywords beside a reference were dropped",)


@pytest.mark.parametrize(
    ("schema", "rule", "why"),
    [
        (TREE, ANTHROPIC_OUTPUT, "'#' refers to itself"),
        (OPEN, ANTHROPIC_OUTPUT, "an object may have properties that are not listed"),
        ({"type": "object"}, ANTHROPIC_OUTPUT, "an object may have properties that are not listed"),
        (OPEN, OPENAI_STRICT_OUTPUT, "an object may have properties that are not listed"),
        ({"type": "array"}, OPENAI_OUTPUT, "the output is not an object"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"enum": [1]}}}, OPENAI_OUTPUT, "is not an object"),
        ({"type": "object", "properties": {"a": {}}}, OPENAI_STRICT_OUTPUT, "'a' is optional"),
        (
            {"type": "object", "properties": {}, "allOf": []},
            OPENAI_STRICT_OUTPUT,
            "'allOf' is not supported",
        ),
    ],
)
def test_unsupported_schema_is_refused(schema: Any, rule: OutputSchemaRule, why: str) -> None:
    fitted = fit_output_schema(schema, rule)
    assert fitted.refusal is not None
    assert why in fitted.refusal
    assert fitted.schema == schema


def test_infinite_schema_is_refused() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(90):
        deep = {"type": "array", "items": deep}
    assert fit_output_schema(deep, ANTHROPIC_OUTPUT).refusal == "the schema is too large"
    wide = {f"p{n}": {"type": "string"} for n in range(20_000)}
    assert (
        fit_output_schema({"properties": wide}, ANTHROPIC_OUTPUT).refusal
        == "the schema is too large"
    )
    assert fit_output_schema(TREE, OPENAI_STRICT_OUTPUT).refusal is None


@pytest.mark.parametrize("rule", [ANTHROPIC_OUTPUT, GEMINI_OUTPUT])
def test_deepest_schema_is_fitted(rule: OutputSchemaRule) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(MAX_DEPTH):
        deep = {"type": "array", "items": deep}
    assert fit_output_schema(deep, rule).refusal is None
    deeper = {"type": "array", "items": deep}
    assert fit_output_schema(deeper, rule).refusal == "the schema is too large"


def test_depth_of_a_definition_is_counted_from_the_definition() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(MAX_DEPTH - 2):
        deep = {"type": "array", "items": deep}
    schema = {"type": "array", "items": {"$ref": "#/$defs/A"}, "$defs": {"A": deep}}
    assert fit_output_schema(schema, ANTHROPIC_OUTPUT).refusal is None
