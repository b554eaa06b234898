"""The JSON Schema subset of tool definitions: accepted and refused schemas."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.errors import Problem
from metis.canonical.json_value import join_path
from metis.canonical.schema.subset import (
    FORMATS,
    KEYWORDS,
    MAX_DEPTH,
    MAX_PARTS,
    TYPES,
    check_schema,
    describe,
    join_limited,
)

Schema = dict[str, Any]

names = st.sampled_from(["a", "b", "type", "enum", "$ref", "a.b", 'q"', "items[0]", "", "ü", "0"])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
json_values = st.recursive(
    scalars.filter(lambda value: not isinstance(value, float) or math.isfinite(value)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
type_names = st.sampled_from(TYPES)


def keywords(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": type_names | st.lists(type_names, min_size=1, max_size=3, unique=True),
            "enum": st.lists(json_values, min_size=1, max_size=3),
            "required": st.lists(names, max_size=3, unique=True),
            "properties": st.dictionaries(names, inner, max_size=3),
            "items": inner,
            "description": st.text(max_size=5),
            "format": st.sampled_from(FORMATS),
            "additionalProperties": st.booleans(),
        },
    )


schemas = st.recursive(st.fixed_dictionaries(dict[str, Any]()), keywords, max_leaves=6)

BAD = {"type": "bad"}
REFUSED: list[tuple[str, object, str, tuple[str, ...]]] = [
    ("$ref", "#/$defs/a", "M-154", ()),
    ("oneOf", [{}, BAD], "M-155", ("[1].type",)),
    ("anyOf", [{}, BAD], "M-156", ("[1].type",)),
    ("allOf", [{}, BAD], "M-157", ("[1].type",)),
    ("not", BAD, "M-158", (".type",)),
    ("if", BAD, "M-159", (".type",)),
    ("then", BAD, "M-159", (".type",)),
    ("else", BAD, "M-159", (".type",)),
    ("patternProperties", {"^a": BAD}, "M-160", ('["^a"].type',)),
    ("additionalProperties", BAD, "M-161", (".type",)),
    ("items", [{}, BAD], "M-163", ("[1].type",)),
    ("minimum", 1, "M-153", ()),
    ("pattern", "^a$", "M-153", ()),
    ("default", 1, "M-153", ()),
    ("title", "A", "M-153", ()),
    ("const", 1, "M-153", ()),
    ("nullable", True, "M-153", ()),
    ("$schema", "https://json-schema.org/draft/2020-12/schema", "M-153", ()),
    ("$defs", {"a": BAD}, "M-153", (".a.type",)),
    ("definitions", {"a": BAD}, "M-153", (".a.type",)),
    ("dependentSchemas", {"a": BAD}, "M-153", (".a.type",)),
    ("prefixItems", [{}, BAD], "M-153", ("[1].type",)),
    ("contains", BAD, "M-153", (".type",)),
    ("propertyNames", BAD, "M-153", (".type",)),
]
ROWS = [
    pytest.param(*case, id=case[0], marks=pytest.mark.row(case[2], "M-163", "M-286", "M-303"))
    for case in REFUSED
]


def at(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(problem.path, problem.rule) for problem in problems]


def places(schema: Schema, path: str = "$") -> Iterator[tuple[str, Schema]]:
    """Yield every schema inside a schema of the subset, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from places(inner, join_path(join_path(path, "properties"), name))
    if "items" in schema:
        yield from places(schema["items"], join_path(path, "items"))


@pytest.mark.row("M-152", "M-303")
@pytest.mark.parametrize("name", TYPES)
def test_each_of_the_seven_types_is_allowed(name: str) -> None:
    nested = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": name}}}}
    assert check_schema({"type": name}) == []
    assert check_schema({"type": [name]}) == []
    assert check_schema(nested) == []


@pytest.mark.row("M-152")
@pytest.mark.parametrize(
    ("content", "paths"),
    [
        ("any", ["$.type"]),
        ("String", ["$.type"]),
        ([], ["$.type"]),
        (None, ["$.type"]),
        (True, ["$.type"]),
        ({}, ["$.type"]),
        (["string", "string"], ["$.type"]),
        (["string", "file", 1], ["$.type[1]", "$.type[2]"]),
        ([["string"]], ["$.type[0]"]),
    ],
)
def test_other_types_are_refused(content: object, paths: list[str]) -> None:
    assert at(check_schema({"type": content})) == [(path, "M-152") for path in paths]


@pytest.mark.row("M-153", "M-303")
@pytest.mark.parametrize(
    ("keyword", "content"),
    [
        ("enum", ["a", 1, 1.5, None, True, {"a": [1]}]),
        ("required", []),
        ("required", ["a", "b"]),
        ("properties", {}),
        ("properties", {"$ref": {}, "anyOf": {"type": "null"}}),
        ("items", {"type": "string"}),
        ("description", ""),
        *(("format", name) for name in FORMATS),
    ],
)
def test_each_keyword_of_the_subset_is_allowed_at_any_depth(keyword: str, content: object) -> None:
    schema = {keyword: content}
    nested = {"properties": {"a": {"items": schema}}, "items": {"properties": {"b": schema}}}
    assert check_schema(schema) == []
    assert check_schema(nested) == []


@pytest.mark.row("M-161")
@pytest.mark.parametrize("flag", [True, False])
def test_additional_properties_may_be_a_boolean(flag: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert check_schema({"type": "object", "additionalProperties": flag}) == []


@pytest.mark.parametrize(("keyword", "content", "rule", "inside"), ROWS)
def test_each_refused_construct_is_reported_with_its_content(
    keyword: str, content: object, rule: str, inside: tuple[str, ...]
) -> None:
    schema = {"properties": {"a": {keyword: content}}}
    path = join_path("$.properties.a", keyword)
    found = check_schema(schema)
    assert at(found) == [(path, rule), *((path + more, "M-152") for more in inside)]
    assert f"`{keyword}`" in found[0].text


@pytest.mark.row("M-153", "M-163")
@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (True, "$"),
        (None, "$"),
        ([], "$"),
        ("string", "$"),
        ({"properties": []}, "$.properties"),
        ({"properties": {"a": True}}, "$.properties.a"),
        ({"properties": {"a.b": 5}}, '$.properties["a.b"]'),
        ({"properties": {1: {}}}, "$.properties"),
        ({"properties": {"\ud800": {}}}, "$.properties"),
        ({"required": "a"}, "$.required"),
        ({"required": ["a", 1]}, "$.required[1]"),
        ({"required": ["a", "a"]}, "$.required"),
        ({"enum": []}, "$.enum"),
        ({"enum": "a"}, "$.enum"),
        ({"enum": [math.nan]}, "$.enum[0]"),
        ({"enum": [0, {"a": [math.inf]}]}, "$.enum[1].a[0]"),
        ({"enum": [b"a"]}, "$.enum[0]"),
        ({"enum": [{1: 2}]}, "$.enum[0]"),
        ({"enum": ["\ud800"]}, "$.enum[0]"),
        ({"enum": [10**5000]}, "$.enum[0]"),
        ({"items": False}, "$.items"),
        ({"items": "string"}, "$.items"),
        ({"description": 5}, "$.description"),
        ({"description": "\ud800"}, "$.description"),
        ({"format": "regex"}, "$.format"),
        ({"format": 5}, "$.format"),
        ({5: "string"}, "$"),
        ({"\ud800": "string"}, "$"),
    ],
)
def test_malformed_keyword_is_reported(schema: object, path: str) -> None:
    assert at(check_schema(schema)) == [(path, "M-153")]


@pytest.mark.row("M-161")
@pytest.mark.parametrize("content", [None, "no", [], 0])
def test_additional_properties_of_another_shape_are_refused(content: object) -> None:
    found = check_schema({"additionalProperties": content})
    assert at(found) == [("$.additionalProperties", "M-161")]


@pytest.mark.row("M-163")
def test_every_problem_is_listed_in_document_order() -> None:
    schema: Schema = {
        "type": "thing",
        "properties": {
            "a": {"anyOf": [{"$ref": "#"}, {"type": "x"}], "minLength": 1},
            "b": {"items": [{"not": {}}, {"enum": []}]},
        },
        "required": [5],
        "title": "T",
    }
    assert [problem.path for problem in check_schema(schema, "$.input_schema")] == [
        "$.input_schema.type",
        "$.input_schema.properties.a.anyOf",
        '$.input_schema.properties.a.anyOf[0]["$ref"]',
        "$.input_schema.properties.a.anyOf[1].type",
        "$.input_schema.properties.a.minLength",
        "$.input_schema.properties.b.items",
        "$.input_schema.properties.b.items[0].not",
        "$.input_schema.properties.b.items[1].enum",
        "$.input_schema.required[0]",
        "$.input_schema.title",
    ]


WRAPS: dict[str, Callable[[object], Schema]] = {
    "items": lambda inner: {"items": inner},
    "properties": lambda inner: {"properties": {"a": inner}},
    "anyOf": lambda inner: {"anyOf": [inner]},
    "not": lambda inner: {"not": inner},
    "enum": lambda inner: {"enum": [[inner]]},
}


@pytest.mark.parametrize("keyword", WRAPS)
def test_nesting_is_bounded(keyword: str) -> None:
    schema: object = {}
    for _ in range(50_000):
        schema = WRAPS[keyword](schema)
    assert any("deeper" in problem.text for problem in check_schema(schema))


def test_schemas_of_the_allowed_depth_pass() -> None:
    schema: Schema = {}
    for _ in range(MAX_DEPTH - 1):
        schema = {"items": schema}
    assert check_schema(schema) == []
    assert [problem.path for problem in check_schema({"items": schema})] == [
        "$" + ".items" * MAX_DEPTH
    ]


def test_cyclic_schema_is_reported() -> None:
    schema: Schema = {"properties": {}}
    schema["properties"] |= {"a": schema, "b": schema}
    found = check_schema(schema)
    assert found[-1] == Problem("$", "M-153", f"the schema has more than {MAX_PARTS} parts")


@given(schemas)
def test_what_is_accepted_is_valid_json_schema(schema: Schema) -> None:
    assert check_schema(schema) == []
    assert jsonschema_rs.meta.is_valid(
        {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    )
    assert jsonschema_rs.meta.is_valid(schema)


loose_keys = st.sampled_from([*KEYWORDS, *(case[0] for case in REFUSED), "other"])
loose_schemas = st.recursive(
    json_values | type_names | names,
    lambda inner: st.dictionaries(loose_keys, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=20,
)


@given(loose_schemas)
def test_subset_check_is_at_least_as_strict_as_json_schema(schema: object) -> None:
    if not check_schema(schema):
        assert isinstance(schema, dict)
        assert jsonschema_rs.meta.is_valid(schema)  # pyright: ignore[reportUnknownArgumentType] - any mapping


@pytest.mark.row("M-163", "M-286")
@given(schemas, st.sampled_from(REFUSED), st.data())
def test_refused_construct_is_found_at_any_depth(
    schema: Schema, case: tuple[str, object, str, tuple[str, ...]], data: st.DataObject
) -> None:
    keyword, content, rule, inside = case
    planted = copy.deepcopy(schema)
    path, target = data.draw(st.sampled_from(list(places(planted))))
    target[keyword] = content
    spot = join_path(path, keyword)
    assert at(check_schema(planted)) == [
        (spot, rule),
        *((spot + more, "M-152") for more in inside),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "boolean true"),
        (5, "integer 5"),
        (1.5, "number 1.5"),
        ("a", 'string "a"'),
        ("é", 'string "é"'),
        ("\ud800", 'string "\\ud800"'),
        ("a" * 100, f'string "{"a" * 60}…"'),
        ([1], "array of 1 item"),
        ({}, "object with 0 properties"),
        pytest.param(2**2000, "a huge integer", id="huge"),
        (b"", "bytes, which is not a JSON value"),
    ],
)
def test_values_are_described_briefly(value: object, text: str) -> None:
    assert describe(value) == text


def test_long_lists_are_cut() -> None:
    assert join_limited(map(str, range(14))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"
