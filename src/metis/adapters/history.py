"""The second step of a request: its history, encoded for one host.

`encode_history` projects the messages, converts them to the host's dialect and passes them to the
encoder of the protocol. The result is cached, so that the next request of the conversation encodes
only its new messages.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from threading import Lock
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.dialect import Dialect, record_rewritten_keys, record_unmapped_keys
from metis.adapters.model import ModelFacts
from metis.adapters.profile import Profile
from metis.adapters.response_decoder import for_issuer
from metis.adapters.think_tags import with_think_tags
from metis.canonical.blocks import ContentBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.projection import (
    Loss,
    LossRecorder,
    Projection,
    Target,
    count_images,
    project,
    project_appended,
)
from metis.projection.pipeline import are_native, has_marks
from metis.wire.history import HistoryEncoder
from metis.wire.original_form import EMPTY, PROTOCOL_ONLY_KEYS, with_tool_ids

MAX_CONVERSATIONS: Final = 256
MAX_BYTES: Final = 64 * 1024 * 1024
"""How many conversations and bytes of request bodies a cache has; the oldest are dropped first."""
_CHANGED_END = 8
"""How many of the last messages of a request a client may change in its next request."""


class EncodedHistory(Struct, frozen=True, gc=False):
    """A history as it was encoded for a target; it never changes, so that threads can share it."""

    messages: tuple[Message, ...]
    requested_target: Target
    target: Target
    """What it was projected for: narrower than requested if there are many images (T90)."""
    call_ids: AbstractSet[str] | None
    """The ids of its calls if every call has a result; messages that follow can then be projected
    alone."""
    dialect: Dialect
    losses: list[Loss]
    encoder: HistoryEncoder
    has_large_images: bool = False
    """Whether it has images that would be too large in a request with many images (T90)."""
    has_marks: bool = False
    """Whether it has cache marks, which later messages of another client could move."""
    is_base: bool = False
    """Whether it is only the first part of a history that was sent."""
    base: "EncodedHistory | None" = None
    """This history without its last messages, for clients that change those in the next request."""

    def is_prefix_of(self, messages: Sequence[Message]) -> bool:
        """Whether messages begin with the message objects of this history, compared by identity."""
        return len(self.messages) <= len(messages) and all(map(is_, self.messages, messages))


class HistoryCache:
    """Encoded histories of recent conversations; safe to share between threads and tenants.

    An entry is used only for a request that begins with the same message objects. Messages are
    immutable, so the same object has the same content. Equality would not be enough, because
    Python considers `{"n": 1}` and `{"n": true}` equal.
    """

    def __init__(
        self, max_conversations: int = MAX_CONVERSATIONS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_conversations = max_conversations
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._size_bytes = 0
        self._entries: dict[tuple[str, str, str], tuple[EncodedHistory, int]] = {}

    def find(self, messages: Sequence[Message], target: Target) -> EncodedHistory | None:
        """Return the history of an earlier request to the target that these messages begin with."""
        entry = self._entries.get(_key_of(messages, target.model)) if messages else None
        if entry is None:
            return None
        history, _ = entry
        if history.requested_target != target:
            return None
        if history.is_prefix_of(messages):
            return history
        base = history.base
        return base if base is not None and base.is_prefix_of(messages) else None

    def has_changed_end(self, messages: Sequence[Message], target: Target) -> bool:
        """Whether only the last messages of an earlier request differ from these."""
        entry = self._entries.get(_key_of(messages, target.model)) if messages else None
        if entry is None or entry[0].requested_target != target:
            return False
        start = len(entry[0].messages) - _CHANGED_END
        return start > 0 and all(map(is_, entry[0].messages[:start], messages))

    def first_changed(self, messages: Sequence[Message], model: str) -> Message | None:
        """Return the first message that differs from the last request of the conversation."""
        entry = self._entries.get(_key_of(messages, model)) if messages else None
        earlier = () if entry is None else entry[0].messages
        for old, new in zip(earlier, messages, strict=False):
            if old is not new and (old.id != new.id or old.digest() != new.digest()):
                return new
        return None

    def store(self, history: EncodedHistory, size_bytes: int) -> None:
        """Store a history whose request body has `size_bytes` bytes."""
        key, entries = _key_of(history.messages, history.target.model), self._entries
        with self._lock:
            replaced = entries.pop(key, None)
            entries[key] = history, size_bytes
            self._size_bytes += size_bytes if replaced is None else size_bytes - replaced[1]
            if len(entries) > self._max_conversations or self._size_bytes > self._max_bytes:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        entries = self._entries
        while len(entries) > self._max_conversations or (
            self._size_bytes > self._max_bytes and len(entries) > 1
        ):
            _, dropped_bytes = entries.pop(next(iter(entries)))
            self._size_bytes -= dropped_bytes


def _key_of(messages: Sequence[Message], model: str) -> tuple[str, str, str]:
    first = messages[0]
    return first.session_id, first.id, model


def encode_history(
    messages: Sequence[Message],
    profile: Profile,
    model: ModelFacts,
    target: Target,
    cache: HistoryCache,
) -> EncodedHistory:
    """Return the messages encoded for a target; a prefix that the cache has is reused."""
    history = None
    earlier = cache.find(messages, target)
    # Clients of Anthropic move their cache marks with every request, so that the last messages of
    # the previous request come again without marks. The messages before those are encoded
    # separately and reused for the next request.
    has_moved_marks = earlier is None and cache.has_changed_end(messages, target)
    if has_moved_marks or (earlier is not None and earlier.is_base):
        history = _encode_with_base(earlier, messages, profile, model, target)
    elif earlier is not None:
        history = _continue_history(earlier, messages, profile)
    if history is None:
        history = _encode_all(messages, profile, model, target)
    limit = profile.many_images_limit
    if limit is None or not history.has_large_images or count_images(messages) <= limit[0]:
        return history
    # Anthropic refuses images over 2000 pixels in a request with more than 20 images (T90).
    narrow = replace(target, max_image_side=limit[1])
    return replace(_encode_all(messages, profile, model, narrow), requested_target=target)


def _continue_history(
    earlier: EncodedHistory, messages: Sequence[Message], profile: Profile
) -> EncodedHistory | None:
    """Return an earlier history with the messages after it; None if they change its encoding."""
    if earlier.call_ids is None:
        return None
    new_messages = _messages_for_host(messages[len(earlier.messages) :], profile)
    if earlier.has_marks and not are_native(new_messages, earlier.target):
        return None
    projection = project_appended(new_messages, earlier.target, earlier.call_ids)
    if projection is None:
        return None
    copies = earlier.dialect.copy(), earlier.encoder.copy()
    return _extend(earlier, copies, messages, projection, profile)


def _encode_with_base(
    earlier: EncodedHistory | None,
    messages: Sequence[Message],
    profile: Profile,
    model: ModelFacts,
    target: Target,
) -> EncodedHistory | None:
    """Return a history encoded in two parts: a stable base, and an end that may change.

    None if the messages cannot be divided, or the end changes the encoding of the base.
    """
    end = _base_end(messages)
    base = earlier
    if base is None or len(base.messages) < end:
        if not end:
            return None
        stable_messages = messages[:end]
        if earlier is None:
            base = _encode_all(stable_messages, profile, model, target)
        else:
            base = _continue_history(earlier, stable_messages, profile)
        if base is None or base.call_ids is None:
            return None
        base.encoder.encode_waiting()
        base = replace(base, is_base=True)
    history = _continue_history(base, messages, profile)
    return None if history is None else replace(history, base=base)


def _base_end(messages: Sequence[Message]) -> int:
    """Return the length of the part of a history that the next request will not change.

    The message after that part is a response: a history that ends with a response would be encoded
    differently (see `Adapter.preview`).
    """
    end = len(messages) - _CHANGED_END
    while end > 0 and not (
        messages[end].role is Role.ASSISTANT and messages[end - 1].role is not Role.ASSISTANT
    ):
        end -= 1
    return max(end, 0)


def _encode_all(
    messages: Sequence[Message], profile: Profile, model: ModelFacts, target: Target
) -> EncodedHistory:
    projection = project(_messages_for_host(messages, profile), target)
    dialect, encoder = Dialect(profile, model), CODECS[profile.protocol].history()
    empty = EncodedHistory((), target, target, None, dialect, [], encoder)
    return _extend(empty, (dialect, encoder), messages, projection, profile)


def _extend(
    earlier: EncodedHistory,
    writers: tuple[Dialect, HistoryEncoder],
    messages: Sequence[Message],
    projection: Projection,
    profile: Profile,
) -> EncodedHistory:
    """Return a history with new messages, added to copies of the earlier dialect and encoder."""
    new_messages = messages[len(earlier.messages) :]
    dialect, encoder = writers
    projected, losses = projection.messages, projection.losses
    wire_ids = dialect.wire_ids(projection.call_ids)
    has_only_own_forms, foreign = _original_forms(new_messages, profile)
    if wire_ids is None or not has_only_own_forms or foreign or projection.attachments:
        recorder = LossRecorder(earlier.target)
        if wire_ids is None or not has_only_own_forms:
            projected = dialect.apply(projected, recorder)
        record_unmapped_keys(foreign, profile, recorder)
        record_rewritten_keys(projection.attachments, profile, recorder)
        losses = losses + recorder.losses
    encoder.add(projected, wire_ids or EMPTY)
    call_ids = projection.call_ids
    if call_ids is not None and earlier.call_ids:
        call_ids = earlier.call_ids | call_ids if call_ids else earlier.call_ids
    return EncodedHistory(
        tuple(messages),
        earlier.requested_target,
        earlier.target,
        call_ids,
        dialect,
        earlier.losses + _in_message_order(losses, new_messages) if losses else earlier.losses,
        encoder,
        earlier.has_large_images or projection.has_large_images,
        earlier.has_marks or (earlier.target.cache_marks > 0 and has_marks(new_messages)),
    )


def _messages_for_host(messages: Sequence[Message], profile: Profile) -> Sequence[Message]:
    if profile.issuer_scope:
        messages = for_issuer(messages, profile)
    if profile.redact_ids:
        messages = [_with_redacted_ids(message) for message in messages]
    return with_think_tags(messages, profile.name) if profile.tags_thinking else messages


def _with_redacted_ids(message: Message) -> Message:
    """Return the message with hashes in place of our call ids, if a caller requires that (M-296).

    The hash of an id is always the same, and the id cannot be computed from it.
    """
    call_ids = (call_id for block in message.content if (call_id := _call_id(block)) is not None)
    ids = {call_id: _redacted(call_id) for call_id in call_ids}
    if not ids:
        return message
    parent = message.metadata.parent_tool_use_id
    metadata = replace(message.metadata, parent_tool_use_id=parent and _redacted(parent))
    content = tuple(map(_with_redacted_id, message.content))
    return with_tool_ids(replace(message, content=content, metadata=metadata), ids)


def _call_id(block: ContentBlock) -> str | None:
    if isinstance(block, ToolUseBlock):
        return block.id
    return block.tool_use_id if isinstance(block, ToolResultBlock) else None


def _with_redacted_id(block: ContentBlock) -> ContentBlock:
    if isinstance(block, ToolUseBlock):
        return replace(block, id=_redacted(block.id))
    if isinstance(block, ToolResultBlock):
        return replace(block, tool_use_id=_redacted(block.tool_use_id))
    return block


def _redacted(tool_use_id: str) -> str:
    return hashed_tool_id("hidden", tool_use_id, "")


def _original_forms(messages: Sequence[Message], profile: Profile) -> tuple[bool, list[Message]]:
    """Return facts about the original forms of messages.

    The first is whether all forms of this protocol come from this host; the second lists the
    messages with keys that only another protocol has.
    """
    has_only_own_forms, foreign = True, list[Message]()
    # Most messages have none, and this runs for every message of a first request.
    with_forms = [message for message in messages if message.metadata.provider_raw is not None]
    for message in with_forms:
        metadata = message.metadata
        for protocol, form in (metadata.provider_raw or EMPTY).items():
            if protocol == profile.protocol:
                has_only_own_forms = (
                    has_only_own_forms and (metadata.provider or metadata.origin) == profile.name
                )
            elif type(form) is not dict or not form.keys() <= PROTOCOL_ONLY_KEYS:
                foreign.append(message)
    return has_only_own_forms, foreign


def _in_message_order(losses: list[Loss], messages: Sequence[Message]) -> list[Loss]:
    # The order must not depend on how the history grew: a repeated request has equal losses.
    if len(losses) == 1:
        return losses
    index = {message.id: number for number, message in enumerate(messages)}
    return sorted(losses, key=lambda loss: index.get(loss.message_id, -1))
