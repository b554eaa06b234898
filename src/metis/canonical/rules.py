"""The rules of the canonical form as one table under two profiles, and the rules of a session.

`strict` is the base specification (rows M-123 to M-149) and rejects all additions to it; `full`,
the default, accepts the additions and checks that the fields are consistent. All rules apply to
complete messages, none to partial ones, and the rules marked `always` to cancelled and failed ones.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.codec import survives_round_trip
from metis.canonical.errors import DecodeError, EncodeError, InvalidMessageError, Problem
from metis.canonical.fast import is_surely_valid
from metis.canonical.ids import CANONICAL_TOOL_ID_PATTERN
from metis.canonical.message import SCHEMA_VERSION, Message, Role
from metis.canonical.metadata import MessageStatus, RoutingMode, StopReason
from metis.canonical.profiles import RuleProfile, additions, misplaced_blocks
from metis.canonical.tools import ToolSet

Breaches = Iterator[tuple[str, str, str]]
"""Row, path and text of every breach of a rule."""


class Rule(NamedTuple):
    """One row of the rule table: the profiles that it belongs to, and the check."""

    profiles: frozenset[RuleProfile]
    check: Callable[[Message, RuleProfile], Breaches]
    always: bool = False


_ENDED_EARLY = (MessageStatus.CANCELLED, MessageStatus.ERROR)
BOTH = frozenset[RuleProfile]({"strict", "full"})
STRICT = frozenset[RuleProfile]({"strict"})
FULL = frozenset[RuleProfile]({"full"})


def validate(
    message: Message, profile: RuleProfile = "full", *, tools: ToolSet | None = None
) -> list[Problem]:
    """Return every rule that a message breaks, each with the path of the offending part.

    With `tools`, the input of each call is also checked against the schema of its tool.
    """
    status = message.metadata.status
    if status == MessageStatus.PARTIAL:
        return []
    # The rules assume fields of the right types, which constructors do not fully check.
    malformed = [
        Problem(path=path, rule=row, text=text) for row, path, text in _malformations(message)
    ]
    if malformed:
        return malformed
    # Fast path for nearly all messages.
    if profile == "full" and tools is None and is_surely_valid(message):
        return []
    is_complete = status not in _ENDED_EARLY
    problems = [
        Problem(path=path, rule=row, text=text)
        for check in _CHECKS[profile, is_complete]
        for row, path, text in check(message, profile)
    ]
    if tools is not None and is_complete:
        problems += _input_problems(message, tools)
    return problems


def check(
    message: Message, profile: RuleProfile = "full", *, tools: ToolSet | None = None
) -> Message:
    """Return the message itself; raise InvalidMessageError with all problems if it breaks rules."""
    problems = validate(message, profile, tools=tools)
    if problems:
        raise InvalidMessageError(f"message {message.id} breaks the rules", problems)
    return message


def as_failed(message: Message) -> Message:
    """Return a message with the status and stop reason of a failed one."""
    status, reason = MessageStatus.ERROR, StopReason.ERROR
    metadata = replace(message.metadata, status=status, stop_reason=reason)
    return replace(message, metadata=metadata)


def _malformations(message: Message) -> Breaches:
    """Yield the reasons why a message is malformed; the rules do not apply to such a message."""
    if message.schema_version != SCHEMA_VERSION and message.sealed is UNSET:
        text = f"version {message.schema_version} cannot be written; it must be {SCHEMA_VERSION}"
        yield "M-275", "$.schema_version", text
    try:
        is_consistent = survives_round_trip(message)
    except (DecodeError, EncodeError) as error:
        yield "M-010", error.path, error.reason
        return
    if not is_consistent:
        yield "M-010", "$", "the message changes when it is encoded and decoded"


def _has_content(message: Message, _: RuleProfile) -> Breaches:
    if not message.content and message.role != Role.SYSTEM:
        yield "M-123", "$.content", f"a {message.role} message needs at least one block"


def _has_one_result(message: Message, _: RuleProfile) -> Breaches:
    if message.role == Role.TOOL and len(message.content) != 1:
        text = f"a tool message must have one block, not {len(message.content)}"
        yield "M-132", "$.content", text


def _has_canonical_tool_ids(message: Message, _: RuleProfile) -> Breaches:
    text = "a tool id is `tu_` and a ULID, not the id of a provider"
    for index, block in enumerate(message.content):
        match block:
            case ToolUseBlock() if not CANONICAL_TOOL_ID_PATTERN.fullmatch(block.id):
                yield "M-137", f"$.content[{index}].id", f"{text}: {block.id!r}"
            case ToolResultBlock() if not CANONICAL_TOOL_ID_PATTERN.fullmatch(block.tool_use_id):
                yield "M-137", f"$.content[{index}].tool_use_id", f"{text}: {block.tool_use_id!r}"
            case _:
                pass


def _has_provenance(message: Message, profile: RuleProfile) -> Breaches:
    """Check that a complete response has model, provider, routing and usage."""
    if message.role != Role.ASSISTANT:
        return
    metadata = message.metadata
    if profile == "full" and metadata.origin is not None:
        return  # imported messages have no routing decision and perhaps no usage
    required = {
        "model": ("M-146", metadata.model),
        "provider": ("M-146", metadata.provider),
        "routing": ("M-147", metadata.routing),
        "usage": ("M-148", metadata.usage),
    }
    for name, (row, value) in required.items():
        if value is None:
            yield row, f"$.metadata.{name}", "a complete assistant message needs it"


def _has_parent(message: Message, _: RuleProfile) -> Breaches:
    if message.role == Role.TOOL and message.metadata.parent_tool_use_id is None:
        yield (
            "M-149",
            "$.metadata.parent_tool_use_id",
            "a tool message must name the call that it belongs to",
        )


def _has_consistent_parent(message: Message, _: RuleProfile) -> Breaches:
    parent = message.metadata.parent_tool_use_id
    for block in message.content:
        if isinstance(block, ToolResultBlock) and parent not in (None, block.tool_use_id):
            text = f"{parent!r} is not the id in the block, {block.tool_use_id!r}"
            yield "M-070", "$.metadata.parent_tool_use_id", text


def _has_consistent_model(message: Message, _: RuleProfile) -> Breaches:
    model, provider = message.metadata.model, message.metadata.provider
    if model is None:
        return
    key, colon, name = model.partition(":")
    if not (key and colon and name):
        yield "M-066", "$.metadata.model", f"{model!r} is not of the form provider:name"
    elif provider not in (None, key):
        yield "M-067", "$.metadata.provider", f"{provider!r} is not the provider of {model!r}"


def _has_consistent_routing(message: Message, _: RuleProfile) -> Breaches:
    """Check the routing record against the model, and its fields against its mode."""
    routing = message.metadata.routing
    if routing is None:
        return
    path = "$.metadata.routing"
    if message.metadata.model not in (None, routing.chosen_model):
        yield "M-081", f"{path}.chosen_model", "differs from metadata.model"
    if not routing.reason:
        yield "M-082", f"{path}.reason", "is empty"
    if (routing.mode == RoutingMode.RULE) != (routing.rule_name is not None):
        yield "M-083", f"{path}.rule_name", "must be set if and only if the mode is rule"
    if (routing.mode == RoutingMode.PATTERN) != (routing.confidence is not None):
        yield "M-084", f"{path}.confidence", "must be set if and only if the mode is pattern"
    if routing.confidence is not None and not 0 <= routing.confidence <= 1:
        yield "M-084", f"{path}.confidence", f"{routing.confidence} is not within 0 and 1"


_COUNTS = (
    ("M-099", "input_tokens"),
    ("M-100", "output_tokens"),
    ("M-101", "cached_input_tokens"),
    ("M-102", "cache_creation_input_tokens"),
    ("M-103", "cost_usd"),
    ("M-105", "latency_ms"),
    ("M-102", "cache_creation_1h_input_tokens"),
    ("M-100", "reasoning_output_tokens"),
)
# The first field of each pair is part of the second and must not be added to it.
_SUBTOTALS = (
    ("cache_creation_1h_input_tokens", "cache_creation_input_tokens"),
    ("reasoning_output_tokens", "output_tokens"),
)


def _has_consistent_usage(message: Message, _: RuleProfile) -> Breaches:
    usage = message.metadata.usage
    if usage is None:
        return
    for row, name in _COUNTS:
        if getattr(usage, name) < 0:
            yield row, f"$.metadata.usage.{name}", "is negative"
    for part, total in _SUBTOTALS:
        if getattr(usage, part) > getattr(usage, total):
            yield "M-106", f"$.metadata.usage.{part}", f"is larger than {total}, which includes it"
    if not usage.pricing_version:
        yield "M-104", "$.metadata.usage.pricing_version", "is empty"


def _has_media_types(message: Message, _: RuleProfile) -> Breaches:
    for index, block in enumerate(message.content):
        if not isinstance(block, _MEDIA_OR_RESULT):
            continue
        path = f"$.content[{index}]"
        inner = block.content if isinstance(block, ToolResultBlock) else ()
        parts = [(path, block), *((f"{path}.content[{i}]", part) for i, part in enumerate(inner))]
        for part_path, part in parts:
            if isinstance(part, _MEDIA_BLOCKS) and not _is_media_type(part.media_type):
                yield "M-047", f"{part_path}.media_type", f"{part.media_type!r} is not a media type"


_MEDIA_BLOCKS = (ImageBlock, DocumentBlock, AudioBlock, VideoBlock, ArtifactBlock)
_MEDIA_OR_RESULT = (*_MEDIA_BLOCKS, ToolResultBlock)


def _is_media_type(text: str) -> bool:
    kind, slash, subtype = text.partition(";")[0].strip().partition("/")
    return bool(kind and slash and subtype) and not (set(kind + subtype) & set(' /\\"()<>@,:;[]?='))


def _has_no_input_if_invalid(message: Message, _: RuleProfile) -> Breaches:
    for index, block in enumerate(message.content):
        if isinstance(block, ToolUseBlock) and block.invalid is not None and block.input:
            text = "a call with invalid arguments must have an empty input"
            yield "M-042", f"$.content[{index}].input", text


# Problems are reported in this order; the first rule rejects additions to the base specification.
RULES = (
    Rule(STRICT, additions),
    Rule(BOTH, _has_content),
    Rule(BOTH, misplaced_blocks),
    Rule(BOTH, _has_one_result),
    Rule(BOTH, _has_canonical_tool_ids),
    Rule(BOTH, _has_provenance),
    Rule(BOTH, _has_parent, always=True),
    Rule(FULL, _has_consistent_parent),
    Rule(FULL, _has_consistent_model),
    Rule(FULL, _has_consistent_routing),
    Rule(FULL, _has_consistent_usage),
    Rule(FULL, _has_media_types),
    Rule(FULL, _has_no_input_if_invalid),
)
"""The rule table."""

_CHECKS = {
    (profile, is_complete): tuple(
        rule.check for rule in RULES if profile in rule.profiles and (rule.always or is_complete)
    )
    for profile in BOTH
    for is_complete in (True, False)
}
"""The checks of a message, by profile and whether it is complete."""


def _input_problems(message: Message, tools: ToolSet) -> Iterator[Problem]:
    for index, block in enumerate(message.content):
        # The session reports invalid arguments to the model; they break no rule.
        if not isinstance(block, ToolUseBlock) or block.invalid is not None:
            continue
        path = f"$.content[{index}]"
        if block.name not in tools:
            yield Problem(
                path=f"{path}.name", rule="M-142", text=f"no tool is named {block.name!r}"
            )
            continue
        yield from tools.check_input(block.name, block.input, f"{path}.input")


def validate_session(
    messages: Sequence[Message], profile: RuleProfile = "full", *, tools: ToolSet | None = None
) -> list[Problem]:
    """Return every broken rule in a list of messages: within each message, and between them.

    Paths start with the index of the message: `$[3].content[0].tool_use_id`. The list may contain
    messages of several sessions.
    """
    checker = _SessionChecker()
    problems: list[Problem] = []
    for index, message in enumerate(messages):
        message_path = f"$[{index}]"
        for problem in validate(message, profile, tools=tools):
            path = message_path + problem.path.removeprefix("$")
            problems.append(Problem(path=path, rule=problem.rule, text=problem.text))
        if message.metadata.status != MessageStatus.PARTIAL:
            problems.extend(checker.add(message, message_path))
    return problems


class _SessionChecker:
    """Checks the rules between messages: their order, and the ids of calls and results."""

    def __init__(self) -> None:
        self._newest_id: dict[str, str] = {}
        self._session_of_call: dict[str, str] = {}
        self._result_of_call: dict[str, str] = {}

    def add(self, message: Message, message_path: str) -> Iterator[Problem]:
        """Add the next message; yield its problems with earlier messages."""
        yield from self._check_order(message, message_path)
        for index, block in enumerate(message.content):
            path = f"{message_path}.content[{index}]"
            if isinstance(block, ToolUseBlock):
                yield from self._check_call(block, message, f"{path}.id")
            elif isinstance(block, ToolResultBlock):
                yield from self._check_result(block, message, f"{path}.tool_use_id")

    def _check_order(self, message: Message, message_path: str) -> Iterator[Problem]:
        newest = self._newest_id.get(message.session_id, "")
        # Ids are ULIDs: their order is the order of the conversation.
        if message.id <= newest:
            text = f"{message.id!r} does not come after {newest!r}"
            yield Problem(path=f"{message_path}.id", rule="M-165", text=text)
        self._newest_id[message.session_id] = max(newest, message.id)

    def _check_call(self, call: ToolUseBlock, message: Message, path: str) -> Iterator[Problem]:
        session_id = self._session_of_call.get(call.id)
        if session_id is None:
            self._session_of_call[call.id] = message.session_id
        # Results are matched by id, so that a second call with the same id would get none.
        elif session_id == message.session_id:
            text = f"{call.id!r} is the id of an earlier call; a retry needs a new id"
            yield Problem(path=path, rule="M-141", text=text)
        else:
            text = f"{call.id!r} belongs to session {session_id!r}"
            yield Problem(path=path, rule="M-139", text=text)

    def _check_result(
        self, result: ToolResultBlock, message: Message, path: str
    ) -> Iterator[Problem]:
        call = result.tool_use_id
        session_id = self._session_of_call.get(call)
        if session_id is None:
            text = f"no earlier call has the id {call!r}"
            yield Problem(path=path, rule="M-138", text=text)
        elif session_id != message.session_id:
            text = f"{call!r} belongs to session {session_id!r}"
            yield Problem(path=path, rule="M-139", text=text)
        elif call in self._result_of_call:
            text = f"{call!r} has a result in message {self._result_of_call[call]!r} already"
            yield Problem(path=path, rule="M-140", text=text)
        else:
            self._result_of_call[call] = message.id
