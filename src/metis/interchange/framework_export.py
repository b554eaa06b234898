"""Conversations as the messages of frameworks: pydantic-ai, the AI SDK of Vercel, and ATIF."""

from typing import Any

import msgspec

from metis.canonical.blocks import (
    ContentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message, Role
from metis.interchange.claude_code_records import js_time
from metis.interchange.export import Conversation, ExportedFile, ExportLosses
from metis.projection.loss import Change
from metis.wire.json_access import Wire

ATIF_VERSION = "ATIF-v1.4"
_INSTRUCTIONS = (Role.SYSTEM, Role.DEVELOPER)


def write_pydantic_ai(conversation: Conversation) -> ExportedFile:
    """Write messages that the `ModelMessagesTypeAdapter` of pydantic-ai reads."""
    losses = ExportLosses("pydantic-ai")
    messages: list[Wire] = []
    names = _tool_names(conversation)
    for message in conversation.messages:
        if message.role is Role.ASSISTANT:
            messages.append(_pydantic_response(message, losses))
            continue
        parts = _pydantic_request(message, names, losses)
        # Instructions, results and the next prompt are one request.
        if messages and messages[-1]["kind"] == "request":
            messages[-1]["parts"] += parts
        elif parts:
            messages.append({"kind": "request", "parts": parts})
    return _file(messages, losses)


def _pydantic_request(message: Message, names: Wire, losses: ExportLosses) -> list[Wire]:
    moment = js_time(message.created_at)
    if message.role is Role.TOOL and isinstance(message.content[0], ToolResultBlock):
        result = message.content[0]
        part: Wire = {"content": _result_text(message, result, losses), "timestamp": moment}
        part |= {"tool_name": names.get(result.tool_use_id, ""), "tool_call_id": result.tool_use_id}
        return [{**part, "part_kind": "retry-prompt" if result.is_error else "tool-return"}]
    content: list[Any] = []
    for index, block in enumerate(message.content):
        image = _image_url(block)
        if isinstance(block, TextBlock):
            content.append(block.text)
        elif isinstance(block, ImageBlock) and block.source.kind == "base64":
            data = {"data": block.source.data, "media_type": block.media_type}
            content.append({**data, "kind": "binary"})
        elif image is not None:
            content.append({"url": image, "kind": "image-url"})
        else:
            losses.add(message, index, block, "pydantic-ai has no part for it", Change.DROPPED)
    is_text = all(isinstance(item, str) for item in content)
    kind = "system-prompt" if message.role in _INSTRUCTIONS else "user-prompt"
    value: Any = "\n".join(content) if is_text else content
    return [{"content": value, "timestamp": moment, "part_kind": kind}] if content else []


def _pydantic_response(message: Message, losses: ExportLosses) -> Wire:
    parts: list[Wire] = []
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                parts.append({"content": block.text, "part_kind": "text"})
            case ThinkingBlock():
                part: Wire = {"content": block.text, "part_kind": "thinking"}
                seal = {"signature": block.signature, "provider_name": block.issuer}
                parts.append(part | {k: v for k, v in seal.items() if v is not None})
            case ToolUseBlock():
                call: Wire = {"tool_name": block.name, "args": dict(block.input)}
                parts.append({**call, "tool_call_id": block.id, "part_kind": "tool-call"})
            case _:
                losses.add(message, index, block, "pydantic-ai has no part for it", Change.DROPPED)
    response: Wire = {"kind": "response", "parts": parts, "timestamp": js_time(message.created_at)}
    provider, _, model = (message.metadata.model or "").partition(":")
    if model:
        response |= {"model_name": model, "provider_name": provider}
    usage = message.metadata.usage
    if usage is not None:
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.output_tokens}
        response["usage"] = {**counts, "cache_read_tokens": usage.cached_input_tokens}
    return response


def write_vercel(conversation: Conversation) -> ExportedFile:
    """Write the UI messages of the AI SDK; results are in the parts of their calls."""
    losses = ExportLosses("vercel")
    messages: list[Wire] = []
    calls: dict[str, Wire] = {}
    for message in conversation.messages:
        block = message.content[0] if message.content else None
        if message.role is Role.TOOL and isinstance(block, ToolResultBlock):
            _add_vercel_result(message, block, calls.get(block.tool_use_id), losses)
            continue
        parts = _vercel_parts(message, calls, losses)
        if message.role is Role.ASSISTANT:
            parts.insert(0, {"type": "step-start"})
            # One message of the UI holds all steps of a turn.
            if messages and messages[-1]["role"] == "assistant":
                messages[-1]["parts"] += parts
                continue
        role = "system" if message.role in _INSTRUCTIONS else str(message.role.value)
        if parts:
            messages.append({"id": message.id, "role": role, "parts": parts})
    return _file(messages, losses)


def _vercel_parts(message: Message, calls: dict[str, Wire], losses: ExportLosses) -> list[Wire]:
    parts: list[Wire] = []
    for index, block in enumerate(message.content):
        image = _image_url(block)
        match block:
            case TextBlock():
                parts.append({"type": "text", "text": block.text})
            case ThinkingBlock():
                part: Wire = {"type": "reasoning", "text": block.text}
                if block.signature is not None and block.issuer:
                    part["providerMetadata"] = {block.issuer: {"signature": block.signature}}
                parts.append(part)
            case ToolUseBlock():
                call: Wire = {"type": "dynamic-tool", "toolName": block.name}
                call |= {"toolCallId": block.id, "state": "input-available"}
                calls[block.id] = {**call, "input": dict(block.input)}
                parts.append(calls[block.id])
            case ImageBlock() if image is not None:
                parts.append({"type": "file", "mediaType": block.media_type, "url": image})
            case _:
                losses.add(message, index, block, "the AI SDK has no part for it", Change.DROPPED)
    return parts


def _add_vercel_result(
    message: Message, result: ToolResultBlock, call: Wire | None, losses: ExportLosses
) -> None:
    if call is None:
        losses.add(message, 0, result, "its call is not in the conversation", Change.DROPPED)
        return
    text = _result_text(message, result, losses)
    state = {"state": "output-error", "errorText": text}
    call |= state if result.is_error else {"state": "output-available", "output": text}


def write_atif(conversation: Conversation) -> ExportedFile:
    """Write a trajectory of Harbor: a step for each message, results beside their calls."""
    losses = ExportLosses("atif")
    steps: list[Wire] = []
    by_call: dict[str, Wire] = {}
    for message in conversation.messages:
        block = message.content[0] if message.content else None
        if message.role is Role.TOOL and isinstance(block, ToolResultBlock):
            step = by_call.get(block.tool_use_id)
            if step is None:
                losses.add(message, 0, block, "its call is not in the conversation", Change.DROPPED)
                continue
            answer = {"source_call_id": block.tool_use_id}
            answer["content"] = _result_text(message, block, losses)
            step.setdefault("observation", {"results": []})["results"].append(answer)
            continue
        step = _atif_step(message, len(steps) + 1, losses)
        by_call |= {call["tool_call_id"]: step for call in step.get("tool_calls", ())}
        steps.append(step)
    model = (conversation.session.active_model or "").partition(":")[2]
    agent: Wire = {"name": "metis", "version": "1", **({"model_name": model} if model else {})}
    document: Wire = {"schema_version": ATIF_VERSION, "session_id": conversation.session.id}
    return _file({**document, "agent": agent, "steps": steps}, losses)


def _atif_step(message: Message, number: int, losses: ExportLosses) -> Wire:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Wire] = []
    for index, block in enumerate(message.content):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.text)
                if block.signature is not None:
                    losses.add(message, index, block, "without its signature", Change.ALTERED)
            case ToolUseBlock():
                call: Wire = {"tool_call_id": block.id, "function_name": block.name}
                calls.append({**call, "arguments": dict(block.input)})
            case _:
                losses.add(message, index, block, "ATIF has no field for it", Change.DROPPED)
    source = {Role.ASSISTANT: "agent", Role.USER: "user"}.get(message.role, "system")
    step: Wire = {"step_id": number, "timestamp": js_time(message.created_at), "source": source}
    step["message"] = "\n".join(texts)
    if thoughts:
        step["reasoning_content"] = "\n".join(thoughts)
    if calls:
        step["tool_calls"] = calls
    usage = message.metadata.usage
    if usage is not None:
        counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens}
        cached = {"cached_tokens": usage.cached_input_tokens, "cost_usd": float(usage.cost_usd)}
        step["metrics"] = counts | cached
    if source == "agent" and message.metadata.model is not None:
        step["model_name"] = message.metadata.model.partition(":")[2]
    return step


def _tool_names(conversation: Conversation) -> Wire:
    blocks = (block for message in conversation.messages for block in message.content)
    return {block.id: block.name for block in blocks if isinstance(block, ToolUseBlock)}


def _image_url(block: ContentBlock) -> str | None:
    if not isinstance(block, ImageBlock):
        return None
    if block.source.kind == "url":
        return block.source.data
    is_inline = block.source.kind == "base64"
    return f"data:{block.media_type};base64,{block.source.data}" if is_inline else None


def _result_text(message: Message, result: ToolResultBlock, losses: ExportLosses) -> str:
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    if len(texts) < len(result.content):
        losses.add(message, 0, result, "only the texts of the result are written", Change.ALTERED)
    return "\n".join(texts)


def _file(value: Any, losses: ExportLosses) -> ExportedFile:
    data = msgspec.json.format(msgspec.json.encode(value))
    return ExportedFile(data + b"\n", tuple(losses.losses))
