"""The first step of a request: its options and tools, fitted to one model of one provider.

`RequestPlanner.request_plan` returns the options and tools to send, with a loss for everything
that the caller requested and the provider does not support.
"""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.declared_tools import (
    NO_DECLARED_TOOLS,
    RESPONSES,
    DeclaredTools,
    declared_tools,
)
from metis.adapters.limits import OptionLimits
from metis.adapters.model import ModelFacts
from metis.adapters.output_format import OutputPlanner, instruction_message
from metis.adapters.profile import Profile
from metis.adapters.thinking import ReasoningPlanner
from metis.adapters.tool_options import (
    OptionLoss,
    check_server_tools,
    foreign_losses,
    is_default,
    resolve_tool_mode,
    runs_code,
    search_keys,
    tool_losses,
    unshared_keys,
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

MAX_PLANS = 64
"""How many plans an adapter caches; the oldest is dropped first."""
MAX_CLIENT_PLANS = 16
"""The same for options of clients: each plan holds the tools of an agent, up to some 100 kB."""
_FORCED_TOOLS = "forced_tools"
"""The name under which the catalogue lists models that cannot be forced to call a tool."""
_FUNCTION_KEYS = {"name", "description", "parameters", "strict"}
_INSTRUCTION_ROLES = (Role.SYSTEM, Role.DEVELOPER)
_encode_key = msgspec.msgpack.Encoder().encode


class RequestPlan(Struct, frozen=True, kw_only=True):
    """What a request has beside its messages: options, tools, and their losses."""

    options: AdapterOptions
    tools: Sequence[ToolDefinition]
    losses: Sequence[OptionLoss] = ()
    instruction: str | None = None
    """Text that requests the output format, where the provider has no option for it."""
    declared: DeclaredTools = NO_DECLARED_TOOLS
    """The tools of a client that are not plain functions."""
    names_cache: bool = False
    """Whether the options name a cached prefix, which has its own instructions and tools (T178)."""

    def history(self, messages: Sequence[Message]) -> tuple[Sequence[Message], list[OptionLoss]]:
        """Return the messages to send with these options, and losses of their instructions."""
        instruction = self.instruction
        if self.declared is not NO_DECLARED_TOOLS:
            messages = self.declared.history(messages)
        if not self.names_cache and instruction is None:
            return messages, []
        roles = enumerate(message.role for message in messages)
        first = next((n for n, role in roles if role not in _INSTRUCTION_ROLES), 0)
        session_id = messages[0].session_id if messages else ""
        if not self.names_cache:
            system = instruction_message(instruction or "", session_id, Role.SYSTEM)
            return [*messages[:first], system, *messages[first:]], []
        # Gemini answers 400 if a request has instructions beside `cachedContent` (T178).
        reason = "the cached prefix has its own instructions"
        losses = [OptionLoss("systemInstruction", reason)] if first else []
        user = (
            [] if instruction is None else [instruction_message(instruction, session_id, Role.USER)]
        )
        return [*messages[first:], *user], losses


class RequestPlanner:
    """Plans the requests of one provider; safe to share between threads.

    A plan that does not depend on the messages is cached, because most requests of a conversation
    have the same options and tools. The options of a client are recognised by the object, which a
    `RequestReader` returns again.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._lock = Lock()
        self._plans: dict[object, tuple[RequestPlan, object]] = {}
        self._client_plans: dict[object, tuple[RequestPlan, object]] = {}

    def request_plan(
        self,
        model: ModelFacts,
        options: AdapterOptions,
        tools: Sequence[ToolDefinition],
        messages: Sequence[Message] = (),
    ) -> RequestPlan:
        """Return the options and tools to send to the provider, with every loss.

        Raises:
            InvalidValueError: an option or a tool would be refused by the provider's API.
        """
        key = _key_of(model, options, tools)
        plans, most = self._plans, MAX_PLANS
        if options.native:
            plans, most = self._client_plans, MAX_CLIENT_PLANS
        entry = None if key is None else plans.get(key)
        if entry is not None:
            return entry[0]
        plan = _PlanBuilder(self._profile, model, messages).plan(options, tools)
        if key is not None:
            with self._lock:
                # The entry refers to what the key has addresses of: Python would otherwise give
                # them to new objects.
                plans[key] = plan, (tuple(tools), options.native)
                while len(plans) > most:
                    del plans[next(iter(plans))]
        return plan


def _key_of(
    model: ModelFacts, options: AdapterOptions, tools: Sequence[ToolDefinition]
) -> object | None:
    """Return the cache key of a plan; None if the plan also depends on the messages.

    Options are compared as bytes, because Python considers 1, 1.0 and True equal and JSON Schema
    does not.
    """
    rule, output, native = model.thinking, options.output, options.native
    if rule is not None and rule.needs_thinking_before_calls:
        return None
    if native:
        # Without an origin the messages may name a container; items of Responses declare tools.
        if options.origin is None or RESPONSES in native:
            return None
        options = replace(options, native={})
    if output is not None and output.schema is None:
        return None  # whether an instruction has to mention JSON depends on the messages
    try:
        return _encode_key(options), id(native) if native else 0, tuple(map(id, tools))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


class _PlanBuilder:
    """Builds one plan, option by option."""

    def __init__(self, profile: Profile, model: ModelFacts, messages: Sequence[Message]) -> None:
        self._profile = profile
        self._model = model
        self._messages = messages
        self._codec = CODECS[profile.protocol]
        self._losses: list[OptionLoss] = []
        self._limits = OptionLimits(profile.name, model.limits, self._losses)
        self._reasoning = ReasoningPlanner(model, profile.protocol, self._losses)
        self._output: OutputPlanner | None = None
        self._declared = NO_DECLARED_TOOLS

    def plan(self, options: AdapterOptions, tools: Sequence[ToolDefinition]) -> RequestPlan:
        """Return the plan of a request."""
        protocol, profile = self._profile.protocol, self._profile
        native = options.native.get(protocol)
        tools = self._with_declared(options, tools)
        is_caller = native is not None and options.origin is None
        if is_caller:
            check_server_tools(profile, self._model.name, native or {}, tools, self._codec)
        mode_keys: Mapping[str, Any] = {}
        if options.tool_mode is not None:
            options, mode_keys = resolve_tool_mode(options, profile, self._codec, self._losses)
        search: Mapping[str, Any] = {}
        if options.search:
            search = search_keys(profile, self._model.name, tools, self._codec)
        if options.output is not None and not self._states_output(options):
            self._output = OutputPlanner(profile, self._model, self._codec, self._losses)
            options, tools = self._output.fit(options, options.output, tools, self._messages)
        sent_options = self._plan_options(options, tools)
        names_cache = self._names_cache(options)
        tools, sent_options = self._plan_tools(
            options, tools, sent_options, names_cache=names_cache
        )
        if is_caller and runs_code(native):
            sent_options = with_container(sent_options, self._messages, profile, self._losses)
        if names_cache and search:
            self._losses.append(OptionLoss("search", _CACHED_TOOLS))
        elif search:
            sent_options = with_native_keys(sent_options, protocol, search)
            native = sent_options.native.get(protocol)
        return RequestPlan(
            options=self._with_tool_choice(sent_options, tools, native, mode_keys),
            tools=tools,
            losses=self._losses,
            declared=self._declared,
            instruction=None if self._output is None else self._output.instruction,
            names_cache=names_cache,
        )

    def _with_declared(
        self, options: AdapterOptions, tools: Sequence[ToolDefinition]
    ) -> Sequence[ToolDefinition]:
        """Return the tools, with functions in place of a client's tools of other kinds."""
        declared = self._declared = declared_tools(options, self._messages, self._profile)
        for tool in declared.functions:
            kind = tool.kind if tool.namespace is None else f"{tool.namespace} {tool.kind}"
            reason = f"the {kind} tool {tool.name!r} is sent as a function"
            if not tool.is_altered:
                # A function that the client loaded during the conversation, by a tool search: the
                # target gets it with the first request.
                reason = f"the tool {tool.name!r} of the input is sent beside the other tools"
            self._alter(f"tools.{tool.definition.name}", reason)
        return (*tools, *declared.definitions) if declared.functions else tools

    def _plan_tools(
        self,
        options: AdapterOptions,
        tools: Sequence[ToolDefinition],
        sent_options: AdapterOptions,
        *,
        names_cache: bool,
    ) -> tuple[Sequence[ToolDefinition], AdapterOptions]:
        is_native = are_native_options(options, self._profile)
        if not is_native:
            tools, sent_options = self._without_forbidden_tools(tools, sent_options)
            tools, sent_options = with_wire_names(self._profile, tools, sent_options, self._losses)
            tools = with_fitted_schemas(self._profile, tools, self._losses)
            self._limits.check_tools(tools)
        if names_cache:
            self._losses += [OptionLoss("tools", f"{_CACHED_TOOLS}: {tool.name}") for tool in tools]
            if sent_options.tool_choice is not None:
                self._losses.append(OptionLoss("tool_choice", _CACHED_TOOLS))
            tools, sent_options = (), replace(sent_options, tool_choice=None)
        # A client that speaks the provider's protocol may use what the catalogue does not list.
        if tools and not (self._model.capabilities.supports_tools or is_native):
            reason = f"{self._model.name} does not support tools: "
            self._losses += [OptionLoss("tools", reason + tool.name) for tool in tools]
            tools, sent_options = (
                (),
                replace(sent_options, tool_choice=None, parallel_tool_calls=None),
            )
        return tools, sent_options

    def _with_tool_choice(
        self,
        sent_options: AdapterOptions,
        tools: Sequence[ToolDefinition],
        native: Mapping[str, Any] | None,
        mode_keys: Mapping[str, Any],
    ) -> AdapterOptions:
        if tools:
            protocol = self._profile.protocol
            return (
                with_native_keys(sent_options, protocol, mode_keys) if mode_keys else sent_options
            )
        if mode_keys:
            self._losses.append(OptionLoss("tool_mode", "there are no tools to choose from"))
        return without_tool_choice(sent_options, native, self._codec, self._losses)

    def _without_forbidden_tools(
        self, tools: Sequence[ToolDefinition], sent_options: AdapterOptions
    ) -> tuple[Sequence[ToolDefinition], AdapterOptions]:
        # Converse has no tool choice `none`: the only way to prevent a call is to define no tool.
        choice = sent_options.tool_choice
        if self._profile.can_forbid_calls or choice is None or choice.mode != "none" or not tools:
            return tools, sent_options
        reason = f"{self._profile.name} has no tool choice 'none', so no tool is defined"
        self._alter("tool_choice", reason)
        return (), replace(sent_options, tool_choice=None)

    def _states_output(self, options: AdapterOptions) -> bool:
        # An output format that a client of the provider stated for the same model is sent
        # unchanged.
        if not are_native_options(options, self._profile):
            return False
        native = options.native[self._profile.protocol]
        is_same_model = native.get("model", self._model.name) == self._model.name
        return is_same_model and self._codec.output.decode(native).output == options.output

    def _names_cache(self, options: AdapterOptions) -> bool:
        # A client that names a cached prefix also knows what it may send beside it.
        key, native = self._profile.cache_name_key, options.native.get(self._profile.protocol)
        return key is not None and bool(native and native.get(key)) and options.origin is None

    def _plan_options(
        self, options: AdapterOptions, tools: Sequence[ToolDefinition]
    ) -> AdapterOptions:
        protocol = self._profile.protocol
        self._losses += foreign_losses(options, protocol, tools, self._declared.kinds)
        stated = options.native.get(protocol)
        if are_native_options(options, self._profile):
            return self._plan_native_options(options, stated or {}, has_tools=bool(tools))
        fitted = self._reasoning.fit(options, has_tools=bool(tools), messages=self._messages)
        native = self._native_keys(stated, options.origin, tools)
        sent_options = self._without_refused(replace(fitted, model=self._model.name))
        sent_options = self._within_limits(sent_options, has_tools=bool(tools))
        self._limits.fit_native(native)
        self._set_host_keys(sent_options, native)
        if fitted.reasoning is not None or options.reasoning is not None:
            sent_options = self._encode_reasoning(sent_options, native)
        if self._output is not None:
            sent_options = self._encode_output(sent_options, native)
        return replace(sent_options, native={protocol: native} if native else {})

    def _plan_native_options(
        self, options: AdapterOptions, stated: Mapping[str, Any], *, has_tools: bool
    ) -> AdapterOptions:
        """Return the options of a client of the provider; only what it did not state is fitted."""
        model = options.model and self._model.name
        sent_options = replace(options, model=model)
        # Where the path names the model, the body does not state which one the client requested.
        is_same_model = model == (maybe_text(stated.get("model")) or model)
        reasoning = self._codec.reasoning.decode(stated).reasoning
        if is_same_model and reasoning == options.reasoning and self._output is None:
            return sent_options
        # Another model than the requested one may support fewer options (T48, T183).
        fitted = self._reasoning.fit(sent_options, has_tools=has_tools, messages=self._messages)
        sent_options = fitted
        if not is_same_model:
            sent_options = self._within_limits(self._without_refused(fitted), has_tools=has_tools)
        native = dict(stated)
        if fitted.reasoning is not None or options.reasoning is not None:
            sent_options = self._encode_reasoning(sent_options, native)
        if self._output is not None:
            sent_options = self._encode_output(sent_options, native)
        return replace(sent_options, native={**options.native, self._profile.protocol: native})

    def _encode_reasoning(self, options: AdapterOptions, native: Wire) -> AdapterOptions:
        # Models of one provider read different keys, such as `thinking` or `output_config`
        # (T206).
        rule, codec = self._model.thinking, self._codec.reasoning
        codec.encode(native, options.reasoning, None if rule is None else rule.form)
        return replace(options, reasoning=codec.decode(native).reasoning)

    def _encode_output(self, options: AdapterOptions, native: Wire) -> AdapterOptions:
        codec = self._codec.output
        if codec.decode(native).output != options.output:
            codec.encode(native, options.output, self._model.output.dialect)
        return replace(options, output=codec.decode(native).output)

    def _without_refused(self, options: AdapterOptions) -> AdapterOptions:
        refused: dict[str, str] = {}
        provider = self._profile.name, self._profile.refused_options
        for name, names in (provider, (self._model.name, self._model.refused_options)):
            for option in names:
                if getattr(options, option, None) is not None:
                    refused[option] = f"{option} is not supported by {name}"
        for option, reason in self._reasoning.refused_options.items():
            # OpenAI and Anthropic accept 1, the default, even where the option is refused.
            if getattr(options, option, None) not in (None, 1):
                refused.setdefault(option, reason)
        for group in self._model.exclusive_options:
            stated = [option for option in group if getattr(options, option) is not None]
            for option in stated[1:]:
                reason = f"{self._model.name} does not support {option} beside {stated[0]}"
                refused[option] = reason
        changes = self._without_forced_call(options)
        for option in sorted(refused):
            changes[option] = None
            if not is_default(getattr(options, option)):
                self._losses.append(OptionLoss(option, refused[option]))
        return replace(options, **changes) if changes else options

    def _without_forced_call(self, options: AdapterOptions) -> dict[str, Any]:
        # Models that are listed with `forced_tools` answer 400 to such a choice (T46).
        choice = options.tool_choice
        if _FORCED_TOOLS not in self._model.refused_options or choice is None:
            return {}
        if choice.mode not in ("required", "tool"):
            return {}
        self._alter("tool_choice", f"{self._model.name} cannot be forced to call a tool")
        return {"tool_choice": ToolChoice("auto")}

    def _within_limits(self, options: AdapterOptions, *, has_tools: bool) -> AdapterOptions:
        profile, changes = self._profile, dict[str, Any]()
        capabilities, requested = self._model.capabilities, options.max_output_tokens
        limit = capabilities.max_output_tokens
        changes |= self._limits.fit(options)
        if requested is None and profile.needs_output_limit:
            changes["max_output_tokens"] = limit
        if self._model.is_listed and requested is not None and requested > limit:
            changes["max_output_tokens"] = limit
            self._alter("max_output_tokens", f"{self._model.name} writes at most {limit} tokens")
        choice = options.tool_choice
        if choice is not None and choice.mode == "tool" and not profile.can_name_tool:
            changes["tool_choice"] = ToolChoice("required")
            self._alter("tool_choice", f"{profile.name} does not support forcing a specific tool")
        if has_tools and not capabilities.supports_parallel_tool_calls:
            changes |= self._without_parallel_calls(options)
        return replace(options, **changes) if changes else options

    def _without_parallel_calls(self, options: AdapterOptions) -> dict[str, Any]:
        if "parallel_tool_calls" in self._profile.refused_options:
            return {}
        if options.parallel_tool_calls:
            self._alter("parallel_tool_calls", f"{self._model.name} calls one tool at a time")
        return {"parallel_tool_calls": False}

    def _alter(self, key: str, reason: str) -> None:
        self._losses.append(OptionLoss(key, reason, Change.ALTERED))

    def _set_host_keys(self, options: AdapterOptions, native: Wire) -> None:
        # Hosts of Chat Completions have different keys for the output limit and for a forced call
        # (T113, T182).
        profile = self._profile
        if profile.max_tokens_key and options.max_output_tokens is not None:
            native[profile.max_tokens_key] = options.max_output_tokens
        if profile.required_choice and options.tool_choice == ToolChoice("required"):
            native["tool_choice"] = profile.required_choice
        if profile.requests_usage and options.stream:
            native.setdefault("stream_options", {"include_usage": True})

    def _native_keys(
        self,
        stated: Mapping[str, Any] | None,
        origin: str | None,
        tools: Sequence[ToolDefinition],
    ) -> Wire:
        """Return the native keys to send.

        Those of a caller are all sent. Of a client's keys only those are sent that all hosts of
        the protocol share; the others are losses.
        """
        if stated is None:
            return {}
        if origin is None:
            return dict(stated)
        profile, codec = self._profile, self._codec
        refused = self._model.refused_options | self._reasoning.refused_options.keys()
        supported = codec.common_keys - profile.unsupported_keys - refused
        shared = codec.shared_keys | codec.reasoning.decode(stated).keys
        shared |= codec.output.decode(stated).keys
        for key in unshared_keys(stated, shared | supported):
            reason = f"{key!r} of {origin} is not supported by {self._model.name} at {profile.name}"
            self._losses.append(OptionLoss(key, reason))
        handled = self._declared.kinds | {"strict"}
        self._losses += tool_losses(origin, stated, tools, codec, handled=handled)
        renamed = profile.renamed_keys
        native = {renamed.get(key, key): stated[key] for key in stated if key in supported}
        strict = self._strict_tools(maybe_list(stated.get("tools")))
        if not self._declared.native:
            return native | strict
        return {**native, "tools": [*maybe_list(strict.get("tools")), *self._declared.native]}

    def _strict_tools(self, tools: list[Any]) -> Wire:
        # A host without `strict` may answer 400 to the key (T108, T109).
        functions = [maybe_object(maybe_object(tool).get("function")) for tool in tools]
        if not any(function.get("strict") for function in functions):
            return {}
        defined = [tool for tool, function in zip(tools, functions, strict=True) if function]
        are_plain = all(set(maybe_object(tool)) <= {"type", "function"} for tool in defined)
        if (
            self._profile.strict_tools
            and are_plain
            and all(set(function) <= _FUNCTION_KEYS for function in functions)
        ):
            return {"tools": defined}
        reason = f"'strict' is not supported by {self._profile.name}"
        self._losses += (
            OptionLoss(f"tools[{index}].function.strict", reason)
            for index, function in enumerate(functions)
            if function.get("strict")
        )
        return {}


_CACHED_TOOLS = "the cached prefix has its own tools"


def are_native_options(options: AdapterOptions, profile: Profile) -> bool:
    """Whether options come from the request of a client of this provider."""
    return options.origin == profile.name and profile.protocol in options.native
