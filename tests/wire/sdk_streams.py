"""Split whole responses into the stream events that each provider documents.

Written from the types of stream events in the official SDKs, independently of the encoders of
metis, which may write other events than a provider sends.
"""

import json
from collections.abc import Iterator
from typing import Any

from metis.streaming.aws_event_stream import encode_event_frame

Body = dict[str, Any]


def stream_of(protocol: str, body: Body) -> bytes:
    """Return the bytes with which a provider streams a response."""
    events = STREAMS[protocol](json.loads(json.dumps(body)))
    match protocol:
        case "bedrock_converse":
            return b"".join(_aws_frame(*event) for event in events)
        case "ollama":
            return b"".join(_json(event) + b"\n" for event in events)
        case "anthropic" | "openai_responses":
            return b"".join(
                b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _json(event))
                for event in events
            )
        case "openai_chat":
            lines = b"".join(b"data: %b\n\n" % _json(event) for event in events)
            return lines + b"data: [DONE]\n\n"
        case _:
            return b"".join(b"data: %b\r\n\r\n" % _json(event) for event in events)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _aws_frame(name: str, body: Body) -> bytes:
    headers = {
        ":event-type": name,
        ":content-type": "application/json",
        ":message-type": "event",
    }
    return encode_event_frame(headers, _json(body))


def _pieces(text: str) -> list[str]:
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def _anthropic(body: Body) -> Iterator[Body]:
    end = {key: body.get(key) for key in ("stop_reason", "stop_sequence")}
    end |= {key: body.pop(key) for key in ("container", "stop_details") if key in body}
    late = {key: body.pop(key) for key in ("context_management",) if key in body}
    start: Body = {**body, "content": [], "stop_reason": None, "stop_sequence": None}
    start["usage"] = {**body["usage"], "output_tokens": 1}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(body["content"]):
        opened, deltas = _anthropic_block(block)
        yield {"type": "content_block_start", "index": index, "content_block": opened}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
        yield {"type": "ping"}
    yield {"type": "message_delta", "delta": end, "usage": body["usage"], **late}
    yield {"type": "message_stop"}


def _anthropic_block(block: Body) -> tuple[Body, list[Body]]:
    match block["type"]:
        case "text":
            notes: list[Any] = block.get("citations") or []
            opened = {**block, "text": ""}
            if "citations" in block:
                opened["citations"] = [] if notes else block["citations"]
            deltas = [{"type": "citations_delta", "citation": note} for note in notes]
            return opened, [
                *({"type": "text_delta", "text": piece} for piece in _pieces(block["text"])),
                *deltas,
            ]
        case "thinking":
            texts = _pieces(block["thinking"])
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in texts]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            texts = _pieces(json.dumps(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in texts]
            return {**block, "input": {}}, deltas
        case "compaction":
            delta = {key: block[key] for key in block if key in ("content", "encrypted_content")}
            return {**block, **dict.fromkeys(delta)}, [{**delta, "type": "compaction_delta"}]
        case _:
            return block, []


def _chat(body: Body) -> Iterator[Body]:
    usage = body.pop("usage", None)
    choices = body.pop("choices")
    envelope = {**body, "object": "chat.completion.chunk"}
    for choice in choices:
        keys = {key: value for key, value in choice.items() if key not in ("message", "logprobs")}
        reason = keys.pop("finish_reason")
        deltas = list(_chat_deltas(choice["message"]))
        logprobs = choice.get("logprobs")
        for number, delta in enumerate(deltas):
            is_first = number == 0 and "logprobs" in choice
            note = {"logprobs": logprobs} if is_first else {}
            yield {**envelope, "choices": [{**keys, "delta": delta, "finish_reason": None, **note}]}
        yield {**envelope, "choices": [{**keys, "delta": {}, "finish_reason": reason}]}
    if usage is not None:
        yield {**envelope, "choices": [], "usage": usage}


def _chat_deltas(message: Body) -> Iterator[Body]:
    yield {"role": "assistant"}
    for key, value in message.items():
        match key:
            case "content" | "refusal" if isinstance(value, str):
                yield from ({key: piece} for piece in _pieces(value))
            case "audio" if value is not None:
                yield {"audio": {"id": value["id"], "transcript": ""}}
                words = _pieces(value["transcript"])
                yield from ({"audio": {"transcript": piece}} for piece in words)
                yield {"audio": {"data": value["data"]}}
                yield {"audio": {"expires_at": value["expires_at"]}}
            case "function_call" if value is not None:
                yield {"function_call": {**value, "arguments": ""}}
                yield from (
                    {"function_call": {"arguments": piece}} for piece in _pieces(value["arguments"])
                )
            case "tool_calls":
                for index, call in enumerate(value or ()):
                    yield from _chat_call(index, call)
            case "role":
                pass
            case _:
                yield {key: value}


def _chat_call(index: int, call: Body) -> Iterator[Body]:
    kind, key = ("custom", "input") if call["type"] == "custom" else ("function", "arguments")
    opened = {**call, kind: {**call[kind], key: ""}}
    yield {"tool_calls": [{"index": index, **opened}]}
    for piece in _pieces(call[kind][key]):
        yield {"tool_calls": [{"index": index, kind: {key: piece}}]}


def _responses(body: Body) -> Iterator[Body]:
    open_body: Body = {**body, "status": "in_progress", "output": [], "usage": None}
    open_body.pop("incomplete_details", None)
    events: list[Body] = [
        {"type": "response.created", "response": open_body},
        {"type": "response.in_progress", "response": open_body},
    ]
    for index, item in enumerate(body["output"]):
        place = {"output_index": index, "item_id": item.get("id")}
        events.append({"type": "response.output_item.added", **place, "item": _opened(item)})
        events += ({**event, **place} for event in _item_events(item))
        events.append({"type": "response.output_item.done", **place, "item": item})
    events.append({"type": f"response.{body['status']}", "response": body})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _opened(item: Body) -> Body:
    opened = dict(item)
    if "status" in item:
        opened["status"] = "in_progress"
    for key in ("content", "summary"):
        if isinstance(item.get(key), list):
            opened[key] = []
    for key in ("arguments", "input", "code"):
        if isinstance(item.get(key), str):
            opened[key] = ""
    for key in ("result", "output", "outputs", "results"):
        if key in item:
            opened[key] = None
    return opened


_TEXT_OF = {
    "function_call": ("arguments", "function_call_arguments"),
    "mcp_call": ("arguments", "mcp_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "code_interpreter_call": ("code", "code_interpreter_call_code"),
}
_STEPS = {
    "web_search_call": ("in_progress", "searching", "completed"),
    "file_search_call": ("in_progress", "searching", "completed"),
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "image_generation_call": ("in_progress", "generating", "completed"),
    "mcp_call": ("in_progress", "completed"),
    "mcp_list_tools": ("in_progress", "completed"),
}


def _item_events(item: Body) -> Iterator[Body]:
    kind = item["type"]
    yield from ({"type": f"response.{kind}.{step}"} for step in _STEPS.get(kind, ()))
    if kind in _TEXT_OF and isinstance(item.get(_TEXT_OF[kind][0]), str):
        key, name = _TEXT_OF[kind]
        for piece in _pieces(item[key]):
            yield {"type": f"response.{name}.delta", "delta": piece}
        yield {"type": f"response.{name}.done", key: item[key]}
    if kind == "image_generation_call" and item.get("result"):
        partial = {"partial_image_b64": item["result"], "partial_image_index": 0}
        yield {"type": "response.image_generation_call.partial_image", **partial}
    if kind == "reasoning":
        yield from _reasoning_events(item)
    if kind == "message":
        for number, part in enumerate(item["content"]):
            yield from ({**event, "content_index": number} for event in _part_events(part))


def _reasoning_events(item: Body) -> Iterator[Body]:
    for number, part in enumerate(item.get("summary") or ()):
        place, name = {"summary_index": number}, "response.reasoning_summary"
        yield {"type": f"{name}_part.added", **place, "part": {**part, "text": ""}}
        for piece in _pieces(part["text"]):
            yield {"type": f"{name}_text.delta", **place, "delta": piece}
        yield {"type": f"{name}_text.done", **place, "text": part["text"]}
        yield {"type": f"{name}_part.done", **place, "part": part}
    for number, part in enumerate(item.get("content") or ()):
        place = {"content_index": number}
        for piece in _pieces(part["text"]):
            yield {"type": "response.reasoning_text.delta", **place, "delta": piece}
        yield {"type": "response.reasoning_text.done", **place, "text": part["text"]}


def _part_events(part: Body) -> Iterator[Body]:
    key, name = ("refusal", "refusal") if part["type"] == "refusal" else ("text", "output_text")
    opened = {**part, key: ""}
    if "annotations" in part:
        opened["annotations"] = []
    yield {"type": "response.content_part.added", "part": opened}
    for number, piece in enumerate(_pieces(part.get(key) or "")):
        notes = {"logprobs": part["logprobs"]} if number == 0 and part.get("logprobs") else {}
        yield {"type": f"response.{name}.delta", "delta": piece, **notes}
    for number, note in enumerate(part.get("annotations") or ()):
        place = {"annotation_index": number, "annotation": note}
        yield {"type": "response.output_text.annotation.added", **place}
    yield {"type": f"response.{name}.done", key: part.get(key)}
    yield {"type": "response.content_part.done", "part": part}


def _gemini(body: Body) -> Iterator[Body]:
    candidates, usage = body.pop("candidates"), body.pop("usageMetadata", None)
    for candidate in candidates:
        content: Body = candidate.pop("content", None) or {}
        place = {"index": candidate["index"]} if "index" in candidate else {}
        parts: list[Body] = content.get("parts") or []
        for part in parts:
            is_text = set(part) <= {"text", "thought"} and isinstance(part.get("text"), str)
            pieces = [{**part, "text": each} for each in _pieces(part["text"])] if is_text else []
            for piece in pieces or [part]:
                one = {**place, "content": {**content, "parts": [piece]}}
                yield {**body, "candidates": [one]}
        last = {**candidate, "content": {"parts": [{"text": ""}], "role": "model"}}
        yield {**body, "candidates": [last], **({"usageMetadata": usage} if usage else {})}


def _converse(body: Body) -> Iterator[tuple[str, Body]]:
    message = body["output"]["message"]
    yield "messageStart", {"role": message["role"]}
    for index, part in enumerate(streamed_parts(message["content"])):
        place = {"contentBlockIndex": index}
        for name, content in _converse_part(part):
            yield name, {**content, **place}
        yield "contentBlockStop", place
    end = {"stopReason": body["stopReason"]}
    if "additionalModelResponseFields" in body:
        end["additionalModelResponseFields"] = body["additionalModelResponseFields"]
    yield "messageStop", end
    known = ("usage", "metrics", "trace", "performanceConfig", "serviceTier")
    yield "metadata", {key: body[key] for key in known if key in body}


STREAMED_BY_CONVERSE = frozenset(
    {"text", "toolUse", "toolResult", "image", "reasoningContent", "citationsContent"}
)


def streamed_parts(parts: list[Body]) -> list[Body]:
    """Return the parts for which Converse streams have events."""
    return [part for part in parts if not STREAMED_BY_CONVERSE.isdisjoint(part)]


def _converse_part(part: Body) -> Iterator[tuple[str, Body]]:
    def delta(value: Body) -> tuple[str, Body]:
        return "contentBlockDelta", {"delta": value}

    if "text" in part:
        yield from (delta({"text": piece}) for piece in _pieces(part["text"]))
    elif "toolUse" in part:
        call = dict(part["toolUse"])
        arguments = json.dumps(call.pop("input"))
        yield "contentBlockStart", {"start": {"toolUse": call}}
        yield from (delta({"toolUse": {"input": piece}}) for piece in _pieces(arguments))
    elif "toolResult" in part:
        result = dict(part["toolResult"])
        content = result.pop("content")
        yield "contentBlockStart", {"start": {"toolResult": result}}
        yield from (delta({"toolResult": [each]}) for each in content)
    elif "image" in part:
        image = part["image"]
        yield "contentBlockStart", {"start": {"image": {"format": image["format"]}}}
        yield delta({"image": {key: image[key] for key in image if key != "format"}})
    elif "reasoningContent" in part:
        yield from (delta({"reasoningContent": each}) for each in _reasoning(part))
    else:
        cited = part["citationsContent"]
        for content in cited.get("content") or ():
            yield from (delta({"text": piece}) for piece in _pieces(content["text"]))
        yield from (delta({"citation": note}) for note in cited.get("citations") or ())


def _reasoning(part: Body) -> Iterator[Body]:
    reasoning = part["reasoningContent"]
    text = reasoning.get("reasoningText")
    if text is None:
        yield reasoning
        return
    yield from ({"text": piece} for piece in _pieces(text["text"]))
    if "signature" in text:
        yield {"signature": text["signature"]}


def _ollama(body: Body) -> Iterator[Body]:
    message, logprobs = body.pop("message"), body.pop("logprobs", None)
    head = {key: body[key] for key in ("model", "created_at") if key in body}
    for key in ("thinking", "content"):
        for piece in _pieces(message.get(key) or ""):
            one = {"role": "assistant", "content": "", key: piece}
            yield {**head, "message": one, "done": False}
    late = {key: value for key, value in message.items() if key not in ("thinking", "content")}
    yield {**head, "message": {**late, "content": ""}, "done": False}
    empty = {"role": "assistant", "content": ""}
    if logprobs:
        yield {**head, "message": empty, "done": False, "logprobs": logprobs}
    yield {**body, "message": empty}


STREAMS: dict[str, Any] = {
    "anthropic": _anthropic,
    "openai_chat": _chat,
    "openai_responses": _responses,
    "gemini": _gemini,
    "bedrock_converse": _converse,
    "ollama": _ollama,
}
