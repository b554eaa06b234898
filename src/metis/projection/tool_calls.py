"""Projection of tool calls and results: each call gets exactly one result, directly after it.

An exchange is a response with calls and the results of these calls. Repairs never insert messages
into an exchange. Added and moved results exist only in the request; the store is not changed.
"""

import hashlib
import re
from collections import OrderedDict, deque
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
from metis.projection.content import (
    IndexedBlock,
    are_identical,
    calls_of,
    fail_if_critical,
    result_of,
    with_blocks,
)
from metis.projection.loss import Change, LossRecorder
from metis.projection.target import Target, is_native

NO_RESULT = "No result of this call is available. It may or may not have run."
"""The result of an unanswered call; it claims nothing about the cause (T21)."""
# Gemini 3 rejects a name that begins with a digit, such as `1password_get_item`, with 400.
PORTABLE_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")
"""A tool name that every target accepts, if it is not too long."""

_FOREIGN_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]+")
_HASH_LENGTH = 8
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
_SERVER_RESULT_SUFFIX = "_tool_result"
_AS_TEXT = "tools are not supported by the model"
_Block = TypeVar("_Block", ToolUseBlock, ToolResultBlock)
_decode = msgspec.json.Decoder().decode


def are_complete(messages: Sequence[Message], target: Target) -> bool:
    """Whether all exchanges are complete, so that no repair is needed.

    Native messages may be several responses in a row before their results, and results in any
    order.
    """
    # An OrderedDict finds its first item in constant time even after many removals.
    open_calls: OrderedDict[str, None] = OrderedDict()
    call_ids: set[str] = set()
    for message in messages:
        if message.role == Role.TOOL:
            result = result_of(message)
            if result is None or len(message.content) != 1:
                return False
            call_id = result.tool_use_id
            if call_id not in open_calls:
                # The call may be in a stored response that the request does not contain.
                if target.stores_history and call_id not in call_ids:
                    continue
                return False
            if call_id != next(iter(open_calls)) and not is_native(message, target):
                return False
            del open_calls[call_id]
            continue
        if open_calls and not (message.role == Role.ASSISTANT and is_native(message, target)):
            return False
        for call in calls_of(message):
            if call.id in call_ids or not call.id:
                return False
            call_ids.add(call.id)
            open_calls[call.id] = None
    return not open_calls


def repair_exchanges(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    """Return the history with one result directly after every call (T15, T17, T19-T23)."""
    messages = [part for message in messages for part in _single_results(message, recorder)]
    ids = _UniqueIds(recorder)
    messages = [ids.rename(message) for message in messages]
    results = _Results(messages, recorder)
    repaired: list[Message] = []
    for index, message in enumerate(messages):
        if message.role == Role.TOOL:
            result = result_of(message)
            is_orphan = index in results.orphans
            if result is not None and is_orphan and recorder.target.stores_history:
                repaired.append(message)  # the call is in a response that the target stores
            elif result is None or is_orphan:
                reason = "the call that it answers is not in the history"
                repaired.append(_result_as_text(message, recorder, reason))
            continue
        repaired.append(message)
        repaired += [results.pop(call, message) for call in calls_of(message)]
    return repaired


class _Results:
    """The results of a history by call; `orphans` are the indexes of results without a call."""

    def __init__(self, messages: Sequence[Message], recorder: LossRecorder) -> None:
        self._recorder = recorder
        self._by_call: dict[str, Message] = {}
        self.orphans: set[int] = set()
        response_of: dict[str, int] = {}
        last_response = -1
        for index, message in enumerate(messages):
            if message.role != Role.TOOL:
                last_response = index
                response_of.update((call.id, index) for call in calls_of(message))
                continue
            result = result_of(message)
            if result is None or result.tool_use_id not in response_of:
                self.orphans.add(index)
                continue
            is_moved = response_of[result.tool_use_id] != last_response
            self._add(result.tool_use_id, message, is_moved=is_moved)

    def _add(self, call_id: str, message: Message, *, is_moved: bool) -> None:
        earlier = self._by_call.get(call_id)
        if earlier is not None:
            reason = "a later result of the same call replaces it"
            self._recorder.record_block(
                Change.DROPPED, earlier.content[0], earlier, "$.content[0]", reason
            )
        if is_moved:
            reason = "moved to the call that it answers"
            self._recorder.record_altered(message, "tool_result", "$.content[0]", reason)
        self._by_call[call_id] = message

    def pop(self, call: ToolUseBlock, message: Message) -> Message:
        """Remove and return the result of a call; a missing one is synthesised."""
        result = self._by_call.pop(call.id, None)
        if result is not None:
            return result
        reason = f"the call of {call.name} has no result"
        self._recorder.record_synthesised(message, "tool_result", "$.content", reason)
        block = ToolResultBlock(call.id, (TextBlock(NO_RESULT),), is_error=True)
        return Message(
            id=message.id,
            session_id=message.session_id,
            role=Role.TOOL,
            content=(block,),
            created_at=message.created_at,
            metadata=MessageMetadata(parent_tool_use_id=call.id, origin="projection"),
        )


def _single_results(message: Message, recorder: LossRecorder) -> list[Message]:
    """Split a tool message into one per result; other blocks become user messages."""
    # With one result per message, each can be moved, dropped or completed separately.
    if message.role != Role.TOOL or len(message.content) == 1:
        return [message]
    if not message.content:
        recorder.record_dropped(message, "message", "$", "it has no content that can be sent")
    parts: list[Message] = []
    for index, block in enumerate(message.content):
        path = f"$.content[{index}]"
        hints = tuple(replace(h, after=0) for h in message.metadata.hints if h.after == index)
        is_result = isinstance(block, ToolResultBlock)
        call_id = block.tool_use_id if is_result else None
        reason = "the result is sent as its own message" if is_result else "sent as a user message"
        recorder.record_altered(message, block.type, path, reason)
        metadata = replace(message.metadata, parent_tool_use_id=call_id, hints=hints)
        role = message.role if is_result else Role.USER
        parts.append(replace(message, role=role, content=(block,), metadata=metadata))
    return parts


def flatten_exchanges(messages: Sequence[Message], recorder: LossRecorder) -> list[Message]:
    """Return the history with calls and results as text, for a model without tools."""
    flat = list(messages)
    for index, message in enumerate(messages):
        if is_native(message, recorder.target):
            continue
        if message.role == Role.TOOL:
            flat[index] = _result_as_text(message, recorder, _AS_TEXT)
        elif calls_of(message):
            flat[index] = _calls_as_text(message, recorder)
    return flat


def _result_as_text(message: Message, recorder: LossRecorder, reason: str) -> Message:
    # Every API rejects a result without its call; as text the model can still read it (T20).
    result = result_of(message)
    content = message.content if result is None else result.content
    recorder.record_as_text(message.content[0], message, "$.content[0]", reason)
    heading = TextBlock("Result of an earlier tool call:")
    flat = with_blocks(message, [(0, heading), *((0, block) for block in content)])
    metadata = replace(flat.metadata, parent_tool_use_id=None)
    return replace(flat, role=Role.USER, metadata=metadata)


def _calls_as_text(message: Message, recorder: LossRecorder) -> Message:
    content: list[ContentBlock] = list(message.content)
    for index, block in enumerate(message.content):
        if isinstance(block, ToolUseBlock):
            path = f"$.content[{index}]"
            recorder.record_as_text(block, message, path, _AS_TEXT)
            content[index] = call_as_text(block)
    return replace(message, content=tuple(content))


def call_as_text(call: ToolUseBlock) -> TextBlock:
    """Return a text that describes a call; invalid arguments are included unchanged."""
    if call.invalid is not None:
        return TextBlock(f"[called {call.name} with {call.invalid.raw}]")
    arguments = msgspec.json.encode(call.input, order="deterministic").decode()
    return TextBlock(f"[called {call.name} with {arguments}]")


class _UniqueIds:
    """Renames calls with an empty or repeated id, and their results accordingly (T08-T10)."""

    def __init__(self, recorder: LossRecorder) -> None:
        self._recorder = recorder
        self._counts: dict[str, int] = {}
        self._used: set[str] = set()
        self._open: dict[str, deque[str]] = {}
        self._latest: dict[str, str] = {}

    def rename(self, message: Message) -> Message:
        """Return a message with unique ids of its calls, or with the new id of its result."""
        if message.role == Role.ASSISTANT:
            return self._rename_calls(message)
        if message.role == Role.TOOL:
            return self._rename_result(message)
        return message

    def _rename_calls(self, message: Message) -> Message:
        """Return a response with unique call ids; identical repeated calls are dropped."""
        # Grouped by id: comparing each call with all others would take quadratic time.
        calls: dict[str, list[ToolUseBlock] | set[ToolUseBlock]] = {}
        content: list[IndexedBlock] = []
        for index, block in enumerate(message.content):
            if not isinstance(block, ToolUseBlock):
                content.append((index, block))
                continue
            same_id = calls.get(block.id)
            if isinstance(same_id, list):
                # Converted only on repetition, because few ids repeat and hashing a call is slow.
                same_id = calls[block.id] = set(same_id)
            if block.id and same_id is not None and block in same_id:
                path, reason = f"$.content[{index}]", "the response holds the same call twice"
                self._recorder.record_block(Change.DROPPED, block, message, path, reason)
            else:
                if same_id is None:
                    calls[block.id] = [block]
                else:
                    same_id.add(block)
                renamed = self._rename_call(block, message, index, is_first=same_id is None)
                content.append((index, renamed))
        is_unchanged = are_identical([block for _, block in content], message.content)
        return message if is_unchanged else with_blocks(message, content)

    def _rename_call(
        self, call: ToolUseBlock, message: Message, index: int, *, is_first: bool
    ) -> ToolUseBlock:
        count = self._counts.get(call.id, 0)
        self._counts[call.id] = count + 1
        new_id = call.id
        # A new id depends only on earlier calls, so that it is the same in every later request.
        while not new_id or new_id in self._used:
            new_id = hashed_tool_id(message.session_id, call.id, str(count))
            count += 1
        self._used.add(new_id)
        if is_first:
            self._open[call.id] = deque()
        self._open[call.id].append(new_id)
        return self._with_id(call, "id", new_id, message, index)

    def _rename_result(self, message: Message) -> Message:
        result = message.content[0] if message.content else None
        if not isinstance(result, ToolResultBlock):
            return message
        old_id = result.tool_use_id
        open_ids = self._open.get(old_id)
        new_id = open_ids.popleft() if open_ids else self._latest.get(old_id, old_id)
        self._latest[old_id] = new_id
        if new_id == old_id:
            return message
        renamed = self._with_id(result, "tool_use_id", new_id, message, 0)
        metadata = replace(message.metadata, parent_tool_use_id=new_id)
        return replace(message, content=(renamed,), metadata=metadata)

    def _with_id(
        self, block: _Block, field: str, new_id: str, message: Message, index: int
    ) -> _Block:
        old_id = getattr(block, field)
        if old_id == new_id:
            return block
        reason = "another call has the same id" if old_id else "the call has no id"
        self._recorder.record_altered(message, block.type, f"$.content[{index}].{field}", reason)
        return replace(block, **{field: new_id})


@lru_cache(maxsize=1000)
def wire_tool_name(name: str, max_length: int = 64) -> str:
    """Return a tool name that a target accepts: unchanged, or a short form with a hash (T111).

    >>> wire_tool_name("read_file"), wire_tool_name("files/read me")
    ('read_file', 'files_read_me_80fe9844')
    """
    if len(name) <= max_length and PORTABLE_NAME.fullmatch(name):
        return name
    # The hash distinguishes names that differ only in replaced characters.
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    stem = _FOREIGN_CHARACTERS.sub("_", name).strip("_") or "tool"
    stem = stem if stem[0].isalpha() else f"tool_{stem}"
    stem = stem[: max_length - _HASH_LENGTH - 1].rstrip("_")
    return f"{stem}_{digest}"


def project_calls(messages: list[Message], recorder: LossRecorder) -> list[Message]:
    """Return the history with accepted names and arguments of calls.

    The result of a call with invalid arguments explains the fault.
    """
    faults: dict[str, InvalidInput] = {}
    sent: list[Message] = []
    for message in messages:
        calls = calls_of(message)
        if calls and not is_native(message, recorder.target):
            faults.update((call.id, call.invalid) for call in calls if call.invalid is not None)
            content = tuple(
                _project_call(block, message, f"$.content[{index}]", recorder)
                if isinstance(block, ToolUseBlock)
                else block
                for index, block in enumerate(message.content)
            )
            is_unchanged = are_identical(content, message.content)
            sent.append(message if is_unchanged else replace(message, content=content))
        elif faults and (result := result_of(message)) is not None:
            fault = faults.pop(result.tool_use_id, None)
            sent.append(_with_fault(message, result, fault, recorder))
        else:
            sent.append(message)
    return sent


def _project_call(
    call: ToolUseBlock, message: Message, path: str, recorder: LossRecorder
) -> ToolUseBlock:
    """Return a call with an accepted name, and with arguments that are an object."""
    name = wire_tool_name(call.name, recorder.target.tool_name_length)
    if name != call.name:
        reason = f"the name is sent as {name}"
        fail_if_critical(call, message, path, reason)
        recorder.record_altered(message, "tool_use", f"{path}.name", reason)
        call = replace(call, name=name)
    # Only Chat Completions has arguments as a string; other protocols require an object (T32).
    if call.invalid is not None and not recorder.target.accepts_raw_arguments:
        reason = "its arguments are not a JSON object; sent inside of one"
        fail_if_critical(call, message, path, reason)
        recorder.record_altered(message, "tool_use", f"{path}.input", reason)
        call = replace(call, input=_wrapped(call.invalid.raw), invalid=None)
    return call


def _wrapped(raw: str) -> dict[str, Any]:
    """Return an object that contains arguments which are not an object (T32).

    >>> _wrapped("[1]"), _wrapped('{"a":')
    ({'_value': [1]}, {'_raw': '{"a":'})
    """
    try:
        value: object = _decode(raw)
    except (ValueError, RecursionError):
        return {"_raw": raw}
    return {"_value": value}


def _with_fault(
    message: Message, result: ToolResultBlock, fault: InvalidInput | None, recorder: LossRecorder
) -> Message:
    # Without the reason the model would repeat the same call (T32).
    if fault is None:
        return message
    text = f"The arguments of this call were not valid: {fault.error}"
    if any(isinstance(block, TextBlock) and text in block.text for block in result.content):
        return message
    reason = "it states what was wrong with the call"
    recorder.record_altered(message, "tool_result", "$.content[0]", reason)
    explained = replace(result, content=(TextBlock(text), *result.content), is_error=True)
    return replace(message, content=(explained,))


def drop_unpaired_server_calls(
    messages: Sequence[Message], recorder: LossRecorder
) -> list[Message]:
    """Drop server-side calls without a result, and server-side results without a call (T197).

    Such results cannot be synthesised. A call of the current turn stays, because it may be running:
    code that the provider runs may wait for results of calls to the client (T222).
    """
    if not any(isinstance(block, OpaqueBlock) for m in messages for block in m.content):
        return list(messages)
    issuers = recorder.target.issuers
    server_parts = [part for message in messages for part in _server_parts(message, issuers)]
    calls = {call_id for _, call_id, is_call in server_parts if is_call}
    paired = calls & {call_id for _, call_id, is_call in server_parts if not is_call}
    sent: list[Message] = []
    prompts = [index for index, message in enumerate(messages) if message.role == Role.USER]
    turn_start = prompts[-1] if prompts else -1
    for index, message in enumerate(messages):
        is_running = index > turn_start and message.role == Role.ASSISTANT
        unpaired = [
            block_index
            for block_index, call_id, is_call in _server_parts(message, issuers)
            if call_id not in paired and not (is_call and is_running)
        ]
        if not unpaired or is_native(message, recorder.target):
            sent.append(message)
            continue
        reason = "a server-side call and its result belong together, and one is missing"
        for block_index in unpaired:
            block, path = message.content[block_index], f"$.content[{block_index}]"
            recorder.record_block(Change.DROPPED, block, message, path, reason)
        remaining = [pair for pair in enumerate(message.content) if pair[0] not in unpaired]
        sent.append(with_blocks(message, remaining))
    return sent


def _server_parts(message: Message, issuers: frozenset[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield the index and call id of each server-side call or result, and whether it is a call."""
    for index, block in enumerate(message.content):
        if not isinstance(block, OpaqueBlock) or block.kind is None or block.issuer not in issuers:
            continue
        is_call = block.kind in _SERVER_CALLS
        if is_call or block.kind.endswith(_SERVER_RESULT_SUFFIX):
            call_id = _server_call_id(block.data, is_call=is_call)
            if isinstance(call_id, str):
                yield index, call_id, is_call


def _server_call_id(data: Any, *, is_call: bool) -> Any:
    # Bedrock nests the id one level deeper than Anthropic.
    fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    inner = fields.get("toolUse" if is_call else "toolResult")
    if isinstance(inner, dict):
        return cast("dict[str, Any]", inner).get("toolUseId")
    return fields.get("id" if is_call else "tool_use_id")
