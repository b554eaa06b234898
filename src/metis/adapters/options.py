"""Options and tools on their way to a provider: what it takes, and what is lost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.profile import Profile
from metis.canonical.tools import ToolDefinition
from metis.projection.calls import wire_name
from metis.projection.loss import Change
from metis.wire.call import AdapterOptions
from metis.wire.shape import maybe_list, maybe_object
from metis.wire.spelling import says

_SAID = frozenset({"name", "description", "input_schema", "parameters", "function"})
"""The keys of a tool that its definition speaks for."""


class OptionLoss(Struct, frozen=True):
    """An option or a tool that is not sent as it was asked for."""

    path: str
    reason: str
    change: Change = Change.DROPPED


class Asked(Struct, frozen=True):
    """The options and tools that are sent, and what was lost of them."""

    options: AdapterOptions
    tools: Sequence[ToolDefinition]
    losses: list[OptionLoss]


def project_options(
    profile: Profile,
    options: AdapterOptions,
    tools: Sequence[ToolDefinition],
    *,
    model: str,
    takes_tools: bool,
) -> Asked:
    """Bring options and tools into what a model of a provider takes.

    The words of a client that speaks to the provider itself are left as they are.
    """
    losses = [*_foreign_losses(profile.protocol, options, tools)]
    own = options.native.get(profile.protocol)
    if own is None:
        options = _without_refused(profile, options, losses)
        tools, options = _named(profile, tools, options, losses)
    if tools and not takes_tools:
        losses += [OptionLoss("$.tools", f"{model} takes no tools: {tool.name}") for tool in tools]
        tools, options = (), replace(options, tool_choice=None, parallel_tool_calls=None)
    if not tools and not _has_tools_of_its_own(own):
        options = _without_choice(options, own, losses)
    if own is None or options.model is not None:
        options = replace(options, model=model)
    return Asked(options, tools, losses)


def _foreign_losses(
    own: str, options: AdapterOptions, tools: Sequence[ToolDefinition]
) -> Iterator[OptionLoss]:
    """What only another protocol knows how to say."""
    for protocol, keys in options.native.items():
        if protocol == own:
            continue
        shared = CODECS[protocol].shared_keys if protocol in CODECS else frozenset[str]()
        for key, value in keys.items():
            if value is not None and key not in shared:
                reason = f"the option {key!r} of {protocol} has no place here"
                yield OptionLoss(f"$.{key}", reason)
        yield from _lost_tools(protocol, keys, {tool.name for tool in tools})


def _lost_tools(protocol: str, keys: Mapping[str, Any], names: set[str]) -> Iterator[OptionLoss]:
    """Tools of another protocol that are none of the client's own, and keys of those that are."""
    for index, tool in enumerate(maybe_list(keys.get("tools"))):
        path, own = f"$.tools[{index}]", maybe_object(tool)
        function = maybe_object(own.get("function"))
        name = own.get("name") or function.get("name")
        if name not in names:
            kind = own.get("type") or name
            yield OptionLoss(path, f"the tool {kind!r} of {protocol} has no place here")
            continue
        for key, value in {**own, **function}.items():
            if key not in _SAID and says(key, value):
                reason = f"{key!r} of the tool {name!r} is known to {protocol} only"
                yield OptionLoss(f"{path}.{key}", reason)


def _without_refused(
    profile: Profile, options: AdapterOptions, losses: list[OptionLoss]
) -> AdapterOptions:
    refused = [
        name for name in sorted(profile.refused_options) if getattr(options, name) is not None
    ]
    losses += [OptionLoss(f"$.{name}", f"{profile.name} takes no {name}") for name in refused]
    changes: dict[str, Any] = dict.fromkeys(refused)
    return replace(options, **changes) if refused else options


def _named(
    profile: Profile,
    tools: Sequence[ToolDefinition],
    options: AdapterOptions,
    losses: list[OptionLoss],
) -> tuple[Sequence[ToolDefinition], AdapterOptions]:
    """Tools under names that the provider takes, each once (T111)."""
    sent: dict[str, ToolDefinition] = {}
    for index, tool in enumerate(tools):
        name = wire_name(tool.name, profile.tool_name_length)
        if name in sent:
            reason = f"another tool is named {tool.name!r}, too"
            losses.append(OptionLoss(f"$.tools[{index}]", reason))
            continue
        if name != tool.name:
            reason = f"the tool {tool.name!r} is sent as {name}"
            losses.append(OptionLoss(f"$.tools[{index}].name", reason, Change.ALTERED))
        sent[name] = tool if name == tool.name else replace(tool, name=name)
    choice = options.tool_choice
    if choice is not None and choice.name is not None:
        chosen = replace(choice, name=wire_name(choice.name, profile.tool_name_length))
        options = replace(options, tool_choice=chosen)
    return tuple(sent.values()), options


def _has_tools_of_its_own(own: Mapping[str, Any] | None) -> bool:
    """Whether a request names tools that the provider runs itself."""
    tools = map(maybe_object, maybe_list((own or {}).get("tools")))
    return any("function" not in tool and "input_schema" not in tool for tool in tools)


def _without_choice(
    options: AdapterOptions, own: Mapping[str, Any] | None, losses: list[OptionLoss]
) -> AdapterOptions:
    """Options that choose among no tools are refused (T114), unless a client spelled them so."""
    if own is not None and not own.get("tools"):
        return options
    names = [
        name
        for name in ("tool_choice", "parallel_tool_calls")
        if getattr(options, name) is not None
    ]
    losses += [OptionLoss(f"$.{name}", "there are no tools to choose from") for name in names]
    changes: dict[str, Any] = dict.fromkeys(names)
    return replace(options, **changes) if names else options
