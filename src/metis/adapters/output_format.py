"""Structured output: how JSON is requested from a model, and JSON that it wrote into its thinking.

The ways to request it, in order of preference (T115-T117):

- The provider's own option, with or without a schema.
- A forced call of a tool whose arguments are the response. Callers never see the tool: in the
  response the call becomes text.
- An instruction in the conversation, where the model cannot be forced to call a tool.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from metis.adapters.model import ModelFacts
from metis.adapters.profile import Profile
from metis.adapters.response_decoder import OUTPUT_TOOL, DecoderWrapper
from metis.adapters.tool_options import OptionLoss
from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.canonical.schema.fit_output import fit_output_schema
from metis.canonical.schema.validate import Validator, compile_output_schema
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.model_rules import OutputKind
from metis.projection import Change, Loss, wire_tool_name
from metis.streaming import MessageComplete, StreamEvent, TextDelta
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.codec import Codec, StreamDecoder
from metis.wire.output_format import OutputFormat

_KEY = "output"
_TOOL_DESCRIPTION = "Gives the answer. Call it once, when the whole answer is known."
_ANY_JSON: OutputKind = "object"
_JSON_ONLY = "Answer with JSON only, with nothing before or after it and no fence around it"
_OBJECT = {"type": "object"}
_decode = msgspec.json.Decoder().decode


class OutputPlanner:
    """Fits the output format of a request to one model."""

    def __init__(
        self, profile: Profile, model: ModelFacts, codec: Codec, losses: list[OptionLoss]
    ) -> None:
        self._profile = profile
        self._model = model
        self._codec = codec
        self._losses = losses
        self.instruction: str | None = None
        """Text that requests the format, to be added to the conversation; None if not needed."""

    def fit(
        self,
        options: AdapterOptions,
        output: OutputFormat,
        tools: Sequence[ToolDefinition],
        messages: Sequence[Message],
    ) -> tuple[AdapterOptions, Sequence[ToolDefinition]]:
        """Return the options and tools that request the format; see also `instruction`."""
        native, reason = self._native_format(output, has_tools=bool(tools))
        if native is not None:
            if native.schema is None:
                self._mention_json(messages)
            return replace(options, output=native), tools
        without_output = replace(options, output=None)
        choice = self._forced_choice(output, options, has_tools=bool(tools))
        if choice is not None:
            self._alter(f"{reason}: the response is requested as a tool call")
            self._lose_strictness(output)
            return replace(without_output, tool_choice=choice), (*tools, _output_tool(output))
        self._alter(f"{reason}: the response is requested by an instruction")
        self._lose_strictness(output)
        self.instruction = _instruction(output)
        if output.schema is not None and self._supports(_ANY_JSON, has_tools=bool(tools)):
            return replace(options, output=OutputFormat()), tools
        return without_output, tools

    def _native_format(
        self, output: OutputFormat, *, has_tools: bool
    ) -> tuple[OutputFormat | None, str]:
        """Return the format for the provider's own option; None and the reason if it has none."""
        name, rule = self._model.name, self._model.output
        kind: OutputKind = _ANY_JSON if output.schema is None else "schema"
        if kind not in rule.supports:
            what = "output schemas" if kind == "schema" else "JSON output without a schema"
            return None, f"{name} does not support {what}"
        if has_tools and not rule.with_tools:
            return None, f"{name} does not support an output format beside tools"
        if output.schema is None:
            return output, ""
        return self._with_fitted_schema(output)

    def _with_fitted_schema(self, output: OutputFormat) -> tuple[OutputFormat | None, str]:
        profile, schema = self._profile, output.schema or {}
        fitted = fit_output_schema(schema, profile.output_schemas)
        if fitted.refusal is not None:
            return None, f"{profile.name} does not support this schema: {fitted.refusal}"
        if output.strict and profile.strict_output_schemas is not None:
            strict = fit_output_schema(schema, profile.strict_output_schemas)
            refusal = strict.refusal
            if not self._model.output.strict_schemas:
                refusal = f"{self._model.name} does not enforce schemas"
            if refusal is None:
                fitted = strict
            else:
                output = replace(output, strict=False)
                reason = f"{profile.name} cannot enforce it: {refusal}"
                self._losses.append(OptionLoss(f"{_KEY}.strict", reason, Change.ALTERED))
        self._losses += (
            OptionLoss(f"{_KEY}.schema", f"at {profile.name}: {change}", Change.ALTERED)
            for change in fitted.changes
        )
        if not self._codec.output.has_name:
            return self._with_name_in_schema(replace(output, schema=fitted.schema)), ""
        if self._codec.output.is_strict:
            output = self._strict(output)
        title = schema.get("title")
        name = output.name or (title if isinstance(title, str) and title else None)
        # OpenAI restricts the name of a schema to the characters of a tool name (T111).
        wire_name = None if name is None else wire_tool_name(name)
        if output.name is not None and wire_name != output.name:
            reason = f"the schema {output.name!r} is sent as {wire_name}"
            self._losses.append(OptionLoss(f"{_KEY}.name", reason, Change.ALTERED))
        return replace(output, schema=fitted.schema, name=wire_name), ""

    def _with_name_in_schema(self, output: OutputFormat) -> OutputFormat:
        # Gemini and Ollama have no keys for name and description beside the schema.
        schema = dict(output.schema or {})
        for key, value in (("title", output.name), ("description", output.description)):
            if value and schema.setdefault(key, value) != value:
                field = "name" if key == "title" else key
                reason = f"{self._profile.name} takes it from the schema, which has another"
                self._losses.append(OptionLoss(f"{_KEY}.{field}", reason))
        self._strict(output)
        return OutputFormat(schema)

    def _strict(self, output: OutputFormat) -> OutputFormat:
        # Anthropic and Gemini always enforce a schema; there is no flag to turn that off.
        if output.strict:
            return output
        reason = f"{self._profile.name} always enforces the schema"
        self._losses.append(OptionLoss(f"{_KEY}.strict", reason, Change.ALTERED))
        return replace(output, strict=True)

    def _forced_choice(
        self, output: OutputFormat, options: AdapterOptions, *, has_tools: bool
    ) -> ToolChoice | None:
        """Return the tool choice that forces the response into a call; None if none can."""
        profile, model, choice = self._profile, self._model, options.tool_choice
        schema = output.schema or _OBJECT
        if not model.capabilities.supports_tools or "tool_choice" in profile.refused_options:
            return None
        if "forced_tools" in model.refused_options or schema.get("type") != "object":
            return None
        # Anthropic answers 400 to a forced call while the model thinks (T46, T116).
        if self._thinks(options) and not self._can_force_while_thinking():
            return None
        if choice is not None and choice.mode == "tool":
            return None  # the caller wants another tool called first; the response comes after it
        if has_tools and (choice is None or choice.mode != "none"):
            return ToolChoice("required")
        return ToolChoice("tool", OUTPUT_TOOL)

    def _thinks(self, options: AdapterOptions) -> bool:
        rule, requested = self._model.thinking, options.reasoning
        if rule is None:
            return False
        return rule.on_by_default if requested is None else not requested.is_off

    def _can_force_while_thinking(self) -> bool:
        rule = self._model.thinking
        if rule is None:
            return True
        return rule.forced_tools and self._profile.protocol not in rule.no_tools_in

    def _supports(self, kind: OutputKind, *, has_tools: bool) -> bool:
        rule = self._model.output
        return kind in rule.supports and (rule.with_tools or not has_tools)

    def _mention_json(self, messages: Sequence[Message]) -> None:
        # OpenAI answers 400 to `json_object` unless the word JSON occurs in the messages.
        if not self._model.output.needs_json_mention or _mentions_json(messages):
            return
        self.instruction = f"{_JSON_ONLY}."
        reason = f"{self._profile.name} needs the word JSON in the messages, too"
        self._losses.append(OptionLoss(_KEY, reason, Change.SYNTHESISED))

    def _lose_strictness(self, output: OutputFormat) -> None:
        if output.schema is not None and output.strict:
            reason = "nothing enforces the schema"
            self._losses.append(OptionLoss(f"{_KEY}.strict", reason, Change.ALTERED))

    def _alter(self, reason: str) -> None:
        self._losses.append(OptionLoss(_KEY, reason, Change.ALTERED))


def _mentions_json(messages: Sequence[Message]) -> bool:
    return any(
        "json" in block.text.lower()
        for message in messages
        for block in message.content
        if type(block) is TextBlock
    )


def _instruction(output: OutputFormat) -> str:
    if output.schema is None:
        return f"{_JSON_ONLY}: one object."
    about = "".join(f"\n{text}" for text in (output.name, output.description) if text)
    schema = msgspec.json.encode(output.schema).decode()
    return f"{_JSON_ONLY}, which keeps to this JSON Schema:{about}\n{schema}"


def _output_tool(output: OutputFormat) -> ToolDefinition:
    about = " ".join(text for text in (output.name, output.description) if text)
    return ToolDefinition(
        name=OUTPUT_TOOL,
        description=f"{_TOOL_DESCRIPTION} {about}".rstrip(),
        input_schema=output.schema or _OBJECT,
        side_effects=SideEffects.NONE,
    )


@lru_cache(maxsize=64)
def instruction_message(text: str, session_id: str, role: Role) -> Message:
    """Return the message of an instruction: the same object for the same text and session.

    `HistoryCache` compares messages by identity, so a new object would make it encode the whole
    history again.
    """
    return Message(
        id=hashed_tool_id(session_id, text).removeprefix("tu_"),
        session_id=session_id,
        role=role,
        content=(TextBlock(text),),
        created_at=datetime(1970, 1, 1, tzinfo=UTC),
    )


class JsonInThinking:
    """Finds output that a host put into the thinking of a response that has no text (T118).

    The output is added as text if it has the requested format. The thinking is not changed, and
    the addition is reported as a loss.
    """

    def __init__(self, output: OutputFormat, adapter: str, report: Callable[[Loss], None]) -> None:
        self._output = output
        self._adapter = adapter
        self._report = report

    def with_output_text(self, message: Message) -> Message:
        """Return the message with output from its thinking as text, and report the addition."""
        result = self.add_text(message)
        if result is not message:
            self._report(
                Loss(
                    session_id=message.session_id,
                    message_id=message.id,
                    block_type="thinking",
                    adapter=self._adapter,
                    reason="the output was in the thinking; also added as text",
                    change=Change.SYNTHESISED,
                    path=f"$.content[{len(message.content)}]",
                )
            )
        return result

    def add_text(self, message: Message) -> Message:
        """Return the message with output from its thinking as text; unchanged if it has none."""
        thinking: list[str] = []
        for block in message.content:
            if isinstance(block, ToolUseBlock) or (
                isinstance(block, TextBlock) and block.text.strip()
            ):
                return message
            if isinstance(block, ThinkingBlock):
                thinking.append(block.text)
        text = "".join(thinking).strip()
        if not text or not self._has_format(text):
            return message
        return replace(message, content=(*message.content, TextBlock(text)))

    def _has_format(self, text: str) -> bool:
        try:
            value = _decode(text)
        except (ValueError, RecursionError):
            return False
        if self._output.schema is None:
            return isinstance(value, dict)
        try:
            return not _validator(msgspec.json.encode(self._output.schema))(value)
        except InvalidValueError:
            return False


@lru_cache(maxsize=64)
def _validator(schema: bytes) -> Validator:
    return compile_output_schema(_decode(schema))


class JsonInThinkingDecoder(DecoderWrapper):
    """A stream decoder that adds output from the thinking of a response as text."""

    def __init__(self, decoder: StreamDecoder, json_in_thinking: JsonInThinking) -> None:
        super().__init__(decoder)
        self._json = json_in_thinking

    @property
    def message(self) -> Message:
        """The message as far as it has been decoded."""
        return self._json.add_text(self._decoder.message)

    def _convert(self, events: list[StreamEvent]) -> list[StreamEvent]:
        end = events[-1] if events else None
        if not isinstance(end, MessageComplete):
            return events
        message = self._json.with_output_text(end.message)
        if message is end.message:
            return events
        last = message.content[-1]
        text = last.text if isinstance(last, TextBlock) else ""
        delta = TextDelta(end.message_id, len(message.content) - 1, text)
        return [*events[:-1], delta, replace(end, message=message)]
