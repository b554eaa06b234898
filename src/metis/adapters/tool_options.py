"""Tools of a request on their way to a provider.

names, schemas, server tools and code containers.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.canonical.blocks import OpaqueBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Message
from metis.canonical.schema.fit import fit_tool_schema
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.projection.loss import Change
from metis.projection.tool_calls import wire_tool_name
from metis.wire.call import AdapterOptions, ToolChoice, ToolMode
from metis.wire.codec import Codec
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.original_form import is_meaningful, original_form_of

_read = msgspec.json.Decoder().decode

_SAID = frozenset({"name", "description", "input_schema", "parameters", "function"})
"""The keys of a tool that its definition speaks for."""
_STRICT = "strict"
_MODES: Mapping[str, ToolMode] = {
    "auto": "auto",
    "none": "none",
    "any": "required",
    "required": "required",
}
"""The words of all providers for whether a model may, must not or must call tools."""


class OptionLoss(Struct, frozen=True):
    """An option or a tool that is not sent as it was asked for."""

    key: str
    reason: str
    change: Change = Change.DROPPED


def tool_losses(
    origin: str,
    keys: Mapping[str, Any],
    tools: Sequence[ToolDefinition],
    codec: Codec | None,
    *,
    strict: bool = False,
) -> Iterator[OptionLoss]:
    """Tools of another provider that are none of the client's own, and keys of those that are.

    `strict` says that the wish for arguments that keep to the schema is dealt with elsewhere.
    """
    names = {tool.name for tool in tools}
    if codec is not None and codec.server_tools is not None:
        for index, kind in enumerate(codec.server_tools(keys)):
            yield OptionLoss(f"tools[{index}]", f"the tool {kind!r} of {origin} has no place here")
        for name, path in codec.unmapped_tool_paths(keys) if codec.unmapped_tool_paths else ():
            if name in names:
                key = path.rpartition(".")[2]
                yield OptionLoss(path, f"{key!r} of the tool {name!r} is known to {origin} only")
        return
    for index, tool in enumerate(maybe_list(keys.get("tools"))):
        path, own = f"tools[{index}]", maybe_object(tool)
        function = maybe_object(own.get("function"))
        name = own.get("name") or function.get("name")
        if not isinstance(name, str) or name not in names:
            kind = own.get("type") or name
            yield OptionLoss(path, f"the tool {kind!r} of {origin} has no place here")
            continue
        for key, value in {**own, **function}.items():
            if key not in _SAID and is_meaningful(key, value) and not (strict and key == _STRICT):
                yield OptionLoss(
                    f"{path}.{key}", f"{key!r} of the tool {name!r} is known to {origin} only"
                )


def with_wire_names(
    profile: Profile,
    tools: Sequence[ToolDefinition],
    options: AdapterOptions,
    lost: list[OptionLoss],
) -> tuple[Sequence[ToolDefinition], AdapterOptions]:
    """Tools under names that the provider takes, each once (T111)."""
    length = profile.tool_name_length
    sent: dict[str, ToolDefinition] = {}
    for index, tool in enumerate(tools):
        name = wire_tool_name(tool.name, length)
        if name in sent:
            reason = f"another tool is named {tool.name!r}, too"
            lost.append(OptionLoss(f"tools[{index}]", reason))
            continue
        if name != tool.name:
            reason = f"the tool {tool.name!r} is sent as {name}"
            lost.append(OptionLoss(f"tools[{index}].name", reason, Change.ALTERED))
        sent[name] = tool if name == tool.name else replace(tool, name=name)
    choice = options.tool_choice
    if choice is not None and choice.name is not None:
        chosen = replace(choice, name=wire_tool_name(choice.name, length))
        options = replace(options, tool_choice=chosen)
    return tuple(sent.values()), options


def with_fitted_schemas(
    profile: Profile, tools: Sequence[ToolDefinition], lost: list[OptionLoss]
) -> Sequence[ToolDefinition]:
    """Tools whose schemas and descriptions the provider takes (T103-T107, T110, T112)."""
    sent: list[ToolDefinition] = []
    for index, tool in enumerate(tools):
        schema, changes = fit_tool_schema(tool.input_schema, profile.tool_schemas)
        for change in changes:
            reason = f"the tool {tool.name!r} at {profile.name}: {change}"
            lost.append(OptionLoss(f"tools[{index}].input_schema", reason, Change.ALTERED))
        named = tool if schema is tool.input_schema else replace(tool, input_schema=schema)
        if profile.needs_descriptions and not tool.description:
            reason = f"the tool {tool.name!r} has no description, so its name stands for one"
            lost.append(OptionLoss(f"tools[{index}].description", reason, Change.SYNTHESISED))
            named = replace(named, description=tool.name)
        sent.append(named)
    return sent


def check_server_tools(
    profile: Profile,
    model: str,
    own: Mapping[str, Any],
    tools: Sequence[ToolDefinition],
    codec: Codec,
) -> None:
    """Refuse tools of the provider's own that its API would refuse, before anything is sent.

    Raises:
        InvalidValueError: the API has no such tool, or the model takes it beside no others.
    """
    if profile.tool_types is not None:
        for index, tool in enumerate(map(maybe_object, maybe_list(own.get("tools")))):
            kind = tool.get("type", "function")
            if kind not in profile.tool_types:
                fault = f"{profile.name} has no tool {kind!r} at {profile.path}"
                raise InvalidValueError(fault, path=f"$.tools[{index}]")
    is_older = model.removeprefix("models/").startswith(profile.older_model_prefixes)
    if tools and is_older and profile.older_model_prefixes and codec.server_tools is not None:
        served = codec.server_tools(own)
        if served:
            names = ", ".join(tool.name for tool in tools)
            fault = f"{model} takes {served[0]!r} only without tools of your own ({names})"
            raise InvalidValueError(fault, path="$.tools")


def search_keys(
    profile: Profile, model: str, tools: Sequence[ToolDefinition], codec: Codec
) -> Mapping[str, Any]:
    """What a request says so that the provider searches by itself.

    Raises:
        InvalidValueError: it cannot, or not beside these tools.
    """
    if profile.search is None:
        fault = f"{profile.name} does not search by itself at {profile.path}"
        raise InvalidValueError(fault, path="$.search")
    check_server_tools(profile, model, profile.search, tools, codec)
    own = {maybe_object(each).get("name") for each in maybe_list(profile.search.get("tools"))}
    for index, tool in enumerate(tools):
        if tool.name in own:
            fault = f"{profile.name} searches with a tool that is named {tool.name!r}, too"
            raise InvalidValueError(fault, path=f"$.tools[{index}]")
    return {**profile.search, **(profile.search_beside_tools if tools else {})}


def resolve_tool_mode(
    options: AdapterOptions, profile: Profile, codec: Codec, lost: list[OptionLoss]
) -> tuple[AdapterOptions, Mapping[str, Any]]:
    """The options with the choice that a word stands for, and what only this protocol says of it.

    Raises:
        InvalidValueError: the provider knows no such word.
    """
    word = (options.tool_mode or "").lower()
    own = codec.tool_modes.get(word, {})
    mode = "auto" if own else _MODES.get(word)
    known = [*_MODES, *codec.tool_modes]
    if "tool_choice" in profile.refused_options:
        known = ["auto"]  # what happens where nothing can be said
    if mode is None or word not in known:
        fault = (
            f"{profile.name} has no tool mode {options.tool_mode!r}: it knows {', '.join(known)}"
        )
        raise InvalidValueError(fault, path="$.tool_mode")
    choice = ToolChoice(mode)
    if options.tool_choice not in (None, choice):
        reason = f"the tool mode {options.tool_mode!r} says otherwise"
        lost.append(OptionLoss("tool_choice", reason, Change.ALTERED))
    return replace(options, tool_choice=choice, tool_mode=None), own


def with_native_keys(
    options: AdapterOptions, protocol: str, keys: Mapping[str, Any]
) -> AdapterOptions:
    """The options with more keys of a protocol: objects are joined, and lists without doubles."""
    spelled = _joined(options.native.get(protocol, {}), keys)
    return replace(options, native={**options.native, protocol: spelled})


def _joined(spelled: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(spelled)
    for key, value in more.items():
        if isinstance(value, list):
            there = maybe_list(joined.get(key))
            kinds = set(map(_kind, there))
            joined[key] = [
                *there,
                *(each for each in maybe_list(value) if _kind(each) not in kinds),
            ]
        elif isinstance(value, dict):
            joined[key] = _joined(maybe_object(joined.get(key)), maybe_object(value))
        else:
            joined[key] = value
    return joined


def _kind(item: Any) -> str:
    """What makes two items of a list the same: a name, a type, an id, or else the first key."""
    own = maybe_object(item)
    named = own.get("name") or own.get("type") or own.get("id") or next(iter(own), "")
    return str(named).replace("_", "").lower()


def without_tool_choice(
    options: AdapterOptions,
    own: Mapping[str, Any] | None,
    codec: Codec,
    lost: list[OptionLoss],
) -> AdapterOptions:
    """Options that choose among no tools are refused (T114), unless a client spelled them so."""
    if own is not None and (not own.get("tools") or _keeps_tools(options, codec)):
        return options
    names = [
        name
        for name in ("tool_choice", "parallel_tool_calls")
        if getattr(options, name) is not None
    ]
    lost += [
        OptionLoss(name, "there are no tools to choose from")
        for name in names
        if not is_default(getattr(options, name))
    ]
    changes: dict[str, Any] = dict.fromkeys(names)
    return replace(options, **changes) if names else options


def is_default(value: object) -> bool:
    """Whether an option asks for what happens anyway."""
    return value is True or value in ((), ToolChoice("auto"))


def _keeps_tools(options: AdapterOptions, codec: Codec) -> bool:
    """Whether a request without tools of ours still has some: the provider's own, or odd ones."""
    return bool(_read(codec.history().body((), options)).get("tools"))


_TOLD = "A tool that was used before and cannot be called now."


def placeholder_tools(messages: Sequence[Message], length: int) -> tuple[ToolDefinition, ...]:
    """A stand-in for each tool that was called, in the order of the first calls.

    A provider that wants every tool in the history to be defined is told of these, and that none
    of them may be called.
    """
    names = dict.fromkeys(
        wire_tool_name(block.name, length)
        for message in messages
        for block in message.content
        if type(block) is ToolUseBlock
    )
    return tuple(_stand_in(name) for name in names)


def _stand_in(name: str) -> ToolDefinition:
    return ToolDefinition(name, _TOLD, {"type": "object"}, SideEffects.NONE)


_IDLE = timedelta(minutes=20)
"""How long OpenAI keeps a container that nobody uses; it does not say when one ends."""
_ANTHROPIC, _RESPONSES = "anthropic", "openai_responses"


class CodeContainer(Struct, frozen=True):
    """A place where code was run."""

    id: str
    issuer: str
    expires_at: datetime


class _Given(Struct):
    """A container as Anthropic tells of it."""

    id: str
    expires_at: datetime


class _Called(Struct):
    """A call of OpenAI's interpreter."""

    container_id: str


_read_called = msgspec.json.Decoder(_Called).decode


def container_of(message: Message) -> CodeContainer | None:
    """The container that an answer was given with; None if it ran no code."""
    issuer = message.metadata.provider
    if issuer is None:
        return None
    given = maybe_object(original_form_of(message, _ANTHROPIC).get("response")).get("container")
    if given is not None:
        try:
            found = msgspec.convert(given, _Given)
        except msgspec.ValidationError:
            return None
        return CodeContainer(found.id, issuer, found.expires_at)
    return next(_called(message, issuer), None)


def _called(message: Message, issuer: str) -> Iterator[CodeContainer]:
    for block in reversed(message.content):
        if type(block) is OpaqueBlock and block.kind == "code_interpreter_call":
            try:
                own = _read_called(bytes(block.raw)).container_id
            except ValueError:
                continue
            yield CodeContainer(own, issuer, message.created_at + _IDLE)


def with_container(
    options: AdapterOptions,
    messages: Sequence[Message],
    profile: Profile,
    lost: list[OptionLoss],
) -> AdapterOptions:
    """The options with the container of the last answer, if they ask for code to be run."""
    native = options.native.get(profile.protocol)
    spell = _SPELLINGS.get(profile.protocol)
    if native is None or spell is None or not messages:
        return options
    found = (container_of(message) for message in reversed(messages))
    last = next((one for one in found if one is not None and one.issuer == profile.name), None)
    if last is None or last.expires_at <= messages[-1].created_at:
        return options
    spelled = spell(native, last.id)
    if spelled is None:
        return options
    reason = "the container of an earlier answer is used again"
    lost.append(OptionLoss("container", reason, Change.SYNTHESISED))
    return replace(options, native={**options.native, profile.protocol: spelled})


def runs_code(native: Mapping[str, Any] | None) -> bool:
    """Whether a request asks the provider to run code."""
    tools = map(maybe_object, maybe_list((native or {}).get("tools")))
    return any((maybe_text(tool.get("type")) or "").startswith("code_") for tool in tools)


def _anthropic(native: Mapping[str, Any], own: str) -> Wire | None:
    """Anthropic names it beside the tools."""
    return None if native.get("container") else {**native, "container": own}


def _responses(native: Mapping[str, Any], own: str) -> Wire | None:
    """OpenAI names it in the tool, in place of a wish for a new one."""
    tools = [maybe_object(tool) for tool in maybe_list(native.get("tools"))]
    named = [
        {**tool, "container": own}
        if tool.get("type") == "code_interpreter" and _is_new(tool.get("container"))
        else tool
        for tool in tools
    ]
    return None if named == tools else {**native, "tools": named}


def _is_new(container: Any) -> bool:
    wish = maybe_object(container)
    return wish.get("type") == "auto" and not wish.get("file_ids")


_SPELLINGS = {_ANTHROPIC: _anthropic, _RESPONSES: _responses}
