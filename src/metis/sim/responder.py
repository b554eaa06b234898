"""The responder: composes replies by fixed rules, as tool calls, structured output or text.

Equal requests always get equal replies.
"""

import json
import re
from collections.abc import Container, Sequence
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
from metis.sim.reply_text import LastTurn, count_of, reply_text
from metis.sim.request import SimulatedCall
from metis.sim.signing import ThinkingSigner
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.json_access import maybe_object

_encode = msgspec.json.Encoder(order="deterministic").encode
_DECODER = json.JSONDecoder()
_OBJECT_START = re.compile(r"\{\s*\"")
_MAX_SCHEMA_TEXT, _MAX_SCHEMAS = 50_000, 20
_ANY_OBJECT = {"type": "object", "properties": {"answer": {"type": "string"}}}


class PlannedCall(Struct, frozen=True):
    """A tool call to make."""

    tool: str
    input: dict[str, Any]


class Responder:
    """Composes the output of the simulated model: tool calls, a filled schema, or text."""

    def __init__(self, signer: ThinkingSigner | None = None) -> None:
        self.signer = signer or ThinkingSigner()

    def respond(self, call: SimulatedCall) -> ModelOutput:
        """Return the output for a request, before its limits are applied."""
        request, endpoint = call.request, call.endpoint
        turn = LastTurn(request.messages)
        tool_calls = _choose_calls(turn, request.tools, request.options)
        text = _text(turn, tool_calls, request.options)
        thinking = _thinking(turn, tool_calls, request.tools)
        content = self.visible_thinking(thinking, call)
        if text:
            content.append(TextBlock(text))
        # Gemini signs the first call of a step, even if thinking is not shown (T56).
        if tool_calls and endpoint.call_signature_format is not None:
            signature, form = self.signer.sign(thinking), endpoint.call_signature_format
            issuer = endpoint.adapter_name
            content.append(ThinkingBlock("", signature, format=form, issuer=issuer))
        content += [
            ToolUseBlock(f"tu_{call.seed.ulid(f'call {number}')}", planned.tool, planned.input)
            for number, planned in enumerate(tool_calls)
        ]
        hidden = thinking if call.traits.thinking == "hidden" else ""
        return ModelOutput(content=tuple(content), hidden_thinking=hidden)

    def visible_thinking(self, thinking: str, call: SimulatedCall) -> list[ContentBlock]:
        """Return the blocks of the thinking that the client receives."""
        traits, issuer = call.traits, call.endpoint.adapter_name
        if traits.thinking == "sealed":
            return [RedactedThinkingBlock(self.signer.sign(thinking), issuer=issuer)]
        if traits.thinking != "shown":
            return []
        is_signed = call.endpoint.signs_thinking and traits.include_signature
        signature = self.signer.sign(thinking) if is_signed else None
        return [ThinkingBlock(thinking, signature, issuer=issuer)]


def _text(turn: LastTurn, calls: list[PlannedCall], options: AdapterOptions) -> str:
    if calls:
        # Providers send no text beside a call that the request forces.
        is_forced = options.tool_choice is not None and options.tool_choice.mode != "auto"
        return "" if is_forced else f"I will call {_tool_names(calls)}."
    if options.output is not None:
        # For a host without schemas, the schema is in the text of the request.
        schema = options.output.schema or _written_schema(turn) or _ANY_OBJECT
        return _encode(SchemaFiller(schema, Entities(turn.text)).fill()).decode()
    return reply_text(turn)


def _written_schema(turn: LastTurn) -> dict[str, Any] | None:
    """Return the first JSON Schema of an object in the texts of the conversation."""
    for message in turn.messages:
        for block in message.content:
            text = block.text if isinstance(block, TextBlock) else ""
            # Limited, because hostile texts may be long and have many opening brackets.
            for start in list(_OBJECT_START.finditer(text[:_MAX_SCHEMA_TEXT]))[:_MAX_SCHEMAS]:
                try:
                    decoded, _ = _DECODER.raw_decode(text, start.start())
                except (ValueError, RecursionError):
                    continue
                if "properties" in maybe_object(decoded):
                    return maybe_object(decoded)
    return None


def _thinking(turn: LastTurn, calls: list[PlannedCall], tools: Sequence[ToolDefinition]) -> str:
    prompt = " ".join(turn.text.split())[:80] or "nothing"
    sentences = [f"The user says: {prompt}.", f"I know {count_of(len(tools), 'tool')}."]
    if turn.results:
        sentences.append(f"I have {count_of(len(turn.results), 'result')}.")
    sentences.append(f"I call {_tool_names(calls)}." if calls else "I answer in words.")
    return " ".join(sentences)


def _tool_names(calls: list[PlannedCall]) -> str:
    return " and ".join(call.tool for call in calls)


def _choose_calls(
    turn: LastTurn, tools: Sequence[ToolDefinition], options: AdapterOptions
) -> list[PlannedCall]:
    """Return the next calls; an earlier call of the turn is repeated only if a call is forced."""
    choice = options.tool_choice or ToolChoice()
    if not tools or choice.mode == "none":
        return []
    entities = Entities(turn.text)
    if choice.mode == "tool":
        tools = [tool for tool in tools if tool.name == choice.name]
        planned = [call for tool in tools for call in _calls_of(tool, entities)]
    else:
        tool = _matching_tool(entities, tools)
        planned = [] if tool is None else _calls_of(tool, entities)
    earlier = [PlannedCall(call.name, dict(call.input)) for call in turn.calls]
    calls = [call for call in planned if call not in earlier]
    # A request that forces a call gets one, even if it repeats an earlier one.
    if not calls and choice.mode == "required":
        calls = _calls_of(_final_tool(tools, {call.tool for call in earlier}), entities)
    elif not calls and choice.mode == "tool":
        calls = planned
    return calls[:1] if options.parallel_tool_calls is False else calls


def _final_tool(tools: Sequence[ToolDefinition], called: Container[str]) -> ToolDefinition:
    """Return the tool that ends a loop in which every response must call one.

    Agents stop at a tool with a name such as `final_answer`; without one, a tool that was not
    called yet is returned.
    """
    candidates = [tool for tool in tools if tool.name not in called] or tools
    matching = (tool for tool in candidates if _FINAL_NAME.search(tool.name))
    return next(matching, candidates[0])


class _Intent(Struct, frozen=True):
    """A kind of prompt: the words that express it, and the names of matching tools."""

    prompt: re.Pattern[str]
    tool_name: re.Pattern[str]
    needs: str | None = None
    """The attribute of `Entities` that must not be empty."""


_INTENTS = tuple(
    _Intent(re.compile(prompt, re.IGNORECASE), re.compile(tool_name, re.IGNORECASE), needs)
    for prompt, tool_name, needs in (
        (r"\b(?:write|create|save|put)\b", r"write|create|save", "paths"),
        (r"\b(?:grep|search|find|look for)\b", r"grep|search|find", None),
        (
            r"\b(?:read|open|show|cat|view|look at|summari[sz]e|what(?:'s| is) in|contents? of)\b",
            r"read|cat|view|open|show",
            "paths",
        ),
        (r"\b(?:list|ls|(?:which|what) files)\b", r"list|ls|glob|dir", None),
        (r"\b(?:run|execute)\b", r"run|exec|bash|shell|command", "quoted"),
        (r"https?://", r"fetch|url|http|browse", "urls"),
    )
)
_GENERIC_WORDS = frozenset(
    {"get", "set", "the", "tool", "file", "files", "make", "call", "use", "for", "run"}
)
_WORD = re.compile(r"[a-z]{3,}")
_FINAL_NAME = re.compile(
    r"final|answer|finish|submit|complet|respon[ds]|output|result|done|return", re.IGNORECASE
)
_PATH_PROPERTY = re.compile(r"path|file", re.IGNORECASE)
_LOCATION_PROPERTY = re.compile(r"city|place|location|town", re.IGNORECASE)


def _matching_tool(entities: Entities, tools: Sequence[ToolDefinition]) -> ToolDefinition | None:
    """Return the tool that a prompt names, implies, or has a word in common with."""
    text = entities.text
    for tool in tools:
        if re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", text):
            return tool
    for intent in _INTENTS:
        if intent.prompt.search(text) and (intent.needs is None or getattr(entities, intent.needs)):
            for tool in tools:
                if intent.tool_name.search(tool.name):
                    return tool
    words = set(_WORD.findall(text.lower()))
    return next((tool for tool in tools if _specific_words(tool.name) & words), None)


def _specific_words(tool_name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", tool_name).lower()
    return set(_WORD.findall(spaced)) - _GENERIC_WORDS


def _calls_of(tool: ToolDefinition, entities: Entities) -> list[PlannedCall]:
    """Return one call of a tool for each file or location that the prompt names."""
    arguments: dict[str, Any] = maybe_object(SchemaFiller(tool.input_schema, entities).fill())
    for pattern, values in (
        (_PATH_PROPERTY, entities.paths),
        (_LOCATION_PROPERTY, entities.locations),
    ):
        properties = maybe_object(tool.input_schema.get("properties"))
        name = next((one for one in properties if pattern.search(one)), None)
        if name is not None and len(values) > 1:
            if name not in arguments:
                break
            return [PlannedCall(tool.name, {**arguments, name: value}) for value in values]
    return [PlannedCall(tool.name, arguments)]
