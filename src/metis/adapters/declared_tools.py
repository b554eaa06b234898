"""Tools of a client that are not plain functions, translated for another provider (T219).

A host that supports the tool kinds of the client's protocol gets them unchanged. All others get
functions under names that are unique in the request; calls in the history get the same names.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.profile import Profile
from metis.canonical.blocks import ContentBlock, OpaqueBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.tools import ToolDefinition
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.declared_tools import FUNCTION_KIND, DeclaredTool
from metis.wire.json_access import maybe_list, maybe_object, maybe_text
from metis.wire.original_form import original_form_of

RESPONSES = "openai_responses"
_ADDITIONAL_TOOLS = "additional_tools"
MAX_DECLARED = 2000
"""How many tools of other kinds a request may declare; further ones are ignored with a loss."""


class DeclaredTools(Struct, frozen=True):
    """The tools of one request that are not plain functions."""

    functions: tuple[DeclaredTool, ...] = ()
    """Tools that the target gets as functions."""
    native: tuple[Mapping[str, Any], ...] = ()
    """Tools that the target gets as the client declared them."""
    call_names: Mapping[tuple[str, str], str] = {}
    """Function names by namespace and name of the client's tool, where the two differ."""
    has_items: bool = False
    """Whether messages of the history are declarations and nothing else."""

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The functions that a target gets."""
        return tuple(tool.definition for tool in self.functions)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of tools that reach the target in one form or the other."""
        kinds = {tool.kind for tool in self.functions if tool.kind != FUNCTION_KIND}
        kinds |= {str(tool.get("type")) for tool in self.native}
        if any(tool.namespace is not None for tool in self.functions):
            kinds.add("namespace")
        return frozenset(kinds)

    def history(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages without declarations, whose calls have the names of the functions."""
        if self.has_items:
            messages = [message for message in messages if not _is_declaration(message)]
        return [self._with_names(message) for message in messages] if self.call_names else messages

    def _with_names(self, message: Message) -> Message:
        if message.role is not Role.ASSISTANT:
            return message
        forms = maybe_object(original_form_of(message, RESPONSES).get("calls"))
        content = tuple(self._renamed(block, forms) for block in message.content)
        is_same = all(map(is_, content, message.content))
        return message if is_same else replace(message, content=content)

    def _renamed(self, block: ContentBlock, forms: Mapping[str, Any]) -> ContentBlock:
        if not isinstance(block, ToolUseBlock):
            return block
        namespace = maybe_text(maybe_object(forms.get(block.id)).get("namespace")) or ""
        name = self.call_names.get((namespace, block.name))
        return block if name is None else replace(block, name=name)


NO_DECLARED_TOOLS = DeclaredTools()


def declared_tools(
    options: AdapterOptions, messages: Sequence[Message], profile: Profile
) -> DeclaredTools:
    """Return the form in which a target gets the tools of a client that are not functions."""
    # A caller of metis has functions only, and the provider itself accepts its clients' tools.
    if options.origin is None or options.origin == profile.name:
        return NO_DECLARED_TOOLS
    functions: list[DeclaredTool] = []
    native: list[Mapping[str, Any]] = []
    for protocol, keys in options.native.items():
        codec = CODECS.get(protocol)
        if codec is None or codec.declared_tools is None:
            continue
        input_tools = [*_declarations(messages)][:MAX_DECLARED] if protocol == RESPONSES else []
        if protocol == profile.protocol and profile.tool_kinds:
            kinds = profile.tool_kinds
            declared = [
                maybe_object(tool) for tool in (*maybe_list(keys.get("tools")), *input_tools)
            ]
            native += [tool for tool in declared if tool.get("type") in kinds]
            input_tools = [
                tool for tool in input_tools if maybe_object(tool).get("type") == "function"
            ]
            plain = {"tools": [tool for tool in declared if tool.get("type") == "function"]}
            functions += codec.declared_tools(plain, input_tools)[:MAX_DECLARED]
        else:
            functions += codec.declared_tools(keys, input_tools)[:MAX_DECLARED]
    has_items = any(map(_is_declaration, messages)) if RESPONSES in options.native else False
    if not functions and not native and not has_items:
        return NO_DECLARED_TOOLS
    names = {
        (tool.namespace or "", tool.name): tool.definition.name
        for tool in functions
        if tool.definition.name != tool.name
    }
    return DeclaredTools(tuple(functions), tuple(native), names, has_items)


def response_context(
    request: CanonicalRequest, context: RequestContext, protocol: str
) -> RequestContext:
    """Return a context with the facts of a client's request that its response depends on."""
    codec, native = CODECS[protocol], request.options.native.get(protocol, {})
    declared: tuple[DeclaredTool, ...] = ()
    if codec.declared_tools is not None:
        input_tools = _declarations(request.messages) if protocol == RESPONSES else ()
        declared = codec.declared_tools(native, [*input_tools][:MAX_DECLARED])[:MAX_DECLARED]
    # Clients of Chat Completions must request the usage of a stream (T129).
    include_usage = protocol != "openai_chat" or bool(
        maybe_object(native.get("stream_options")).get("include_usage")
    )
    by_name = {tool.definition.name: tool for tool in declared}
    names = (*(tool.name for tool in request.tools), *by_name)
    return replace(
        context,
        model=request.options.model or context.model,
        tools=tuple(dict.fromkeys((*context.tools, *names))),
        declared_tools={name: tool for name, tool in by_name.items() if _has_kind(tool)},
        include_usage=include_usage,
        output=request.options.output or context.output,
    )


def _has_kind(tool: DeclaredTool) -> bool:
    return tool.is_altered or tool.definition.name != tool.name


def _is_declaration(message: Message) -> bool:
    if message.role is not Role.DEVELOPER or not message.content:
        return False
    return all(
        type(block) is OpaqueBlock and block.kind == _ADDITIONAL_TOOLS for block in message.content
    )


def _declarations(messages: Sequence[Message]) -> Iterator[Any]:
    """Yield the tools that a client declared in the input, or loaded by a search."""
    for message in messages:
        for block in message.content:
            if type(block) is OpaqueBlock and block.kind == _ADDITIONAL_TOOLS:
                yield from maybe_list(maybe_object(block.data).get("tools"))
        if message.role is Role.TOOL:
            output = maybe_object(original_form_of(message, RESPONSES).get("wire"))
            if output.get("type") == "tool_search_output":
                yield from maybe_list(output.get("tools"))
