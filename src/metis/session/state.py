"""The state of a session between turns, and the context that the parts of a turn share."""

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice, takewhile
from typing import Any

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
from metis.canonical.errors import BudgetExceededError, ContextOverflowError, ProviderError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageStatus, RoutingDecisionRecord, RoutingMode
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.events import Spending, check_budget
from metis.events.system_events import BudgetScope
from metis.projection.loss import Loss, LossRecorder
from metis.projection.target import Target
from metis.projection.tool_calls import flatten_exchanges
from metis.routing import ChainEntry, TurnFacts
from metis.session.conversation import Conversation, HistoryFacts, contains_file
from metis.session.events import TurnReporter
from metis.session.models import ResolvedModel
from metis.session.options import Setup
from metis.tools import Workspace, WorkspaceError, embed

SUMMARY_ORIGIN = "compaction"
"""The origin of the message that shows a summary."""


class SessionState:
    """The state of a session that is not stored: what it learnt from errors and has reported."""

    def __init__(self) -> None:
        self.repairs = HistoryRepairs()
        self.files = EmbeddedFiles()
        self.last_decision: RoutingDecisionRecord | None = None
        """The routing decision of the last turn."""
        self.last_chain: tuple[ChainEntry, ...] = ()
        """Every slot that the router tried for the last turn."""
        self.swapped_from: str | None = None
        """The model before the last swap, until a turn has recorded the swap."""
        self.budget_warnings: dict[BudgetScope, Decimal] = {}
        """The share of each budget at which the last warning was given."""
        self._reported_losses: set[tuple[str, str, str, str]] = set()
        self._learnt_windows: dict[str, int] = {}
        self._estimate = ("", 0, 0, "", ""), 0

    def new_losses(self, model: str, losses: Sequence[Loss]) -> tuple[Loss, ...]:
        """Return the losses that were not reported for this model before."""
        new: list[Loss] = []
        for loss in losses:
            key = (model, loss.message_id, loss.path, loss.reason)
            if key not in self._reported_losses:
                self._reported_losses.add(key)
                new.append(loss)
        return tuple(new)

    def estimate_tokens(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], model: ResolvedModel
    ) -> int:
        """Estimate the tokens of a request; the last estimate is cached.

        Routing, compaction and the call ask for the same one.
        """
        first, last = (messages[0].id, messages[-1].id) if messages else ("", "")
        # A history only grows or is replaced, so its length and its first and last message
        # identify it.
        key = (model.id, len(messages), len(tools), first, last)
        if self._estimate[0] != key:
            self._estimate = key, estimate_tokens(messages, tools, model)
        return self._estimate[1]

    def context_window(self, model: ResolvedModel) -> int:
        """Return the context window of a model, or the smaller one that a refusal has shown."""
        window = model.capabilities.max_context_tokens
        return min(window, self._learnt_windows.get(model.id, window))

    def learn_window(self, model: ResolvedModel, error: ContextOverflowError, tokens: int) -> None:
        """Learn the window from a refusal: local servers are often started with a smaller one."""
        limit = error.limit_tokens or tokens
        self._learnt_windows[model.id] = max(1, min(self.context_window(model), limit))

    def with_swap_reason(self, record: RoutingDecisionRecord) -> RoutingDecisionRecord:
        """Return the record of a turn; the first record after a swap mentions the swap."""
        before, self.swapped_from = self.swapped_from, None
        if before is None or record.mode is not RoutingMode.MANUAL:
            return record
        return replace(record, reason=f"{record.reason}, swapped from {before}")


class TurnContext(Struct, frozen=True, kw_only=True):
    """The values that the parts of a turn share; the session has one without a listener."""

    setup: Setup
    conversation: Conversation
    state: SessionState
    reporter: TurnReporter

    def estimate_tokens(self, model: ResolvedModel) -> int:
        """Estimate the tokens of the next request."""
        return self.state.estimate_tokens(self.conversation.messages, self.setup.tools, model)

    def needs_compaction(self, model: ResolvedModel) -> bool:
        """Return whether the next request comes too close to the limit of a model."""
        share = self.setup.options.compact_at
        if share is None:
            return False
        limit = share * self.state.context_window(model)
        return self.estimate_tokens(model) > limit or not self.fits_window(model)

    def fits_window(self, model: ResolvedModel) -> bool:
        """Return whether the next request and its response fit into the context window."""
        window = self.state.context_window(model)
        reserved = min(self.setup.request_defaults.max_output_tokens or 0, window // 2)
        return self.estimate_tokens(model) + reserved <= window

    async def check_budget(self) -> None:
        """Check the limits before a model call, and warn of those that are nearly reached.

        Raises:
            BudgetExceededError: a limit is reached.
        """
        conversation = self.conversation
        budget = conversation.budget(self.setup.budget)
        if budget.session_usd is budget.day_usd is budget.month_usd is None:
            return
        spent = Spending(session_usd=conversation.cost().total_usd + conversation.workers_usd)
        # The sums over all sessions take a query, which is made only for a limit per day or month.
        if budget.day_usd is not None or budget.month_usd is not None:
            spent = await self.setup.spending.totals(spent.session_usd)
        verdict = check_budget(budget, spent, warned=self.state.budget_warnings)
        for limit in verdict.exceeded:
            self.reporter.trace.emit(limit)
            raise BudgetExceededError(
                limit.scope, limit_usd=limit.limit_usd, spent_usd=limit.spent_usd
            )
        for warning in verdict.warnings:
            self.state.budget_warnings[warning.scope] = warning.level
            self.reporter.trace.emit(warning)
            spent_usd, limit_usd = warning.spent_usd, warning.limit_usd
            text = f"{spent_usd} of the {limit_usd} USD of this {warning.scope} are spent"
            self.reporter.warn("budget", text)


# Facts and sizes of a history


def turn_facts(
    history: HistoryFacts, tools: Sequence[ToolDefinition], now: datetime, **further_facts: Any
) -> TurnFacts:
    """Return the facts of a turn that follow from a history and its tools, and further ones."""
    return TurnFacts(
        now=now,
        has_images=history.has_images,
        has_tool_calls_in_history=history.has_tool_calls,
        needs_tools=bool(tools),
        needs_system_prompt=history.has_system_prompt,
        side_effects=frozenset(tool.side_effects for tool in tools),
        file_extensions_in_context=frozenset(history.file_extensions),
        **further_facts,
    )


def estimate_tokens(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], model: ResolvedModel
) -> int:
    """Estimate the tokens of a request: the usage of the last response, and all later messages."""
    for index in range(len(messages) - 1, -1, -1):
        metadata = messages[index].metadata
        if messages[index].role is not Role.ASSISTANT:
            continue
        # The provider's count is exact, so only later messages are estimated.
        usage = metadata.usage
        if usage is None or usage.estimated or metadata.status is not MessageStatus.COMPLETE:
            continue
        if metadata.model != model.id or _is_before_summary(messages, index):
            break
        later = messages[index + 1 :]
        later_tokens = model.estimate_tokens(later) if later else 0
        return usage.prompt_tokens + usage.output_tokens + later_tokens
    return model.estimate_tokens(messages, tools)


def minimum_tokens(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], model: ResolvedModel
) -> int:
    """Estimate the tokens of a fully compacted request: system prompt and last turn."""
    start = len(messages) - 1
    while start > 0 and messages[start].role is not Role.USER:
        start -= 1
    start = max(start, 0)
    lead = takewhile(lambda message: message.role is Role.SYSTEM, islice(messages, start))
    return model.estimate_tokens([*lead, *messages[start:]], tools)


_raw_message = raw_constructor(Message)
_EPOCH = datetime.fromtimestamp(0, UTC)


def estimate_text_tokens(text: str, model: ResolvedModel) -> int:
    """Estimate the tokens of a request that consists of a text."""
    # Constructed without checks, because splitting a transcript estimates hundreds of texts.
    message = _raw_message(
        id="", session_id="", role=Role.USER, content=(TextBlock(text),), created_at=_EPOCH
    )
    return model.estimate_tokens((message,))


def _is_before_summary(messages: Sequence[Message], index: int) -> bool:
    """Return whether a response is older than the summary, so that its usage counts more."""
    first = next((m for m in messages if m.role is not Role.SYSTEM), messages[index])
    return first.metadata.origin == SUMMARY_ORIGIN and first.id > messages[index].id


# Files


class EmbeddedFiles:
    """Puts the content of workspace files into messages that refer to them.

    Messages are stored with the path only. A file is read once per session, so that a change on
    disk does not change the prefix that providers have cached. A file that cannot be read stays a
    path, which the projection replaces by a note.
    """

    def __init__(self) -> None:
        self._messages: dict[str, Message] = {}

    async def embed(
        self, messages: Sequence[Message], workspace: Workspace | None
    ) -> Sequence[Message]:
        """Return the messages with all files of the workspace embedded."""
        if workspace is not None:
            for message in messages:
                if message.id not in self._messages and any(map(contains_file, message.content)):
                    content = await asyncio.to_thread(_embed_all, message.content, workspace)
                    self._messages[message.id] = replace(message, content=content)
        return self.embedded(messages)

    def embedded(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages with the files that were read so far."""
        return [self._messages.get(message.id, message) for message in messages]


def _embed_all(blocks: tuple[ContentBlock, ...], workspace: Workspace) -> tuple[ContentBlock, ...]:
    return tuple(_embed(block, workspace) for block in blocks)


def _embed(block: ContentBlock, workspace: Workspace) -> ContentBlock:
    if isinstance(block, ToolResultBlock):
        return replace(block, content=_embed_all(block.content, workspace))
    try:
        return embed((block,), workspace)[0]
    except WorkspaceError:
        return block  # the projection replaces it by a note for the model


# Repairs of a history that a provider rejects


class Repair(Struct, frozen=True):
    """A kind of repair: the error texts that it answers, and the change of the history."""

    name: str
    pattern: re.Pattern[str]
    description: str
    apply: Callable[[Sequence[Message]], list[Message]]
    applies_to: Callable[[Sequence[Message]], bool] = bool
    """Whether the repair would change a history."""


_SEALED = (ThinkingBlock, RedactedThinkingBlock, OpaqueBlock)
_UNREADABLE_IMAGE = TextBlock("[an image that the model could not read]")


def _without_sealed(messages: Sequence[Message]) -> list[Message]:
    return [
        replace(message, content=content)
        for message in messages
        if (content := tuple(b for b in message.content if not isinstance(b, _SEALED)))
    ]


def _without_opaque(messages: Sequence[Message]) -> list[Message]:
    return [
        replace(message, content=content)
        for message in messages
        if (content := tuple(b for b in message.content if not isinstance(b, OpaqueBlock)))
    ]


def _without_images(messages: Sequence[Message]) -> list[Message]:
    return [
        replace(message, content=tuple(_without_image(block) for block in message.content))
        for message in messages
    ]


def _without_image(block: ContentBlock) -> ContentBlock:
    if isinstance(block, ToolResultBlock):
        return replace(block, content=tuple(_without_image(part) for part in block.content))
    return _UNREADABLE_IMAGE if isinstance(block, ImageBlock) else block


def _tool_calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Return the history with tool calls and results as text, except those of the last turn."""
    last = max((n for n, message in enumerate(messages) if message.role is Role.USER), default=0)
    ledger = LossRecorder(Target(adapter="repair", issuers=frozenset()))
    return [*flatten_exchanges(messages[:last], ledger), *messages[last:]]


# Providers have no error codes for these rejections, so the texts are matched. A repair that does
# not help costs one request; without repairs such a session could never continue.
REPAIRS = (
    Repair(
        "sealed_parts",
        re.compile(
            r"signature|thinking|encrypted|reasoning|redacted|`?rs_|item .* not found",
            re.IGNORECASE,
        ),
        "sealed parts of earlier responses are left out",
        _without_sealed,
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
        "earlier tool calls are sent as text",
        _tool_calls_as_text,
    ),
    # Parts that the protocol does not define: a provider, or a server in its place, may send such
    # parts in a response and refuse them in a request.
    Repair(
        "opaque_parts",
        re.compile(""),
        "parts of unknown form are left out",
        _without_opaque,
        lambda messages: any(type(b) is OpaqueBlock for m in messages for b in m.content),
    ),
)
"""All repairs in the order in which they are tried."""


class HistoryRepairs:
    """The repairs that are applied to the requests of each provider; the store is not changed.

    A repair stays in use for all later requests, since the history would be rejected again.
    """

    def __init__(self) -> None:
        self._by_provider: dict[str, list[Repair]] = {}

    def add_for_error(
        self, model: ResolvedModel, error: ProviderError, messages: Sequence[Message]
    ) -> Repair | None:
        """Add and return the repair for an error; None if there is none, or it is in use."""
        repairs = self._by_provider.setdefault(model.provider, [])
        for repair in REPAIRS:
            is_new = repair not in repairs and repair.applies_to(messages)
            if is_new and repair.pattern.search(error.text):
                repairs.append(repair)
                return repair
        return None

    def apply(self, messages: Sequence[Message], model: ResolvedModel) -> Sequence[Message]:
        """Return the history with the repairs for this provider; usually it is unchanged."""
        for repair in self._by_provider.get(model.provider, ()):
            messages = repair.apply(messages)
        return messages
