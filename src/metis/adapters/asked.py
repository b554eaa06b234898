"""Asked: the options of a request as one provider takes them, and what does not reach it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.model import Model
from metis.adapters.profile import Profile
from metis.adapters.toolbox import (
    LostOption,
    is_usual,
    lost_tools,
    named,
    shaped,
    without_choice,
)
from metis.canonical.tools import ToolDefinition
from metis.projection.loss import Change
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.shape import Wire, maybe_list, maybe_object

_UNSAID: tuple[Any, ...] = (None, "", [], {})
"""Values of an option that say nothing."""
_FUNCTION_KEYS = {"name", "description", "parameters", "strict"}


class Asked:
    """What one model of one provider is asked with."""

    def __init__(self, profile: Profile, model: Model) -> None:
        self._profile = profile
        self._model = model
        self._codec = CODECS[profile.protocol]
        self.lost: list[LostOption] = []

    def project(
        self, options: AdapterOptions, tools: Sequence[ToolDefinition]
    ) -> tuple[AdapterOptions, Sequence[ToolDefinition]]:
        """The options and tools that the provider takes; the rest is in `lost`."""
        protocol, profile = self._profile.protocol, self._profile
        own = options.native.get(protocol)
        asked = self._options(options, tools)
        if not is_own(options, profile):
            tools, asked = named(profile, tools, asked, self.lost)
            tools = shaped(profile, tools, self.lost)
        # A client that speaks to the provider itself knows what it asks for.
        is_refused = not (self._model.capabilities.supports_tools or is_own(options, profile))
        if tools and is_refused:
            reason = f"{self._model.name} takes no tools: "
            self.lost += [LostOption("tools", reason + tool.name) for tool in tools]
            tools, asked = (), replace(asked, tool_choice=None, parallel_tool_calls=None)
        if not tools:
            asked = without_choice(asked, own, self._codec, self.lost)
        return asked, tools

    def _options(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> AdapterOptions:
        own = self._profile.protocol
        self.lost += _foreign(options, own, tools)
        spelled = options.native.get(own)
        if is_own(options, self._profile):
            model = options.model and self._model.name
            asked = replace(options, model=model)
            # Another model than the client asked for may take less (T183).
            return asked if model == (spelled or {}).get("model") else self._taken(asked)
        native = self._native(spelled, options.origin, tools)
        asked = self._taken(replace(options, model=self._model.name))
        asked = self._told(self._allowed(asked, tools), native)
        return replace(asked, native={own: native} if native else {})

    def _taken(self, options: AdapterOptions) -> AdapterOptions:
        """Without what the provider or the model refuses."""
        refused: dict[str, str] = {}
        takers = (self._profile.name, self._profile.refused_options)
        for name, names in (takers, (self._model.name, self._model.refused)):
            for option in names:
                if getattr(options, option, None) is not None:
                    refused[option] = f"{name} takes no {option}"
        for group in self._model.conflicts:
            stated = [one for one in group if getattr(options, one) is not None]
            for option in stated[1:]:
                refused[option] = f"{self._model.name} takes no {option} beside {stated[0]}"
        if not refused:
            return options
        for option in sorted(refused):
            if not is_usual(getattr(options, option)):
                self.lost.append(LostOption(option, refused[option]))
        changes: dict[str, Any] = dict.fromkeys(refused)
        return replace(options, **changes)

    def _allowed(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> AdapterOptions:
        """Within the limits of the model, and with a choice of tools that can be stated."""
        changes: dict[str, Any] = {}
        capabilities, wanted = self._model.capabilities, options.max_output_tokens
        most = capabilities.max_output_tokens
        if self._model.is_listed and wanted is not None and wanted > most:
            changes["max_output_tokens"] = most
            self._alter("max_output_tokens", f"{self._model.name} writes {most} tokens at most")
        choice = options.tool_choice
        if choice is not None and choice.mode == "tool" and not self._profile.names_tools:
            changes["tool_choice"] = ToolChoice("required")
            self._alter("tool_choice", f"{self._profile.name} cannot be told which tool to call")
        if tools and not capabilities.supports_parallel_tool_calls:
            changes |= self._one_by_one(options)
        return replace(options, **changes) if changes else options

    def _one_by_one(self, options: AdapterOptions) -> dict[str, Any]:
        if "parallel_tool_calls" in self._profile.refused_options:
            return {}
        if options.parallel_tool_calls:
            self._alter("parallel_tool_calls", f"{self._model.name} calls one tool at a time")
        return {"parallel_tool_calls": False}

    def _alter(self, key: str, reason: str) -> None:
        self.lost.append(LostOption(key, reason, Change.ALTERED))

    def _told(self, options: AdapterOptions, native: Wire) -> AdapterOptions:
        """In the words of the host, where the protocol has several."""
        profile = self._profile
        if profile.length_key and options.max_output_tokens is not None:
            native[profile.length_key] = options.max_output_tokens
        if profile.must_call and options.tool_choice == ToolChoice("required"):
            native["tool_choice"] = profile.must_call
        if profile.asks_for_usage and options.stream:
            native.setdefault("stream_options", {"include_usage": True})
        return options

    def _native(
        self,
        spelled: Mapping[str, Any] | None,
        origin: str | None,
        tools: Sequence[ToolDefinition],
    ) -> Wire:
        """What of the spelled options is sent: all if meant for every host, else what all know."""
        if spelled is None:
            return {}
        if origin is None:
            return dict(spelled)
        profile, codec = self._profile, self._codec
        known = codec.common_keys - profile.unknown_keys - self._model.refused
        for key in _own_keys(spelled, codec.shared_keys | known):
            reason = f"{self._model.name} at {profile.name} takes no {key!r} of {origin}"
            self.lost.append(LostOption(key, reason))
        self.lost += lost_tools(str(origin), spelled, tools, codec, strict=True)
        renamed = profile.renamed_keys
        native = {renamed.get(key, key): spelled[key] for key in spelled if key in known}
        return native | self._strict(maybe_list(spelled.get("tools")))

    def _strict(self, tools: list[Any]) -> Wire:
        """Definitions that ask for strict arguments, if the host knows such (T108, T109)."""
        functions = [maybe_object(maybe_object(tool).get("function")) for tool in tools]
        if not any(function.get("strict") for function in functions):
            return {}
        known = [tool for tool, each in zip(tools, functions, strict=True) if each]
        are_plain = all(set(maybe_object(tool)) <= {"type", "function"} for tool in known)
        if (
            self._profile.strict_tools
            and are_plain
            and all(set(each) <= _FUNCTION_KEYS for each in functions)
        ):
            return {"tools": known}
        self.lost += (
            LostOption(f"tools[{index}].function.strict", f"{self._profile.name} takes no strict")
            for index, function in enumerate(functions)
            if function.get("strict")
        )
        return {}


def is_own(options: AdapterOptions, profile: Profile) -> bool:
    """Whether options were spelled by a client of this very provider."""
    return options.origin == profile.name and profile.protocol in options.native


def _foreign(
    options: AdapterOptions, own: str, tools: Sequence[ToolDefinition]
) -> Iterator[LostOption]:
    """What was spelled in other protocols and has no place here."""
    for protocol, keys in options.native.items():
        if protocol == own:
            continue
        codec = CODECS.get(protocol)
        shared = frozenset[str]() if codec is None else codec.shared_keys
        for key in _own_keys(keys, shared):
            yield LostOption(key, f"the option {key!r} of {protocol} has no place here")
        yield from lost_tools(protocol, keys, tools, codec)


def _own_keys(keys: Mapping[str, Any], shared: frozenset[str], within: str = "") -> Iterator[str]:
    """The options that no shared one speaks for; objects that hold shared ones are looked into."""
    for key, value in keys.items():
        name = within + key
        if value in _UNSAID or name in shared:
            continue
        if isinstance(value, dict) and any(each.startswith(f"{name}.") for each in shared):
            yield from _own_keys(maybe_object(value), shared, f"{name}.")
        else:
            yield name
