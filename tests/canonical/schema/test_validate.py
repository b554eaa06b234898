"""Schema validation agrees with independent JSON Schema validators."""

from collections.abc import Callable
from enum import StrEnum
from functools import reduce
from typing import Any, cast

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.errors import InvalidValueError, Problem, ToolDefinitionError
from metis.canonical.json_value import join_path
from metis.canonical.schema.subset import FORMATS, MAX_DEPTH, TYPES, check_schema
from metis.canonical.schema.validate import MAX_PROBLEMS, compile_output_schema, compile_tool_input

Schema = dict[str, Any]

JUDGES = [jsonschema_rs.Draft7Validator, jsonschema_rs.Draft202012Validator]

# Few values, so that equal, nearly equal and differently typed ones collide often.
scalars = st.sampled_from(
    [None, True, False, 0, 1, 1.0, 0.0, -0.0, -1, 1.5, 2**53 + 1, 2.0**53, 1e300, "", "a", "1", "ü"]
)
# The reference validator omits the empty name in paths, so it is excluded.
names = st.sampled_from(["a", "b", "a.b", "$ref", "type", 'q"', "ü"])
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
type_names = st.sampled_from(TYPES)


def keywords(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": type_names | st.lists(type_names, min_size=1, max_size=3, unique=True),
            "enum": st.lists(json_values, min_size=1, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "properties": st.dictionaries(names, inner, max_size=3),
            "items": inner,
            "description": st.just("text"),
            "format": st.sampled_from(FORMATS),
            "additionalProperties": st.booleans(),
        },
    )


schemas = st.recursive(keywords(st.fixed_dictionaries(dict[str, Any]())), keywords, max_leaves=5)

plain: dict[str, st.SearchStrategy[Any]] = {
    "string": st.sampled_from(["", "a", "b"]),
    "number": st.sampled_from([0, 1, 1.5, 1e300]),
    "integer": st.sampled_from([0, 1, 1.0, -5]),
    "boolean": st.booleans(),
    "null": st.none(),
}


@st.composite
def near(draw: st.DrawFn, schema: Schema) -> Any:
    """Draw a value that mostly matches a schema."""
    if draw(st.integers(0, 9)) == 0:
        return draw(json_values)
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    wanted = schema.get("type", list(TYPES))
    name = wanted if isinstance(wanted, str) else draw(st.sampled_from(wanted))
    if name == "object":
        parts: dict[str, Schema] = schema.get("properties", {})
        keys = [*schema.get("required", []), *draw(st.lists(names, max_size=2)), *parts]
        return {key: draw(near(parts.get(key, {}))) for key in keys if draw(st.integers(0, 9))}
    if name == "array":
        return draw(st.lists(near(schema.get("items", {})), max_size=3))
    return draw(plain[name])


def is_reported(error: jsonschema_rs.ValidationError, ours: set[str]) -> bool:
    """Return whether the reference error is reported here; unexpected properties one by one."""
    path = reduce(join_path, error.instance_path, "$")
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties(unexpected):
            return ours >= {join_path(path, name) for name in unexpected}
        case jsonschema_rs.ValidationErrorKind.FalseSchema():  # the same, but it names no property
            return any(ours_path != path and ours_path.startswith(path) for ours_path in ours)
        case jsonschema_rs.ValidationErrorKind.Required(name):
            # The reference validator also reports a property that is present but forbidden.
            return path in ours or join_path(path, name) in ours
        case _:
            return path in ours


def assert_same_problems(schema: Schema, value: object) -> None:
    ours = {problem.path for problem in compile_tool_input(schema)(value)}
    for judge in JUDGES:
        # The reference validator omits some errors of values with a wrong type.
        errors = list(judge(schema, validate_formats=False).iter_errors(value))
        assert bool(ours) == bool(errors)
        assert all(is_reported(error, ours) for error in errors)


@pytest.mark.row("M-142")
@given(schemas, st.data())
def test_near_valid_inputs_agree_with_reference_validator(
    schema: Schema, data: st.DataObject
) -> None:
    assert check_schema(schema) == []
    assert_same_problems(schema, data.draw(near(schema)))


@pytest.mark.row("M-142")
@given(schemas, json_values)
def test_any_input_agrees_with_reference_validator(schema: Schema, value: object) -> None:
    assert_same_problems(schema, value)


EDIT: Schema = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["fast", "safe", 3]},
        "files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "a.b": {"type": ["integer", "null"]}},
                "additionalProperties": False,
            },
        },
    },
    "required": ["path", "mode"],
}


@pytest.mark.row("M-142")
def test_every_problem_is_reported_with_its_path() -> None:
    value: dict[str, Any] = {
        "mode": "slow",
        "files": [{"name": "x"}, {}, {"name": 5, "a.b": True, "size": 1}, []],
    }
    assert list(map(str, compile_tool_input(EDIT)(value))) == [
        '$: missing required property "path"',
        '$.mode: expected one of string "fast", string "safe", integer 3; got string "slow"',
        "$.files[2].name: expected string, got integer 5",
        '$.files[2]["a.b"]: expected integer or null, got boolean true',
        '$.files[2].size: unexpected property; known are "name", "a.b"',
        "$.files[3]: expected object, got array of 0 items",
    ]


def test_valid_input_has_no_problem() -> None:
    value = {"path": "a", "mode": 3.0, "files": [{"name": "x", "a.b": None}], "other": 1}
    assert compile_tool_input(EDIT)(value) == []


def test_paths_start_at_given_root() -> None:
    found = compile_tool_input(EDIT)({"mode": "fast", "path": 1}, "$.content[0].input")
    assert [problem.path for problem in found] == ["$.content[0].input.path"]


def test_an_empty_name_has_a_path() -> None:
    found = compile_tool_input({"properties": {"": {"type": "string"}}})({"": None})
    assert [problem.path for problem in found] == ['$[""]']


def test_format_is_not_asserted() -> None:
    assert compile_tool_input({"type": "string", "format": "email"})("no address") == []


class Mode(StrEnum):
    FAST = "fast"


@pytest.mark.parametrize(
    ("schema", "value", "is_valid"),
    [
        ({"type": "integer"}, 2.0, True),
        ({"type": "integer"}, 2.5, False),
        ({"type": "number"}, 2.5, True),
        ({"type": "number"}, True, False),
        ({"enum": [1]}, 1.0, True),
        ({"enum": [1]}, True, False),
        ({"enum": [[0, {"a": False}]]}, [0.0, {"a": False}], True),
        ({"enum": [[0, {"a": False}]]}, [0, {"a": 0}], False),
        ({"type": "string"}, Mode.FAST, True),
        ({"enum": ["fast"]}, Mode.FAST, True),
        ({"type": "array", "items": {"type": "string"}}, ("a",), True),
        ({"type": "array", "items": {"type": "string"}}, (1,), False),
        ({"type": "number"}, float("nan"), False),
        ({"type": "integer"}, float("inf"), False),
        ({"type": list(TYPES)}, b"bytes", False),
        ({"type": "object", "additionalProperties": False}, {None: 1}, False),
    ],
)
def test_python_values_are_checked_as_json(
    schema: Schema,
    value: object,
    is_valid: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert (not compile_tool_input(schema)(value)) is is_valid


def test_a_schema_outside_of_the_subset_is_not_compiled() -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        compile_tool_input({"properties": {"a": {"$ref": "#"}}, "minimum": 1})
    assert [problem.rule for problem in caught.value.problems] == ["M-154", "M-153"]


def test_compiled_schema_ignores_later_changes() -> None:
    schema: Schema = {"properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
    check = compile_tool_input(schema)
    schema["properties"]["a"]["enum"].append("y")
    schema["required"].clear()
    assert len(check({"a": "y"})) == 1
    assert len(check({})) == 1


DEEPENERS: dict[str, Callable[[object], object]] = {
    "array": lambda inner: [inner],
    "object": lambda inner: {"a": inner},
}


def value_of_depth(kind: str, depth: int) -> object:
    return reduce(lambda value, _: DEEPENERS[kind](value), range(depth), cast("object", 0))


@pytest.mark.parametrize("kind", DEEPENERS)
def test_input_of_any_depth_is_checked(kind: str) -> None:
    value = value_of_depth(kind, 100_000)
    schema: Schema = {"type": "string"}
    for _ in range((MAX_DEPTH - 2) // 2):
        schema = {"items": schema} if kind == "array" else {"properties": {"a": schema}}
    assert len(compile_tool_input(schema)(value)) == 1
    assert len(compile_tool_input({"enum": [value_of_depth(kind, MAX_DEPTH - 3)]})(value)) == 1


def test_only_the_first_problems_are_reported_and_the_others_counted() -> None:
    found = compile_tool_input({"items": {"type": "string"}})(list(range(1000)), "$.input")
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-2].path == f"$.input[{MAX_PROBLEMS - 1}]"
    assert found[-1] == Problem("$.input", "M-142", f"and {1000 - MAX_PROBLEMS} more problems")


OUTPUT_SCHEMAS: list[dict[str, Any]] = [
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

output_scalars = st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([0.5, 1.0, 2.5])
output_strings = st.sampled_from(["", "a", "ab", "b", "abc", "é"])
output_values = st.recursive(
    output_scalars | output_strings,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "ab", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("schema", OUTPUT_SCHEMAS, ids=range(len(OUTPUT_SCHEMAS)))
def test_output_check_agrees_with_reference_validator(schema: dict[str, Any]) -> None:
    validate = compile_output_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)

    @given(output_values)
    def agree(value: Any) -> None:
        assert (validate(value) == []) is judge.is_valid(value), value  # pyright: ignore[reportUnknownMemberType] - untyped

    agree()


def test_problems_of_output_name_their_paths() -> None:
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
def test_a_schema_with_an_unchecked_keyword_is_refused(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        compile_output_schema(schema)
    assert caught.value.path == path


def test_infinite_schema_is_refused() -> None:
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(InvalidValueError, match="nested too deeply"):
        compile_output_schema(endless)(1)
