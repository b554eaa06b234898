"""State that a session keeps between turns.

repairs, embedded files, learnt windows, reported losses.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice, takewhile

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
)
from metis.canonical.errors import ContextOverflowError, ProviderError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, RoutingDecisionRecord, RoutingMode
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.events.system_events import BudgetScope
from metis.projection.loss import Loss, LossRecorder
from metis.projection.target import Target
from metis.projection.tool_calls import flatten_exchanges
from metis.routing import ChainEntry, TurnFacts
from metis.session.conversation import HistoryFacts, contains_file
from metis.session.models import ResolvedModel
from metis.tools import Workspace, WorkspaceError, embed

SUMMARY_ORIGIN = "compaction"
"""The origin of the message that shows a summary."""

_make_message = raw_constructor(Message)
_NEVER = datetime.fromtimestamp(0, UTC)


def turn_facts(seen: HistoryFacts, tools: Sequence[ToolDefinition], now: datetime) -> TurnFacts:
    """What a conversation and its tools ask of a model."""
    return TurnFacts(
        now=now,
        has_images=seen.has_images,
        has_tool_calls_in_history=seen.has_tool_calls,
        needs_tools=bool(tools),
        needs_system_prompt=seen.has_system_prompt,
        side_effects=frozenset(tool.side_effects for tool in tools),
        file_extensions_in_context=frozenset(seen.file_extensions),
    )


def estimate_tokens(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], served: ResolvedModel
) -> int:
    """About how many tokens a request takes: what the last answer took, and what came since."""
    for place in range(len(messages) - 1, -1, -1):
        metadata = messages[place].metadata
        if messages[place].role is not Role.ASSISTANT:
            continue
        usage = metadata.usage
        if usage is None or usage.estimated or metadata.status is not MessageStatus.COMPLETE:
            continue
        if metadata.model != served.id or _is_before_summary(messages, place):
            break
        since = messages[place + 1 :]
        more = served.adapter.estimate_input_tokens(since, model=served.id) if since else 0
        return usage.prompt_tokens + usage.output_tokens + more
    return served.adapter.estimate_input_tokens(messages, tools, model=served.id)


def minimum_tokens(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], served: ResolvedModel
) -> int:
    """About how many tokens a request takes at least: instructions and the last turn."""
    start = len(messages) - 1
    while start > 0 and messages[start].role is not Role.USER:
        start -= 1
    lead = takewhile(lambda message: message.role is Role.SYSTEM, islice(messages, max(start, 0)))
    least = [*lead, *messages[max(start, 0) :]]
    return served.adapter.estimate_input_tokens(least, tools, model=served.id)


def estimate_text_tokens(text: str, served: ResolvedModel) -> int:
    """About how many tokens a question takes that is nothing but a text."""
    message = _make_message(
        id="", session_id="", role=Role.USER, content=(TextBlock(text),), created_at=_NEVER
    )
    return served.adapter.estimate_input_tokens((message,), model=served.id)


def text_of(content: Iterable[ContentBlock]) -> str:
    """The plain words of some blocks."""
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _is_before_summary(messages: Sequence[Message], place: int) -> bool:
    """Whether an answer was given to more than is shown now."""
    first = next((each for each in messages if each.role is not Role.SYSTEM), messages[place])
    return first.metadata.origin == SUMMARY_ORIGIN and first.id > messages[place].id


class EmbeddedFiles:
    """The messages of a session with the bytes of files in the place of their names.

    A message is stored with the name alone. What was read stays for the session, so that a file
    that changes does not change what was sent before. A file that cannot be read stays a name, and
    the model gets a note in its place.
    """

    def __init__(self) -> None:
        self._read: dict[str, Message] = {}

    async def embed(
        self, messages: Sequence[Message], workspace: Workspace | None
    ) -> Sequence[Message]:
        """The messages with all files that the workspace has."""
        if workspace is not None:
            for message in messages:
                if message.id not in self._read and any(map(contains_file, message.content)):
                    read = await asyncio.to_thread(_with_files, message.content, workspace)
                    self._read[message.id] = replace(message, content=read)
        return self.embedded(messages)

    def embedded(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with the files that were read so far."""
        return [self._read.get(message.id, message) for message in messages]


def _with_files(blocks: tuple[ContentBlock, ...], workspace: Workspace) -> tuple[ContentBlock, ...]:
    return tuple(_with_file(block, workspace) for block in blocks)


def _with_file(block: ContentBlock, workspace: Workspace) -> ContentBlock:
    if isinstance(block, ToolResultBlock):
        return replace(block, content=_with_files(block.content, workspace))
    try:
        return embed((block,), workspace)[0]
    except WorkspaceError:
        return block


_SEALED = (ThinkingBlock, RedactedThinkingBlock, OpaqueBlock)
_UNSEEN = TextBlock("[an image that the model could not read]")


class Repair(Struct, frozen=True):
    """One kind of repair: the words of errors that ask for it, and what it does."""

    name: str
    pattern: re.Pattern[str]
    description: str
    apply: Callable[[Sequence[Message]], list[Message]]


def _without_seals(messages: Sequence[Message]) -> list[Message]:
    """The history without sealed parts: thoughts and what only their issuer reads."""
    return [
        replace(message, content=kept)
        for message in messages
        if (kept := tuple(each for each in message.content if not isinstance(each, _SEALED)))
    ]


def _without_images(messages: Sequence[Message]) -> list[Message]:
    return [
        replace(message, content=tuple(_blind(block) for block in message.content))
        for message in messages
    ]


def _blind(block: ContentBlock) -> ContentBlock:
    if isinstance(block, ToolResultBlock):
        return replace(block, content=tuple(_blind(part) for part in block.content))
    return _UNSEEN if isinstance(block, ImageBlock) else block


def _as_text(messages: Sequence[Message]) -> list[Message]:
    """The history with every exchange with a tool told in words; the open one stays."""
    last = max((n for n, each in enumerate(messages) if each.role is Role.USER), default=0)
    ledger = LossRecorder(Target(adapter="repair", issuers=frozenset()))
    return [*flatten_exchanges(messages[:last], ledger), *messages[last:]]


REPAIRS = (
    Repair(
        "sealed_parts",
        re.compile(
            r"signature|thinking|encrypted|reasoning|redacted|`?rs_|item .* not found",
            re.IGNORECASE,
        ),
        "sealed parts of earlier answers are left out",
        _without_seals,
    ),
    Repair(
        "images",
        re.compile(r"image|media.?type|base64", re.IGNORECASE),
        "images are left out",
        _without_images,
    ),
    Repair(
        "tool_calls",
        re.compile(
            r"tool_use|tool_result|tool_call|function.?call|call_id|tool messages?", re.IGNORECASE
        ),
        "earlier calls of tools are told in words",
        _as_text,
    ),
)
"""In the order in which they are tried."""


class HistoryRepairs:
    """The repairs that providers have asked for."""

    def __init__(self) -> None:
        self._asked: dict[str, list[Repair]] = {}

    def add_for_error(self, served: ResolvedModel, error: ProviderError) -> Repair | None:
        """The repair that an error asks for, from now on; None if there is none or it was done."""
        asked = self._asked.setdefault(served.adapter.name, [])
        for repair in REPAIRS:
            if repair not in asked and repair.pattern.search(error.text):
                asked.append(repair)
                return repair
        return None

    def apply(self, messages: Sequence[Message], served: ResolvedModel) -> Sequence[Message]:
        """The history as this provider takes it; mostly the same."""
        for repair in self._asked.get(served.adapter.name, ()):
            messages = repair.apply(messages)
        return messages


class SessionState:
    """The losses, warnings and repairs of a session so far."""

    def __init__(self) -> None:
        self.repairs = HistoryRepairs()
        self.files = EmbeddedFiles()
        self.last_decision: RoutingDecisionRecord | None = None
        """Why the model of the last turn was chosen."""
        self.last_chain: tuple[ChainEntry, ...] = ()
        """Every slot that was asked for it."""
        self.swapped_from: str | None = None
        """The model before the last swap, until a turn has told of it."""
        self._losses: set[tuple[str, str, str, str]] = set()
        self._windows: dict[str, int] = {}
        self._counted = ("", 0, 0, "", ""), 0
        self.budget_warnings: dict[BudgetScope, Decimal] = {}
        """The part of each budget that was warned of last."""

    def new_losses(self, model: str, losses: Sequence[Loss]) -> tuple[Loss, ...]:
        """Those losses that were not told of this model yet."""
        new: list[Loss] = []
        for loss in losses:
            key = (model, loss.message_id, loss.path, loss.reason)
            if key not in self._losses:
                self._losses.add(key)
                new.append(loss)
        return tuple(new)

    def estimate_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], served: ResolvedModel
    ) -> int:
        """About how many tokens a request takes; several ask before each question."""
        first, last = (messages[0].id, messages[-1].id) if messages else ("", "")
        key = (served.id, len(messages), len(tools), first, last)
        if self._counted[0] != key:
            self._counted = key, estimate_tokens(messages, tools, served)
        return self._counted[1]

    def context_window(self, served: ResolvedModel) -> int:
        """How many tokens a model takes: as tables have it, or less if it has refused so many."""
        known = served.adapter.capabilities(served.id).max_context_tokens
        return min(known, self._windows.get(served.id, known))

    def learn_window(self, served: ResolvedModel, error: ContextOverflowError, tokens: int) -> None:
        """Learn from a refusal how much a model takes; a server of one's own may take less."""
        stated = error.limit_tokens or tokens
        self._windows[served.id] = max(1, min(self.context_window(served), stated))

    def with_swap_reason(self, record: RoutingDecisionRecord) -> RoutingDecisionRecord:
        """The record of a turn; the first after a swap names it."""
        before, self.swapped_from = self.swapped_from, None
        if before is None or record.mode is not RoutingMode.MANUAL:
            return record
        return replace(record, reason=f"{record.reason}: user swap from {before}")
