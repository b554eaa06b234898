"""Answers against their schema, judged by an independent validator."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.errors import InvalidValueError
from metis.canonical.schema.validate import compile_output_schema

SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "integer", "minimum": 0, "maximum": 5},
    {"type": ["string", "null"], "minLength": 1, "maxLength": 2, "pattern": "^a"},
    {"enum": ["a", 1, None, {"a": [1]}]},
    {"const": {"a": 1}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    {"prefixItems": [{"type": "string"}]},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "uniqueItems": False, "items": False},
    {"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"oneOf": [{"type": "integer"}]},
    {"allOf": [{"type": "integer"}, {"not": {"const": 3}}]},
    {"exclusiveMinimum": 1, "exclusiveMaximum": 4, "multipleOf": 2},
    {"multipleOf": 0.5},
    {"additionalProperties": {"type": "integer"}},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": True},
        "required": ["a"],
        "additionalProperties": False,
        "title": "T",
        "description": "d",
    },
    {
        "patternProperties": {"^a": {"type": "integer"}},
        "properties": {"b": {"type": "string"}},
        "additionalProperties": False,
    },
    {"propertyNames": {"maxLength": 1}, "minProperties": 1, "maxProperties": 1},
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/node"}, "b": {"type": "integer"}},
                "additionalProperties": False,
            }
        },
    },
    {"properties": {"a": {"$ref": "#/allOf/0"}}, "allOf": [{"type": "object"}]},
]

scalars = st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([0.5, 1.0, 2.5])
words = st.sampled_from(["", "a", "ab", "b", "abc", "é"])
values = st.recursive(
    scalars | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "ab", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_the_judge_and_we_agree(schema: dict[str, Any]) -> None:
    ours = compile_output_schema(schema)
    theirs = jsonschema.Draft202012Validator(schema)

    @given(values)
    def agree(value: Any) -> None:
        assert (ours(value) == []) is theirs.is_valid(value), value  # pyright: ignore[reportUnknownMemberType] - untyped

    agree()


def test_problems_name_their_places() -> None:
    check = compile_output_schema(
        {
            "type": "object",
            "properties": {"towns": {"type": "array", "items": {"$ref": "#/$defs/town"}}},
            "required": ["towns"],
            "$defs": {"town": {"type": "object", "properties": {"size": {"minimum": 1}}}},
        }
    )
    assert [problem.path for problem in check({"towns": [{"size": 1}, {"size": 0}, 3]})] == [
        "$.towns[1].size",
        "$.towns[2]",
    ]
    (problem,) = check({})
    assert (problem.path, problem.text) == ("$", 'missing required property "towns"')


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"unevaluatedProperties": False}}}, "$.properties.a"),
        ({"items": {"$ref": "#/nowhere"}}, "$.items"),
        ({"$ref": "https://example.org/other"}, "$"),
        ({"anyOf": [3]}, "$.anyOf[0]"),
        ({"minimum": "1"}, "$.minimum"),
        ({"multipleOf": 0}, "$.multipleOf"),
        ({"pattern": "("}, "$.pattern"),
        ({"required": 1}, "$.required"),
        ({"type": "text"}, "$.type"),
    ],
)
def test_a_schema_that_nobody_could_check_is_refused(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        compile_output_schema(schema)
    assert caught.value.path == path


def test_a_schema_that_never_ends_is_refused() -> None:
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(InvalidValueError, match="nested too deeply"):
        compile_output_schema(endless)(1)
