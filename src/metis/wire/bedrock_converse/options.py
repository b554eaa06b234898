"""Options of Bedrock Converse."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from metis.canonical.tools import ToolDefinition
from metis.wire.bedrock_converse.blocks import PROTOCOL
from metis.wire.bedrock_converse.output import OUTPUT
from metis.wire.bedrock_converse.thinking import MORE, REASONING
from metis.wire.bedrock_converse.tools import CONFIG, spell_tools
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.reasoning import put_inside
from metis.wire.shape import Wire, maybe_count, maybe_list, maybe_object, maybe_text

_INFERENCE = "inferenceConfig"
_KEYS = {
    "max_output_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop_sequences": "stopSequences",
}
_TOP_K, _TOP_K_OF_NOVA = "top_k", "topK"
_NOVA = "amazon.nova"
SHARED_KEYS = frozenset(
    {
        *(f"{_INFERENCE}.{key}" for key in _KEYS.values()),
        f"{MORE}.{_TOP_K}",
        f"{MORE}.{_INFERENCE}.{_TOP_K_OF_NOVA}",
        f"{CONFIG}.tools",
        f"{CONFIG}.toolChoice",
    }
)
"""The keys of a request that the shared options and the tools speak for."""


def decode_options(wire: Wire, model: str | None) -> AdapterOptions:
    """The shared options of a request, with their spelling; the model is not in the body."""
    spoken, output = REASONING.decode(wire).reasoning, OUTPUT.decode(wire).output
    return AdapterOptions(
        model=model, **_shared(wire), reasoning=spoken, output=output, native={PROTOCOL: wire}
    )


def encode_options(options: AdapterOptions, tools: Sequence[ToolDefinition]) -> Wire:
    """The options as keys of a request; a remembered spelling is kept while it says the same."""
    wire = dict(options.native.get(PROTOCOL, {}))
    remembered = _shared(wire) if wire else {}
    changed: Wire = {}
    for name, key in _KEYS.items():
        value = getattr(options, name)
        if value != remembered.get(name):
            changed[key] = list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType] - strings
    if changed:
        put_inside(wire, _INFERENCE, changed)
    if options.top_k != remembered.get("top_k"):
        _set_top_k(wire, options)
    spell_tools(wire, tools)
    if options.tool_choice != remembered.get("tool_choice") and CONFIG in wire:
        put_inside(wire, CONFIG, {"toolChoice": _encode_choice(options.tool_choice)})
    REASONING.write(wire, options.reasoning, is_free=options.origin is None)
    OUTPUT.write(wire, options.output, is_free=options.origin is None)
    return wire


def _set_top_k(wire: Wire, options: AdapterOptions) -> None:
    """Say it as the models of the maker want it: the protocol itself has no word for it."""
    more = dict(maybe_object(wire.get(MORE)))
    is_nova = _NOVA in (options.model or "")
    put_inside(more, _INFERENCE, {_TOP_K_OF_NOVA: options.top_k if is_nova else None})
    more.pop(_TOP_K, None)
    if options.top_k is not None and not is_nova:
        more[_TOP_K] = options.top_k
    wire.pop(MORE, None)
    if more:
        wire[MORE] = more


def _encode_choice(choice: ToolChoice | None) -> Wire | None:
    """The choice; there is no word for calling nothing."""
    if choice is None or choice.mode == "none":
        return None
    if choice.mode == "tool":
        return {"tool": {"name": choice.name}}
    return {"any": {}} if choice.mode == "required" else {"auto": {}}


def _shared(wire: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options that a request states."""
    config, more = maybe_object(wire.get(_INFERENCE)), maybe_object(wire.get(MORE))
    found: dict[str, Any] = {
        "max_output_tokens": maybe_count(config.get("maxTokens")),
        "temperature": _number(config.get("temperature")),
        "top_p": _number(config.get("topP")),
        "tool_choice": _choice(maybe_object(wire.get(CONFIG)).get("toolChoice")),
    }
    stops = config.get("stopSequences")
    if isinstance(stops, list) and all(isinstance(stop, str) for stop in maybe_list(stops)):
        found["stop_sequences"] = tuple(cast("list[str]", stops))
    of_nova = maybe_object(more.get(_INFERENCE)).get(_TOP_K_OF_NOVA)
    found["top_k"] = maybe_count(more.get(_TOP_K, of_nova))
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _choice(wire: Any) -> ToolChoice | None:
    match wire:
        case {"auto": dict()}:
            return ToolChoice("auto")
        case {"any": dict()}:
            return ToolChoice("required")
        case {"tool": {"name": str(name)}}:
            return ToolChoice("tool", maybe_text(name))
        case _:
            return None
