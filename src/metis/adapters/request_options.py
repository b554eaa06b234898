"""Options and tools of a request as one model of one provider takes them.

And what is lost of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any

from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.model import ModelFacts
from metis.adapters.output_format import OutputPlanner, instruction_message
from metis.adapters.profile import Profile
from metis.adapters.thinking import ReasoningPlanner
from metis.adapters.tool_options import (
    OptionLoss,
    check_server_tools,
    is_default,
    resolve_tool_mode,
    runs_code,
    search_keys,
    tool_losses,
    with_container,
    with_fitted_schemas,
    with_native_keys,
    with_wire_names,
    without_tool_choice,
)
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.projection.loss import Change
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text

_UNSAID: tuple[Any, ...] = (None, "", [], {})
"""Values of an option that say nothing."""
_FORCED_TOOLS = "forced_tools"
"""The name under which the catalogue tells that a model cannot be made to call a tool."""
_FUNCTION_KEYS = {"name", "description", "parameters", "strict"}


class Asked:
    """What one model of one provider is asked with."""

    def __init__(self, profile: Profile, model: ModelFacts) -> None:
        self._profile = profile
        self._model = model
        self._codec = CODECS[profile.protocol]
        self._wish: tuple[AdapterOptions, tuple[ToolDefinition, ...]] | None = None
        self.taken = AdapterOptions()
        """The options that the provider takes."""
        self.sent: Sequence[ToolDefinition] = ()
        """The tools that it is told of."""
        self.lost: list[OptionLoss] = []
        self._thinking = ReasoningPlanner(model, profile.protocol, self.lost)
        self._is_cached = False
        self._forming: OutputPlanner | None = None

    def project(
        self,
        options: AdapterOptions,
        tools: Sequence[ToolDefinition],
        messages: Sequence[Message] = (),
    ) -> None:
        """Fulfil a wish as far as the provider does: see `taken`, `sent` and `lost`."""
        self._wish = options, tuple(tools)
        self.taken, self.sent = self._projected(options, tools, messages)

    @property
    def is_steady(self) -> bool:
        """Whether the same wish is fulfilled the same way, whatever the messages are."""
        rule = self._model.thinking
        if self._wish is None or self._wish[0].native:
            return False
        output = self._wish[0].output
        if output is not None and output.schema is None:
            return False  # whether it has to be told in words depends on the conversation
        return rule is None or not rule.needs_thinking_before_calls

    def is_again(
        self, model: ModelFacts, options: AdapterOptions, tools: Sequence[ToolDefinition]
    ) -> bool:
        """Whether this is what a model was asked with before: the very tools, equal options."""
        if self._wish is None or self._model is not model:
            return False
        before, told = self._wish
        return len(told) == len(tools) and all(map(is_, told, tools)) and before == options

    def _projected(
        self,
        options: AdapterOptions,
        tools: Sequence[ToolDefinition],
        messages: Sequence[Message],
    ) -> tuple[AdapterOptions, Sequence[ToolDefinition]]:
        protocol, profile = self._profile.protocol, self._profile
        own = options.native.get(protocol)
        if own is not None and options.origin is None:
            check_server_tools(profile, self._model.name, own, tools, self._codec)
        options, mode = self._by_mode(options)
        search: Mapping[str, Any] = {}
        if options.search:
            search = search_keys(profile, self._model.name, tools, self._codec)
        if options.output is not None and not self._is_spelled(options):
            options, tools = self._formed(options, tools, messages)
        asked = self._options(options, tools, messages)
        if not are_native_options(options, profile):
            tools, asked = self._uncalled(tools, asked)
            tools, asked = with_wire_names(profile, tools, asked, self.lost)
            tools = with_fitted_schemas(profile, tools, self.lost)
        # A client that speaks to the provider itself knows what it asks for.
        is_refused = not (
            self._model.capabilities.supports_tools or are_native_options(options, profile)
        )
        self._is_cached = self._names_cache(options)
        if self._is_cached:
            tools, asked = self._beside_cache(tools, asked)
        if runs_code(own) and options.origin is None:
            asked = with_container(asked, messages, profile, self.lost)
        if tools and is_refused:
            reason = f"{self._model.name} takes no tools: "
            self.lost += [OptionLoss("tools", reason + tool.name) for tool in tools]
            tools, asked = (), replace(asked, tool_choice=None, parallel_tool_calls=None)
        asked = self._searching(asked, search)
        if tools:
            return with_native_keys(asked, protocol, mode) if mode else asked, tools
        if mode:
            self.lost.append(OptionLoss("tool_mode", "there are no tools to choose from"))
        spelled = asked.native.get(protocol) if search else own
        return without_tool_choice(asked, spelled, self._codec, self.lost), tools

    def _uncalled(
        self, tools: Sequence[ToolDefinition], asked: AdapterOptions
    ) -> tuple[Sequence[ToolDefinition], AdapterOptions]:
        """Without tools, where none shall be called and the provider has no word for that."""
        choice = asked.tool_choice
        if self._profile.can_forbid_calls or choice is None or choice.mode != "none" or not tools:
            return tools, asked
        reason = f"{self._profile.name} cannot be told to call no tool, so that none is defined"
        self._alter("tool_choice", reason)
        return (), replace(asked, tool_choice=None)

    def _by_mode(self, options: AdapterOptions) -> tuple[AdapterOptions, Mapping[str, Any]]:
        """The options with the choice that a tool mode stands for."""
        if options.tool_mode is None:
            return options, {}
        return resolve_tool_mode(options, self._profile, self._codec, self.lost)

    def _searching(self, asked: AdapterOptions, search: Mapping[str, Any]) -> AdapterOptions:
        """With the provider's own search, if it was asked for."""
        if not search:
            return asked
        if self._is_cached:
            reason = "the kept prefix that is named has tools of its own"
            self.lost.append(OptionLoss("search", reason))
            return asked
        return with_native_keys(asked, self._profile.protocol, search)

    def conversation(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages beside these options: a kept prefix has its own instructions (T178)."""
        words = None if self._forming is None else self._forming.instruction
        if not self._is_cached and words is None:
            return messages
        leading = (Role.SYSTEM, Role.DEVELOPER)
        first = next((n for n, one in enumerate(messages) if one.role not in leading), 0)
        session = messages[0].session_id if messages else ""
        if not self._is_cached and words is not None:
            said = instruction_message(words, session, Role.SYSTEM)
            return [*messages[:first], said, *messages[first:]]
        if first:
            reason = "the kept prefix that is named has instructions of its own"
            self.lost.append(OptionLoss("systemInstruction", reason))
        asked = () if words is None else (instruction_message(words, session, Role.USER),)
        return [*messages[first:], *asked]

    def _is_spelled(self, options: AdapterOptions) -> bool:
        """Whether a client of the provider asked for this very form, of this very model."""
        if not are_native_options(options, self._profile):
            return False
        spelled = options.native[self._profile.protocol]
        is_same = spelled.get("model", self._model.name) == self._model.name
        return is_same and self._codec.output.decode(spelled).output == options.output

    def _formed(
        self,
        options: AdapterOptions,
        tools: Sequence[ToolDefinition],
        messages: Sequence[Message],
    ) -> tuple[AdapterOptions, Sequence[ToolDefinition]]:
        """With the form of the answer told in the way that the model takes (T115-T117)."""
        wanted = options.output
        if wanted is None:
            return options, tools
        self._forming = OutputPlanner(self._profile, self._model, self._codec, self.lost)
        return self._forming.fit(options, wanted, tools, messages)

    def _names_cache(self, options: AdapterOptions) -> bool:
        """Whether a prefix is named that was kept before, by somebody else than a client."""
        key, own = self._profile.cache_name_key, options.native.get(self._profile.protocol)
        return key is not None and bool(own and own.get(key)) and options.origin is None

    def _beside_cache(
        self, tools: Sequence[ToolDefinition], asked: AdapterOptions
    ) -> tuple[Sequence[ToolDefinition], AdapterOptions]:
        """Without the tools and the choice among them, which lie in the kept prefix."""
        reason = "the kept prefix that is named has tools of its own"
        self.lost += [OptionLoss("tools", f"{reason}: {tool.name}") for tool in tools]
        if asked.tool_choice is not None:
            self.lost.append(OptionLoss("tool_choice", reason))
        return (), replace(asked, tool_choice=None)

    def _options(
        self,
        options: AdapterOptions,
        tools: Sequence[ToolDefinition],
        messages: Sequence[Message],
    ) -> AdapterOptions:
        own = self._profile.protocol
        self.lost += _foreign(options, own, tools)
        spelled = options.native.get(own)
        if are_native_options(options, self._profile):
            return self._own_options(options, spelled or {}, tools, messages)
        wish = self._thinking.fit(options, has_tools=bool(tools), messages=messages)
        native = self._native(spelled, options.origin, tools)
        asked = self._taken(replace(wish, model=self._model.name))
        asked = self._told(self._allowed(asked, tools), native)
        if wish.reasoning is not None or options.reasoning is not None:
            asked = self._spelled(asked, native)
        if self._forming is not None:
            asked = self._spelled_form(asked, native)
        return replace(asked, native={own: native} if native else {})

    def _own_options(
        self,
        options: AdapterOptions,
        spelled: Mapping[str, Any],
        tools: Sequence[ToolDefinition],
        messages: Sequence[Message],
    ) -> AdapterOptions:
        """The options of a client of the provider; what it did not ask itself is made to fit."""
        model = options.model and self._model.name
        asked = replace(options, model=model)
        # Where the path names the model, the body does not tell which one the client asked for.
        is_same = model == (maybe_text(spelled.get("model")) or model)
        said = self._codec.reasoning.decode(spelled).reasoning
        if is_same and said == options.reasoning and self._forming is None:
            return asked
        # Another model than the client asked for may take less (T48, T183).
        wish = self._thinking.fit(asked, has_tools=bool(tools), messages=messages)
        taken = wish if is_same else self._taken(wish)
        native = dict(spelled)
        if wish.reasoning is not None or options.reasoning is not None:
            taken = self._spelled(taken, native)
        if self._forming is not None:
            taken = self._spelled_form(taken, native)
        return replace(taken, native={**options.native, self._profile.protocol: native})

    def _spelled(self, options: AdapterOptions, native: Wire) -> AdapterOptions:
        """The wish for thoughts, said in the form that the model takes (T206)."""
        rule, keys = self._model.thinking, self._codec.reasoning
        keys.encode(native, options.reasoning, None if rule is None else rule.form)
        return replace(options, reasoning=keys.decode(native).reasoning)

    def _spelled_form(self, options: AdapterOptions, native: Wire) -> AdapterOptions:
        """The form of the answer, said in the dialect that the model reads."""
        keys = self._codec.output
        if keys.decode(native).output != options.output:
            keys.encode(native, options.output, self._model.output.dialect)
        return replace(options, output=keys.decode(native).output)

    def _taken(self, options: AdapterOptions) -> AdapterOptions:
        """Without what the provider or the model refuses."""
        refused: dict[str, str] = {}
        takers = (self._profile.name, self._profile.refused_options)
        for name, names in (takers, (self._model.name, self._model.refused_options)):
            for option in names:
                if getattr(options, option, None) is not None:
                    refused[option] = f"{name} takes no {option}"
        for option, reason in self._thinking.refused_options.items():
            # One is what these options are anyway.
            if getattr(options, option, None) not in (None, 1):
                refused.setdefault(option, reason)
        for group in self._model.exclusive_options:
            stated = [one for one in group if getattr(options, one) is not None]
            for option in stated[1:]:
                refused[option] = f"{self._model.name} takes no {option} beside {stated[0]}"
        changes = self._unforced(options)
        for option in sorted(refused):
            changes[option] = None
            if not is_default(getattr(options, option)):
                self.lost.append(OptionLoss(option, refused[option]))
        return replace(options, **changes) if changes else options

    def _unforced(self, options: AdapterOptions) -> dict[str, Any]:
        """Free to call no tool, where a model cannot be made to (T46)."""
        choice = options.tool_choice
        if _FORCED_TOOLS not in self._model.refused_options or choice is None:
            return {}
        if choice.mode not in ("required", "tool"):
            return {}
        self._alter("tool_choice", f"{self._model.name} cannot be made to call a tool")
        return {"tool_choice": ToolChoice("auto")}

    def _allowed(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> AdapterOptions:
        """Within the limits of the model, and with a choice of tools that can be stated."""
        changes: dict[str, Any] = {}
        capabilities, wanted = self._model.capabilities, options.max_output_tokens
        most = capabilities.max_output_tokens
        if wanted is None and self._profile.default_max_tokens is not None:
            changes["max_output_tokens"] = min(self._profile.default_max_tokens, most)
        if self._model.is_listed and wanted is not None and wanted > most:
            changes["max_output_tokens"] = most
            self._alter("max_output_tokens", f"{self._model.name} writes {most} tokens at most")
        changes |= self._warmth(options) | self._filled(options)
        choice = options.tool_choice
        if choice is not None and choice.mode == "tool" and not self._profile.can_name_tool:
            changes["tool_choice"] = ToolChoice("required")
            self._alter("tool_choice", f"{self._profile.name} cannot be told which tool to call")
        if tools and not capabilities.supports_parallel_tool_calls:
            changes |= self._one_by_one(options)
        return replace(options, **changes) if changes else options

    def _warmth(self, options: AdapterOptions) -> dict[str, Any]:
        """A temperature that the provider takes."""
        limits, wanted = self._profile.temperature_range, options.temperature
        if limits is None or wanted is None or limits[0] <= wanted <= limits[1]:
            return {}
        given = min(max(wanted, limits[0]), limits[1])
        reason = f"{self._profile.name} takes temperatures from {limits[0]} to {limits[1]}"
        self._alter("temperature", f"{reason}, so that it is {given}")
        return {"temperature": given}

    def _filled(self, options: AdapterOptions) -> dict[str, Any]:
        """Without a limit and without stops that are empty, where these are refused."""
        changes: dict[str, Any] = {}
        if not self._profile.refuses_empty_values:
            return changes
        if options.max_output_tokens == 0:
            changes["max_output_tokens"] = 1
            self._alter("max_output_tokens", f"{self._profile.name} takes one token or more")
        stops = options.stop_sequences
        if stops is not None and not all(stops):
            changes["stop_sequences"] = tuple(stop for stop in stops if stop)
            self._alter("stop_sequences", f"{self._profile.name} takes no empty ones")
        return changes

    def _one_by_one(self, options: AdapterOptions) -> dict[str, Any]:
        if "parallel_tool_calls" in self._profile.refused_options:
            return {}
        if options.parallel_tool_calls:
            self._alter("parallel_tool_calls", f"{self._model.name} calls one tool at a time")
        return {"parallel_tool_calls": False}

    def _alter(self, key: str, reason: str) -> None:
        self.lost.append(OptionLoss(key, reason, Change.ALTERED))

    def _told(self, options: AdapterOptions, native: Wire) -> AdapterOptions:
        """In the words of the host, where the protocol has several."""
        profile = self._profile
        if profile.max_tokens_key and options.max_output_tokens is not None:
            native[profile.max_tokens_key] = options.max_output_tokens
        if profile.required_choice and options.tool_choice == ToolChoice("required"):
            native["tool_choice"] = profile.required_choice
        if profile.requests_usage and options.stream:
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
        refused = self._model.refused_options | self._thinking.refused_options.keys()
        known = codec.common_keys - profile.unsupported_keys - refused
        shared = codec.shared_keys | codec.reasoning.decode(spelled).keys
        shared |= codec.output.decode(spelled).keys
        for key in _own_keys(spelled, shared | known):
            reason = f"{self._model.name} at {profile.name} takes no {key!r} of {origin}"
            self.lost.append(OptionLoss(key, reason))
        self.lost += tool_losses(str(origin), spelled, tools, codec, strict=True)
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
            OptionLoss(f"tools[{index}].function.strict", f"{self._profile.name} takes no strict")
            for index, function in enumerate(functions)
            if function.get("strict")
        )
        return {}


def are_native_options(options: AdapterOptions, profile: Profile) -> bool:
    """Whether options were spelled by a client of this very provider."""
    return options.origin == profile.name and profile.protocol in options.native


def _foreign(
    options: AdapterOptions, own: str, tools: Sequence[ToolDefinition]
) -> Iterator[OptionLoss]:
    """What was spelled in other protocols and has no place here."""
    for protocol, keys in options.native.items():
        if protocol == own:
            continue
        codec = CODECS.get(protocol)
        shared = frozenset[str]()
        if codec is not None:
            shared = codec.shared_keys | codec.reasoning.decode(keys).keys
            shared |= codec.output.decode(keys).keys
        for key in _own_keys(keys, shared):
            yield OptionLoss(key, f"the option {key!r} of {protocol} has no place here")
        yield from tool_losses(protocol, keys, tools, codec)


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
