"""Structured output: how a model is asked for JSON, and JSON that it wrote into its thinking.

The ways to ask, in order of preference (T115-T117):

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
from metis.adapters.response_decoder import OUTPUT_TOOL
from metis.adapters.tool_options import OptionLoss
from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.ids import hashed_tool_id
from metis.canonical.message import Message, Role
from metis.canonical.schema.fit_output import fit_output_schema
from metis.canonical.schema.validate import Validator, compile_output_schema
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.catalog.model_rules import OutputKind
from metis.projection.loss import Change, Loss
from metis.projection.tool_calls import wire_tool_name
from metis.streaming import MessageComplete, StreamEvent, TextDelta
from metis.wire.call import AdapterOptions, ToolChoice
from metis.wire.codec import Codec, StreamDecoder
from metis.wire.output_format import OutputFormat

_KEY = "output"
_TOLD = "Gives the answer. Call it once, when the whole answer is known."
_ANY: OutputKind = "object"
_ALONE = "Answer with JSON only, with nothing before or after it and no fence around it"
_OBJECT = {"type": "object"}


class OutputPlanner:
    """Brings the wish for a form of the answer to what one model takes."""

    def __init__(
        self, profile: Profile, model: ModelFacts, codec: Codec, lost: list[OptionLoss]
    ) -> None:
        self._profile = profile
        self._model = model
        self._codec = codec
        self._lost = lost
        self.instruction: str | None = None
        """What the model is asked in words, beside the conversation."""

    def fit(
        self,
        options: AdapterOptions,
        output: OutputFormat,
        tools: Sequence[ToolDefinition],
        messages: Sequence[Message],
    ) -> tuple[AdapterOptions, Sequence[ToolDefinition]]:
        """The options and tools with which the answer gets its form."""
        native, reason = self._native(output, has_tools=bool(tools))
        if native is not None:
            if native.schema is None:
                self._say_json(messages)
            return replace(options, output=native), tools
        plain = replace(options, output=None)
        forced = self._forced(output, options, has_tools=bool(tools))
        if forced is not None:
            self._alter(f"{reason}: the answer is asked for as a call of a tool")
            self._loosen(output)
            return replace(plain, tool_choice=forced), (*tools, _answer_tool(output))
        self._alter(f"{reason}: the answer is asked for in words")
        self._loosen(output)
        self.instruction = _words(output)
        if output.schema is not None and _takes(self._model, _ANY, has_tools=bool(tools)):
            return replace(options, output=OutputFormat()), tools
        return plain, tools

    def _native(self, output: OutputFormat, *, has_tools: bool) -> tuple[OutputFormat | None, str]:
        """What the provider is told itself; None with the reason if it cannot be."""
        name, rule = self._model.name, self._model.output
        kind: OutputKind = _ANY if output.schema is None else "schema"
        if kind not in rule.supports:
            what = "schema" if kind == "schema" else "wish for just any JSON"
            return None, f"{name} takes no {what}"
        if has_tools and not rule.with_tools:
            return None, f"{name} takes no form of its answer beside tools"
        if output.schema is None:
            return output, ""
        return self._shaped(output)

    def _shaped(self, output: OutputFormat) -> tuple[OutputFormat | None, str]:
        """With a schema that the provider takes, under a name that it takes."""
        profile, schema = self._profile, output.schema or {}
        fitted = fit_output_schema(schema, profile.output_schemas)
        if fitted.refusal is not None:
            return None, f"{profile.name} takes no such schema, for {fitted.refusal}"
        if output.strict and profile.strict_output_schemas is not None:
            strict = fit_output_schema(schema, profile.strict_output_schemas)
            refusal = strict.refusal
            if not self._model.output.strict_schemas:
                refusal = f"{self._model.name} can only try"
            if refusal is None:
                fitted = strict
            else:
                output = replace(output, strict=False)
                reason = f"{profile.name} cannot promise to keep to it, for {refusal}"
                self._lost.append(OptionLoss(f"{_KEY}.strict", reason, Change.ALTERED))
        self._lost += (
            OptionLoss(f"{_KEY}.schema", f"at {profile.name}: {change}", Change.ALTERED)
            for change in fitted.changes
        )
        if not self._codec.output.has_name:
            return self._nameless(replace(output, schema=fitted.schema)), ""
        if self._codec.output.is_strict:
            output = self._strict(output)
        name = output.name or _text(schema.get("title"))
        called = None if name is None else wire_tool_name(name)
        if output.name is not None and called != output.name:
            reason = f"the schema {output.name!r} is sent as {called}"
            self._lost.append(OptionLoss(f"{_KEY}.name", reason, Change.ALTERED))
        return replace(output, schema=fitted.schema, name=called), ""

    def _nameless(self, output: OutputFormat) -> OutputFormat:
        """With name and description in the schema, where the protocol has no other place."""
        schema = dict(output.schema or {})
        for key, said in (("title", output.name), ("description", output.description)):
            if said and schema.setdefault(key, said) != said:
                place = "name" if key == "title" else key
                reason = f"{self._profile.name} has no place for it beside that of the schema"
                self._lost.append(OptionLoss(f"{_KEY}.{place}", reason))
        self._strict(output)
        return OutputFormat(schema)

    def _strict(self, output: OutputFormat) -> OutputFormat:
        """A wish that is kept to, where a provider knows no others."""
        if output.strict:
            return output
        reason = f"{self._profile.name} always keeps to a schema"
        self._lost.append(OptionLoss(f"{_KEY}.strict", reason, Change.ALTERED))
        return replace(output, strict=True)

    def _forced(
        self, output: OutputFormat, options: AdapterOptions, *, has_tools: bool
    ) -> ToolChoice | None:
        """The choice that makes the model answer with a call; None if it cannot be made to."""
        profile, model, choice = self._profile, self._model, options.tool_choice
        schema = output.schema or _OBJECT
        if not model.capabilities.supports_tools or "tool_choice" in profile.refused_options:
            return None
        if "forced_tools" in model.refused_options or schema.get("type") != "object":
            return None
        if self._thinks(options) and not self._calls_while_thinking():
            return None
        if choice is not None and choice.mode == "tool":
            # Somebody wants another tool called now; the answer comes after it.
            return None
        if has_tools and (choice is None or choice.mode != "none"):
            return ToolChoice("required")
        return ToolChoice("tool", OUTPUT_TOOL)

    def _thinks(self, options: AdapterOptions) -> bool:
        rule, asked = self._model.thinking, options.reasoning
        if rule is None:
            return False
        return rule.on_by_default if asked is None else not asked.is_off

    def _calls_while_thinking(self) -> bool:
        rule = self._model.thinking
        if rule is None:
            return True
        return rule.forced_tools and self._profile.protocol not in rule.no_tools_in

    def _say_json(self, messages: Sequence[Message]) -> None:
        """Speak of JSON, where a provider wants that to be done and nobody did."""
        if not self._model.output.needs_json_mention or _speaks_of_json(messages):
            return
        self.instruction = f"{_ALONE}."
        reason = f"{self._profile.name} wants to be told of JSON in words, too"
        self._lost.append(OptionLoss(_KEY, reason, Change.SYNTHESISED))

    def _loosen(self, output: OutputFormat) -> None:
        if output.schema is None or not output.strict:
            return
        reason = "nothing makes the model keep to the schema"
        self._lost.append(OptionLoss(f"{_KEY}.strict", reason, Change.ALTERED))

    def _alter(self, reason: str) -> None:
        self._lost.append(OptionLoss(_KEY, reason, Change.ALTERED))


def _takes(model: ModelFacts, kind: OutputKind, *, has_tools: bool) -> bool:
    return kind in model.output.supports and (model.output.with_tools or not has_tools)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _speaks_of_json(messages: Sequence[Message]) -> bool:
    return any(
        "json" in block.text.lower()
        for message in messages
        for block in message.content
        if type(block) is TextBlock
    )


def _words(output: OutputFormat) -> str:
    if output.schema is None:
        return f"{_ALONE}: one object."
    about = "".join(f"\n{said}" for said in (output.name, output.description) if said)
    schema = msgspec.json.encode(output.schema).decode()
    return f"{_ALONE}, which keeps to this JSON Schema:{about}\n{schema}"


def _answer_tool(output: OutputFormat) -> ToolDefinition:
    about = " ".join(said for said in (output.name, output.description) if said)
    return ToolDefinition(
        name=OUTPUT_TOOL,
        description=f"{_TOLD} {about}".rstrip(),
        input_schema=output.schema or _OBJECT,
        side_effects=SideEffects.NONE,
    )


@lru_cache(maxsize=64)
def instruction_message(words: str, session_id: str, role: Role) -> Message:
    """The message that asks in words; the same words are the same message."""
    return Message(
        id=hashed_tool_id(session_id, words).removeprefix("tu_"),
        session_id=session_id,
        role=role,
        content=(TextBlock(words),),
        created_at=datetime(1970, 1, 1, tzinfo=UTC),
    )


_read = msgspec.json.Decoder().decode
_REASON = "the answer stood where thoughts stand, and is said as text, too"


class JsonInThinking:
    """Finds answers of one form that stand among thoughts."""

    def __init__(self, output: OutputFormat, adapter: str, tell: Callable[[Loss], None]) -> None:
        self._output = output
        self._adapter = adapter
        self._tell = tell

    def with_output_text(self, message: Message) -> Message:
        """The message with its answer as text."""
        found = self.find(message)
        if found is None:
            return message
        self._tell(
            Loss(
                session_id=message.session_id,
                message_id=message.id,
                block_type="thinking",
                adapter=self._adapter,
                reason=_REASON,
                change=Change.SYNTHESISED,
                path=f"$.content[{len(message.content)}]",
            )
        )
        return replace(message, content=(*message.content, TextBlock(found)))

    def find(self, message: Message) -> str | None:
        """The answer among the thoughts of a message that says nothing else."""
        thoughts: list[str] = []
        for block in message.content:
            if isinstance(block, ToolUseBlock) or (
                isinstance(block, TextBlock) and block.text.strip()
            ):
                return None
            if isinstance(block, ThinkingBlock):
                thoughts.append(block.text)
        text = "".join(thoughts).strip()
        return text if text and self._is_kept_to(text) else None

    def _is_kept_to(self, text: str) -> bool:
        try:
            value = _read(text)
        except (ValueError, RecursionError):
            return False
        if self._output.schema is None:
            return isinstance(value, dict)
        try:
            return not _check(msgspec.json.encode(self._output.schema))(value)
        except InvalidValueError:
            return False


@lru_cache(maxsize=64)
def _check(schema: bytes) -> Validator:
    return compile_output_schema(_read(schema))


class JsonInThinkingDecoder:
    """A stream reader that says an answer which stood among thoughts."""

    def __init__(self, reader: StreamDecoder, misplaced: JsonInThinking) -> None:
        self._reader = reader
        self._misplaced = misplaced

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        message = self._reader.message
        found = self._misplaced.find(message)
        if found is None:
            return message
        return replace(message, content=(*message.content, TextBlock(found)))

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        return self._read(self._reader.feed(chunk))

    def finish(self) -> list[StreamEvent]:
        """The last events."""
        return self._read(self._reader.finish())

    def _read(self, events: list[StreamEvent]) -> list[StreamEvent]:
        end = events[-1] if events else None
        if not isinstance(end, MessageComplete):
            return events
        message = self._misplaced.with_output_text(end.message)
        if message is end.message:
            return events
        last = message.content[-1]
        text = last.text if isinstance(last, TextBlock) else ""
        said = TextDelta(end.message_id, len(message.content) - 1, text)
        return [*events[:-1], said, replace(end, message=message)]
