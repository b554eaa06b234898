"""Tool calls and results of a history, repaired for a target: each call is answered once, at once.

Repairs act on complete exchanges and never between a call and its results. The store is not
touched: what is added or moved here exists in one request only.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import (
    ContentBlock,
    InvalidInput,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.projection.content import IndexedBlock, fail_if_critical, with_blocks
from metis.projection.loss import LossRecorder
from metis.projection.target import Target, is_native

_Block = TypeVar("_Block", ToolUseBlock, ToolResultBlock)


def make_ids_unique(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """The same calls and results under ids of which none is empty or names two calls (T08-T10).

    A new id depends on what came before it only, so it is the same in every later request.
    """
    ids = _Ids(ledger)
    return [ids.settle(message) for message in messages]


class _Ids:
    """The ids that were given so far; results follow the calls of the last turn with their id."""

    def __init__(self, ledger: LossRecorder) -> None:
        self._ledger = ledger
        self._counts: dict[str, int] = {}
        self._used: set[str] = set()
        self._waiting: dict[str, list[str]] = {}
        self._last: dict[str, str] = {}

    def settle(self, message: Message) -> Message:
        if message.role == Role.ASSISTANT:
            return self._settle_calls(message)
        if message.role == Role.TOOL:
            return self._settle_result(message)
        return message

    def _settle_calls(self, message: Message) -> Message:
        calls: list[ToolUseBlock] = []
        kept: list[IndexedBlock] = []
        for index, block in enumerate(message.content):
            if not isinstance(block, ToolUseBlock):
                kept.append((index, block))
            elif block.id and block in calls:
                reason = "the turn holds the same call twice"
                fail_if_critical(block, message, f"$.content[{index}]", reason)
                self._ledger.record_dropped(message, "tool_use", f"$.content[{index}]", reason)
            else:
                is_first = not any(call.id == block.id for call in calls)
                calls.append(block)
                kept.append((index, self._settle_call(block, message, index, is_first=is_first)))
        same = len(kept) == len(message.content) and all(
            block is message.content[index] for index, block in kept
        )
        return message if same else with_blocks(message, kept)

    def _settle_call(
        self, call: ToolUseBlock, message: Message, index: int, *, is_first: bool
    ) -> ToolUseBlock:
        count = self._counts.get(call.id, 0)
        self._counts[call.id] = count + 1
        new = call.id
        while not new or new in self._used:
            new = hashed_tool_id(message.session_id, call.id, str(count))
            count += 1
        self._used.add(new)
        if is_first:
            self._waiting[call.id] = []
        self._waiting[call.id].append(new)
        return self._renamed(call, "id", new, message, index)

    def _settle_result(self, message: Message) -> Message:
        result = message.content[0] if message.content else None
        if not isinstance(result, ToolResultBlock):
            return message
        theirs = result.tool_use_id
        waiting = self._waiting.get(theirs)
        new = waiting.pop(0) if waiting else self._last.get(theirs, theirs)
        self._last[theirs] = new
        if new == theirs:
            return message
        named = self._renamed(result, "tool_use_id", new, message, 0)
        metadata = replace(message.metadata, parent_tool_use_id=new)
        return replace(message, content=(named,), metadata=metadata)

    def _renamed(self, block: _Block, field: str, new: str, message: Message, index: int) -> _Block:
        old = getattr(block, field)
        if old == new:
            return block
        reason = "the id names another call, too" if old else "the call has no id"
        self._ledger.record_altered(message, block.type, f"$.content[{index}].{field}", reason)
        return replace(block, **{field: new})


NO_RESULT = "No result of this call is available. It may or may not have run."
"""What an unanswered call is answered with; it claims nothing about the cause (T21)."""


def repair_exchanges(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """The same conversation with every call answered right after it, once (T15, T17, T19-T23)."""
    messages = [part for message in messages for part in _single_results(message, ledger)]
    messages = make_ids_unique(messages, ledger)
    answers = _answers(messages, ledger)
    repaired: list[Message] = []
    for index, message in enumerate(messages):
        if message.role == Role.TOOL:
            result = result_of(message)
            if result is not None and index in answers.orphans and ledger.target.stores_history:
                repaired.append(message)  # its call lies in an answer that the target keeps
            elif result is None or index in answers.orphans:
                repaired.append(_flattened(message, ledger))
            continue
        repaired.append(message)
        calls = calls_of(message)
        if calls:
            repaired += [answers.take(call, message, ledger) for call in calls]
    return repaired


def are_complete(messages: Sequence[Message], target: Target) -> bool:
    """Whether nothing has to be repaired; the common case, and a quick look.

    What came from the target itself may have several answers in a row before their results, and
    results in any order.
    """
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message.role == Role.TOOL:
            result = result_of(message)
            if result is None or len(message.content) != 1:
                return False
            is_kept = target.stores_history and result.tool_use_id not in seen
            if result.tool_use_id not in waiting and not is_kept:
                return False
            if result.tool_use_id not in waiting:
                continue
            if result.tool_use_id != waiting[0] and not is_native(message, target):
                return False
            waiting.remove(result.tool_use_id)
            continue
        if waiting and not (message.role == Role.ASSISTANT and is_native(message, target)):
            return False
        for call in calls_of(message):
            if call.id in seen or not call.id:
                return False
            seen.add(call.id)
            waiting.append(call.id)
    return not waiting


class _Answers:
    """The results of a conversation by the call that they answer."""

    def __init__(self) -> None:
        self.by_call: dict[str, Message] = {}
        self.orphans: set[int] = set()

    def take(self, call: ToolUseBlock, message: Message, ledger: LossRecorder) -> Message:
        """The result of a call, or one that is made up."""
        found = self.by_call.pop(call.id, None)
        if found is not None:
            return found
        reason = f"the call of {call.name} has no result"
        ledger.record_synthesised(message, "tool_result", "$.content", reason)
        result = ToolResultBlock(call.id, (TextBlock(NO_RESULT),), is_error=True)
        return Message(
            id=message.id,
            session_id=message.session_id,
            role=Role.TOOL,
            content=(result,),
            created_at=message.created_at,
            metadata=MessageMetadata(parent_tool_use_id=call.id, origin="projection"),
        )


def _answers(messages: Sequence[Message], ledger: LossRecorder) -> _Answers:
    answers = _Answers()
    turn_of: dict[str, int] = {}
    turn = -1
    for index, message in enumerate(messages):
        if message.role != Role.TOOL:
            turn = index
            turn_of.update((call.id, index) for call in calls_of(message))
            continue
        result = result_of(message)
        if result is None or result.tool_use_id not in turn_of:
            answers.orphans.add(index)
            continue
        first = answers.by_call.get(result.tool_use_id)
        if first is not None:
            reason = "another result of the same call came later"
            fail_if_critical(first.content[0], first, "$.content[0]", reason)
            ledger.record_dropped(first, "tool_result", "$.content[0]", reason)
        if turn_of[result.tool_use_id] != turn:
            reason = "moved to the call that it answers"
            ledger.record_altered(message, "tool_result", "$.content[0]", reason)
        answers.by_call[result.tool_use_id] = message
    return answers


_GONE = "the call that it answers is not in the history; sent as text"


def _flattened(message: Message, ledger: LossRecorder, reason: str = _GONE) -> Message:
    """A result without a call, as words of the user (T20)."""
    result = result_of(message)
    inner = message.content if result is None else result.content
    fail_if_critical(message.content[0], message, "$.content[0]", reason)
    ledger.record_altered(message, message.content[0].type, "$.content[0]", reason)
    lead = TextBlock("Result of an earlier tool call:")
    told = with_blocks(message, [(0, lead), *((0, block) for block in inner)])
    metadata = replace(told.metadata, parent_tool_use_id=None)
    return replace(told, role=Role.USER, metadata=metadata)


def _single_results(message: Message, ledger: LossRecorder) -> list[Message]:
    """A tool message with several blocks as several messages, one block each."""
    if message.role != Role.TOOL or len(message.content) == 1:
        return [message]
    if not message.content:
        ledger.record_dropped(message, "message", "$", "it holds nothing that can be sent")
    parts: list[Message] = []
    for index, block in enumerate(message.content):
        place = f"$.content[{index}]"
        hints = tuple(replace(h, after=0) for h in message.metadata.hints if h.after == index)
        if isinstance(block, ToolResultBlock):
            ledger.record_altered(
                message, block.type, place, "the result is sent as a message of its own"
            )
            about = replace(message.metadata, parent_tool_use_id=block.tool_use_id, hints=hints)
            parts.append(replace(message, content=(block,), metadata=about))
        else:
            ledger.record_altered(message, block.type, place, "no result; sent as a user message")
            about = replace(message.metadata, parent_tool_use_id=None, hints=hints)
            parts.append(replace(message, role=Role.USER, content=(block,), metadata=about))
    return parts


def flatten_exchanges(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """Calls and results as text, for a model that takes no tools; nothing that was said is lost."""
    flat: list[Message] = []
    for message in messages:
        if is_native(message, ledger.target):
            flat.append(message)
        elif message.role == Role.TOOL:
            flat.append(_flattened(message, ledger, "the model takes no tools; sent as text"))
        elif calls_of(message):
            flat.append(_told(message, ledger))
        else:
            flat.append(message)
    return flat


def _told(message: Message, ledger: LossRecorder) -> Message:
    content: list[ContentBlock] = []
    for index, block in enumerate(message.content):
        if isinstance(block, ToolUseBlock):
            reason = "the model takes no tools; sent as text"
            fail_if_critical(block, message, f"$.content[{index}]", reason)
            ledger.record_altered(message, "tool_use", f"$.content[{index}]", reason)
            content.append(call_as_text(block))
        else:
            content.append(block)
    return replace(message, content=tuple(content))


def call_as_text(call: ToolUseBlock) -> TextBlock:
    """A call in words; arguments that were no JSON are told as they came."""
    if call.invalid is not None:
        return TextBlock(f"[called {call.name} with {call.invalid.raw}]")
    arguments = msgspec.json.encode(call.input, order="deterministic").decode()
    return TextBlock(f"[called {call.name} with {arguments}]")


def calls_of(message: Message) -> list[ToolUseBlock]:
    """The calls that an answer holds."""
    if message.role != Role.ASSISTANT:
        return []
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


def result_of(message: Message) -> ToolResultBlock | None:
    """The result that a tool message holds."""
    if message.role != Role.TOOL or not message.content:
        return None
    block = message.content[0]
    return block if isinstance(block, ToolResultBlock) else None


PORTABLE_NAME = re.compile(r"[a-zA-Z0-9_-]+")
"""A name of a tool that every target takes, if it is not too long."""

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]+")
_HASH_LENGTH = 8
_read = msgspec.json.Decoder().decode


@lru_cache(maxsize=1000)
def wire_tool_name(name: str, max_length: int = 64) -> str:
    """The name of a tool as a target takes it: the same, or a short form with a hash (T111).

    >>> wire_name("read_file"), wire_name("files/read me")
    ('read_file', 'files_read_me_80fe9844')
    """
    if len(name) <= max_length and PORTABLE_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    stem = _FOREIGN.sub("_", name)[: max_length - _HASH_LENGTH - 1].strip("_") or "tool"
    return f"{stem}_{digest}"


def project_calls(messages: list[Message], ledger: LossRecorder) -> list[Message]:
    """The conversation with calls as the target takes them, and the faults told in the answers."""
    faults: dict[str, InvalidInput] = {}
    sent: list[Message] = []
    for message in messages:
        calls = calls_of(message)
        if calls and not is_native(message, ledger.target):
            faults.update((call.id, call.invalid) for call in calls if call.invalid is not None)
            sent.append(_project_calls(message, ledger))
        elif faults and (result := result_of(message)) is not None:
            sent.append(_explained(message, result, faults.pop(result.tool_use_id, None), ledger))
        else:
            sent.append(message)
    return sent


def _project_calls(message: Message, ledger: LossRecorder) -> Message:
    content = tuple(
        _project_call(block, message, f"$.content[{index}]", ledger)
        if isinstance(block, ToolUseBlock)
        else block
        for index, block in enumerate(message.content)
    )
    same = all(map(lambda old, new: old is new, message.content, content))
    return message if same else replace(message, content=content)


def _project_call(
    call: ToolUseBlock, message: Message, path: str, ledger: LossRecorder
) -> ToolUseBlock:
    name = wire_tool_name(call.name, ledger.target.tool_name_length)
    if name != call.name:
        reason = f"the name is sent as {name}"
        fail_if_critical(call, message, path, reason)
        ledger.record_altered(message, "tool_use", f"{path}.name", reason)
        call = replace(call, name=name)
    if call.invalid is not None and not ledger.target.accepts_raw_arguments:
        reason = "its arguments are no JSON object; they are sent inside of one"
        fail_if_critical(call, message, path, reason)
        ledger.record_altered(message, "tool_use", f"{path}.input", reason)
        call = replace(call, input=_wrapped(call.invalid.raw), invalid=None)
    return call


def _wrapped(raw: str) -> dict[str, Any]:
    """Arguments that are no object, in one that keeps all of them (T32).

    >>> _wrapped("[1]"), _wrapped('{"a":')
    ({'_value': [1]}, {'_raw': '{"a":'})
    """
    try:
        value: object = _read(raw)
    except (ValueError, RecursionError):
        return {"_raw": raw}
    return {"_value": value}


def _explained(
    message: Message, result: ToolResultBlock, fault: InvalidInput | None, ledger: LossRecorder
) -> Message:
    """The answer to a call whose arguments were invalid; it says what was wrong (T32)."""
    if fault is None:
        return message
    told = f"The arguments of this call were not valid: {fault.error}"
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    if any(told in text for text in texts):
        return message
    ledger.record_altered(
        message, "tool_result", "$.content[0]", "it says what was wrong with the call"
    )
    answer = replace(result, content=(TextBlock(told), *result.content), is_error=True)
    return replace(message, content=(answer,))


_CALLS = ("server_tool_use", "mcp_tool_use")
_RESULT = "_tool_result"


def drop_unpaired_server_calls(messages: Sequence[Message], ledger: LossRecorder) -> list[Message]:
    """The conversation without server-side calls that have no result, and the other way round.

    They are never answered by a client. A call in the last turn may still be going on.
    """
    if not any(isinstance(block, OpaqueBlock) for m in messages for block in m.content):
        return list(messages)
    issuers = ledger.target.issuers
    halves = [half for message in messages for half in _halves(message, issuers)]
    called = {own for _, own, is_call in halves if is_call}
    answered = {own for _, own, is_call in halves if not is_call}
    whole = called & answered
    kept: list[Message] = []
    for index, message in enumerate(messages):
        is_open = index == len(messages) - 1 and message.role == Role.ASSISTANT
        lost = [
            place
            for place, own, is_call in _halves(message, issuers)
            if own not in whole and not (is_call and is_open)
        ]
        is_kept = not lost or is_native(message, ledger.target)
        kept.append(message if is_kept else _without(message, lost, ledger))
    return kept


def _halves(message: Message, issuers: frozenset[str]) -> Iterator[tuple[int, str, bool]]:
    """The index and the id of each half in a message, and whether it is the call."""
    for index, block in enumerate(message.content):
        if not isinstance(block, OpaqueBlock) or block.kind is None or block.issuer not in issuers:
            continue
        is_call = block.kind in _CALLS
        if is_call or block.kind.endswith(_RESULT):
            own = _id_of(block.data, is_call=is_call)
            if isinstance(own, str):
                yield index, own, is_call


def _id_of(data: Any, *, is_call: bool) -> Any:
    """The id that both halves name; Bedrock has it one level deeper than others."""
    part = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    inner = part.get("toolUse" if is_call else "toolResult")
    if isinstance(inner, dict):
        return cast("dict[str, Any]", inner).get("toolUseId")
    return part.get("id" if is_call else "tool_use_id")


def _without(message: Message, lost: Sequence[int], ledger: LossRecorder) -> Message:
    reason = "a call that the provider ran and its result belong together, and one is missing"
    for index in lost:
        path = f"$.content[{index}]"
        fail_if_critical(message.content[index], message, path, reason)
        ledger.record_dropped(message, "opaque", path, reason)
    left = [(index, block) for index, block in enumerate(message.content) if index not in lost]
    return with_blocks(message, left)
