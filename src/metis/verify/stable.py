"""The law of stable bytes: the bytes for a provider depend only on the request of the client.

A client without a session sends its whole history with every request, to any process. The prompt
cache of a provider hits only if equal requests give equal bytes, and a longer request begins with
the bytes of the shorter one. Only cache marks may move: they are not part of the compared prefix.
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
    """Yield targets for which a request gives different bytes, or does not extend a shorter one.

    `client` is the adapter of the protocol of `body`.
    """
    bodies = [*shorter_requests(body), body]
    for target in targets:
        requests = [request_bytes(client, target, turn_body) for turn_body in bodies]
        last, repeated = requests[-1], request_bytes(client, target, body)
        if (repeated is None) != (last is None) or (
            repeated is not None and last is not None and repeated.body != last.body
        ):
            yield f"to {target.name}: the same request gives other bytes"
        for number, (shorter, longer) in enumerate(pairwise(requests)):
            if shorter is not None and longer is not None and not _extends(shorter, longer):
                yield f"to {target.name}: turn {number + 2} does not begin as the one before it"


def request_bytes(client: Adapter, target: Adapter, body: dict[str, Any]) -> WireRequest | None:
    """Return the request that a target receives, without a session; None if it is refused."""
    try:
        # Encoded histories are cached by message object; decoding creates new objects each time.
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


def _extends(shorter: WireRequest, longer: WireRequest) -> bool:
    """Whether the history of a request continues that of a shorter one, with equal other keys."""
    first, second = _without_marks(_decode(shorter.body)), _without_marks(_decode(longer.body))
    # Options may change if a loss reports it: Anthropic and Bedrock need a definition for each
    # called tool (T36), and reject thinking as long as a call of another model has no result.
    has_new_losses = bool(_option_losses(longer) - _option_losses(shorter))
    for key in {*first, *second}:
        if key in _HISTORY_KEYS:
            if not _is_prefix(_as_list(first.get(key, [])), _as_list(second.get(key, []))):
                return False
        elif first.get(key) != second.get(key) and not has_new_losses:
            return False
    return True


def _option_losses(request: WireRequest) -> set[tuple[str, str]]:
    return {(loss.path, loss.reason) for loss in request.losses if loss.block_type == "option"}


def _as_list(history: Any) -> Any:
    # OpenAI Responses accepts a string as a history of one text.
    return [{"role": "user", "content": history}] if isinstance(history, str) else history


def _is_prefix(shorter: Any, longer: Any) -> bool:
    """Whether the bytes of `longer` begin with those of `shorter` without its closing brackets."""
    if isinstance(shorter, list) and isinstance(longer, list):
        first, second = cast("list[Any]", shorter), cast("list[Any]", longer)
        if not first or len(first) > len(second):
            return not first
        *start, last = first
        return start == second[: len(start)] and _is_prefix(last, second[len(start)])
    if isinstance(shorter, dict) and isinstance(longer, dict):
        one, other = cast("dict[str, Any]", shorter), cast("dict[str, Any]", longer)
        return one.keys() == other.keys() and all(_is_prefix(one[key], other[key]) for key in one)
    if isinstance(shorter, str) and isinstance(longer, str):
        return longer.startswith(shorter)
    return shorter == longer


def _without_marks(value: Any) -> Any:
    """Return a JSON value without cache marks at any depth."""
    if isinstance(value, dict):
        wire = cast("dict[str, Any]", value)
        return {key: _without_marks(inner) for key, inner in wire.items() if key not in _MARK_KEYS}
    if isinstance(value, list):
        parts = cast("list[Any]", value)
        return [_without_marks(part) for part in parts if {*maybe_object(part)} not in _MARK_PARTS]
    return value
