"""The history of a request as one host takes it.

And the cache of histories that were encoded before.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from operator import is_
from typing import Any

from msgspec import Struct
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
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.projection.loss import Change, Loss
from metis.projection.message_order import is_unfinished
from metis.projection.target import Target
from metis.wire.codec import HistoryEncoder
from metis.wire.json_access import Wire
from metis.wire.original_form import EMPTY, extra_keys, provider_raw_of, with_tool_ids
from metis.wire.tool_ids import TOOL_ID_PREFIX, IdRule


def redact_tool_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """The same messages with every call and result under an id that does not tell ours."""
    return [_hidden(message) for message in messages]


def _hidden(message: Message) -> Message:
    ids = {own: _other(own) for block in message.content if (own := _id_of(block)) is not None}
    if not ids:
        return message
    parent = message.metadata.parent_tool_use_id
    metadata = replace(message.metadata, parent_tool_use_id=parent and _other(parent))
    content = tuple(_renamed(block) for block in message.content)
    return with_tool_ids(replace(message, content=content, metadata=metadata), ids)


def _id_of(block: ContentBlock) -> str | None:
    if isinstance(block, ToolUseBlock):
        return block.id
    return block.tool_use_id if isinstance(block, ToolResultBlock) else None


def _renamed(block: ContentBlock) -> ContentBlock:
    if isinstance(block, ToolUseBlock):
        return replace(block, id=_other(block.id))
    if isinstance(block, ToolResultBlock):
        return replace(block, tool_use_id=_other(block.tool_use_id))
    return block


def _other(own: str) -> str:
    return hashed_tool_id("hidden", own, "")


def unmapped_key_losses(messages: Sequence[Message], profile: Profile) -> Iterator[Loss]:
    """What messages say in the words of another protocol only."""
    for message in messages:
        for protocol in message.metadata.provider_raw or ():
            if protocol == profile.protocol or protocol not in CODECS:
                continue
            for path in CODECS[protocol].unmapped_paths(message):
                reason = f"only {protocol} knows {_key(path)!r}"
                yield _loss(message, path, reason, profile)


def rewritten_key_losses(
    hosts: Sequence[tuple[Message, Message]], profile: Profile
) -> Iterator[Loss]:
    """What a client spelled in messages that are written anew, for others are part of them."""
    found = CODECS[profile.protocol].unmapped_paths
    for before, after in hosts:
        kept = set(map(_key, found(after)))
        for path in found(before):
            if _key(path) not in kept:
                reason = "it is not said where a developer message is attached"
                yield _loss(before, path, reason, profile)


def _key(path: str) -> str:
    return path.rpartition(".")[2]


def _loss(message: Message, path: str, reason: str, profile: Profile) -> Loss:
    return Loss(
        session_id=message.session_id,
        message_id=message.id,
        block_type="key",
        adapter=profile.name,
        reason=reason,
        path=path,
    )


_OUR_LENGTH = 29
_SEVERAL = 2
_ASSISTANT = Role.ASSISTANT
_Thought = ThinkingBlock | RedactedThinkingBlock


class Dialect:
    """Spells the messages of one request for one host, and tells what that costs."""

    def __init__(self, profile: Profile, model: ModelFacts) -> None:
        self._profile = profile
        self._fills = profile.needs_thinking_key and model.capabilities.supports_thinking
        self._is_plain = not (self._fills or profile.thinking_key or profile.prefill_key)
        self._given: dict[str, str] = {}
        """The ids that calls with an odd one got here."""
        self._taken: set[str] = set()
        self._losses: list[Loss] = []

    def wire_ids(self, calls: AbstractSet[str] | None) -> Mapping[str, str] | None:
        """The ids for calls that have none of ours; None if messages are spelled one by one."""
        if calls is None or not self._is_plain or self._profile.one_call_per_message:
            return None
        rule = self._profile.id_rule
        if rule is None:
            return EMPTY
        if rule.max_length <= _OUR_LENGTH and calls:
            return None
        odd = {call for call in calls if len(call) != _OUR_LENGTH}
        return self._kept_ids(rule, odd, calls) if odd else EMPTY

    def _kept_ids(
        self, rule: IdRule, odd: AbstractSet[str], calls: AbstractSet[str]
    ) -> Mapping[str, str] | None:
        """Odd ids as they are, if the host takes each and can tell all apart."""
        new = odd - self._given.keys()
        if new and (not rule.fits_all(new) or any(call.startswith(TOOL_ID_PREFIX) for call in new)):
            return None
        derived = {rule.wire_id(call) for call in calls - odd}
        if not (new.isdisjoint(derived) and new.isdisjoint(self._taken)):
            return None
        self._given.update(zip(new, new, strict=True))
        self._taken |= new
        return {call: self._given[call] for call in odd}

    def apply(self, messages: Sequence[Message]) -> tuple[Sequence[Message], list[Loss]]:
        """The messages, each in its own spelling for this host or in one that the host takes."""
        name, protocol = self._profile.name, self._profile.protocol
        self._losses = []
        if self._profile.one_call_per_message:
            messages = self._one_by_one(messages)
        last = len(messages) - 1
        changed: dict[int, Message] = {}
        for index, message in enumerate(messages):
            raw = message.metadata.provider_raw
            is_told = raw is not None and protocol in raw
            if not is_told and (message.role is not _ASSISTANT or self._is_usual(message.content)):
                continue
            metadata = message.metadata
            if is_told and (metadata.provider or metadata.origin) == name:
                continue
            spelling: dict[str, Any] = {}
            if message.role is _ASSISTANT:
                spelling = self._spelling(message, is_last=index == last)
            if is_told:
                self._losses += (self._lost(message, path) for path in _unsaid(message, protocol))
            if is_told or spelling:
                own = provider_raw_of(protocol, spelling)
                changed[index] = replace(message, metadata=replace(metadata, provider_raw=own))
        if changed:
            messages = [changed.get(index, message) for index, message in enumerate(messages)]
        return messages, self._losses

    def _one_by_one(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with every call in an answer of its own, right before its result (T18)."""
        found: list[Message] = []
        waiting: dict[str, Message] = {}
        for message in messages:
            block = message.content[0] if message.content else None
            if isinstance(block, ToolResultBlock):
                own = waiting.pop(block.tool_use_id, None)
                found += (message,) if own is None else (own, message)
                continue
            found += waiting.values()
            waiting = self._parted(message)
            found += () if waiting else (message,)
        return [*found, *waiting.values()]

    def _parted(self, message: Message) -> dict[str, Message]:
        """An answer with several calls as one for each, by their ids; nothing for all others."""
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        if len(calls) < _SEVERAL:
            return {}
        reason = "each call goes with its own result"
        self._losses.append(self._loss(message, "$.tool_calls", reason, Change.ALTERED))
        others = [block for block in message.content if not isinstance(block, ToolUseBlock)]
        parts = [(*others, calls[0]), *((call,) for call in calls[1:])]
        return {
            call.id: replace(message, content=part) for call, part in zip(calls, parts, strict=True)
        }

    def _is_usual(self, content: Sequence[ContentBlock]) -> bool:
        """Whether what the codec writes is what the host takes."""
        if not self._is_plain:
            return False
        rule = self._profile.id_rule
        if rule is None or rule.max_length > _OUR_LENGTH:
            for block in content:
                if type(block) is ToolUseBlock and rule and len(block.id) != _OUR_LENGTH:
                    return False
            return True
        return not any(type(block) is ToolUseBlock for block in content)

    def _spelling(self, message: Message, *, is_last: bool) -> dict[str, Any]:
        profile, content = self._profile, message.content
        spelling: dict[str, Any] = {}
        ids = dict(self._odd_ids(content))
        if ids:
            spelling["ids"] = ids
        if any(isinstance(block, _Thought) for block in content):
            spelling |= _thoughts(content, profile.thinking_key)
        elif self._fills:
            spelling["keys"] = {profile.thinking_key: ""}
            self._losses.append(self._filled(message))
        # A client that speaks to the host itself knows what it asks for.
        is_theirs = message.metadata.provider is None and message.metadata.origin == profile.name
        if is_last and profile.prefill_key and is_unfinished(message) and not is_theirs:
            spelling["keys"] = {**spelling.get("keys", {}), profile.prefill_key: True}
        return spelling

    def _odd_ids(self, content: Sequence[ContentBlock]) -> Iterator[tuple[str, str]]:
        """Ids for the calls whose own, as the codec would derive it, the host does not take."""
        rule = self._profile.id_rule
        if rule is None:
            return
        for block in content:
            if not isinstance(block, ToolUseBlock):
                continue
            if len(block.id) == _OUR_LENGTH and rule.max_length > _OUR_LENGTH:
                continue
            wire_id = self._given.get(block.id)
            if wire_id is None:
                wire_id = self._given[block.id] = rule.wire_id(block.id, self._taken)
                self._taken.add(wire_id)
            yield block.id, wire_id

    def _lost(self, message: Message, path: str) -> Loss:
        issuer = message.metadata.provider or message.metadata.origin
        return self._loss(message, path, f"only {issuer} knows the key", Change.DROPPED)

    def _filled(self, message: Message) -> Loss:
        path = f"$.{self._profile.thinking_key}"
        reason = "the host wants every answer with its thoughts; these are left empty"
        return self._loss(message, path, reason, Change.SYNTHESISED)

    def _loss(self, message: Message, path: str, reason: str, change: Change) -> Loss:
        return Loss(
            session_id=message.session_id,
            message_id=message.id,
            block_type="message",
            adapter=self._profile.name,
            reason=reason,
            change=change,
            path=path,
        )


def _unsaid(message: Message, protocol: str) -> Iterable[str]:
    """The paths of what a message says in the words of its own host only."""
    keys = (f"$.{key}" for key in extra_keys(message, protocol))
    return dict.fromkeys((*keys, *CODECS[protocol].unmapped_paths(message)))


def _thoughts(content: Sequence[ContentBlock], name: str | None) -> dict[str, Any]:
    """The spelling of thoughts whose own was not kept."""
    if name == "parts":
        parts = {
            str(index): {"type": "thinking", "thinking": [{"type": "text", "text": block.text}]}
            for index, block in enumerate(content)
            if isinstance(block, ThinkingBlock)
        }
        return {"parts": True, "blocks": parts}
    if name == "reasoning_details":
        thoughts = [block for block in content if isinstance(block, _Thought)]
        return {"thoughts": {name: [_detail(n, block) for n, block in enumerate(thoughts)]}}
    return {} if name is None else {"thoughts": {name: True}}


def _detail(index: int, thought: _Thought) -> Wire:
    own: Wire = {"index": index}
    if thought.id is not None:
        own["id"] = thought.id
    if thought.format is not None:
        own["format"] = thought.format
    if isinstance(thought, RedactedThinkingBlock):
        return {**own, "type": "reasoning.encrypted", "data": thought.data}
    if thought.signature is not None:
        own["signature"] = thought.signature
    return {**own, "type": "reasoning.text", "text": thought.text}


CONVERSATIONS = 16
"""How many conversations an adapter remembers; the one that rested longest is forgotten first."""


class EncodedHistory(Struct, frozen=True, gc=False):
    """A conversation as far as it was sent to a target."""

    messages: tuple[Message, ...]
    target: Target
    calls: AbstractSet[str] | None
    """The calls in it, if each has its result: then what follows can be projected alone."""
    dialect: Dialect
    losses: list[Loss]
    turns: HistoryEncoder
    has_large_images: bool = False
    """Whether images are in it that would be too large where there are many (T90)."""


class HistoryCache:
    """The conversations that an adapter sent last."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], EncodedHistory] = {}
        self._narrow: dict[Target, Target] = {}

    def find(self, messages: Sequence[Message], target: Target) -> EncodedHistory | None:
        """What was sent of a conversation to the same target, if it goes on from there."""
        if not messages:
            return None
        sent = self._sent.get((messages[0].id, target.model))
        if sent is None or sent.target is not target or len(sent.messages) > len(messages):
            return None
        same = map(is_, sent.messages, islice(messages, len(sent.messages)))
        return sent if all(same) else None

    def narrow(self, target: Target, narrow: Target) -> Target:
        """Remember what becomes of a target when there are many images; gives that."""
        return self._narrow.setdefault(target, narrow)

    def narrowed(self, messages: Sequence[Message], target: Target) -> Target:
        """The target of a conversation, which many images had made narrower when it was sent."""
        sent = self._sent.get((messages[0].id, target.model)) if messages else None
        if sent is None or sent.target is target or not self._narrow:
            return target
        narrow = self._narrow.get(target)
        if narrow is None or self.find(messages, narrow) is None:
            return target
        return narrow

    def changed(self, messages: Sequence[Message], model: str) -> Message | None:
        """The first message of a conversation that is not as it was when it was sent."""
        sent = self._sent.get((messages[0].id, model)) if messages else None
        for old, new in zip(() if sent is None else sent.messages, messages, strict=False):
            if old is not new and (old.id != new.id or old.digest() != new.digest()):
                return new
        return None

    def keep(self, sent: EncodedHistory) -> None:
        """Remember what was sent."""
        key = (sent.messages[0].id, sent.target.model)
        self._sent.pop(key, None)
        self._sent[key] = sent
        if len(self._sent) > CONVERSATIONS:
            self._sent.pop(next(iter(self._sent), key), None)
