"""Tools and native options of a request, fitted to a provider, and the losses of both."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.profile import Profile
from metis.canonical.blocks import OpaqueBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Message
from metis.canonical.schema.fit import fit_tool_schema
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.projection import Change, wire_tool_name
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.codec import Codec
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.original_form import is_meaningful, original_form_of

_decode = msgspec.json.Decoder().decode

_DEFINITION_KEYS = frozenset({"name", "description", "input_schema", "parameters", "function"})
"""The keys of a wire tool that a `ToolDefinition` covers."""
_MODES: Mapping[str, ToolMode] = {
    "auto": "auto",
    "none": "none",
    "any": "required",
    "required": "required",
}
"""The tool modes of all providers, by their names: whether a model may, must or must not call."""
_PLACEHOLDER_DESCRIPTION = "A tool that was used before and cannot be called now."


_EMPTY_VALUES: tuple[Any, ...] = (None, "", [], {})
"""Values with which an option has no effect, so that dropping it is no loss."""


class OptionLoss(Struct, frozen=True):
    """An option or a tool that is not sent as the caller requested it."""

    key: str
    reason: str
    change: Change = Change.DROPPED


def tool_losses(
    origin: str,
    keys: Mapping[str, Any],
    tools: Sequence[ToolDefinition],
    codec: Codec | None,
    *,
    handled: frozenset[str] = frozenset(),
) -> Iterator[OptionLoss]:
    """Yield a loss for each server tool of another provider, and for keys that only it has.

    `handled` has keys and tool types that are sent in another form.
    """
    names = {tool.name for tool in tools}
    if codec is not None and codec.server_tools is not None:
        for index, kind in enumerate(codec.server_tools(keys)):
            yield OptionLoss(
                f"tools[{index}]", f"the tool {kind!r} of {origin} is not supported here"
            )
        for name, path in codec.unmapped_tool_paths(keys) if codec.unmapped_tool_paths else ():
            if name in names:
                key = path.rpartition(".")[2]
                yield OptionLoss(path, f"{key!r} of the tool {name!r} exists at {origin} only")
        return
    for index, tool in enumerate(map(maybe_object, maybe_list(keys.get("tools")))):
        kind = tool.get("type")
        if not isinstance(kind, str) or kind not in handled:
            yield from _wire_tool_losses(tool, f"tools[{index}]", origin, names, handled)


def _wire_tool_losses(
    tool: Wire, path: str, origin: str, names: set[str], handled: frozenset[str]
) -> Iterator[OptionLoss]:
    function = maybe_object(tool.get("function"))
    name = tool.get("name") or function.get("name")
    if not isinstance(name, str) or name not in names:
        kind = tool.get("type") or name
        yield OptionLoss(path, f"the tool {kind!r} of {origin} is not supported here")
        return
    for key, value in {**tool, **function}.items():
        if key not in _DEFINITION_KEYS and key not in handled and is_meaningful(key, value):
            reason = f"{key!r} of the tool {name!r} exists at {origin} only"
            yield OptionLoss(f"{path}.{key}", reason)


def foreign_losses(
    options: AdapterOptions,
    protocol: str,
    tools: Sequence[ToolDefinition],
    declared_kinds: frozenset[str],
) -> Iterator[OptionLoss]:
    """Yield a loss for each native option of another protocol that no shared option covers."""
    # A key that a shared option covers is not lost: it is sent in the form of this protocol.
    for other, keys in options.native.items():
        if other == protocol:
            continue
        codec = CODECS.get(other)
        shared = frozenset[str]()
        if codec is not None:
            shared = codec.shared_keys | codec.reasoning.decode(keys).keys
            shared |= codec.output.decode(keys).keys
        for key in unshared_keys(keys, shared):
            yield OptionLoss(key, f"the option {key!r} of {other} is not supported here")
        yield from tool_losses(other, keys, tools, codec, handled=declared_kinds)


def unshared_keys(
    keys: Mapping[str, Any], shared: frozenset[str], prefix: str = ""
) -> Iterator[str]:
    """Yield the paths of options that no shared option covers, inner keys with dots."""
    for key, value in keys.items():
        path = prefix + key
        if value in _EMPTY_VALUES or path in shared:
            continue
        if isinstance(value, dict) and any(other.startswith(f"{path}.") for other in shared):
            yield from unshared_keys(maybe_object(value), shared, f"{path}.")
        else:
            yield path


def with_wire_names(
    profile: Profile,
    tools: Sequence[ToolDefinition],
    options: AdapterOptions,
    losses: list[OptionLoss],
) -> tuple[Sequence[ToolDefinition], AdapterOptions]:
    """Return tools and tool choice under names that the provider accepts, each once (T111)."""
    max_length = profile.tool_name_length
    sent: dict[str, ToolDefinition] = {}
    for index, tool in enumerate(tools):
        name = wire_tool_name(tool.name, max_length)
        # Providers answer 400 to two tools with one name.
        if name in sent:
            reason = f"another tool has the name {tool.name!r}, too"
            losses.append(OptionLoss(f"tools[{index}]", reason))
            continue
        if name != tool.name:
            reason = f"the tool {tool.name!r} is sent as {name}"
            losses.append(OptionLoss(f"tools[{index}].name", reason, Change.ALTERED))
        sent[name] = tool if name == tool.name else replace(tool, name=name)
    choice = options.tool_choice
    if choice is not None and choice.name is not None:
        choice = replace(choice, name=wire_tool_name(choice.name, max_length))
        options = replace(options, tool_choice=choice)
    return tuple(sent.values()), options


def with_fitted_schemas(
    profile: Profile, tools: Sequence[ToolDefinition], losses: list[OptionLoss]
) -> Sequence[ToolDefinition]:
    """Return tools whose schemas and descriptions the provider accepts (T103-T107, T110, T112)."""
    sent: list[ToolDefinition] = []
    for index, tool in enumerate(tools):
        schema, changes = fit_tool_schema(tool.input_schema, profile.tool_schemas)
        for change in changes:
            reason = f"the tool {tool.name!r} at {profile.name}: {change}"
            losses.append(OptionLoss(f"tools[{index}].input_schema", reason, Change.ALTERED))
        fitted = tool if schema is tool.input_schema else replace(tool, input_schema=schema)
        if profile.needs_descriptions and not tool.description:
            reason = f"the tool {tool.name!r} has no description; its name is sent instead"
            losses.append(OptionLoss(f"tools[{index}].description", reason, Change.SYNTHESISED))
            fitted = replace(fitted, description=tool.name)
        sent.append(fitted)
    return sent


def check_server_tools(
    profile: Profile,
    model: str,
    native: Mapping[str, Any],
    tools: Sequence[ToolDefinition],
    codec: Codec,
) -> None:
    """Refuse server tools that the provider's API would refuse, before anything is sent.

    Raises:
        InvalidValueError: the API has no such tool, or the model does not allow others beside it.
    """
    if profile.tool_types is not None:
        for index, tool in enumerate(map(maybe_object, maybe_list(native.get("tools")))):
            kind = tool.get("type", "function")
            if kind not in profile.tool_types:
                fault = f"{profile.name} has no tool {kind!r} at {profile.path}"
                raise InvalidValueError(fault, path=f"$.tools[{index}]")
    is_older = model.removeprefix("models/").startswith(profile.older_model_prefixes)
    if tools and is_older and profile.older_model_prefixes and codec.server_tools is not None:
        server_tools = codec.server_tools(native)
        if server_tools:
            names = ", ".join(tool.name for tool in tools)
            fault = f"{model} supports {server_tools[0]!r} only without your own tools ({names})"
            raise InvalidValueError(fault, path="$.tools")


def search_keys(
    profile: Profile, model: str, tools: Sequence[ToolDefinition], codec: Codec
) -> Mapping[str, Any]:
    """Return the native keys that let the provider search the web.

    Raises:
        InvalidValueError: it cannot, or not beside these tools.
    """
    if profile.search is None:
        fault = f"{profile.name} has no web search at {profile.path}"
        raise InvalidValueError(fault, path="$.search")
    check_server_tools(profile, model, profile.search, tools, codec)
    names = {maybe_object(tool).get("name") for tool in maybe_list(profile.search.get("tools"))}
    for index, tool in enumerate(tools):
        if tool.name in names:
            fault = f"the search tool of {profile.name} has the name {tool.name!r}, too"
            raise InvalidValueError(fault, path=f"$.tools[{index}]")
    return {**profile.search, **(profile.search_beside_tools if tools else {})}


def resolve_tool_mode(
    options: AdapterOptions, profile: Profile, codec: Codec, losses: list[OptionLoss]
) -> tuple[AdapterOptions, Mapping[str, Any]]:
    """Return the options with the tool choice that a tool mode stands for, and its native keys.

    Raises:
        InvalidValueError: the provider has no such mode.
    """
    word = (options.tool_mode or "").lower()
    native = codec.tool_modes.get(word, {})
    mode = "auto" if native else _MODES.get(word)
    words = [*_MODES, *codec.tool_modes]
    if "tool_choice" in profile.refused_options:
        words = ["auto"]  # what happens if no choice is sent
    if mode is None or word not in words:
        fault = f"{profile.name} has no tool mode {options.tool_mode!r}; it has {', '.join(words)}"
        raise InvalidValueError(fault, path="$.tool_mode")
    choice = ToolChoice(mode)
    if options.tool_choice not in (None, choice):
        reason = f"the tool mode {options.tool_mode!r} takes precedence"
        losses.append(OptionLoss("tool_choice", reason, Change.ALTERED))
    return replace(options, tool_choice=choice, tool_mode=None), native


def with_native_keys(
    options: AdapterOptions, protocol: str, keys: Mapping[str, Any]
) -> AdapterOptions:
    """Return the options with more native keys: objects are merged, lists get missing items."""
    merged = _merged(options.native.get(protocol, {}), keys)
    return replace(options, native={**options.native, protocol: merged})


def _merged(native: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(native)
    for key, value in more.items():
        if isinstance(value, list):
            items = maybe_list(merged.get(key))
            kinds = set(map(_kind, items))
            new = (item for item in maybe_list(value) if _kind(item) not in kinds)
            merged[key] = [*items, *new]
        elif isinstance(value, dict):
            merged[key] = _merged(maybe_object(merged.get(key)), maybe_object(value))
        else:
            merged[key] = value
    return merged


def _kind(item: Any) -> str:
    # Two items of a list are the same tool if they have the same name, type, id or first key.
    fields = maybe_object(item)
    kind = fields.get("name") or fields.get("type") or fields.get("id") or next(iter(fields), "")
    return str(kind).replace("_", "").lower()


def without_tool_choice(
    options: AdapterOptions,
    native: Mapping[str, Any] | None,
    codec: Codec,
    losses: list[OptionLoss],
) -> AdapterOptions:
    """Return options without a tool choice if there are no tools: APIs refuse it then (T114).

    A tool choice that a client of the provider sent is not changed.
    """
    if native is not None and (not native.get("tools") or _has_native_tools(options, codec)):
        return options
    names = [
        name
        for name in ("tool_choice", "parallel_tool_calls")
        if getattr(options, name) is not None
    ]
    losses += [
        OptionLoss(name, "there are no tools to choose from")
        for name in names
        if not is_default(getattr(options, name))
    ]
    changes: dict[str, Any] = dict.fromkeys(names)
    return replace(options, **changes) if names else options


def is_default(value: object) -> bool:
    """Whether an option has the value that providers assume without it."""
    return value is True or value in ((), ToolChoice("auto"))


def _has_native_tools(options: AdapterOptions, codec: Codec) -> bool:
    # A client may send server tools or unknown ones, which have no `ToolDefinition`.
    return bool(_decode(codec.history().body((), options)).get("tools"))


def placeholder_tools(messages: Sequence[Message], max_length: int) -> tuple[ToolDefinition, ...]:
    """Return a definition for each tool that the history calls, in the order of the first calls.

    Some providers refuse a history with calls of tools that the request does not define (T36).
    """
    names = dict.fromkeys(
        wire_tool_name(block.name, max_length)
        for message in messages
        for block in message.content
        if type(block) is ToolUseBlock
    )
    return tuple(
        ToolDefinition(name, _PLACEHOLDER_DESCRIPTION, {"type": "object"}, SideEffects.NONE)
        for name in names
    )


_IDLE_TIME = timedelta(minutes=20)
"""How long OpenAI keeps an unused container; its API does not state when one expires."""
_ANTHROPIC, _RESPONSES = "anthropic", "openai_responses"


class CodeContainer(Struct, frozen=True):
    """A sandbox in which a provider ran code; its files exist until it expires (T199)."""

    id: str
    issuer: str
    expires_at: datetime


def container_of(message: Message) -> CodeContainer | None:
    """Return the container of a response; None if it ran no code."""
    issuer = message.metadata.provider
    if issuer is None:
        return None
    response = maybe_object(original_form_of(message, _ANTHROPIC).get("response"))
    if response.get("container") is not None:
        fields = {**maybe_object(response["container"]), "issuer": issuer}
        try:
            return msgspec.convert(fields, CodeContainer)
        except msgspec.ValidationError:
            return None
    for block in reversed(message.content):
        if type(block) is OpaqueBlock and block.kind == "code_interpreter_call":
            container_id = maybe_text(maybe_object(block.data).get("container_id"))
            if container_id is not None:
                return CodeContainer(container_id, issuer, message.created_at + _IDLE_TIME)
    return None


def with_container(
    options: AdapterOptions,
    messages: Sequence[Message],
    profile: Profile,
    losses: list[OptionLoss],
) -> AdapterOptions:
    """Return options that run code in the container of the last response, until it expires.

    A request that names a container itself is not changed.
    """
    native = options.native.get(profile.protocol)
    name_container = _NAME_CONTAINER.get(profile.protocol)
    if native is None or name_container is None or not messages:
        return options
    containers = (container_of(message) for message in reversed(messages))
    last = next((one for one in containers if one and one.issuer == profile.name), None)
    if last is None or last.expires_at <= messages[-1].created_at:
        return options
    changed = name_container(native, last.id)
    if changed is None:
        return options
    reason = "the container of an earlier response is used again"
    losses.append(OptionLoss("container", reason, Change.SYNTHESISED))
    return replace(options, native={**options.native, profile.protocol: changed})


def runs_code(native: Mapping[str, Any] | None) -> bool:
    """Whether a request has a tool with which the provider runs code."""
    tools = map(maybe_object, maybe_list((native or {}).get("tools")))
    return any((maybe_text(tool.get("type")) or "").startswith("code_") for tool in tools)


def _name_anthropic_container(native: Mapping[str, Any], container_id: str) -> Wire | None:
    # Anthropic names the container beside the tools.
    return None if native.get("container") else {**native, "container": container_id}


def _name_openai_container(native: Mapping[str, Any], container_id: str) -> Wire | None:
    # OpenAI names the container in the tool, in place of a request for a new one.
    tools = [maybe_object(tool) for tool in maybe_list(native.get("tools"))]
    named = [
        {**tool, "container": container_id}
        if tool.get("type") == "code_interpreter" and _is_new(tool.get("container"))
        else tool
        for tool in tools
    ]
    return None if named == tools else {**native, "tools": named}


def _is_new(container: Any) -> bool:
    fields = maybe_object(container)
    return fields.get("type") == "auto" and not fields.get("file_ids")


_NAME_CONTAINER = {_ANTHROPIC: _name_anthropic_container, _RESPONSES: _name_openai_container}
