"""OpenTelemetry spans of model calls: messages in attributes, in three conventions.

Each span has the whole history of its call, so conversations are put together from spans whose
messages continue those of an earlier one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.message import Role
from metis.interchange.message_list import (
    Call,
    ForeignConversation,
    ForeignMessage,
    MessageListFormat,
    Part,
    Result,
    content_block,
    objects,
    provider_model,
    role_of,
    text_parts,
    time_of,
    to_text,
    usage_of,
)
from metis.interchange.source import Source
from metis.wire.json_access import Wire, maybe_object, maybe_text


class OtelSpans(MessageListFormat):
    """OpenTelemetry spans with messages, in the three conventions that are in use."""

    name = "otel"
    system = "otel"

    def fits(self, source: Source) -> bool:
        """Return whether a span has attributes with messages."""
        sample = source.sample()
        marks = (b"gen_ai.input.messages", b"gen_ai.prompt.0", b"llm.input_messages.0")
        return any(mark in sample for mark in marks) and b'"$defs"' not in sample[:200]

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield conversations: a span whose messages continue those of another belongs to it."""
        threads: list[_Thread] = []
        for span in sorted(_spans(source, self), key=_start_of):
            attributes = _attributes(span)
            messages = [*_span_input(attributes), *_span_output(attributes)]
            if not messages:
                continue
            digests = [msgspec.json.encode(message, order="sorted") for message in messages]
            thread = next((one for one in threads if digests[: one.size] == one.digests), None)
            if thread is None:
                trace = span.get("traceId") or span.get("trace_id") or source.identity
                named = attributes.get("gen_ai.conversation.id")
                number = sum(1 for one in threads if one.foreign_id.startswith(str(named or trace)))
                thread = _Thread(f"{named or trace}{f'#{number}' if number else ''}")
                threads.append(thread)
            thread.extend(messages, digests, attributes, time_of(_seconds(span)))
        for thread in threads:
            yield ForeignConversation(foreign_id=thread.foreign_id, messages=thread.messages)


class _Thread:
    """A conversation that several spans are part of."""

    def __init__(self, foreign_id: str) -> None:
        self.foreign_id = foreign_id
        self.digests: list[bytes] = []
        self.messages: list[ForeignMessage] = []

    @property
    def size(self) -> int:
        """How many messages it has."""
        return len(self.digests)

    def extend(
        self, messages: Sequence[Wire], digests: list[bytes], attributes: Wire, time: Any
    ) -> None:
        """Add the messages of a span that are not there yet."""
        names = {"input": "gen_ai.usage.input_tokens", "output": "gen_ai.usage.output_tokens"}
        model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")
        provider = attributes.get("gen_ai.provider.name") or attributes.get("gen_ai.system")
        for number in range(self.size, len(messages)):
            role, parts = _otel_message(messages[number])
            is_last = number == len(messages) - 1 and role is Role.ASSISTANT
            self.messages.append(
                ForeignMessage(
                    role=role,
                    parts=parts,
                    at=number + 1,
                    time=time,
                    model=provider_model(model, _OTEL_PROVIDERS.get(str(provider)))
                    if role is Role.ASSISTANT
                    else None,
                    usage=usage_of(attributes, names) if is_last else None,
                )
            )
        self.digests = digests


_OTEL_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "gcp.gemini": "gemini",
    "aws.bedrock": "bedrock-converse",
    "azure.ai.openai": "azure",
}


_SPAN_LISTS = ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "data")


def _spans(source: Source, form: MessageListFormat) -> list[Wire]:
    records = [record.fields for record in source.records()]
    values: list[object] = list(records) if any(records) else [form.document(source)]
    spans: list[Wire] = []
    while values:
        value = values.pop(0)
        if isinstance(value, list):
            values = [*value, *values]
            continue
        fields = maybe_object(value)
        if "attributes" in fields and ("name" in fields or "traceId" in fields):
            spans.append(fields)
        for key in (
            "resourceSpans",
            "resource_spans",
            "scopeSpans",
            "scope_spans",
            "spans",
            "data",
        ):
            if isinstance(fields.get(key), list):
                values += fields[key]
    return spans


def _start_of(span: Wire) -> float:
    return _seconds(span) or 0.0


def _seconds(span: Wire) -> float | None:
    start = span.get("startTimeUnixNano") or span.get("start_time_unix_nano")
    try:
        return None if start is None else int(start) / 1e9
    except (TypeError, ValueError):
        return None


def _attributes(span: Wire) -> Wire:
    given = span.get("attributes")
    if isinstance(given, dict):
        return maybe_object(given)
    attributes: Wire = {}
    for item in objects(given):
        value = maybe_object(item.get("value"))
        plain = next(iter(value.values()), None)
        attributes[str(item.get("key"))] = plain
    return attributes


def _span_input(attributes: Wire) -> list[Wire]:
    system = _json_list(attributes.get("gen_ai.system_instructions"))
    listed = _json_list(attributes.get("gen_ai.input.messages"))
    first: list[Wire] = [{"role": "system", "parts": system}] if system else []
    return (
        first + listed
        or _numbered(attributes, "gen_ai.prompt.", "")
        or _numbered(attributes, "llm.input_messages.", "message.")
    )


def _span_output(attributes: Wire) -> list[Wire]:
    listed = _json_list(attributes.get("gen_ai.output.messages"))
    return (
        [{key: value for key, value in one.items() if key != "finish_reason"} for one in listed]
        or _numbered(attributes, "gen_ai.completion.", "")
        or _numbered(attributes, "llm.output_messages.", "message.")
    )


def _json_list(value: object) -> list[Wire]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []
    return objects(value)


_MAX_NUMBERED = 10_000


def _numbered(attributes: Wire, prefix: str, inner: str) -> list[Wire]:
    """Return messages whose fields are attributes with a number in their names."""
    messages: list[Wire] = []
    for number in range(_MAX_NUMBERED):
        start = f"{prefix}{number}.{inner}"
        role, content = attributes.get(f"{start}role"), attributes.get(f"{start}content")
        parts: list[Wire] = []
        if isinstance(content, str) and content:
            parts.append({"type": "text", "content": content})
        call_id = attributes.get(f"{start}tool_call_id")
        for call in range(_MAX_NUMBERED):
            at = f"{start}tool_calls.{call}."
            name = attributes.get(f"{at}name") or attributes.get(f"{at}tool_call.function.name")
            if name is None:
                break
            arguments = attributes.get(f"{at}arguments") or attributes.get(
                f"{at}tool_call.function.arguments"
            )
            wire_id = attributes.get(f"{at}id") or attributes.get(f"{at}tool_call.id")
            parts.append({"type": "tool_call", "id": wire_id, "name": name, "arguments": arguments})
        if role is None and not parts:
            break
        if role == "tool":
            parts = [{"type": "tool_call_response", "id": call_id, "response": content}]
        messages.append({"role": role or "assistant", "parts": parts})
    return messages


def _otel_message(message: Wire) -> tuple[Role, list[Part]]:
    parts: list[Part] = []
    for part in objects(message.get("parts")):
        name, foreign_id = maybe_text(part.get("name")), maybe_text(part.get("id"))
        if part.get("type") == "tool_call":
            parts.append(Call(foreign_id, name or "tool", part.get("arguments")))
        elif part.get("type") == "tool_call_response":
            response = part.get("response") if "response" in part else part.get("result")
            content: list[ContentBlock] = [TextBlock(to_text(response))]
            parts.append(Result(foreign_id, name or "", content))
        elif (block := content_block(part, "otel")) is not None:
            parts.append(block)
    role = role_of(message.get("role"), Role.USER) or Role.USER
    return role, parts or list(text_parts(message.get("content"), "otel")) or [TextBlock("")]
