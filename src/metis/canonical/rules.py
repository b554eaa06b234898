"""The rules of the canonical form, as one table, under two profiles.

`strict` is the source text to the letter (rows M-123 to M-149) and refuses everything that was
added to it; `full`, the default, knows the additions and holds the fields to what they promise.
Rules run when a message is complete. A partial message may break all of them; of a cancelled or
failed one only the rules marked `always` are asked.
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
from metis.canonical.codec import EncodedParts, survives_round_trip, verified_parts
from metis.canonical.errors import DecodeError, EncodeError, InvalidMessageError, Problem
from metis.canonical.fast import is_surely_valid
from metis.canonical.ids import CANONICAL_TOOL_ID_PATTERN
from metis.canonical.message import SCHEMA_VERSION, Message, Role
from metis.canonical.metadata import MessageStatus, RoutingMode, StopReason
from metis.canonical.profiles import RuleProfile, additions, misplaced_blocks
from metis.canonical.tools import ToolSet
from metis.canonical.value import canonical_bytes

Breaches = Iterator[tuple[str, str, str]]
"""What a check finds: row, path and text."""


class Rule(NamedTuple):
    """One row of the table: under which profiles it holds, and what finds its breaches."""

    profiles: frozenset[RuleProfile]
    check: Callable[[Message, RuleProfile], Breaches]
    always: bool = False


_UNFINISHED = (MessageStatus.CANCELLED, MessageStatus.ERROR)
BOTH = frozenset[RuleProfile]({"strict", "full"})
STRICT = frozenset[RuleProfile]({"strict"})
FULL = frozenset[RuleProfile]({"full"})


def validate(
    message: Message, profile: RuleProfile = "full", *, tools: ToolSet | None = None
) -> list[Problem]:
    """Every rule that a message breaks, each with the path of the offending part.

    With `tools`, the input of each call is checked against the schema of its tool as well.
    """
    status = message.metadata.status
    if status == MessageStatus.PARTIAL:
        return []
    malformed = [Problem(path=path, rule=row, text=text) for row, path, text in _faults(message)]
    if malformed:
        return malformed
    if profile == "full" and tools is None and is_surely_valid(message):
        return []
    is_finished = status not in _UNFINISHED
    problems = [
        Problem(path=path, rule=row, text=text)
        for check in _CHECKS[profile, is_finished]
        for row, path, text in check(message, profile)
    ]
    if tools is not None and is_finished:
        problems += _input_problems(message, tools)
    return problems


def check(
    message: Message, profile: RuleProfile = "full", *, tools: ToolSet | None = None
) -> Message:
    """The message itself, if it breaks no rule; else an InvalidMessageError with every problem."""
    problems = validate(message, profile, tools=tools)
    if problems:
        raise InvalidMessageError(f"message {message.id} breaks the rules", problems)
    return message


def check_and_encode(message: Message) -> EncodedParts:
    """The bytes of the parts of a message that breaks no rule, for a store: proof and bytes in one.

    A partial message is asked for what holds of one that failed, since that is how it may end.

    Raises:
        InvalidMessageError: the message breaks rules of the profile `full`.
    """
    parts = verified_parts(message)
    if parts is None or not is_surely_valid(message):
        is_partial = message.metadata.status == MessageStatus.PARTIAL
        check(as_failed(message) if is_partial else message)
    return parts or EncodedParts(
        canonical_bytes(message.content), canonical_bytes(message.metadata)
    )


def as_failed(message: Message) -> Message:
    """A message that will not be finished, as it ends."""
    status, reason = MessageStatus.ERROR, StopReason.ERROR
    metadata = replace(message.metadata, status=status, stop_reason=reason)
    return replace(message, metadata=metadata)


def _faults(message: Message) -> Breaches:
    """What keeps a message from being one at all; no rule is asked of such a message."""
    if message.schema_version != SCHEMA_VERSION and message.sealed is UNSET:
        text = f"version {message.schema_version} is not the one that is written, {SCHEMA_VERSION}"
        yield "M-275", "$.schema_version", text
    try:
        is_whole = survives_round_trip(message)
    except (DecodeError, EncodeError) as error:
        yield "M-010", error.path, error.reason
        return
    if not is_whole:
        yield "M-010", "$", "the message is not what its own bytes say"


def _has_content(message: Message, _: RuleProfile) -> Breaches:
    if not message.content and message.role != Role.SYSTEM:
        yield "M-123", "$.content", f"a {message.role} message needs at least one block"


def _has_one_result(message: Message, _: RuleProfile) -> Breaches:
    if message.role == Role.TOOL and len(message.content) != 1:
        yield "M-132", "$.content", f"a tool message holds one block, not {len(message.content)}"


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
    if message.role != Role.ASSISTANT:
        return
    metadata = message.metadata
    if profile == "full" and metadata.origin is not None:
        return  # what came from elsewhere has no decision and perhaps no usage of ours
    needed = {
        "model": ("M-146", metadata.model),
        "provider": ("M-146", metadata.provider),
        "routing": ("M-147", metadata.routing),
        "usage": ("M-148", metadata.usage),
    }
    for name, (row, value) in needed.items():
        if value is None:
            yield row, f"$.metadata.{name}", "a complete assistant message needs it"


def _has_parent(message: Message, _: RuleProfile) -> Breaches:
    if message.role == Role.TOOL and message.metadata.parent_tool_use_id is None:
        yield "M-149", "$.metadata.parent_tool_use_id", "a tool message names the call it answers"


def _names_its_parent_twice_alike(message: Message, _: RuleProfile) -> Breaches:
    parent = message.metadata.parent_tool_use_id
    for block in message.content:
        if isinstance(block, ToolResultBlock) and parent not in (None, block.tool_use_id):
            text = f"{parent!r} is not the id in the block, {block.tool_use_id!r}"
            yield "M-070", "$.metadata.parent_tool_use_id", text


def _names_its_model(message: Message, _: RuleProfile) -> Breaches:
    model, provider = message.metadata.model, message.metadata.provider
    if model is None:
        return
    key, colon, name = model.partition(":")
    if not (key and colon and name):
        yield "M-066", "$.metadata.model", f"{model!r} is not of the form provider:name"
    elif provider not in (None, key):
        yield "M-067", "$.metadata.provider", f"{provider!r} is not the provider of {model!r}"


def _explains_its_route(message: Message, _: RuleProfile) -> Breaches:
    routing = message.metadata.routing
    if routing is None:
        return
    at = "$.metadata.routing"
    if message.metadata.model not in (None, routing.chosen_model):
        yield "M-081", f"{at}.chosen_model", "it differs from metadata.model"
    if not routing.reason:
        yield "M-082", f"{at}.reason", "it is empty"
    if (routing.mode == RoutingMode.RULE) != (routing.rule_name is not None):
        yield "M-083", f"{at}.rule_name", "it is set if and only if the mode is rule"
    if (routing.mode == RoutingMode.PATTERN) != (routing.confidence is not None):
        yield "M-084", f"{at}.confidence", "it is set if and only if the mode is pattern"
    if routing.confidence is not None and not 0 <= routing.confidence <= 1:
        yield "M-084", f"{at}.confidence", f"{routing.confidence} is not within 0 and 1"


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
_PARTS = (
    ("cache_creation_1h_input_tokens", "cache_creation_input_tokens"),
    ("reasoning_output_tokens", "output_tokens"),
)


def _counts_right(message: Message, _: RuleProfile) -> Breaches:
    usage = message.metadata.usage
    if usage is None:
        return
    for row, name in _COUNTS:
        if getattr(usage, name) < 0:
            yield row, f"$.metadata.usage.{name}", "it is negative"
    for part, whole in _PARTS:
        if getattr(usage, part) > getattr(usage, whole):
            yield "M-106", f"$.metadata.usage.{part}", f"a part is larger than {whole}"
    if not usage.pricing_version:
        yield "M-104", "$.metadata.usage.pricing_version", "it is empty"


def _has_media_types(message: Message, _: RuleProfile) -> Breaches:
    for index, block in enumerate(message.content):
        if not isinstance(block, _MAYBE_MEDIA):
            continue
        path = f"$.content[{index}]"
        inner = block.content if isinstance(block, ToolResultBlock) else ()
        parts = [(path, block), *((f"{path}.content[{i}]", part) for i, part in enumerate(inner))]
        for place, part in parts:
            if isinstance(part, _WITH_MEDIA) and not _is_media_type(part.media_type):
                yield "M-047", f"{place}.media_type", f"{part.media_type!r} is not a media type"


_WITH_MEDIA = (ImageBlock, DocumentBlock, AudioBlock, VideoBlock, ArtifactBlock)
_MAYBE_MEDIA = (*_WITH_MEDIA, ToolResultBlock)


def _is_media_type(text: str) -> bool:
    kind, slash, subtype = text.partition(";")[0].strip().partition("/")
    return bool(kind and slash and subtype) and not (set(kind + subtype) & set(' /\\"()<>@,:;[]?='))


def _holds_invalid_input_apart(message: Message, _: RuleProfile) -> Breaches:
    for index, block in enumerate(message.content):
        if isinstance(block, ToolUseBlock) and block.invalid is not None and block.input:
            text = "a call whose arguments were invalid has no input"
            yield "M-042", f"$.content[{index}].input", text


RULES = (
    Rule(STRICT, additions),
    Rule(BOTH, _has_content),
    Rule(BOTH, misplaced_blocks),
    Rule(BOTH, _has_one_result),
    Rule(BOTH, _has_canonical_tool_ids),
    Rule(BOTH, _has_provenance),
    Rule(BOTH, _has_parent, always=True),
    Rule(FULL, _names_its_parent_twice_alike),
    Rule(FULL, _names_its_model),
    Rule(FULL, _explains_its_route),
    Rule(FULL, _counts_right),
    Rule(FULL, _has_media_types),
    Rule(FULL, _holds_invalid_input_apart),
)
"""The rule table."""

_CHECKS = {
    (profile, is_finished): tuple(
        rule.check for rule in RULES if profile in rule.profiles and (rule.always or is_finished)
    )
    for profile in BOTH
    for is_finished in (True, False)
}
"""The checks that a message has to pass, by profile and by whether it came to its end."""


def _input_problems(message: Message, tools: ToolSet) -> Iterator[Problem]:
    for index, block in enumerate(message.content):
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
    """Every broken rule in a list of messages: those of each message, and those between them.

    Paths start with the index of the message: `$[3].content[0].tool_use_id`. The list may hold
    several sessions.
    """
    ledger = _Ledger()
    problems: list[Problem] = []
    for index, message in enumerate(messages):
        at = f"$[{index}]"
        for problem in validate(message, profile, tools=tools):
            path = at + problem.path.removeprefix("$")
            problems.append(Problem(path=path, rule=problem.rule, text=problem.text))
        if message.metadata.status != MessageStatus.PARTIAL:
            problems.extend(ledger.enter(message, at))
    return problems


class _Ledger:
    """What the messages so far have called and answered."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._session_of_call: dict[str, str] = {}
        self._answer_to: dict[str, str] = {}

    def enter(self, message: Message, at: str) -> Iterator[Problem]:
        yield from self._check_order(message, at)
        for place, block in enumerate(message.content):
            path = f"{at}.content[{place}]"
            if isinstance(block, ToolUseBlock):
                yield from self._check_call(block, message, f"{path}.id")
            elif isinstance(block, ToolResultBlock):
                yield from self._check_result(block, message, f"{path}.tool_use_id")

    def _check_order(self, message: Message, at: str) -> Iterator[Problem]:
        newest = self._newest.get(message.session_id, "")
        if message.id <= newest:
            text = f"{message.id!r} does not come after {newest!r}"
            yield Problem(path=f"{at}.id", rule="M-165", text=text)
        self._newest[message.session_id] = max(newest, message.id)

    def _check_call(self, call: ToolUseBlock, message: Message, path: str) -> Iterator[Problem]:
        owner = self._session_of_call.get(call.id)
        if owner is None:
            self._session_of_call[call.id] = message.session_id
        elif owner == message.session_id:
            text = f"{call.id!r} was used before; a retry gets a new id"
            yield Problem(path=path, rule="M-141", text=text)
        else:
            text = f"{call.id!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)

    def _check_result(
        self, result: ToolResultBlock, message: Message, path: str
    ) -> Iterator[Problem]:
        call = result.tool_use_id
        owner = self._session_of_call.get(call)
        if owner is None:
            text = f"no earlier call has the id {call!r}"
            yield Problem(path=path, rule="M-138", text=text)
        elif owner != message.session_id:
            text = f"{call!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)
        elif call in self._answer_to:
            text = f"{call!r} was answered by message {self._answer_to[call]!r} already"
            yield Problem(path=path, rule="M-140", text=text)
        else:
            self._answer_to[call] = message.id
