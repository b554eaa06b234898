"""Messages of other hosts in the form that one host accepts, with a loss for each dropped key.

The encoder of a protocol writes a message in its original form. A message of another host has no
such form for this one; `Dialect` gives it the form that the host's profile requires.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.model import ModelFacts
from metis.adapters.profile import Profile
from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.projection import LossRecorder, is_unfinished
from metis.wire.json_access import Wire
from metis.wire.original_form import EMPTY, extra_keys, provider_raw_of
from metis.wire.tool_ids import TOOL_ID_PREFIX, IdRule

_OUR_ID_LENGTH = 29
"""The length of the ids that metis gives to calls; every codec derives valid wire ids from them."""
_SEVERAL = 2
_ASSISTANT = Role.ASSISTANT
_Thinking = ThinkingBlock | RedactedThinkingBlock


def record_unmapped_keys(
    messages: Sequence[Message], profile: Profile, recorder: LossRecorder
) -> None:
    """Record a loss for each key that only another protocol has."""
    for message in messages:
        for protocol in message.metadata.provider_raw or ():
            if protocol != profile.protocol and protocol in CODECS:
                for path in CODECS[protocol].unmapped_paths(message):
                    reason = f"{_key_in(path)!r} exists in {protocol} only"
                    recorder.record_dropped(message, "key", path, reason)


def record_rewritten_keys(
    attachments: Sequence[tuple[Message, Message]], profile: Profile, recorder: LossRecorder
) -> None:
    """Record a loss for each key that a client's message lost when another was attached to it."""
    unmapped_paths = CODECS[profile.protocol].unmapped_paths
    for before, after in attachments:
        preserved = set(map(_key_in, unmapped_paths(after)))
        for path in unmapped_paths(before):
            if _key_in(path) not in preserved:
                reason = "not sent in a message to which a developer message is attached"
                recorder.record_dropped(before, "key", path, reason)


def _key_in(path: str) -> str:
    return path.rpartition(".")[2]


class Dialect:
    """Gives messages that come from elsewhere the form that one host accepts.

    Wire ids that were assigned to calls are remembered, so that later requests use the same ones.
    """

    __slots__ = ("_fills_thinking", "_is_plain", "_profile", "_used_ids", "_wire_ids")

    def __init__(self, profile: Profile, model: ModelFacts) -> None:
        self._profile = profile
        self._fills_thinking = profile.needs_thinking_key and model.capabilities.supports_thinking
        self._is_plain = not (self._fills_thinking or profile.thinking_key or profile.prefill_key)
        self._wire_ids: dict[str, str] = {}
        """The wire ids of calls whose id is not one of ours, or too long for the host."""
        self._used_ids: set[str] = set()

    def copy(self) -> "Dialect":
        """Return a dialect that can assign more ids without changing this one."""
        other = object.__new__(Dialect)
        other._profile = self._profile
        other._fills_thinking, other._is_plain = self._fills_thinking, self._is_plain
        # Shared until one of the two assigns an id and replaces its collections: most requests
        # assign none.
        other._wire_ids, other._used_ids = self._wire_ids, self._used_ids
        return other

    def wire_ids(self, call_ids: AbstractSet[str] | None) -> Mapping[str, str] | None:
        """Return the wire ids of calls that are not ours; None if messages need `apply`.

        Fast path: repeats for many calls at once what `_assigned_ids` does for each;
        tests/adapters/test_fast_paths.py compares both.
        """
        if call_ids is None or not self._is_plain or self._profile.one_call_per_message:
            return None
        rule = self._profile.id_rule
        if rule is None:
            return EMPTY
        if rule.max_length <= _OUR_ID_LENGTH and call_ids:
            return None
        foreign = {call_id for call_id in call_ids if len(call_id) != _OUR_ID_LENGTH}
        return self._unchanged_ids(rule, foreign, call_ids) if foreign else EMPTY

    def _unchanged_ids(
        self, rule: IdRule, foreign: AbstractSet[str], call_ids: AbstractSet[str]
    ) -> Mapping[str, str] | None:
        # Ids that the host accepts are not changed, so that a request equals what the client
        # itself would send (T02, T13).
        new = foreign - self._wire_ids.keys()
        if new and (not rule.fits_all(new) or any(map(_looks_like_ours, new))):
            return None
        derived = {rule.wire_id(call_id) for call_id in call_ids - foreign}
        if not (new.isdisjoint(derived) and new.isdisjoint(self._used_ids)):
            return None
        if new:
            self._wire_ids = {**self._wire_ids, **dict(zip(new, new, strict=True))}
            self._used_ids = self._used_ids | new
        return {call_id: self._wire_ids[call_id] for call_id in foreign}

    def apply(self, messages: Sequence[Message], recorder: LossRecorder) -> Sequence[Message]:
        """Return the messages, each with its original form or with one that the host accepts."""
        protocol = self._profile.protocol
        self._wire_ids, self._used_ids = {**self._wire_ids}, {*self._used_ids}
        if self._profile.one_call_per_message:
            messages = self._one_call_per_message(messages, recorder)
        last = len(messages) - 1
        changed: dict[int, Message] = {}
        for index, message in enumerate(messages):
            metadata = message.metadata
            raw = metadata.provider_raw
            has_form = raw is not None and protocol in raw
            if not has_form and (
                message.role is not _ASSISTANT or self._needs_no_form(message.content)
            ):
                continue
            issuer = metadata.provider or metadata.origin
            if has_form and issuer == self._profile.name:
                continue
            form: dict[str, Any] = {}
            if message.role is _ASSISTANT:
                form = self._form(message, recorder, is_last=index == last)
            for path in _host_paths(message, protocol) if has_form else ():
                reason = f"the key exists at {issuer} only"
                recorder.record_dropped(message, "message", path, reason)
            if has_form or form:
                raw = provider_raw_of(protocol, form)
                changed[index] = replace(message, metadata=replace(metadata, provider_raw=raw))
        if changed:
            messages = [changed.get(index, message) for index, message in enumerate(messages)]
        return messages

    def _one_call_per_message(
        self, messages: Sequence[Message], recorder: LossRecorder
    ) -> list[Message]:
        """Put each call into a message of its own, right before its result (T18)."""
        sent: list[Message] = []
        unanswered: dict[str, Message] = {}
        for message in messages:
            block = message.content[0] if message.content else None
            if isinstance(block, ToolResultBlock):
                call = unanswered.pop(block.tool_use_id, None)
                sent += (message,) if call is None else (call, message)
                continue
            sent += unanswered.values()
            unanswered = self._split_calls(message, recorder)
            sent += () if unanswered else (message,)
        return [*sent, *unanswered.values()]

    def _split_calls(self, message: Message, recorder: LossRecorder) -> dict[str, Message]:
        """Return one message per call, by call id; nothing unless the message has several."""
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        if len(calls) < _SEVERAL:
            return {}
        reason = "each call is sent in its own message, followed by its result"
        recorder.record_altered(message, "message", "$.tool_calls", reason)
        others = [block for block in message.content if not isinstance(block, ToolUseBlock)]
        parts = [(*others, calls[0]), *((call,) for call in calls[1:])]
        return {
            call.id: replace(message, content=part) for call, part in zip(calls, parts, strict=True)
        }

    def _needs_no_form(self, content: Sequence[ContentBlock]) -> bool:
        # The usual case: the codec derives valid wire ids from our ids, and nothing else differs.
        if not self._is_plain:
            return False
        rule = self._profile.id_rule
        if rule is None or rule.max_length > _OUR_ID_LENGTH:
            for block in content:
                if type(block) is ToolUseBlock and rule and len(block.id) != _OUR_ID_LENGTH:
                    return False
            return True
        return not any(type(block) is ToolUseBlock for block in content)

    def _form(self, message: Message, recorder: LossRecorder, *, is_last: bool) -> dict[str, Any]:
        """Return an original form for an assistant message, as if this host had sent it."""
        profile, content = self._profile, message.content
        form: dict[str, Any] = {}
        ids = dict(self._assigned_ids(content))
        if ids:
            form["ids"] = ids
        if any(isinstance(block, _Thinking) for block in content):
            form |= _thinking_form(content, profile.thinking_key)
        elif self._fills_thinking:
            # DeepSeek and Moonshot refuse a history in which a response lacks the key (T49, T50).
            form["keys"] = {profile.thinking_key: ""}
            reason = "the host needs thinking in every response; sent empty"
            path = f"$.{profile.thinking_key}"
            recorder.record_synthesised(message, "message", path, reason)
        # A client of the host itself sets the key, or leaves it out on purpose.
        is_client = message.metadata.provider is None and message.metadata.origin == profile.name
        if is_last and profile.prefill_key and is_unfinished(message) and not is_client:
            form["keys"] = {**form.get("keys", {}), profile.prefill_key: True}
        return form

    def _assigned_ids(self, content: Sequence[ContentBlock]) -> Iterator[tuple[str, str]]:
        # Ids that other programs assigned may be too long, or use characters that the host
        # refuses.
        rule = self._profile.id_rule
        if rule is None:
            return
        for block in content:
            if not isinstance(block, ToolUseBlock):
                continue
            if len(block.id) == _OUR_ID_LENGTH and rule.max_length > _OUR_ID_LENGTH:
                continue
            wire_id = self._wire_ids.get(block.id)
            if wire_id is None:
                wire_id = self._wire_ids[block.id] = rule.wire_id(block.id, self._used_ids)
                self._used_ids.add(wire_id)
            yield block.id, wire_id


def _looks_like_ours(call_id: str) -> bool:
    return call_id.startswith(TOOL_ID_PREFIX)


def _host_paths(message: Message, protocol: str) -> Iterable[str]:
    keys = (f"$.{key}" for key in extra_keys(message, protocol))
    return dict.fromkeys((*keys, *CODECS[protocol].unmapped_paths(message)))


def _thinking_form(content: Sequence[ContentBlock], key: str | None) -> dict[str, Any]:
    """Return a form for thinking without an original one, by the key that the host reads."""
    if key == "parts":
        parts = {
            str(index): {"type": "thinking", "thinking": [{"type": "text", "text": block.text}]}
            for index, block in enumerate(content)
            if isinstance(block, ThinkingBlock)
        }
        return {"parts": True, "blocks": parts}
    if key == "reasoning_details":
        thinking = [block for block in content if isinstance(block, _Thinking)]
        return {"thoughts": {key: [_detail(n, block) for n, block in enumerate(thinking)]}}
    return {} if key is None else {"thoughts": {key: True}}


def _detail(index: int, block: _Thinking) -> Wire:
    # An entry of OpenRouter's `reasoning_details`.
    detail: Wire = {"index": index}
    if block.id is not None:
        detail["id"] = block.id
    if block.format is not None:
        detail["format"] = block.format
    if isinstance(block, RedactedThinkingBlock):
        return {**detail, "type": "reasoning.encrypted", "data": block.data}
    if block.signature is not None:
        detail["signature"] = block.signature
    return {**detail, "type": "reasoning.text", "text": block.text}
