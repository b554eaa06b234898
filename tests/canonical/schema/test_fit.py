"""Tool schemas are fitted to what a target accepts, and each change is a reported loss."""

import json
import warnings
from collections.abc import Mapping
from typing import Any, cast

import jsonschema_rs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from build import user
from metis import adapters
from metis.adapters.adapter import Adapter
from metis.canonical import SideEffects, ToolDefinition, ToolSet
from metis.canonical.schema.fit import ToolSchemaRule, fit_tool_schema
from metis.projection.loss import Change
from metis.wire.call import RequestContext, WireRequest

NARROW = ToolSchemaRule(
    plain_root=True, references=False, booleans=False, type_lists=False, number_enums=False
)
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"$ref": "#/$defs/name"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        },
        "name": {"type": "string", "description": "a name"},
    },
}
UNION: dict[str, Any] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "how": {"type": "string"}},
            "required": ["id", "how"],
        },
        {"$ref": "#/$defs/named"},
    ],
    "$defs": {
        "named": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "how": {"type": "boolean"}},
            "required": ["name", "how"],
        }
    },
}


def judged(schema: Mapping[str, Any]) -> bool:
    """Return whether the types of the dialect accept a schema; they refuse unknown keys."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package warns about its own code when it is imported
        from google.genai import types  # noqa: PLC0415 - heavy, and only here
    return bool(types.Schema.model_validate(schema))


def tool(schema: dict[str, Any], description: str = "Does it.") -> ToolDefinition:
    return ToolDefinition(
        name="f", description=description, input_schema=schema, side_effects=SideEffects.READ
    )


def sent(adapter: str, *tools: ToolDefinition) -> WireRequest:
    return adapters.get(adapter).to_wire([user("go")], tools)


def reasons(wire: WireRequest) -> list[str]:
    return [loss.reason for loss in wire.losses]


@pytest.mark.row("T103")
@pytest.mark.parametrize(
    "part",
    [
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"type": "null"}, {"type": "string"}]},
    ],
)
def test_nullable_type_becomes_nullable_flag(part: dict[str, Any]) -> None:
    schema, changes = fit_tool_schema({"type": "object", "properties": {"a": part}}, NARROW)
    assert schema["properties"] == {"a": {"type": "string", "nullable": True}}
    assert changes
    assert judged(schema)


@pytest.mark.row("T103")
def test_several_types_become_a_union() -> None:
    part = {"type": ["string", "integer", "null"]}
    schema, _ = fit_tool_schema({"type": "object", "properties": {"a": part}}, NARROW)
    union = [{"type": "string"}, {"type": "integer"}]
    assert schema["properties"]["a"] == {"anyOf": union, "nullable": True}
    assert judged(schema)


@pytest.mark.row("T103", "T104", "T106")
def test_json_schema_for_gemini_is_unchanged() -> None:
    odd = {
        **TREE,
        "properties": {**TREE["properties"], "n": {"type": ["integer", "null"], "enum": [1, None]}},
    }
    wire = sent("gemini", tool(odd))
    (declared,) = json.loads(wire.body)["tools"][0]["functionDeclarations"]
    assert declared["parametersJsonSchema"] == odd
    assert wire.losses == []


@pytest.mark.row("T104", "T212")
def test_references_are_inlined_and_recursion_ends_in_open_object() -> None:
    wire = sent("openai-compatible", tool(TREE))
    parameters = json.loads(wire.body)["tools"][0]["function"]["parameters"]
    name = {"type": "string", "description": "a name"}
    children = {"type": "array", "items": {"type": "object"}}
    root = {"type": "object", "properties": {"name": name, "children": children}}
    assert parameters == {"type": "object", "properties": {"root": root}}
    assert {loss.change for loss in wire.losses} == {Change.ALTERED}
    assert any("'#/$defs/node' refers to itself" in reason for reason in reasons(wire))


@pytest.mark.row("T104")
def test_dangling_references_become_open_with_loss() -> None:
    refs = {
        "a": {"$ref": "https://example.org/s.json"},
        "b": {"$ref": "#/$defs/none", "title": "B"},
    }
    schema, changes = fit_tool_schema({"type": "object", "properties": refs}, NARROW)
    assert schema["properties"] == {"a": {}, "b": {"title": "B"}}
    assert len(changes) == 2


@pytest.mark.row("T104")
def test_exponential_references_are_bounded() -> None:
    doubled = {
        f"d{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{n + 1}"} for k in "ab"}}
        for n in range(40)
    }
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": doubled | {"d40": {"type": "string"}},
    }
    fitted, changes = fit_tool_schema(schema, NARROW)
    assert len(json.dumps(fitted)) < 2_000_000
    assert "parts beyond the size limit accept anything" in changes


@pytest.mark.row("T106")
def test_enum_numbers_become_strings_and_limits_integers() -> None:
    properties = {
        "n": {"type": "integer", "enum": [1, 2]},
        "s": {"type": "string", "minLength": 1.0, "maxLength": "8"},
    }
    schema, changes = fit_tool_schema({"type": "object", "properties": properties}, NARROW)
    assert schema["properties"] == {
        "n": {"type": "string", "enum": ["1", "2"]},
        "s": {"type": "string", "minLength": 1, "maxLength": 8},
    }
    assert len(changes) == 2
    assert judged(schema)


@pytest.mark.row("T107", "T212")
@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-responses", "azure"])
def test_root_union_is_merged_into_one_object(name: str) -> None:
    wire = sent(name, tool(UNION))
    (fitted_tool,) = json.loads(wire.body)["tools"]
    schema = (
        fitted_tool.get("input_schema")
        or fitted_tool.get("parameters")
        or fitted_tool["function"]["parameters"]
    )
    assert schema["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & schema.keys()
    assert schema["properties"] == {
        "id": {"type": "integer"},
        "how": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
        "name": {"type": "string"},
    }
    assert schema["required"] == ["how"]
    assert {(loss.path, loss.change) for loss in wire.losses} == {
        ("$.tools[0].input_schema", Change.ALTERED)
    }


@pytest.mark.row("T107")
def test_root_all_of_requires_every_part() -> None:
    parts = [
        {"properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"properties": {"b": {"type": "string"}}, "required": ["b"]},
    ]
    schema, _ = fit_tool_schema({"type": "object", "allOf": parts}, ToolSchemaRule(plain_root=True))
    assert schema["required"] == ["a", "b"]
    assert "allOf" not in schema


@pytest.mark.row("T107")
def test_a_call_is_checked_against_the_schema_that_the_tool_has() -> None:
    own = tool({"type": "object", "properties": {"n": {"type": "integer", "enum": [1]}}})
    fitted_tool, _ = fit_tool_schema(own.input_schema, NARROW)
    assert fitted_tool["properties"]["n"]["enum"] == ["1"]
    assert ToolSet([own]).check_input("f", {"n": "1"})
    assert not ToolSet([own]).check_input("f", {"n": 1})


@pytest.mark.row("T110")
def test_every_schema_keyword_is_visited() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "any": True,
            "none": False,
            "tuple": {"type": "array", "prefixItems": [True, {"not": True}]},
            "both": {"allOf": [True, {"if": True, "then": {"items": True}}]},
            "open": {"type": "object", "additionalProperties": {"$ref": "#/definitions/a"}},
        },
        "additionalProperties": False,
        "definitions": {"a": {"type": "string"}},
    }
    fitted, changes = fit_tool_schema(
        schema, replace(ToolSchemaRule(), booleans=False, references=False)
    )
    assert fitted == {
        "type": "object",
        "properties": {
            "any": {},
            "none": {"not": {}},
            "tuple": {"type": "array", "prefixItems": [{}, {"not": {}}]},
            "both": {"allOf": [{}, {"if": {}, "then": {"items": {}}}]},
            "open": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "additionalProperties": False,
    }
    assert len(changes) == 2


@pytest.mark.row("T110")
@pytest.mark.parametrize(
    "odd",
    [
        {"properties": 5, "required": "x", "anyOf": [1, None, {"type": "object"}]},
        {"$ref": "#"},
        {"$ref": "#/anyOf/9", "anyOf": [True]},
        {"type": [], "enum": 3, "items": [True]},
        {"allOf": [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}]},
    ],
)
def test_malformed_schemas_become_an_object_without_exception(odd: dict[str, Any]) -> None:
    schema, _ = fit_tool_schema(odd, NARROW)
    assert schema["type"] == "object"
    plain, _ = fit_tool_schema(odd, ToolSchemaRule(plain_root=True))
    assert plain["type"] == "object"


@pytest.mark.row("T105")
def test_root_without_type_becomes_object() -> None:
    wire = sent("anthropic", tool({"properties": {"a": {"type": "string"}}}))
    assert json.loads(wire.body)["tools"][0]["input_schema"]["type"] == "object"


@pytest.mark.row("T112", "T212")
def test_a_tool_without_a_description_is_described_by_its_name() -> None:
    wire = sent("openai-compatible", tool({"type": "object", "properties": {}}, ""))
    assert json.loads(wire.body)["tools"][0]["function"]["description"] == "f"
    assert [(loss.path, loss.change) for loss in wire.losses] == [
        ("$.tools[0].description", Change.SYNTHESISED)
    ]


@pytest.mark.row("T107", "T212")
def test_client_schema_is_unchanged_and_valid_schema_is_not_copied() -> None:
    anthropic = adapters.get("anthropic")
    body: Any = {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"name": "f", "input_schema": UNION}],
    }
    request = anthropic.from_wire_request(body, RequestContext(session_id="sess_schemas"))
    wire = anthropic.to_wire(request.messages, request.tools, request.options)
    assert json.loads(wire.body)["tools"] == body["tools"]
    assert wire.losses == []
    plain = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert fit_tool_schema(plain, NARROW)[0] is plain


@pytest.mark.row("T103", "T104", "T106", "T107")
def test_fitted_schema_is_cached() -> None:
    first, _ = fit_tool_schema(TREE, NARROW)
    again, _ = fit_tool_schema(json.loads(json.dumps(TREE)), NARROW)
    assert again is first


@pytest.mark.row("T103", "T106")
def test_custom_host_declares_its_schema_subset() -> None:
    profile = replace(adapters.get("openai-compatible").profile, name="narrow", tool_schemas=NARROW)
    part = {"type": ["integer", "null"]}
    made = tool({"type": "object", "properties": {"a": part}})
    wire = Adapter(profile).to_wire([user("go")], [made])
    parameters = json.loads(wire.body)["tools"][0]["function"]["parameters"]
    assert parameters["properties"]["a"] == {"type": "integer", "nullable": True}
    assert [loss.adapter for loss in wire.losses] == ["narrow"]


@pytest.mark.row("T103")
def test_union_with_several_types_is_unchanged() -> None:
    part = {"type": ["string", "integer"], "anyOf": [{"minLength": 2}, {"minimum": 3}]}
    fitted, changes = fit_tool_schema({"type": "object", "properties": {"a": part}}, NARROW)
    assert fitted["properties"]["a"] == {"anyOf": [{"minLength": 2}, {"minimum": 3}]}
    assert any("beside `anyOf` was dropped" in change for change in changes)


@pytest.mark.row("T107")
def test_merging_keeps_required_properties_and_multi_type_branches() -> None:
    schema: dict[str, Any] = {
        "anyOf": [
            {"type": ["object", "null"], "properties": {"a": {}}, "required": ["a", "z"]},
            {"type": "object", "properties": {"b": {}}, "required": ["b", "z"]},
            {"type": "string"},
        ]
    }
    fitted, _ = fit_tool_schema(schema, NARROW)
    assert set(fitted["properties"]) == {"a", "b"}
    assert fitted["required"] == ["z"]
    open_branch = {"anyOf": [True, {"type": "object", "required": ["a"]}]}
    assert "required" not in fit_tool_schema(open_branch, NARROW)[0]


PARTS = st.sampled_from(
    [
        {},
        {"type": "string"},
        {"type": ["string", "null"]},
        {"type": ["integer", "string"]},
        {"type": ["integer", "string"], "anyOf": [{"minimum": 2}, {"type": "string"}]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"$ref": "#/$defs/t"},
        True,
    ]
)
NAMES = st.sampled_from(["a", "b", "z"])
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", ["object", "null"], "string"]),
        "properties": st.dictionaries(NAMES, PARTS, max_size=2),
        "required": st.lists(NAMES, unique=True, max_size=2),
    },
)
BRANCHES = st.lists(st.one_of(OBJECTS, st.booleans()), min_size=1, max_size=3)
ROOTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object"),
        "properties": st.dictionaries(NAMES, PARTS, max_size=2),
        "required": st.lists(NAMES, unique=True, max_size=1),
        "anyOf": BRANCHES,
        "oneOf": BRANCHES,
        "allOf": BRANCHES,
        "$defs": st.just({"t": {"type": "integer"}}),
    },
)
VALUES = st.sampled_from(["x", 1, 5, None, [1], {"a": 1}])


def as_json_schema(part: Any) -> Any:
    """Return the dialect as JSON Schema: `nullable` as a union, `oneOf` as `anyOf`.

    A widened member of `oneOf` may overlap with another one; targets do not check that.
    """
    if isinstance(part, list):
        return [as_json_schema(item) for item in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    schema = {key: as_json_schema(value) for key, value in cast("dict[str, Any]", part).items()}
    is_nullable = schema.pop("nullable", False) is True
    if "oneOf" in schema:
        schema["allOf"] = [*schema.get("allOf", []), {"anyOf": schema.pop("oneOf")}]
    return {"anyOf": [schema, {"type": "null"}]} if is_nullable else schema


def with_closed_members(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with members that refuse each other's properties."""
    shared = dict.fromkeys(schema.get("properties", {}), True)
    closed = dict(schema)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            closed[union] = [
                {
                    **member,
                    "properties": shared | member["properties"],
                    "additionalProperties": False,
                }
                if isinstance(member, dict) and "properties" in member
                else member
                for member in schema[union]
            ]
    return closed


@pytest.mark.row("T103", "T104", "T107", "T110")
@given(
    schema=ROOTS,
    value=st.dictionaries(NAMES, VALUES, max_size=3),
    rule=st.sampled_from(
        [NARROW, ToolSchemaRule(plain_root=True), ToolSchemaRule(type_lists=False)]
    ),
)
def test_fitted_schema_accepts_whatever_the_tool_accepts(
    schema: dict[str, Any], value: dict[str, Any], rule: ToolSchemaRule
) -> None:
    judge = jsonschema_rs.Draft202012Validator
    try:
        checks = (schema, with_closed_members(schema))
        is_accepted = all(judge(each).is_valid(value) for each in checks)
    except ValueError:  # a dangling reference
        assume(condition=False)
        return
    fitted, _ = fit_tool_schema(schema, rule)
    if is_accepted:
        assert judge(as_json_schema(fitted)).is_valid(value)
