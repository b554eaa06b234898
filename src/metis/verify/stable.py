"""The law of stable bytes: what a provider receives depends on what its client sends alone.

A client without a session sends its whole history with every request, to whatever process. Provider
caches hit only if equal requests become equal bytes, and if a longer request begins as the shorter
one did. Only cache marks move: they are no part of the prefix that a provider compares.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.adapters import Adapter, RequestContext, WireRequest
from metis.canonical.errors import MetisError
from metis.wire.json_access import maybe_object

_HISTORY_KEYS = ("messages", "contents", "input")
_MODEL_ROLES = ("assistant", "model")
_MODEL_ITEMS = ("reasoning", "function_call", "custom_tool_call")
_MARK_KEYS = frozenset({"cache_control"})
_MARK_PARTS = ({"cachePoint"},)
_decode = msgspec.json.Decoder().decode


def stable_faults(
    client: Adapter, body: dict[str, Any], targets: Sequence[Adapter]
) -> Iterator[str]:
    """Yield where a request gives other bytes in another session, or does not extend a shorter one.

    `client` is the adapter of the protocol in which `body` is written.
    """
    bodies = [*shorter_requests(body), body]
    for target in targets:
        sent = [request_bytes(client, target, each) for each in bodies]
        again = request_bytes(client, target, body)
        if (again is None) != (sent[-1] is None) or (
            again is not None and sent[-1] is not None and again.body != sent[-1].body
        ):
            yield f"to {target.name}: the same request gives other bytes"
        for number, (before, after) in enumerate(pairwise(sent)):
            if before is not None and after is not None and not _extends(before, after):
                yield f"to {target.name}: turn {number + 2} does not begin as the one before it"


def request_bytes(client: Adapter, target: Adapter, body: dict[str, Any]) -> WireRequest | None:
    """Return what a target receives of a request without a session; None if it is refused."""
    try:
        # Histories of earlier requests are found by their message objects, and these are new.
        request = client.from_wire_request(body, RequestContext())
        options = request.options
        if target.name != client.name:
            options = replace(options, model=None)
        return target.preview(request.messages, request.tools, options)
    except MetisError:
        return None


def shorter_requests(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the requests that a client sent in earlier turns of the same conversation."""
    for key in _HISTORY_KEYS:
        items = body.get(key)
        if isinstance(items, list):
            history = cast("list[Any]", items)
            for index in range(1, len(history)):
                if _is_response(history[index]) and not _is_response(history[index - 1]):
                    yield {**body, key: history[:index]}


def _is_response(item: Any) -> bool:
    wire = maybe_object(item)
    return wire.get("role") in _MODEL_ROLES or wire.get("type") in _MODEL_ITEMS


def _extends(before: WireRequest, after: WireRequest) -> bool:
    first, second = _without_marks(_decode(before.body)), _without_marks(_decode(after.body))
    # Anthropic and Bedrock need a definition for each tool that a history has calls of (T36), and
    # no thinking while a call is open that another model made; both are reported.
    has_new_losses = bool(_option_losses(after) - _option_losses(before))
    for key in {*first, *second}:
        if key in _HISTORY_KEYS:
            if not _is_prefix(_listed(first.get(key, [])), _listed(second.get(key, []))):
                return False
        elif first.get(key) != second.get(key) and not has_new_losses:
            return False
    return True


def _option_losses(request: WireRequest) -> set[tuple[str, str]]:
    return {(loss.path, loss.reason) for loss in request.losses if loss.block_type == "option"}


def _listed(history: Any) -> Any:
    # OpenAI Responses has a string for a history of one text.
    return [{"role": "user", "content": history}] if isinstance(history, str) else history


def _is_prefix(before: Any, after: Any) -> bool:
    """Whether the bytes of one JSON value begin as another's, up to its closing brackets."""
    if isinstance(before, list) and isinstance(after, list):
        first, second = cast("list[Any]", before), cast("list[Any]", after)
        if not first or len(first) > len(second):
            return not first
        *start, last = first
        return start == second[: len(start)] and _is_prefix(last, second[len(start)])
    if isinstance(before, dict) and isinstance(after, dict):
        one, other = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        return one.keys() == other.keys() and all(_is_prefix(one[key], other[key]) for key in one)
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    return before == after


def _without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        wire = cast("dict[str, Any]", value)
        return {key: _without_marks(each) for key, each in wire.items() if key not in _MARK_KEYS}
    if isinstance(value, list):
        parts = cast("list[Any]", value)
        return [_without_marks(each) for each in parts if {*maybe_object(each)} not in _MARK_PARTS]
    return value
