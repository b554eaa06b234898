"""The projection pipeline: applies all rules to a history and records the losses."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, OpaqueBlock, TextBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.projection.blocks import has_foreign_thinking, project_blocks, sign_calls
from metis.projection.cache_marks import plan_cache_marks
from metis.projection.content import calls_of, result_of
from metis.projection.fast import project_fast
from metis.projection.loss import LossRecorder, Projection
from metis.projection.media import Media, contain_documents, name_documents
from metis.projection.message_order import (
    INSTRUCTION_ROLES,
    fit_first_and_last,
    fit_message_order,
    is_filler,
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
    drop_unpaired_server_calls,
    flatten_exchanges,
    project_calls,
    repair_exchanges,
)


def project(messages: Sequence[Message], target: Target) -> Projection:
    """Return a history as a target accepts it, with losses; the given messages are not changed."""
    if _accepts_any_order(messages, target):
        projection = project_fast(messages, target)
        if projection is not None:
            return projection if _has_started(messages) else replace(projection, call_ids=None)
    return project_by_rules(messages, target)


def project_by_rules(
    messages: Sequence[Message], target: Target, *, is_start: bool = True
) -> Projection:
    """Return the projection by all rules in order, without the fast path.

    `is_start` states that no messages precede these.
    """
    recorder = LossRecorder(target)
    attached = attach_developer_messages(messages, recorder)
    is_complete = are_complete(attached, target)
    sent = list(attached) if is_complete else repair_exchanges(attached, recorder)
    if target.accepts_tools:
        sent = project_calls(sent, recorder)
    else:
        sent = flatten_exchanges(sent, recorder)
    sent = drop_unpaired_server_calls(sent, recorder)
    sent = _project_messages(sent, recorder, is_start=is_start)
    sent = drop_empty(sent, recorder)
    sent = sign_calls(sent, recorder)
    sent = fit_first_and_last(sent, recorder, is_start=is_start)
    sent = fit_message_order(sent, recorder)
    sent = name_documents(sent, recorder)
    sent = plan_cache_marks(sent, recorder)
    can_continue = (
        is_complete
        and bool(sent)
        and _accepts_any_order(messages, target)
        # A synthesised last prompt is replaced by the next message.
        and not is_filler(sent[-1])
        # In a longer history cache marks move to other messages, except those of native messages.
        and not (target.cache_marks and has_marks(messages) and not are_native(messages, target))
        and (not is_start or _has_started(sent))
    )
    call_ids = _call_ids(messages) if can_continue else None
    return Projection(
        sent, recorder.losses, call_ids, recorder.has_large_images, recorder.attachments
    )


def has_marks(messages: Sequence[Message]) -> bool:
    """Whether a message has a cache hint."""
    for message in messages:  # noqa: SIM110 - half the time of `any`, for every request
        if message.metadata.hints:
            return True
    return False


def are_native(messages: Sequence[Message], target: Target) -> bool:
    """Whether all messages are native, so that no cache mark is added or moved."""
    return all(is_native(message, target) for message in messages)


def project_appended(
    messages: Sequence[Message], target: Target, earlier_call_ids: AbstractSet[str]
) -> Projection | None:
    """Return the projection of messages that follow an already projected history.

    `earlier_call_ids` are the calls of that history. Returns None if the messages must be projected
    together with it.
    """
    if not _accepts_any_order(messages, target):
        return None
    projection = project_fast(messages, target, earlier_call_ids)
    if projection is not None:
        return projection
    if _depends_on_earlier(messages, target):
        return None
    projection = project_by_rules(messages, target, is_start=False)
    if projection.call_ids is None or not projection.call_ids.isdisjoint(earlier_call_ids):
        return None
    return projection


def _accepts_any_order(messages: Sequence[Message], target: Target) -> bool:
    """Whether the order of roles needs no changes for the target, as for most targets."""
    if target.alternates_roles or target.joins_text or not target.allows_user_after_tool:
        return False
    return target.prefill == "any" or not messages or messages[-1].role != Role.ASSISTANT


def _depends_on_earlier(messages: Sequence[Message], target: Target) -> bool:
    if needs_earlier_messages(messages, target):
        return True
    # An earlier document may have the same name (T95).
    if target.needs_document_names and contain_documents(messages):
        return True
    # A server-side result may belong to an earlier call (T197).
    return any(type(block) is OpaqueBlock for message in messages for block in message.content)


def _project_messages(
    messages: Sequence[Message], recorder: LossRecorder, *, is_start: bool
) -> list[Message]:
    """Project the blocks and roles of messages; displaced media follows the results."""
    target = recorder.target
    sent: list[Message] = []
    displaced = _DisplacedMedia()
    roles = target_roles(messages, target, is_start=is_start)
    for message, role in zip(messages, roles, strict=True):
        if message.role != Role.TOOL:
            sent += displaced.pop_messages()
            displaced.set_calls(message)
        if role is None:
            reason = f"no target has the role {message.role}"
            recorder.record_dropped(message, "message", "$", reason)
        elif is_native(message, target) and not has_foreign_thinking(message, target):
            sent.append(message)
        else:
            projected, media = project_blocks(message, role, recorder)
            displaced.add(message, media)
            sent.append(with_role(projected, role, recorder))
    return sent + displaced.pop_messages()


class _DisplacedMedia:
    """Media of tool results that is sent in a user message after the results (T27).

    Results in Chat Completions contain only text, and no message is allowed between them.
    """

    def __init__(self) -> None:
        self._call_names: dict[str, str] = {}
        self._content: list[ContentBlock] = []
        self._last: Message | None = None

    def set_calls(self, message: Message) -> None:
        """Set the calls that the next results belong to."""
        calls = calls_of(message)
        if calls:
            self._call_names = {
                call.id: f"call {number} of {len(calls)}, {call.name}"
                for number, call in enumerate(calls, 1)
            }

    def add(self, message: Message, media: list[Media]) -> None:
        """Add the displaced media of a result."""
        result = result_of(message)
        name = self._call_names.get(result.tool_use_id, "a call") if result else "a call"
        for block in media:
            self._content += (TextBlock(f"[{block.type} from the result of {name}]"), block)
            self._last = message

    def pop_messages(self) -> list[Message]:
        """Return the user message with the media added so far, if any, and start a new one."""
        if self._last is None:
            return []
        message = replace(
            self._last,
            role=Role.USER,
            content=tuple(self._content),
            metadata=MessageMetadata(origin="projection"),
        )
        self._content, self._last = [], None
        return [message]


def _has_started(sent: Sequence[Message]) -> bool:
    """Whether a history has more than instructions and a synthesised first user message.

    Until then the next message may be a user message, which makes the synthesised one unnecessary.
    """
    return bool(sent) and sent[-1].role not in INSTRUCTION_ROLES and not is_opening(sent[-1])


def _call_ids(messages: Sequence[Message]) -> set[str]:
    return {
        block.id for message in messages for block in message.content if type(block) is ToolUseBlock
    }
