"""Calls on their way to a target: names in its alphabet, arguments that it can read."""

import hashlib
import re
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from metis.canonical.blocks import InvalidInput, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.projection.critical import fail_if_critical
from metis.projection.exchanges import calls_of, result_of
from metis.projection.ledger import Ledger
from metis.projection.target import is_native

PLAIN_NAME = re.compile(r"[a-zA-Z0-9_-]+")
"""A name of a tool that every target takes, if it is not too long."""

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]+")
_HASH_LENGTH = 8
_read = msgspec.json.Decoder().decode


@lru_cache(maxsize=1000)
def wire_name(name: str, length: int = 64) -> str:
    """The name of a tool as a target takes it: the same, or a short form with a hash (T111).

    >>> wire_name("read_file"), wire_name("files/read me")
    ('read_file', 'files_read_me_80fe9844')
    """
    if len(name) <= length and PLAIN_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    stem = _FOREIGN.sub("_", name)[: length - _HASH_LENGTH - 1].strip("_") or "tool"
    return f"{stem}_{digest}"


def project_calls(messages: list[Message], ledger: Ledger) -> list[Message]:
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


def _project_calls(message: Message, ledger: Ledger) -> Message:
    content = tuple(
        _project_call(block, message, f"$.content[{index}]", ledger)
        if isinstance(block, ToolUseBlock)
        else block
        for index, block in enumerate(message.content)
    )
    same = all(map(lambda old, new: old is new, message.content, content))
    return message if same else replace(message, content=content)


def _project_call(call: ToolUseBlock, message: Message, path: str, ledger: Ledger) -> ToolUseBlock:
    name = wire_name(call.name, ledger.target.tool_name_length)
    if name != call.name:
        reason = f"the name is sent as {name}"
        fail_if_critical(call, message, path, reason)
        ledger.altered(message, "tool_use", f"{path}.name", reason)
        call = replace(call, name=name)
    if call.invalid is not None and not ledger.target.takes_raw_arguments:
        reason = "its arguments are no JSON object; they are sent inside of one"
        fail_if_critical(call, message, path, reason)
        ledger.altered(message, "tool_use", f"{path}.input", reason)
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
    message: Message, result: ToolResultBlock, fault: InvalidInput | None, ledger: Ledger
) -> Message:
    """The answer to a call whose arguments were invalid; it says what was wrong (T32)."""
    if fault is None:
        return message
    told = f"The arguments of this call were not valid: {fault.error}"
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    if any(told in text for text in texts):
        return message
    ledger.altered(message, "tool_result", "$.content[0]", "it says what was wrong with the call")
    answer = replace(result, content=(TextBlock(told), *result.content), is_error=True)
    return replace(message, content=(answer,))
