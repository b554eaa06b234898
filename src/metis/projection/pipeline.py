"""The projection: from a history to what one target can carry, with every loss named."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, OpaqueBlock, TextBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.projection.blocks import has_foreign_thinking, project_blocks, sign_calls
from metis.projection.cache_marks import plan_cache_marks
from metis.projection.fast import fix_messages, inspect_history
from metis.projection.loss import Loss, LossRecorder
from metis.projection.media import Media, contain_documents, name_documents
from metis.projection.message_order import (
    INSTRUCTION_ROLES,
    fit_first_and_last,
    fit_message_order,
    has_free_order,
    is_opening,
)
from metis.projection.roles import (
    attach_developer_messages,
    drop_empty,
    needs_earlier_messages,
    target_roles,
    with_role,
)
from metis.projection.target import Target, is_native
from metis.projection.tool_calls import (
    are_complete,
    calls_of,
    drop_unpaired_server_calls,
    flatten_exchanges,
    project_calls,
    repair_exchanges,
    result_of,
)


class ResultMedia:
    """Gathers the media of the results of one turn, each under the call that it belongs to."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._content: list[ContentBlock] = []
        self._last: Message | None = None

    def note_calls(self, message: Message) -> None:
        """Take the calls of a turn as those that the next results answer."""
        calls = calls_of(message)
        if calls:
            self._names = {
                call.id: f"call {number} of {len(calls)}, {call.name}"
                for number, call in enumerate(calls, 1)
            }

    def add(self, message: Message, media: list[Media]) -> None:
        """Keep the media of a result for the message behind the results."""
        result = result_of(message)
        name = self._names.get(result.tool_use_id, "a call") if result else "a call"
        for block in media:
            self._content += (TextBlock(f"[{block.type} from the result of {name}]"), block)
            self._last = message

    def pop_messages(self) -> list[Message]:
        """The message with the media that was gathered, if there was any (T27)."""
        if self._last is None:
            return []
        hoisted = replace(
            self._last,
            role=Role.USER,
            content=tuple(self._content),
            metadata=MessageMetadata(origin="projection"),
        )
        self._content, self._last = [], None
        return [hoisted]


class Projection(Struct, frozen=True):
    """The messages as they can be sent to a target, and what was lost on the way."""

    messages: Sequence[Message]
    losses: list[Loss]
    call_ids: AbstractSet[str] | None = None
    """The calls in it, if all are answered: then what follows can be projected alone."""
    has_large_images: bool = False
    """Whether images are in it that are too large where there are many (T90)."""
    attachments: Sequence[tuple[Message, Message]] = ()
    """The messages of the target's clients that others were attached to, before and after."""


def project(messages: Sequence[Message], target: Target) -> Projection:
    """Bring a conversation into what a target can carry; the messages given stay as they are."""
    if has_free_order(messages, target):
        quick = _quick(messages, target)
        if quick is not None:
            return quick if _is_under_way(messages) else replace(quick, call_ids=None)
    return project_by_rules(messages, target)


def project_by_rules(
    messages: Sequence[Message], target: Target, *, is_start: bool = True
) -> Projection:
    """The same by every rule, one after the other, whether or not it has anything to say."""
    ledger = LossRecorder(target)
    told = attach_developer_messages(messages, ledger)
    is_whole = are_complete(told, target)
    sent = list(told) if is_whole else repair_exchanges(told, ledger)
    sent = project_calls(sent, ledger) if target.accepts_tools else flatten_exchanges(sent, ledger)
    sent = _project_messages(drop_unpaired_server_calls(sent, ledger), ledger, is_start=is_start)
    sent = drop_empty(sent, ledger)
    sent = sign_calls(sent, ledger)
    sent = fit_first_and_last(sent, ledger, is_start=is_start)
    sent = fit_message_order(sent, ledger)
    sent = name_documents(sent, ledger)
    sent = plan_cache_marks(sent, ledger)
    is_closed = is_whole and has_free_order(messages, target) and not _has_hints(messages)
    is_closed = is_closed and bool(sent) and (not is_start or _is_under_way(sent))
    calls = _calls(messages) if is_closed else None
    return Projection(sent, ledger.losses, calls, ledger.has_large_images, ledger.attachments)


def _quick(
    messages: Sequence[Message], target: Target, before: AbstractSet[str] | None = None
) -> Projection | None:
    """The projection of a conversation that is ready, at once or with a touch here and there."""
    ready = inspect_history(messages, target, before)
    if ready is None:
        return None
    if not ready.fix_indexes:
        return Projection(messages, [], ready.call_ids)
    touched = fix_messages(messages, ready.fix_indexes, target)
    if touched is None:
        return None
    return Projection(touched.messages, touched.losses, ready.call_ids, touched.has_large_images)


def project_appended(
    messages: Sequence[Message], target: Target, before: AbstractSet[str]
) -> Projection | None:
    """The same for what follows a projection with these calls; None if they must go together."""
    if not has_free_order(messages, target):
        return None
    quick = _quick(messages, target, before)
    if quick is not None:
        return quick
    if any(type(block) is OpaqueBlock for message in messages for block in message.content):
        return None  # it may be the other half of something before (T197)
    if needs_earlier_messages(messages, target):
        return None
    if target.needs_document_names and contain_documents(messages):
        return None  # another may have its name already (T95)
    more = project_by_rules(messages, target, is_start=False)
    return None if more.call_ids is None or not more.call_ids.isdisjoint(before) else more


def _project_messages(
    messages: Sequence[Message], ledger: LossRecorder, *, is_start: bool
) -> list[Message]:
    """Each message in its role, with the blocks that may stand there."""
    sent: list[Message] = []
    hoist = ResultMedia()
    roles = target_roles(messages, ledger.target, is_start=is_start)
    for message, role in zip(messages, roles, strict=True):
        if message.role != Role.TOOL:
            sent += hoist.pop_messages()
            hoist.note_calls(message)
        if role is None:
            ledger.record_dropped(
                message, "message", "$", f"no target knows the role {message.role}"
            )
        elif is_native(message, ledger.target) and not has_foreign_thinking(message, ledger.target):
            sent.append(message)
        else:
            carried, media = project_blocks(message, role, ledger)
            hoist.add(message, media)
            sent.append(with_role(carried, role, ledger))
    return sent + hoist.pop_messages()


def _is_under_way(sent: Sequence[Message]) -> bool:
    """Whether more was sent than instructions, and than words that stand in for a first question.

    What follows those is still the start, and may do without such words.
    """
    return bool(sent) and sent[-1].role not in INSTRUCTION_ROLES and not is_opening(sent[-1])


def _has_hints(messages: Sequence[Message]) -> bool:
    """Whether marks are to be placed, which a longer conversation moves."""
    return any(message.metadata.hints for message in messages)


def _calls(messages: Sequence[Message]) -> set[str]:
    return {
        block.id for message in messages for block in message.content if type(block) is ToolUseBlock
    }
