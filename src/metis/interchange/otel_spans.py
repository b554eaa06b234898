"""OpenTelemetry spans of model calls: messages in attributes, in three conventions.

Each span has the whole history of its call, so conversations are put together from spans whose
messages continue those of an earlier one.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.message import Role
from metis.interchange.foreign_content import (
    Call,
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
from metis.interchange.message_list import ForeignConversation, ForeignMessage, MessageListFormat
from metis.interchange.source import Source
from metis.wire.json_access import Wire, maybe_object, maybe_text


class OtelSpans(MessageListFormat):
    """OpenTelemetry spans with messages, in the three conventions that are in use."""

    name = "otel"
    system = "otel"

    def fits(self, source: Source) -> bool:
        """Return whether a span has attributes with messages."""
        sample = source.sample()
        attribute_names = (b"gen_ai.input.messages", b"gen_ai.prompt.0", b"llm.input_messages.0")
        return any(name in sample for name in attribute_names) and b'"$defs"' not in sample[:200]

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield conversations: a span whose messages continue those of another belongs to it."""
        threads: list[_Thread] = []
        by_prefix: dict[bytes, _Thread] = {}
        names: Counter[str] = Counter()
        for span in sorted(_spans(source, self), key=_start_of):
            attributes = _attributes(span)
            messages = [*_span_input(attributes), *_span_output(attributes)]
            if not messages:
                continue
            digests = _prefix_digests(messages)
            # The thread with the longest common history. Found by digest: comparing each span with
            # all others would take quadratic time.
            thread = next((by_prefix[key] for key in reversed(digests) if key in by_prefix), None)
            if thread is None:
                trace = span.get("traceId") or span.get("trace_id") or source.identity
                name = str(attributes.get("gen_ai.conversation.id") or trace)
                thread = _Thread(f"{name}#{names[name]}" if names[name] else name)
                names[name] += 1
                threads.append(thread)
            by_prefix.pop(thread.digest, None)
            thread.extend(messages, attributes, time_of(_seconds(span)))
            thread.digest = digests[-1]
            by_prefix[thread.digest] = thread
        for thread in threads:
            yield ForeignConversation(foreign_id=thread.foreign_id, messages=thread.messages)


def _prefix_digests(messages: Sequence[Wire]) -> list[bytes]:
    """Return a digest of the first message, of the first two, and so on."""
    running, digests = sha256(), list[bytes]()
    for message in messages:
        running.update(msgspec.json.encode(message, order="sorted"))
        digests.append(running.digest())
    return digests


class _Thread:
    """A conversation that several spans are part of."""

    def __init__(self, foreign_id: str) -> None:
        self.foreign_id = foreign_id
        self.digest = b""
        """The digest of all its messages."""
        self.messages: list[ForeignMessage] = []

    def extend(self, messages: Sequence[Wire], attributes: Wire, time: Any) -> None:
        """Add the messages of a span that are not there yet."""
        names = {"input": "gen_ai.usage.input_tokens", "output": "gen_ai.usage.output_tokens"}
        model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")
        provider = attributes.get("gen_ai.provider.name") or attributes.get("gen_ai.system")
        for number in range(len(self.messages), len(messages)):
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


_OTEL_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "gcp.gemini": "gemini",
    "aws.bedrock": "bedrock-converse",
    "azure.ai.openai": "azure",
}


_SPAN_LISTS = ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans", "data")


def _spans(source: Source, file_format: MessageListFormat) -> list[Wire]:
    records = [record.fields for record in source.records()]
    values: deque[object] = deque(records if any(records) else [file_format.document(source)])
    spans: list[Wire] = []
    while values:
        value = values.popleft()
        if isinstance(value, list):
            values.extend(cast("list[object]", value))
            continue
        fields = maybe_object(value)
        if "attributes" in fields and ("name" in fields or "traceId" in fields):
            spans.append(fields)
        values.extend(fields[key] for key in _SPAN_LISTS if isinstance(fields.get(key), list))
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
    raw = span.get("attributes")
    if isinstance(raw, dict):
        return maybe_object(raw)
    attributes: Wire = {}
    for item in objects(raw):
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
        [{key: message[key] for key in message if key != "finish_reason"} for message in listed]
        or _numbered(attributes, "gen_ai.completion.", "")
        or _numbered(attributes, "llm.output_messages.", "message.")
    )


def _json_list(value: object) -> list[Wire]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
