"""Tool definitions and tool sets: bytes, names, schemas and registration."""

import contextlib
import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.canonical.errors import (
    DecodeError,
    DuplicateToolError,
    EncodeError,
    InvalidValueError,
    LimitError,
    ToolDefinitionError,
    UnknownToolError,
)
from metis.canonical.tools import (
    SideEffects,
    ToolDefinition,
    ToolSet,
    check_tool,
    decode_tool,
    encode_tool,
)
from metis.canonical.value import Extra

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ_FILE = ToolDefinition("read_file", "Reads a file.", SCHEMA, SideEffects.READ)
RUN = ToolDefinition("run", "", {"type": "object"}, SideEffects.EXECUTE, requires_workspace=False)
READ_FILE_BYTES = (
    b'{"description":"Reads a file.","input_schema":{"properties":{"path":{"type":"string"}},'
    b'"required":["path"],"type":"object"},"name":"read_file","side_effects":"read"}'
)


def tool(**given_fields: Any) -> ToolDefinition:
    fields: dict[str, Any] = {
        "name": "a",
        "description": "",
        "input_schema": {"type": "object"},
        "side_effects": SideEffects.NONE,
    }
    return ToolDefinition(**fields | given_fields)


@pytest.mark.row("M-113", "M-114", "M-115", "M-116", "M-117")
def test_side_effect_strings() -> None:
    assert {member.name: member.value for member in SideEffects} == {
        "NONE": "none",
        "READ": "read",
        "WRITE": "write",
        "EXECUTE": "execute",
        "NETWORK": "network",
    }


@pytest.mark.row("M-110", "M-112")
def test_definition_round_trips_byte_for_byte() -> None:
    assert encode_tool(READ_FILE) == READ_FILE_BYTES
    assert decode_tool(READ_FILE_BYTES) == READ_FILE
    assert decode_tool(READ_FILE_BYTES.decode()) == READ_FILE
    assert hash(decode_tool(READ_FILE_BYTES)) == hash(READ_FILE)
    assert decode_tool(encode_tool(RUN)) == RUN != READ_FILE


@pytest.mark.row("M-112")
def test_tool_requires_workspace_by_default() -> None:
    assert READ_FILE.requires_workspace is True
    assert decode_tool(READ_FILE_BYTES).requires_workspace is True
    assert RUN.requires_workspace is False
    assert b'"requires_workspace":false' in encode_tool(RUN)


@pytest.mark.row("M-111")
def test_side_effects_are_required() -> None:
    with pytest.raises(TypeError, match="side_effects"):
        ToolDefinition("a", "", {"type": "object"})  # pyright: ignore[reportCallIssue] - the point of the test
    with pytest.raises(DecodeError) as caught:
        decode_tool(b'{"name":"a","description":"","input_schema":{"type":"object"}}')
    assert caught.value.path == "$.side_effects"


def test_side_effects_may_be_given_as_a_plain_string() -> None:
    assert tool(side_effects="write").side_effects is SideEffects.WRITE
    with pytest.raises(InvalidValueError) as caught:
        tool(side_effects="magic")
    assert caught.value.path == "$.side_effects"


@pytest.mark.row("M-003", "M-308")
def test_there_are_no_provider_overrides() -> None:
    with pytest.raises(TypeError, match="provider_overrides"):
        tool(provider_overrides={})
    with pytest.raises(TypeError, match="no extra fields"):
        tool(extra=Extra({"provider_overrides": {}}))
    with pytest.raises(DecodeError) as caught:
        decode_tool(READ_FILE_BYTES[:-1] + b',"provider_overrides":{}}')
    assert caught.value.path == "$.provider_overrides"
    assert b"provider_overrides" not in encode_tool(READ_FILE)


@pytest.mark.parametrize(
    ("data", "error", "path"),
    [
        (b"", DecodeError, "$"),
        (b"[]", DecodeError, "$"),
        (b"\xff", DecodeError, "$"),
        (b'{"name":5}', DecodeError, "$.name"),
        (READ_FILE_BYTES[:-1] + b',"extra":{}}', DecodeError, "$.extra"),
        (READ_FILE_BYTES[:-1] + b',"name":"b"}', DecodeError, "$.name"),
        (READ_FILE_BYTES.replace(b'"read"', b'"magic"'), DecodeError, "$.side_effects"),
        (READ_FILE_BYTES.replace(b"{", b"[[{", 1), DecodeError, "$[0][0]"),
        (b"[" * 100_000, LimitError, "$" + "[0]" * 26 + "[..."),
    ],
)
def test_invalid_definition_error_names_the_path(
    data: bytes, error: type[DecodeError], path: str
) -> None:
    with pytest.raises(error) as caught:
        decode_tool(data)
    assert caught.value.path == path


@given(st.binary() | st.binary().map(lambda data: READ_FILE_BYTES[: len(data)] + data))
def test_any_bytes_give_definition_or_typed_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert isinstance(decode_tool(data), ToolDefinition)


def test_definition_with_non_json_value_is_refused() -> None:
    with pytest.raises(EncodeError) as caught:
        encode_tool(tool(input_schema={"enum": [float("nan")]}))
    assert caught.value.path == "$.input_schema.enum[0]"
    schema: dict[str, Any] = {}
    schema["items"] = schema
    with pytest.raises(EncodeError):
        encode_tool(tool(input_schema=schema))


@pytest.mark.row("M-108")
@pytest.mark.parametrize("name", ["a", "read_file", "read_file2", "github__list_issues", "a" * 64])
def test_snake_case_names_are_accepted(name: str) -> None:
    assert check_tool(tool(name=name)) == []
    assert ToolSet([tool(name=name)])[name].name == name


@pytest.mark.row("M-108")
@pytest.mark.parametrize(
    "name",
    ["", "A", "readFile", "read-file", "read.file", "1a", "_a", "a_", "a__", "ä", "a b", "a\n", 5],
)
def test_badly_formed_names_are_refused(name: object) -> None:
    assert [(found.path, found.rule) for found in check_tool(tool(name=name))] == [
        ("$.name", "M-108")
    ]
    with pytest.raises(ToolDefinitionError):
        ToolSet([tool(name=name)])


@pytest.mark.row("M-108")
def test_a_name_has_at_most_64_characters() -> None:
    found = check_tool(tool(name="a" * 65))
    assert list(map(str, found)) == [
        "$.name: a tool name has at most 64 characters, this one has 65"
    ]


@pytest.mark.row("M-108", "M-110", "M-163", "M-286")
def test_registration_reports_every_problem() -> None:
    bad = tool(
        name="Bad-",
        description=None,
        input_schema={"type": "array", "items": [{"anyOf": []}], "$ref": "#"},
        requires_workspace="no",
    )
    with pytest.raises(ToolDefinitionError) as caught:
        ToolSet([READ_FILE, bad])
    assert [(found.path, found.rule) for found in caught.value.problems] == [
        ("$.name", "M-108"),
        ("$.description", "M-109"),
        ("$.input_schema.items", "M-163"),
        ("$.input_schema.items[0].anyOf", "M-156"),
        ('$.input_schema["$ref"]', "M-154"),
        ("$.input_schema", "M-110"),
        ("$.requires_workspace", "M-112"),
    ]
    assert 'the tool string "Bad-" is refused' in str(caught.value)
    assert "$.input_schema.items[0].anyOf: `anyOf` is not allowed" in str(caught.value)


@pytest.mark.row("M-110")
@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": ["object", "null"]}])
def test_the_root_of_a_schema_is_an_object(schema: dict[str, Any]) -> None:
    assert [found.path for found in check_tool(tool(input_schema=schema))] == ["$.input_schema"]


@pytest.mark.parametrize("schema", [None, True, [], "object"])
def test_non_object_schema_is_one_problem(schema: object) -> None:
    assert [found.path for found in check_tool(tool(input_schema=schema))] == ["$.input_schema"]


def test_a_description_may_be_empty_but_is_text() -> None:
    assert check_tool(tool(description="")) == []
    assert [found.path for found in check_tool(tool(description="\ud800"))] == ["$.description"]


@pytest.mark.row("M-107")
def test_tools_are_found_by_name() -> None:
    tools = ToolSet([READ_FILE, RUN])
    assert tools["read_file"] is READ_FILE
    assert list(tools) == ["read_file", "run"]
    assert len(tools) == 2
    assert "run" in tools
    assert "walk" not in tools
    assert tools.get("walk") is None
    assert tools.get("walk", RUN) is RUN
    assert dict(tools) == {"read_file": READ_FILE, "run": RUN} == tools
    assert repr(ToolSet()) == "ToolSet([])"


@pytest.mark.row("M-107")
def test_an_unknown_name_is_a_typed_lookup_error() -> None:
    tools = ToolSet([READ_FILE])
    with pytest.raises(UnknownToolError, match="walk") as caught:
        tools["walk"]
    assert isinstance(caught.value, LookupError)
    with pytest.raises(UnknownToolError):
        tools.check_input("walk", {})


@pytest.mark.row("M-108")
def test_a_second_tool_of_the_same_name_is_refused() -> None:
    with pytest.raises(DuplicateToolError) as caught:
        ToolSet([READ_FILE, RUN, READ_FILE])
    assert caught.value.name == "read_file"


def test_tool_set_is_immutable() -> None:
    tools = ToolSet([READ_FILE])
    with pytest.raises(AttributeError):
        tools._tools = {}  # pyright: ignore[reportPrivateUsage] - the point of the test
    with pytest.raises(TypeError):
        tools["run"] = RUN  # pyright: ignore[reportIndexIssue] - the point of the test


def test_tool_set_can_be_copied_and_pickled() -> None:
    tools = ToolSet([READ_FILE, RUN])
    for other in (copy.deepcopy(tools), pickle.loads(pickle.dumps(tools))):  # noqa: S301 - our own bytes
        assert other == tools
        assert len(other.check_input("read_file", {})) == 1


@pytest.mark.row("M-142")
def test_input_is_checked_against_the_schema_of_the_tool() -> None:
    tools = ToolSet([READ_FILE, RUN])
    assert tools.check_input("read_file", {"path": "a"}) == []
    assert tools.check_input("run", {"anything": 1}) == []
    assert list(map(str, tools.check_input("read_file", {"path": 5}, "$.input"))) == [
        "$.input.path: expected string, got integer 5"
    ]


def test_checked_input_round_trips() -> None:
    schema: dict[str, Any] = {"enum": [None, 2**70, 1.5, {"é": "\U0001f600"}]}
    for _ in range(48):
        schema = {"type": "object", "properties": {"a": schema}}
    definition = tool(input_schema=schema)
    assert check_tool(definition) == []
    assert decode_tool(encode_tool(definition)) == definition
