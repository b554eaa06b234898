"""Compose the reply to a request by fixed rules: tool calls, structured output or text.

The same request always gets the same reply.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from metis.canonical.blocks import (
    ContentBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.tools import ToolDefinition
from metis.sim.fill_schema import Entities, SchemaFiller
from metis.sim.model_output import ModelOutput
from metis.sim.reply_text import LastTurn, reply_text
from metis.sim.request import RequestSeed, RequestTraits
from metis.sim.signing import ThinkingSigner
from metis.wire.call import AdapterOptions, CanonicalRequest, ToolChoice
from metis.wire.json_access import maybe_object


class PlannedCall(Struct, frozen=True):
    """A call that is to be made."""

    tool: str
    input: dict[str, Any]


class _Kind(Struct, frozen=True):
    """A kind of request: the words that ask for it, and the tools that do it."""

    asks: re.Pattern[str]
    does: re.Pattern[str]
    needs: str | None = None
    """What the words must name."""


def _kind(asks: str, does: str, needs: str | None = None) -> _Kind:
    return _Kind(re.compile(asks, re.IGNORECASE), re.compile(does, re.IGNORECASE), needs)


_KINDS = (
    _kind(r"\b(?:write|create|save|put)\b", r"write|create|save", "paths"),
    _kind(r"\b(?:grep|search|find|look for)\b", r"grep|search|find"),
    _kind(
        r"\b(?:read|open|show|cat|view|look at|summari[sz]e|what(?:'s| is) in|contents? of)\b",
        r"read|cat|view|open|show",
        "paths",
    ),
    _kind(r"\b(?:list|ls|(?:which|what) files)\b", r"list|ls|glob|dir"),
    _kind(r"\b(?:run|execute)\b", r"run|exec|bash|shell|command", "quoted"),
    _kind(r"https?://", r"fetch|url|http|browse", "urls"),
)
_DULL = frozenset(
    {"get", "set", "the", "tool", "file", "files", "make", "call", "use", "for", "run"}
)
_WORD = re.compile(r"[a-z]{3,}")
_PATH_NAME = re.compile(r"path|file", re.IGNORECASE)
_PLACE_NAME = re.compile(r"city|place|location|town", re.IGNORECASE)


def plan_calls(text: str, tools: Sequence[ToolDefinition]) -> list[PlannedCall]:
    """The calls that a text asks for, in order; none if no tool fits."""
    hints = Entities(text)
    tool = _tool_for(hints, tools)
    return [] if tool is None else list(calls_of_tool(tool, hints))


def calls_of_tool(tool: ToolDefinition, hints: Entities) -> Iterator[PlannedCall]:
    """The calls of a tool that some words ask for: one for each file or place they name."""
    schema = tool.input_schema
    names = list(maybe_object(schema.get("properties")))
    whole: dict[str, Any] = maybe_object(SchemaFiller(schema, hints).fill())
    name, values = _repeated(names, hints)
    if name is None or name not in whole:
        yield PlannedCall(tool.name, whole)
        return
    for value in values:
        yield PlannedCall(tool.name, {**whole, name: value})


def _repeated(names: list[str], hints: Entities) -> tuple[str | None, list[str]]:
    """The argument of which the words name several, and what they name."""
    for pattern, values in ((_PATH_NAME, hints.paths), (_PLACE_NAME, hints.places)):
        name = next((one for one in names if pattern.search(one)), None)
        if name is not None and len(values) > 1:
            return name, values
    return None, []


def _tool_for(hints: Entities, tools: Sequence[ToolDefinition]) -> ToolDefinition | None:
    text = hints.text
    for tool in tools:
        if re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", text):
            return tool
    for kind in _KINDS:
        if kind.asks.search(text) and (kind.needs is None or getattr(hints, kind.needs)):
            for tool in tools:
                if kind.does.search(tool.name):
                    return tool
    words = set(_WORD.findall(text.lower()))
    return next((tool for tool in tools if _own_words(tool) & words), None)


def _own_words(tool: ToolDefinition) -> set[str]:
    """The words of a tool's name that say what it is about."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool.name).lower()
    return set(_WORD.findall(spaced)) - _DULL


_write = msgspec.json.Encoder(order="deterministic").encode


class ReplyContext(Struct, frozen=True, kw_only=True):
    """Where an answer is given: in whose place, and out of which seed."""

    issuer: str
    seed: RequestSeed
    signs_thinking: bool = True
    """Whether the protocol has a place for the signature of a thought."""
    call_signature_format: str | None = None
    """The format of the signature that stands before the first call, if the protocol wants one."""


class Responder:
    """Looks at a request and decides: call tools, fill a form, or answer in words."""

    def __init__(self, signer: ThinkingSigner | None = None) -> None:
        self.signer = signer or ThinkingSigner()

    def respond(
        self, request: CanonicalRequest, traits: RequestTraits, context: ReplyContext
    ) -> ModelOutput:
        """The answer to a request, before its limits are applied."""
        turn = LastTurn(request.messages)
        calls = _calls(turn, request.tools, request.options)
        said = _said(turn, calls, request.options, traits)
        thought = _thought(turn, calls, request.tools)
        content = self._shown(thought, traits, context)
        if said:
            content.append(TextBlock(said))
        if calls and context.call_signature_format is not None:
            seal, form = self.signer.sign(thought), context.call_signature_format
            content.append(ThinkingBlock("", seal, format=form, issuer=context.issuer))
        content += [
            ToolUseBlock(f"tu_{context.seed.ulid(f'call {number}')}", call.tool, call.input)
            for number, call in enumerate(calls)
        ]
        hidden = thought if traits.thinking == "hidden" else ""
        return ModelOutput(content=tuple(content), hidden_thinking=hidden)

    def _shown(self, thought: str, wish: RequestTraits, ground: ReplyContext) -> list[ContentBlock]:
        """What the client sees of a thought: the words, their seal, both or nothing."""
        if wish.thinking == "sealed":
            return [RedactedThinkingBlock(self.signer.sign(thought), issuer=ground.issuer)]
        if wish.thinking != "shown":
            return []
        signature = (
            self.signer.sign(thought) if ground.signs_thinking and wish.include_signature else None
        )
        return [ThinkingBlock(thought, signature, issuer=ground.issuer)]


def _calls(
    turn: LastTurn, tools: Sequence[ToolDefinition], options: AdapterOptions
) -> list[PlannedCall]:
    """The calls to make now; what was called already for this turn is not called again."""
    choice = options.tool_choice or ToolChoice()
    if not tools or choice.mode == "none":
        return []
    if choice.mode == "tool":
        tools = [tool for tool in tools if tool.name == choice.name]
        wanted = [deed for tool in tools for deed in calls_of_tool(tool, Entities(turn.text))]
    else:
        wanted = plan_calls(turn.text, tools)
    made = [PlannedCall(call.name, dict(call.input)) for call in turn.calls]
    left = [deed for deed in wanted if deed not in made]
    if not left and choice.mode in ("tool", "required"):
        left = wanted or list(calls_of_tool(tools[0], Entities(turn.text)))
    return left[:1] if options.parallel_tool_calls is False else left


def _said(
    turn: LastTurn, calls: list[PlannedCall], options: AdapterOptions, wish: RequestTraits
) -> str:
    """The words of an answer; a model that must call a tool says nothing beside."""
    if calls:
        is_forced = options.tool_choice is not None and options.tool_choice.mode != "auto"
        return "" if is_forced else f"I will call {_listed(calls)}."
    if wish.output_schema is not None:
        schema = wish.output_schema or {
            "type": "object",
            "properties": {"answer": {"type": "string"}},
        }
        return _write(SchemaFiller(schema, Entities(turn.text)).fill()).decode()
    return reply_text(turn)


def _thought(turn: LastTurn, calls: list[PlannedCall], tools: Sequence[ToolDefinition]) -> str:
    text = " ".join(turn.text.split())[:80]
    known = f"I know {len(tools)} {'tool' if len(tools) == 1 else 'tools'}."
    told = f"The user says: {text or 'nothing'}. {known} "
    if turn.results:
        told += f"{len(turn.results)} results have come. "
    return told + (f"I call {_listed(calls)}." if calls else "I answer in words.")


def _listed(calls: list[PlannedCall]) -> str:
    return " and ".join(call.tool for call in calls)
