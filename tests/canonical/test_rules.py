"""Message rules of the profiles full and strict."""

from typing import Any, Literal

import pytest
from hypothesis import given
from msgspec.structs import replace

from build import (
    EVERY_BLOCK,
    EVERYTHING,
    assistant,
    call,
    developer,
    image,
    message,
    opaque,
    provenance,
    result,
    routing,
    system,
    text,
    thinking,
    tool,
    tool_id,
    usage,
    user,
)
from metis.canonical import (
    CacheHint,
    ContentBlock,
    InvalidInput,
    Message,
    MessageMetadata,
    MessageStatus,
    MetisError,
    Outcome,
    OutcomeStatus,
    Role,
    SideEffects,
    StopReason,
    ToolDefinition,
    ToolSet,
    ToolUseBlock,
    UnknownBlock,
    check,
    validate,
)
from metis.canonical.errors import InvalidMessageError
from metis.canonical.profiles import (
    ALLOWED_BLOCKS,
    ALLOWED_IN_TOOL_RESULT,
    NOTE_FIELDS,
    SPEC_FIELDS,
)
from metis.canonical.value import fields_of
from strategies import conversations, messages

Profile = Literal["strict", "full"]
PROFILES: list[Profile] = ["strict", "full"]
ROWS_OF_THE_SOURCE_TEXT = {f"M-{number}" for number in range(123, 150)}
PLAIN_BLOCKS: dict[str, ContentBlock] = EVERY_BLOCK | {
    "text": text("a"),
    "tool_use": call("f", a=1),
    "tool_result": result("a"),
    "image": image(),
    "thinking": thinking(),
}


def rows_and_paths(
    broken: Message, profile: Profile = "full", **given: Any
) -> set[tuple[str, str]]:
    """Return row and path of every problem."""
    problems = validate(broken, profile, **given)
    assert all(problem.text and problem.path.startswith("$") for problem in problems)
    return {(problem.rule, problem.path) for problem in problems}


def with_status(old: Message, status: MessageStatus) -> Message:
    return replace(old, metadata=replace(old.metadata, status=status))


@given(conversations())
@pytest.mark.row("M-124", "M-125", "M-128", "M-131", "M-133")
def test_base_spec_messages_pass_both_profiles(conversation: list[Message]) -> None:
    for each in conversation:
        assert [validate(each, profile) for profile in PROFILES] == [[], []]
        assert check(each, "strict") is each


@given(messages())
@pytest.mark.row("M-123", "M-149")
def test_any_message_can_be_checked(any_message: Message) -> None:
    for profile in PROFILES:
        assert isinstance(validate(any_message, profile), list)


@given(messages())
@pytest.mark.row("M-135", "M-136")
def test_partial_message_has_no_problem(any_message: Message) -> None:
    partial = with_status(any_message, MessageStatus.PARTIAL)
    assert [validate(partial, profile) for profile in PROFILES] == [[], []]


@pytest.mark.row("M-135", "M-136")
def test_rules_run_when_a_message_becomes_complete() -> None:
    broken = message(Role.ASSISTANT, metadata=MessageMetadata(status=MessageStatus.PARTIAL))
    assert validate(broken) == []
    assert rows_and_paths(with_status(broken, MessageStatus.COMPLETE)) == {
        ("M-123", "$.content"),
        ("M-146", "$.metadata.model"),
        ("M-146", "$.metadata.provider"),
        ("M-147", "$.metadata.routing"),
        ("M-148", "$.metadata.usage"),
    }


@pytest.mark.parametrize("status", [MessageStatus.CANCELLED, MessageStatus.ERROR])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.row("M-136", "M-149")
def test_cancelled_or_failed_message_is_checked_for_parent_only(
    status: MessageStatus, profile: Profile
) -> None:
    assert validate(with_status(EVERYTHING, status), profile) == []
    assert validate(message(Role.ASSISTANT, metadata=MessageMetadata(status=status))) == []
    orphan = message(Role.TOOL, metadata=MessageMetadata(status=status))
    assert rows_and_paths(orphan, profile) == {("M-149", "$.metadata.parent_tool_use_id")}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.row("M-029", "M-123", "M-124", "M-132")
def test_only_system_messages_may_be_empty(profile: Profile) -> None:
    assert validate(system(), profile) == []
    assert rows_and_paths(user(), profile) == {("M-123", "$.content")}
    assert rows_and_paths(assistant(), profile) == {("M-123", "$.content")}
    parent = MessageMetadata(parent_tool_use_id=tool_id())
    assert rows_and_paths(message(Role.TOOL, metadata=parent), profile) == {
        ("M-123", "$.content"),
        ("M-132", "$.content"),
    }
    assert rows_and_paths(developer()) == {("M-123", "$.content")}


BLOCKS_OF_ROLE = {
    Role.USER: {"text", "image"},
    Role.ASSISTANT: {"text", "tool_use", "thinking", "redacted_thinking"},
    Role.SYSTEM: {"text"},
    Role.TOOL: {"tool_result"},
}
ROWS = {
    (Role.USER, "tool_use"): "M-126",
    (Role.USER, "tool_result"): "M-127",
    (Role.ASSISTANT, "tool_result"): "M-129",
    (Role.ASSISTANT, "image"): "M-130",
}
ROW_OF_ROLE = {
    Role.USER: "M-125",
    Role.ASSISTANT: "M-128",
    Role.SYSTEM: "M-133",
    Role.TOOL: "M-131",
}
MAKE = {
    Role.USER: user,
    Role.ASSISTANT: assistant,
    Role.SYSTEM: system,
}


def holding(role: Role, block: ContentBlock) -> Message:
    if role is Role.TOOL:
        return message(role, block, metadata=MessageMetadata(parent_tool_use_id=tool_id()))
    return MAKE[role](block)


@pytest.mark.parametrize("role", BLOCKS_OF_ROLE)
@pytest.mark.parametrize("tag", sorted(EVERY_BLOCK))
@pytest.mark.row("M-125", "M-126", "M-127", "M-128", "M-129", "M-130", "M-131", "M-133")
def test_each_role_allows_only_its_blocks(role: Role, tag: str) -> None:
    block = PLAIN_BLOCKS[tag]
    expected = ROWS.get((role, tag), ROW_OF_ROLE[role])
    misplaced = (expected, "$.content[0]")
    strict = rows_and_paths(holding(role, block), "strict")
    assert (misplaced in strict) is (tag not in BLOCKS_OF_ROLE[role])
    media = {"image", "document", "audio", "video", "opaque"}
    additions = {
        Role.USER: media,
        Role.ASSISTANT: {"artifact", "opaque"},
        Role.SYSTEM: {"opaque"},
    }
    added = additions.get(role, set[str]())
    full = rows_and_paths(holding(role, block))
    assert (misplaced in full) is (tag not in BLOCKS_OF_ROLE[role] | added)


@pytest.mark.row("M-130")
def test_generated_image_is_an_artifact() -> None:
    assert rows_and_paths(assistant(image())) == {("M-130", "$.content[0]")}
    assert validate(assistant(EVERY_BLOCK["artifact"])) == []


@pytest.mark.row("M-045")
@pytest.mark.parametrize("tag", sorted(EVERY_BLOCK))
def test_result_allows_only_displayable_blocks(tag: str) -> None:
    inside = ("M-045", "$.content[0].content[1]")
    allowed = {"text", "image", "document", "audio", "video", "artifact", "opaque"}
    assert (inside in rows_and_paths(tool("a", EVERY_BLOCK[tag]))) is (tag not in allowed)
    assert ALLOWED_IN_TOOL_RESULT["full"] == allowed


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.row("M-132")
def test_tool_message_has_exactly_one_result(profile: Profile) -> None:
    parent = MessageMetadata(parent_tool_use_id=tool_id())
    two = message(Role.TOOL, result("a"), result("b"), metadata=parent)
    assert rows_and_paths(two, profile) == {("M-132", "$.content")}
    assert validate(tool("a"), profile) == []


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("name", "row"),
    [("model", "M-146"), ("provider", "M-146"), ("routing", "M-147"), ("usage", "M-148")],
)
@pytest.mark.row("M-146", "M-147", "M-148", "M-069")
def test_complete_assistant_message_requires_provenance(
    profile: Profile, name: str, row: str
) -> None:
    bare = assistant("a", metadata=provenance(**{name: None}))
    assert rows_and_paths(bare, profile) == {(row, f"$.metadata.{name}")}
    assert validate(user("a"), profile) == []


@pytest.mark.row("M-146")
def test_imported_message_needs_no_provenance() -> None:
    imported = message(Role.ASSISTANT, "a", metadata=MessageMetadata(origin="import:x"))
    assert validate(imported) == []
    assert {row for row, _ in rows_and_paths(imported, "strict")} == {"M-146", "M-147", "M-148"}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "wrong", ["toolu_01ABC", "call_xyz789", "", "tu_", "tu_il", "TU_01", "tu_01\n"]
)
@pytest.mark.row("M-137", "M-040")
def test_provider_tool_id_is_refused(profile: Profile, wrong: str) -> None:
    if wrong:
        assert rows_and_paths(assistant(call("f", wrong)), profile) == {
            ("M-137", "$.content[0].id")
        }
    assert rows_and_paths(tool("a", answers=wrong or "x"), profile) == {
        ("M-137", "$.content[0].tool_use_id")
    }


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.row("M-137")
def test_base_spec_ids_are_accepted(profile: Profile) -> None:
    assert validate(assistant(call("f", "tu_01HZ100")), profile) == []
    assert validate(assistant(call("f")), profile) == []


BROKEN: dict[str, tuple[Message, set[tuple[str, str]]]] = {
    "parent": (
        tool("a", metadata=MessageMetadata(parent_tool_use_id=tool_id(2))),
        {("M-070", "$.metadata.parent_tool_use_id")},
    ),
    "model without provider": (
        assistant("a", metadata=provenance(model="gpt", routing=routing(chosen_model="gpt"))),
        {("M-066", "$.metadata.model")},
    ),
    "empty model name": (
        assistant("a", metadata=provenance(model="a:", routing=routing(chosen_model="a:"))),
        {("M-066", "$.metadata.model")},
    ),
    "another provider": (
        assistant("a", metadata=provenance(provider="openai")),
        {("M-067", "$.metadata.provider")},
    ),
    "another model chosen": (
        assistant("a", metadata=provenance(routing=routing(chosen_model="a:b"))),
        {("M-081", "$.metadata.routing.chosen_model")},
    ),
    "no reason": (
        assistant("a", metadata=provenance(routing=routing(reason=""))),
        {("M-082", "$.metadata.routing.reason")},
    ),
    "rule without name": (
        assistant("a", metadata=provenance(routing=routing(mode="rule"))),
        {("M-083", "$.metadata.routing.rule_name")},
    ),
    "name without rule": (
        assistant("a", metadata=provenance(routing=routing(rule_name="r"))),
        {("M-083", "$.metadata.routing.rule_name")},
    ),
    "pattern without confidence": (
        assistant("a", metadata=provenance(routing=routing(mode="pattern"))),
        {("M-084", "$.metadata.routing.confidence")},
    ),
    "confidence without pattern": (
        assistant("a", metadata=provenance(routing=routing(confidence=0.5))),
        {("M-084", "$.metadata.routing.confidence")},
    ),
    "too sure": (
        assistant("a", metadata=provenance(routing=routing(mode="pattern", confidence=1.01))),
        {("M-084", "$.metadata.routing.confidence")},
    ),
    "less than unsure": (
        assistant("a", metadata=provenance(routing=routing(mode="pattern", confidence=-0.01))),
        {("M-084", "$.metadata.routing.confidence")},
    ),
    **{
        f"negative {name}": (
            assistant("a", metadata=provenance(usage=usage(**{name: -1}))),
            {(row, f"$.metadata.usage.{name}")},
        )
        for name, row in {
            "input_tokens": "M-099",
            "cached_input_tokens": "M-101",
            "cost_usd": "M-103",
            "latency_ms": "M-105",
        }.items()
    },
    "negative output": (
        assistant("a", metadata=provenance(usage=usage(output_tokens=-1))),
        {
            ("M-100", "$.metadata.usage.output_tokens"),
            ("M-106", "$.metadata.usage.reasoning_output_tokens"),
        },
    ),
    "negative cache write": (
        assistant("a", metadata=provenance(usage=usage(cache_creation_input_tokens=-1))),
        {
            ("M-102", "$.metadata.usage.cache_creation_input_tokens"),
            ("M-106", "$.metadata.usage.cache_creation_1h_input_tokens"),
        },
    ),
    "a part larger than its whole": (
        assistant("a", metadata=provenance(usage=usage(reasoning_output_tokens=43))),
        {("M-106", "$.metadata.usage.reasoning_output_tokens")},
    ),
    "no pricing version": (
        assistant("a", metadata=provenance(usage=usage(pricing_version=""))),
        {("M-104", "$.metadata.usage.pricing_version")},
    ),
    **{
        f"media type {media_type!r}": (
            user(image(media_type=media_type)),
            {("M-047", "$.content[0].media_type")},
        )
        for media_type in ("", "png", "/png", "image/", "image/p ng", "image//png", "a:b/c")
    },
    "media type in a result": (
        tool("a", image(media_type="png")),
        {("M-047", "$.content[0].content[1].media_type")},
    ),
    "input beside invalid input": (
        assistant(
            ToolUseBlock(
                id=tool_id(), name="f", input={"a": 1}, invalid=InvalidInput(raw="", error="e")
            )
        ),
        {("M-042", "$.content[0].input")},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.row("M-042", "M-047", "M-066", "M-067", "M-070", "M-081", "M-082", "M-083", "M-084")
@pytest.mark.row("M-099", "M-100", "M-101", "M-102", "M-103", "M-105", "M-176")
def test_broken_rule_is_reported_with_path(name: str) -> None:
    broken, expected = BROKEN[name]
    assert rows_and_paths(broken) == expected
    with pytest.raises(InvalidMessageError) as caught:
        check(broken)
    assert {(each.rule, each.path) for each in caught.value.problems} == expected
    assert all(path in str(caught.value) for _, path in expected)


@pytest.mark.row("M-123", "M-146")
def test_every_problem_is_reported() -> None:
    broken = message(Role.ASSISTANT, result("a", thinking()), image(), call("f", "call_1"), id="x")
    assert rows_and_paths(broken) == {
        ("M-129", "$.content[0]"),
        ("M-045", "$.content[0].content[1]"),
        ("M-130", "$.content[1]"),
        ("M-137", "$.content[2].id"),
        ("M-146", "$.metadata.model"),
        ("M-146", "$.metadata.provider"),
        ("M-147", "$.metadata.routing"),
        ("M-148", "$.metadata.usage"),
    }


ADDED_TO_METADATA: dict[str, Any] = {
    "stop_reason": StopReason.END_TURN,
    "response_id": "r",
    "outcome": Outcome(status=OutcomeStatus.SUCCESS),
    "hints": (CacheHint(after=0),),
    "options": {},
    "parents": ("a",),
    "origin": "import:x",
    "external": {},
}
ADDED_TO_USAGE: dict[str, Any] = {
    "reasoning_output_tokens": 1,
    "estimated": True,
    "reported_cost_usd": "1",
    "server_tool_requests": {},
    "service_tier": "batch",
}
ADDITIONS: dict[str, tuple[Message, str]] = {
    "developer": (developer("a"), "$.role"),
    "unknown role": (message(Role("oracle"), "a"), "$.role"),
    "critical": (user(text("a", critical=True)), "$.content[0].critical"),
    "citations": (user(EVERY_BLOCK["text"]), "$.content[0].citations"),
    "invalid": (
        assistant(EVERY_BLOCK["tool_use"]),
        "$.content[0].invalid",
    ),
    "thinking id": (assistant(thinking(id="a")), "$.content[0].id"),
    "thinking format": (assistant(thinking(format="a")), "$.content[0].format"),
    "thinking issuer": (assistant(thinking(issuer="a")), "$.content[0].issuer"),
    "document": (user(EVERY_BLOCK["document"]), "$.content[0]"),
    "audio": (user(EVERY_BLOCK["audio"]), "$.content[0]"),
    "video": (user(EVERY_BLOCK["video"]), "$.content[0]"),
    "artifact": (assistant(EVERY_BLOCK["artifact"]), "$.content[0]"),
    "opaque": (assistant(opaque()), "$.content[0]"),
    "unknown block": (user(UnknownBlock(b'{"type":"x"}')), "$.content[0]"),
    "unknown block inside": (tool(UnknownBlock(b'{"type":"x"}')), "$.content[0].content[0]"),
    "document inside": (tool(EVERY_BLOCK["document"]), "$.content[0].content[0]"),
    "unknown field": (user("a", extra={"new": 1}), "$.new"),
    "unknown field inside": (tool(text("a", extra={"new": 1})), "$.content[0].content[0].new"),
    "unknown field of usage": (
        assistant("a", metadata=provenance(usage=usage(extra={"new": 1}))),
        "$.metadata.usage.new",
    ),
    "unknown mode": (
        assistant("a", metadata=provenance(routing=routing(mode="dice"))),
        "$.metadata.routing.mode",
    ),
    **{
        name: (assistant("a", metadata=provenance(**{name: value})), f"$.metadata.{name}")
        for name, value in ADDED_TO_METADATA.items()
    },
    **{
        name: (
            assistant("a", metadata=provenance(usage=usage(**{name: value}))),
            f"$.metadata.usage.{name}",
        )
        for name, value in ADDED_TO_USAGE.items()
    },
}


NOTES = {
    *("citations", "thinking id", "thinking format", "thinking issuer", *ADDED_TO_USAGE),
    *("stop_reason", "response_id", "outcome", "hints", "origin", "external"),
}
"""Additions that do not change the meaning of a message; strict accepts them."""


@pytest.mark.parametrize("name", ADDITIONS)
@pytest.mark.row("M-028", "M-037", "M-057")
def test_strict_refuses_additions_except_notes_and_full_accepts_them(name: str) -> None:
    added, path = ADDITIONS[name]
    assert (path in {problem.path for problem in validate(added, "strict")}) is (name not in NOTES)
    if name != "invalid":
        assert validate(added) == []


def test_every_added_field_is_either_a_note_or_refused() -> None:
    refused = {
        (kind.__name__, field.name)
        for kind, listed in SPEC_FIELDS.items()
        for field in fields_of(kind)
        if field.name not in listed | NOTE_FIELDS.get(kind, frozenset())
    }
    assert {name for _, name in refused} == {
        *("critical", "invalid", "options", "parents", "prepended")
    }


def test_strict_refuses_an_unknown_value_in_a_note() -> None:
    odd = assistant("a", metadata=provenance(stop_reason=StopReason("tired")))
    assert [(each.rule, each.path) for each in validate(odd, "strict")] == [
        ("M-028", "$.metadata.stop_reason")
    ]


@pytest.mark.row("M-123", "M-149")
@given(messages())
def test_strict_has_only_base_spec_rules(any_message: Message) -> None:
    rows = {problem.rule for problem in validate(any_message, "strict")}
    additions = {"M-028", "M-033", "M-037"}
    assert rows <= ROWS_OF_THE_SOURCE_TEXT | additions | {"M-010", "M-045"}


@pytest.mark.row("M-128")
def test_strict_table_equals_base_spec() -> None:
    assert ALLOWED_BLOCKS["strict"] == {
        role: frozenset(tags) for role, tags in BLOCKS_OF_ROLE.items()
    }


TOOLS = ToolSet(
    [
        ToolDefinition(
            name="read_file",
            description="",
            input_schema={
                "type": "object",
                "properties": {"path": {"type": "string"}, "n": {"type": "integer"}},
                "required": ["path"],
            },
            side_effects=SideEffects.READ,
        )
    ]
)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.row("M-142")
def test_input_is_checked_against_the_schema_of_its_tool(profile: Profile) -> None:
    good = assistant(call("read_file", path="a"))
    assert validate(good, profile, tools=TOOLS) == []
    bad = assistant("a", call("read_file", path=1, n="x"), call("write_file"))
    assert validate(bad, profile) == []
    assert rows_and_paths(bad, profile, tools=TOOLS) == {
        ("M-142", "$.content[1].input.path"),
        ("M-142", "$.content[1].input.n"),
        ("M-142", "$.content[2].name"),
    }
    with pytest.raises(InvalidMessageError):
        check(bad, profile, tools=TOOLS)
    assert check(good, profile, tools=TOOLS) is good


@pytest.mark.row("M-136", "M-142")
def test_input_is_not_checked_before_a_message_is_complete() -> None:
    bad = assistant(call("read_file"))
    for status in (MessageStatus.PARTIAL, MessageStatus.CANCELLED, MessageStatus.ERROR):
        assert validate(with_status(bad, status), tools=TOOLS) == []


@pytest.mark.row("M-142", "M-042")
def test_non_object_input_is_not_checked_against_schema() -> None:
    invalid = InvalidInput(raw="[", error="cut off")
    block = ToolUseBlock(id=tool_id(), name="read_file", input={}, invalid=invalid)
    assert validate(assistant(block), tools=TOOLS) == []


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("broken", "path"),
    [
        (user(text(5)), "$.content[0].text"),  # pyright: ignore[reportArgumentType] - the point of the test
        (user("\ud800"), "$.content[0].text"),
        (user("a", id=None), "$.id"),
        (tool(image(media_type=None)), "$.content[0].content[0].media_type"),
        (
            user("a", metadata=MessageMetadata(usage=usage(latency_ms=2**70))),
            "$.metadata.usage.latency_ms",
        ),
    ],
)
@pytest.mark.row("M-010")
def test_message_with_wrong_field_types_is_refused(
    profile: Profile, broken: Message, path: str
) -> None:
    assert ("M-010", path) in rows_and_paths(broken, profile)


@pytest.mark.row("M-275")
def test_unsupported_version_is_a_problem() -> None:
    assert "$.schema_version" in {path for _, path in rows_and_paths(user("a", schema_version=2))}


@pytest.mark.row("M-123")
def test_check_raises_typed_error_with_every_problem() -> None:
    with pytest.raises(MetisError) as caught:
        check(user())
    assert isinstance(caught.value, InvalidMessageError)
    assert [str(problem) for problem in caught.value.problems] == [
        "$.content: a user message needs at least one block"
    ]
