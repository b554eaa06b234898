"""MCP server schemas are widened to the tool subset and accept no less."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.schema.subset import check_schema
from metis.canonical.schema.validate import compile_tool_input
from metis.canonical.schema.widen import widen_schema

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"type": "object"}),
    ({"type": "object", "$schema": "x", "title": "t"}, {"type": "object"}),
    (
        {"properties": {"a": {"const": 1}, "b": {"type": "string", "pattern": "^x"}}},
        {
            "type": "object",
            "properties": {
                "a": {"enum": [1]},
                "b": {"type": "string", "description": '(pattern: "^x")'},
            },
        },
    ),
    (
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}}},
        {
            "type": "object",
            "properties": {"a": {"type": ["string", "null"], "description": "(default: null)"}},
        },
    ),
    (
        {"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "array"}]}}},
        {"type": "object", "properties": {"a": {"type": ["string", "array"]}}},
    ),
    (
        {"allOf": [{"properties": {"a": {}}, "required": ["a"]}], "required": ["b"]},
        {"type": "object", "properties": {"a": {}}, "required": ["b", "a"]},
    ),
    (
        {"properties": {"a": {"type": "object", "additionalProperties": {"type": "string"}}}},
        {
            "type": "object",
            "properties": {
                "a": {
                    "type": "object",
                    "description": '(additionalProperties: {"type": "string"})',
                }
            },
        },
    ),
    (
        {
            "properties": {"n": {"$ref": "#/$defs/node"}},
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        },
        {
            "type": "object",
            "properties": {
                "n": {"type": "object", "properties": {"next": {"description": "(like node)"}}}
            },
        },
    ),
    (
        {"required": ["a"], "oneOf": [{"required": ["a"], "properties": {"a": {}}}]},
        {
            "type": "object",
            "required": ["a"],
            "description": '(oneOf: [{"required": ["a"], "properties": {"a": {}}}])',
        },
    ),
    (
        {"required": ["a"], "anyOf": [{"required": ["a", "b"]}, {"type": "null"}]},
        {"type": "object", "required": ["a", "b"]},
    ),
    (
        {"properties": {"a": {"type": "string", "nullable": True, "format": "regex"}}},
        {
            "type": "object",
            "properties": {"a": {"type": ["string", "null"], "description": '(format: "regex")'}},
        },
    ),
]


@pytest.mark.parametrize(("schema", "expected"), CASES)
def test_widened_examples(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert widen_schema(schema) == expected


NAMES = st.sampled_from(["a", "b"])
LEAVES = st.sampled_from(
    [
        *({"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "array")),
        *({"enum": values} for values in (["x"], [1, "y"], [None])),
        *({"const": 1}, {"$ref": "#/$defs/d"}, {"minimum": 3}, {"type": "string", "maxLength": 1}),
        *({"type": ["integer", "null"]}, {"format": "odd"}, {}),
    ]
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    objects = st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": st.dictionaries(NAMES, inner),
            "required": st.lists(NAMES, unique=True),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.dictionaries(st.just("^b"), inner),
            "anyOf": several,
            "oneOf": several,
            "allOf": several,
            "not": inner,
            "$ref": st.just("#/$defs/d"),
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")}, optional={"items": inner, "prefixItems": several}
    )
    return objects | arrays


SCHEMAS = st.recursive(LEAVES, _containers, max_leaves=6)
VALUES = st.recursive(
    st.sampled_from(["x", "y", "", 1, 3, 1.5, True, None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner),
    max_leaves=5,
)


@given(SCHEMAS, SCHEMAS, st.lists(st.dictionaries(NAMES, VALUES), min_size=1, max_size=8))
def test_widened_schema_accepts_what_the_server_accepts(
    properties: Any, definition: Any, objects: list[dict[str, Any]]
) -> None:
    schema = {"properties": {"a": properties}, "$defs": {"d": definition}}
    ours = widen_schema(schema)
    assert check_schema(ours) == []
    try:
        judge = jsonschema_rs.Draft202012Validator(schema)
    except ValueError:
        return
    check = compile_tool_input(ours)
    for value in objects:
        if judge.is_valid(value):
            assert check(value) == [], (schema, ours, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/x"}}},
        {"properties": {"a": {"$ref": "https://example.com/x"}, "b": False, "c": True}},
        {"type": "string", "required": True, "properties": 5, "items": [1], "enum": "x"},
    ],
)
def test_any_schema_is_widened_into_the_subset(schema: dict[str, Any]) -> None:
    assert check_schema(widen_schema(schema)) == []


def test_exponential_schema_is_bounded() -> None:
    levels = {
        f"l{number}": {
            "properties": {
                name: {"$ref": f"#/$defs/l{number + 1}"} for name in ("a", "b", "c", "d")
            }
        }
        for number in range(20)
    }
    schema = {"$ref": "#/$defs/l0", "$defs": {**levels, "l20": {}}}
    assert check_schema(widen_schema(schema)) == []


@pytest.mark.parametrize("keyword", ["properties", "items", "anyOf", "oneOf", "$ref", "allOf"])
def test_parts_beyond_the_deepest_level_are_not_shown(keyword: str) -> None:
    def nested(depth: int) -> dict[str, Any]:
        part: dict[str, Any] = {"description": "innermost"}
        definitions: dict[str, Any] = {}
        for number in range(depth):
            definitions[f"d{number}"] = part
            part = {
                "properties": {"properties": {"a": part}},
                "items": {"items": part},
                "anyOf": {"anyOf": [part, {"type": "null"}]},
                "oneOf": {"oneOf": [part, {"type": "null"}]},
                # A reference is followed at the depth of the part that it points to.
                "$ref": {"items": {"$ref": f"#/$defs/d{number}"}},
                "allOf": {"allOf": [part]},
            }[keyword]
        return {**part, "$defs": definitions} if keyword == "$ref" else part

    deepest = 24 // (2 if keyword == "$ref" else 1)
    assert "innermost" in str(widen_schema(nested(deepest)))
    assert "innermost" not in str(widen_schema(nested(deepest + 1)))
