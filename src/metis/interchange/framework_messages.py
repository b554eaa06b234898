"""Message lists of Python and JavaScript libraries, and trajectories.

pydantic-ai, LangChain, the Vercel AI SDK and ATIF, and the items of the OpenAI Agents SDK.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metis.canonical.blocks import TextBlock, ThinkingBlock
from metis.canonical.message import Role
from metis.interchange.foreign_content import (
    Call,
    Part,
    Result,
    content_block,
    list_digest,
    objects,
    opaque,
    provider_model,
    role_of,
    text_parts,
    time_of,
    to_text,
    usage_of,
)
from metis.interchange.message_list import ForeignConversation, ForeignMessage, MessageListFormat
from metis.interchange.source import Source
from metis.wire.json_access import Wire, maybe_list, maybe_object, maybe_text


class _ListFormat(MessageListFormat):
    """A document that is a list of messages, or an object with one."""

    def listed(self, document: object) -> list[Wire]:
        """Return the messages of a document; none if it is of another format."""
        return objects(document) or objects(maybe_object(document).get("messages"))

    def is_message(self, message: Wire) -> bool:
        """Return whether an object is a message of this format."""
        raise NotImplementedError

    def messages(self, listed: Sequence[Wire]) -> Iterator[ForeignMessage]:
        """Yield the messages."""
        raise NotImplementedError

    def fits(self, source: Source) -> bool:
        """Return whether the first messages are of this format."""
        messages = self.listed(source.sample_document())[:3]
        if not messages:
            # The document is larger than the sample: only its first item is decoded.
            match = re.match(rb"\s*\[\s*(\{)", source.sample())
            decoded = _first_item(source.sample()[match.start(1) :]) if match else None
            messages = [] if decoded is None else [decoded]
        return bool(messages) and all(map(self.is_message, messages))

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the one conversation of the document."""
        document = self.document(source)
        listed = self.listed(document)
        foreign_id = maybe_text(maybe_object(document).get("id"))
        yield ForeignConversation(
            foreign_id=foreign_id or source.identity or list_digest(listed),
            messages=list(self.messages(listed)),
        )


def _first_item(text: bytes) -> Wire | None:
    """Return the object that a text begins with, if it is complete."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return maybe_object(value)


class PydanticAi(_ListFormat):
    """`ModelMessagesTypeAdapter.dump_json` of pydantic-ai."""

    name = "pydantic-ai"
    system = "pydantic-ai"

    def is_message(self, message: Wire) -> bool:
        """Return whether an object is a request or a response with parts."""
        return message.get("kind") in ("request", "response") and isinstance(
            message.get("parts"), list
        )

    def messages(self, listed: Sequence[Wire]) -> Iterator[ForeignMessage]:
        """Yield the messages; a request can hold prompts and results."""
        for at, message in enumerate(listed, 1):
            time = time_of(message.get("timestamp"))
            parts = objects(message.get("parts"))
            instructions = maybe_text(message.get("instructions"))
            if instructions and at == 1:
                yield ForeignMessage(
                    role=Role.SYSTEM, parts=[TextBlock(instructions)], key="instructions"
                )
            if message.get("kind") == "response":
                names = {"input": "input_tokens", "output": "output_tokens"}
                names["cached"] = "cache_read_tokens"
                provider = maybe_text(message.get("provider_name"))
                yield ForeignMessage(
                    role=Role.ASSISTANT,
                    parts=[block for part in parts for block in _pydantic_response_part(part)],
                    at=at,
                    time=time,
                    model=provider_model(message.get("model_name"), provider),
                    usage=usage_of(maybe_object(message.get("usage")), names),
                    response_id=maybe_text(message.get("provider_response_id")),
                )
                continue
            for number, part in enumerate(parts):
                role, blocks = _pydantic_request_part(part)
                moment = time_of(part.get("timestamp")) or time
                key = f"{at}.{number}"
                yield ForeignMessage(role=role, parts=blocks, at=at, key=key, time=moment)


def _pydantic_request_part(part: Wire) -> tuple[Role, list[Part]]:
    content, kind = part.get("content"), part.get("part_kind")
    name, foreign_id = maybe_text(part.get("tool_name")), maybe_text(part.get("tool_call_id"))
    match kind:
        case "system-prompt" | "instruction":
            return Role.SYSTEM, list(text_parts(content, "pydantic-ai"))
        case "tool-return" | "builtin-tool-return":
            is_error = part.get("outcome") not in (None, "success")
            blocks = text_parts(content, "pydantic-ai")
            return Role.USER, [Result(foreign_id, name or "", blocks, is_error)]
        case "retry-prompt" if name:
            text = content if isinstance(content, str) else to_text(content)
            return Role.USER, [Result(foreign_id, name, [TextBlock(text)], is_error=True)]
        case "user-prompt" | "retry-prompt":
            return Role.USER, list(text_parts(content, "pydantic-ai")) or [TextBlock("")]
        case _:
            return Role.USER, [opaque(part, "pydantic-ai")]


def _pydantic_response_part(part: Wire) -> list[Part]:
    content = part.get("content")
    match part.get("part_kind"):
        case "text":
            return [TextBlock(content if isinstance(content, str) else "")]
        case "thinking":
            signature = maybe_text(part.get("signature"))
            issuer = maybe_text(part.get("provider_name"))
            text = content if isinstance(content, str) else ""
            return [ThinkingBlock(text, signature=signature, issuer=issuer if signature else None)]
        case "tool-call":
            name = maybe_text(part.get("tool_name")) or "tool"
            return [Call(maybe_text(part.get("tool_call_id")), name, part.get("args") or {})]
        case _:
            return [opaque(part, "pydantic-ai")]


class LangChain(_ListFormat):
    """`messages_to_dict` of LangChain, and messages as its serialiser writes them."""

    name = "langchain"
    system = "langchain"

    def is_message(self, message: Wire) -> bool:
        """Return whether an object is a message with data, or a serialised one."""
        kind = message.get("type")
        if kind == "constructor":
            return isinstance(message.get("kwargs"), dict) and "id" in message
        return isinstance(kind, str) and isinstance(message.get("data"), dict)

    def messages(self, listed: Sequence[Wire]) -> Iterator[ForeignMessage]:
        """Yield the messages."""
        for at, message in enumerate(listed, 1):
            kind, data = _langchain_kind(message)
            role = _LANGCHAIN_ROLES.get(kind, Role.USER)
            content = text_parts(data.get("content"), "langchain")
            if kind == "tool":
                foreign_id, name = (
                    maybe_text(data.get("tool_call_id")),
                    maybe_text(data.get("name")),
                )
                failed = data.get("status") == "error"
                yield ForeignMessage(
                    role=role, parts=[Result(foreign_id, name or "", content, failed)], at=at
                )
                continue
            parts: list[Part] = [
                block for block in content if getattr(block, "kind", None) != "tool_use"
            ]
            for call in objects(data.get("tool_calls")):
                name = maybe_text(call.get("name")) or "tool"
                parts.append(Call(maybe_text(call.get("id")), name, call.get("args") or {}))
            for call in objects(data.get("invalid_tool_calls")):
                name = maybe_text(call.get("name")) or "tool"
                parts.append(Call(maybe_text(call.get("id")), name, call.get("args")))
            metadata = maybe_object(data.get("response_metadata"))
            model = metadata.get("model_name") or metadata.get("model")
            names = {"input": "input_tokens", "output": "output_tokens"}
            yield ForeignMessage(
                role=role,
                parts=parts or [TextBlock("")],
                at=at,
                key=maybe_text(data.get("id")) or str(at),
                model=provider_model(model) if role is Role.ASSISTANT else None,
                usage=usage_of(maybe_object(data.get("usage_metadata")), names),
                response_id=maybe_text(data.get("id")),
            )


_LANGCHAIN_ROLES = {
    "human": Role.USER,
    "ai": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "tool": Role.USER,
}


def _langchain_kind(message: Wire) -> tuple[str, Wire]:
    if message.get("type") == "constructor":
        name = str((maybe_list(message.get("id")) or [""])[-1])
        kind = name.removesuffix("Chunk").removesuffix("Message").lower()
        return kind, maybe_object(message.get("kwargs"))
    kind = str(message.get("type")).removesuffix("MessageChunk").lower()
    return kind, maybe_object(message.get("data"))


class Vercel(_ListFormat):
    """`UIMessage` lists of the Vercel AI SDK."""

    name = "vercel"
    system = "vercel"

    def is_message(self, message: Wire) -> bool:
        """Return whether an object has a role and parts with types."""
        parts = objects(message.get("parts"))
        return (
            role_of(message.get("role")) is not None
            and isinstance(message.get("parts"), list)
            and all(isinstance(part.get("type"), str) for part in parts)
        )

    def messages(self, listed: Sequence[Wire]) -> Iterator[ForeignMessage]:
        """Yield the messages."""
        for at, message in enumerate(listed, 1):
            metadata = maybe_object(message.get("metadata"))
            yield ForeignMessage(
                role=role_of(message.get("role"), Role.USER) or Role.USER,
                parts=[
                    item for part in objects(message.get("parts")) for item in _vercel_part(part)
                ],
                at=at,
                key=maybe_text(message.get("id")) or str(at),
                time=time_of(metadata.get("createdAt") or message.get("createdAt")),
                model=provider_model(metadata.get("model")),
            )


def _vercel_part(part: Wire) -> list[Part]:
    kind = str(part.get("type"))
    if kind == "reasoning":
        signature, issuer = _vercel_seal(maybe_object(part.get("providerMetadata")))
        text = maybe_text(part.get("text")) or ""
        return [ThinkingBlock(text, signature=signature, issuer=issuer if signature else None)]
    if kind.startswith("tool-") or kind == "dynamic-tool":
        name = maybe_text(part.get("toolName")) or kind.removeprefix("tool-")
        foreign_id = maybe_text(part.get("toolCallId"))
        parts: list[Part] = [Call(foreign_id, name, part.get("input") or {})]
        if part.get("state") == "output-error":
            text = maybe_text(part.get("errorText")) or ""
            parts.append(Result(foreign_id, name, [TextBlock(text)], is_error=True))
        elif "output" in part:
            output = part["output"]
            text = output if isinstance(output, str) else to_text(output)
            parts.append(Result(foreign_id, name, [TextBlock(text)]))
        return parts
    if kind == "file" and isinstance(part.get("url"), str):
        block = content_block({**part, "type": "file"}, "vercel")
        return [] if block is None else [block]
    if kind == "step-start":
        return []  # a mark between two model calls, with no content
    block = content_block(part, "vercel")
    return [] if block is None else [block]


def _vercel_seal(metadata: Mapping[str, Any]) -> tuple[str | None, str | None]:
    for issuer, data in metadata.items():
        fields = maybe_object(data)
        for name in ("signature", "thoughtSignature", "reasoningEncryptedContent"):
            if isinstance(fields.get(name), str):
                return fields[name], "gemini" if issuer == "google" else issuer
    return None, None


class Atif(MessageListFormat):
    """Trajectories in the ATIF form of agent benchmarks."""

    name = "atif"
    system = "atif"

    def fits(self, source: Source) -> bool:
        """Return whether the document is a trajectory, or an object of several."""
        document = source.sample_document()
        if document is None:
            return b'"ATIF-v' in source.sample()[:4096]
        return bool(_trajectories(document))

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the trajectories of the document."""
        for number, trajectory in enumerate(_trajectories(self.document(source)), 1):
            agent = maybe_object(trajectory.get("agent"))
            foreign_id = maybe_text(trajectory.get("session_id"))
            yield ForeignConversation(
                foreign_id=foreign_id or f"{source.identity}#{number}",
                version=maybe_text(agent.get("version")) or "",
                messages=list(_atif_messages(objects(trajectory.get("steps")), agent)),
            )


def _trajectories(document: object) -> list[Wire]:
    top = maybe_object(document)
    values = [top] if "steps" in top else [maybe_object(value) for value in top.values()]
    return [value for value in values if str(value.get("schema_version", "")).startswith("ATIF")]


_ATIF_USAGE = {"input": "prompt_tokens", "output": "completion_tokens", "cached": "cached_tokens"}


def _atif_messages(steps: Sequence[Wire], agent: Wire) -> Iterator[ForeignMessage]:
    for at, step in enumerate(steps, 1):
        role = role_of(step.get("source"), Role.USER) or Role.USER
        parts: list[Part] = []
        thinking = maybe_text(step.get("reasoning_content"))
        if thinking and role is Role.ASSISTANT:
            parts.append(ThinkingBlock(thinking))
        parts += text_parts(step.get("message"), "atif")
        for call in objects(step.get("tool_calls")):
            name = maybe_text(call.get("function_name")) or "tool"
            parts.append(Call(maybe_text(call.get("tool_call_id")), name, call.get("arguments")))
        for result in objects(maybe_object(step.get("observation")).get("results")):
            content = text_parts(result.get("content"), "atif")
            foreign_id = maybe_text(result.get("source_call_id"))
            # A result without a call is what the environment showed, as after a system step.
            parts += [Result(foreign_id, "", content)] if foreign_id else content
        model = step.get("model_name") or agent.get("model_name")
        yield ForeignMessage(
            role=role,
            parts=parts or [TextBlock("")],
            at=at,
            key=str(step.get("step_id") or at),
            time=time_of(step.get("timestamp")),
            model=provider_model(model) if role is Role.ASSISTANT else None,
            usage=usage_of(maybe_object(step.get("metrics")), _ATIF_USAGE),
            response_id=f"step {step.get('step_id') or at}",
        )


def responses_messages(items: Sequence[Wire]) -> Iterator[ForeignMessage]:
    """Yield the items of the Responses protocol as messages, one for each item."""
    for at, item in enumerate(items, 1):
        role, parts = _responses_item(item)
        key = maybe_text(item.get("id")) or str(at)
        yield ForeignMessage(role=role, parts=parts or [TextBlock("")], at=at, key=f"{key}-{at}")


def _responses_item(item: Wire) -> tuple[Role, list[Part]]:
    kind, role = item.get("type"), role_of(item.get("role"))
    call_id = maybe_text(item.get("call_id"))
    if role is not None and kind in (None, "message"):
        return role, list(text_parts(item.get("content"), "openai"))
    if kind == "function_call":
        name = maybe_text(item.get("name")) or "tool"
        return Role.ASSISTANT, [Call(call_id, name, item.get("arguments"))]
    if kind == "function_call_output":
        return Role.USER, [Result(call_id, "", text_parts(item.get("output"), "openai"))]
    if kind != "reasoning":
        return Role.ASSISTANT, [opaque(item, "openai")]
    texts = [maybe_text(part.get("text")) or "" for part in objects(item.get("summary"))]
    seal = maybe_text(item.get("encrypted_content"))
    block = ThinkingBlock(
        "\n".join(texts),
        signature=seal,
        issuer="openai" if seal else None,
        id=maybe_text(item.get("id")),
    )
    return Role.ASSISTANT, [block]
