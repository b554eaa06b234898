"""The laws of limits and errors: options within ranges, and errors with the same class."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from metis.adapters import Adapter, CanonicalRequest, RequestContext
from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import MetisError, ProviderError
from metis.catalog.limits import SHARED_LIMITS, LimitRule
from metis.catalog.tables import limit_table
from metis.wire.json_access import maybe_object
from metis.wire.original_form import provider_tool_ids

_NUMBERS = ("max_output_tokens", "temperature", "top_k", "top_p")
_HISTORY_KEYS = ("messages", "contents", "input", "prompt")
_decode = msgspec.json.Decoder().decode


def limit_faults(
    client: Adapter, request: CanonicalRequest, targets: Sequence[Adapter]
) -> Iterator[str]:
    """Yield the values of a request that are outside of the limits of other providers.

    A request that is refused with a typed error before it is sent is not a fault.
    """
    for target in targets:
        # The client's own provider gets its options unchanged, and judges them itself.
        if target.name == client.name:
            continue
        options = replace(request.options, model=None)
        try:
            wire = target.preview(request.messages, request.tools, options)
        except MetisError:
            continue
        body = maybe_object(_decode(wire.body))
        if request.messages and not any(body.get(key) for key in _HISTORY_KEYS):
            yield f"to {target.name}: the request has no messages"
        decoded = target.from_wire_request(wire.body, RequestContext(path=wire.path))
        model = target.profile.catalog_id(target.wire_model(None))
        rules = limit_table().limits_for(target.name, model)
        yield from (f"to {target.name}: {fault}" for fault in _faults(decoded, body, rules))


def _faults(
    request: CanonicalRequest, body: Mapping[str, Any], rules: Mapping[str, LimitRule]
) -> Iterator[str]:
    """Yield the options, tools and ids of a decoded request that exceed a limit."""
    for name in _NUMBERS:
        value, rule = getattr(request.options, name), rules.get(name)
        if value is not None and rule is not None and rule.nearest(value) != value:
            yield f"{name} is {value}, not {rule.range_text}"
    stops, rule = request.options.stop_sequences or (), rules.get("stop_sequences")
    if rule is not None:
        if rule.max_items is not None and len(stops) > rule.max_items:
            yield f"{len(stops)} stop sequences"
        if rule.visible and not all(map(str.strip, stops)):
            yield "a blank stop sequence"
        if rule.not_empty and not all(stops):
            yield "an empty stop sequence"
    rule = rules.get("tools")
    if rule is not None and len(request.tools) > (rule.max_items or len(request.tools)):
        yield f"{len(request.tools)} tools"
    yield from _name_faults(request, rules)
    for option, rule in rules.items():
        if option not in SHARED_LIMITS:
            yield from _native_faults(option, _value_at(body, option), rule)


def _name_faults(request: CanonicalRequest, rules: Mapping[str, LimitRule]) -> Iterator[str]:
    """Yield tool names and call ids that a host would reject."""
    calls = [
        block
        for message in request.messages
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    names = [tool.name for tool in request.tools] + [call.name for call in calls]
    ids = [
        wire_id for message in request.messages for wire_id in provider_tool_ids(message).values()
    ]
    for option, values in (("tool_name", names), ("call_id", ids)):
        rule = rules.get(option)
        if rule is not None:
            yield from (f"{option} {value!r}" for value in values if not rule.accepts(value))


def _value_at(body: Mapping[str, Any], option: str) -> Any:
    outer, _, inner = option.partition(".")
    return maybe_object(body.get(outer)).get(inner) if inner else body.get(outer)


def _native_faults(option: str, value: Any, rule: LimitRule) -> Iterator[str]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and rule.nearest(value) != value:
        yield f"{option} is {value}, and not {rule.range_text}"
    if isinstance(value, str) and len(value) > (rule.max_length or len(value)):
        yield f"{option} has {len(value)} characters"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        if len(items) > (rule.max_items or len(items)):
            yield f"{option} has {len(items)} keys"
        for key, item in items.items():
            if isinstance(item, str) and len(item) > (rule.max_length or len(item)):
                yield f"{option}.{key} has {len(item)} characters"


def error_faults(error: ProviderError, clients: Sequence[Adapter]) -> Iterator[str]:
    """Yield the clients that would decode another error than the provider reported."""
    for client in clients:
        status, body = client.encode_error(error)
        try:
            client.from_wire_response(body, RequestContext(status=status))
        except ProviderError as decoded:
            if type(decoded) is not type(error):
                yield f"for {client.name}: a {type(decoded).__name__}, not {type(error).__name__}"
            if error.text not in decoded.text:
                yield f"for {client.name}: the text is {decoded.text!r}"
        else:
            yield f"for {client.name}: no error"
