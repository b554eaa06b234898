"""Draw consistent responses that have every type and field of the official SDKs.

The types alone allow what no server sends: two choices with one index, calls that share an id, a
finished response that is still in progress. `sound_responses` draws until every field of every
response type has been drawn, and makes each body consistent.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any, cast

import converse_samples
from sdk_samples import Drawer, kinds

Body = dict[str, Any]


@cache
def sound_responses(protocol: str, number: int) -> tuple[Body, ...]:
    """Return bodies of whole responses; together they have every type that the SDK defines."""
    drawn: Counter[Any] = Counter()
    bodies: list[Body] = []
    for seed in range(number):
        if protocol == "bedrock_converse":
            body = converse_samples.draw_response(seed, drawn)
        else:
            body = Drawer(protocol, seed, drawn).draw(kinds(protocol)[1])
        bodies.append(SOUND[protocol](body))
    return tuple(bodies)


def _with_unique(parts: list[Body], *keys: str) -> None:
    """Give each part an id of its own."""
    numbers = count(1)
    for part in parts:
        for key in keys:
            if isinstance(part.get(key), str):
                part[key] = f"{key}_{next(numbers)}"


def _with_text(parts: list[Body]) -> None:
    """Fill empty texts and thinking: providers send no empty parts."""
    for part in parts:
        for key in ("text", "thinking"):
            if part.get(key) == "":
                part[key] = "words"


def _sound_anthropic(body: Body) -> Body:
    parts = body["content"]
    _with_text(parts)
    usage = body["usage"]
    usage["output_tokens"] = 2048  # greater than the thinking tokens, which it includes
    if usage.get("cache_creation"):
        usage["cache_creation"] = {"ephemeral_1h_input_tokens": 3, "ephemeral_5m_input_tokens": 4}
        usage["cache_creation_input_tokens"] = 7
    _with_unique([part for part in parts if str(part.get("type")).endswith("tool_use")], "id")
    return body


def _sound_chat(body: Body) -> Body:
    if body.get("usage"):
        counts = {"prompt_tokens": 4096, "completion_tokens": 4096, "total_tokens": 8192}
        body["usage"] |= counts  # with their details
    # `n` requests several choices; all but the first are alternatives.
    del body["choices"][2:]
    for index, choice in enumerate(body["choices"]):
        choice["index"] = index
        message = choice["message"]
        message["role"] = "assistant"
        if message.get("tool_calls"):
            message.pop("function_call", None)  # the older key for one call
            _with_unique(message["tool_calls"], "id")
            choice["finish_reason"] = "tool_calls"
        elif "function_call" in message:
            choice["finish_reason"] = "function_call"
        elif choice["finish_reason"] in ("tool_calls", "function_call"):
            choice["finish_reason"] = "stop"
    return body


def _sound_converse(body: Body) -> Body:
    message = body.setdefault("output", {}).setdefault("message", {"content": []})
    message["role"] = "assistant"
    # Only requests have guarded content.
    message["content"] = [part for part in message["content"] if "guardContent" not in part]
    for part in message["content"]:
        if "citationsContent" in part:
            part["citationsContent"].setdefault("content", [{"text": "words"}])
    calls = [part["toolUse"] for part in message["content"] if "toolUse" in part]
    _with_unique(calls, "toolUseId")
    return body


def _sound_gemini(body: Body) -> Body:
    candidates = body.setdefault("candidates", [])
    del candidates[2:]
    body.pop("promptFeedback", None)  # it replaces the candidates
    if body.get("usageMetadata"):
        body["usageMetadata"]["promptTokenCount"] = 4096
    for index, candidate in enumerate(candidates):
        if index or "index" in candidate:
            candidate["index"] = index
        # Most finish reasons are failures, of which a decoder reads little.
        if "finishReason" not in candidate or len(str(candidate)) % 4:
            candidate["finishReason"] = "STOP"
        if "content" in candidate:
            candidate["content"]["role"] = "model"
            parts = candidate["content"]["parts"]
            _with_text(parts)
            for part in parts:
                part.pop("videoMetadata", None)  # it describes the prompt
                if part.get("thought") is False:
                    del part["thought"]
            calls = [part["functionCall"] for part in parts if "functionCall" in part]
            for call in calls:
                call["name"], call["args"] = call.get("name", "lookup"), call.get("args", {})
            _with_unique(calls, "id")
    return body


def _sound_ollama(body: Body) -> Body:
    body["message"]["role"] = "assistant"
    body["message"].pop("tool_name", None)  # only messages with the role tool have it
    body |= {"done": True, "done_reason": "stop"}
    body["model"] = body.get("model") or "some-model"
    body["created_at"] = body.get("created_at") or "2026-01-02T03:04:05Z"
    return body


def _sound_responses(body: Body) -> Body:
    body["object"] = "response"
    body.pop("error", None)
    is_cut = body.get("status") == "incomplete"
    body["status"] = "incomplete" if is_cut else "completed"
    if is_cut:
        body["incomplete_details"] = {"reason": "max_output_tokens"}
    else:
        body.pop("incomplete_details", None)
    if body.get("usage"):
        body["usage"] |= {"input_tokens": 4096, "output_tokens": 4096}  # with their details
    items = body["output"]
    _with_unique(items, "id")
    for number, item in enumerate(items):
        # Results of provider-run calls follow their call; others come with the next request.
        if str(item["type"]).endswith("_output") and item["type"] != "program_output":
            item["call_id"] = f"call_of_{number}"
        elif "call_id" in item:
            item["call_id"] = f"call_{number}"
        if "status" in item and item["status"] in ("in_progress", "incomplete", "searching"):
            item["status"] = "completed"
        if item["type"] == "message":
            item["role"] = "assistant"
            for place, part in enumerate(item["content"]):
                # Equal texts would be taken for edits of each other.
                key = "refusal" if part["type"] == "refusal" else "text"
                part[key] = f"{part.get(key)} {number}.{place}"
        if item["type"] == "reasoning" and item.get("content"):
            item["summary"] = []  # hosts send only one of them
    return body


SOUND = {
    "anthropic": _sound_anthropic,
    "openai_chat": _sound_chat,
    "openai_responses": _sound_responses,
    "gemini": _sound_gemini,
    "bedrock_converse": _sound_converse,
    "ollama": _sound_ollama,
}


def types_of(value: Any) -> Iterator[str]:
    """Return the types that a body names, at any depth."""
    if isinstance(value, dict):
        wire = cast("Body", value)
        if isinstance(kind := wire.get("type"), str):
            yield kind
        value = list(wire.values())
    for inner in cast("list[Any]", value) if isinstance(value, list) else ():
        yield from types_of(inner)
