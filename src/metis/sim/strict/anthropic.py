"""Checks for requests that Anthropic's Messages API refuses."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from metis.sim.media import image_media_type
from metis.sim.strict.checks import (
    IMAGE_TYPES,
    CheckContext,
    is_base64,
    is_between,
    is_count,
    matches,
    objects,
    refuse,
    require,
    unknown_keys,
)
from metis.wire.json_access import Wire, maybe_list, maybe_object

_KEYS = frozenset(
    {
        *("anthropic_beta", "cache_control", "container", "context_management", "inference_geo"),
        *("max_tokens", "mcp_servers", "messages", "metadata", "model", "output_config"),
        *("output_format", "service_tier", "speed", "stop_sequences", "stream", "system"),
        *("temperature", "thinking", "tool_choice", "tools", "top_k", "top_p"),
    }
)
# Keys that another protocol left in a block are refused, not ignored (T87).
_BLOCK_KEYS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "cache_control", "citations"}),
    "image": frozenset({"type", "source", "cache_control"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
}
_USER_BLOCKS = frozenset({"image", "document", "tool_result"})
_ASSISTANT_BLOCKS = frozenset({"tool_use", "thinking", "redacted_thinking"})
# Ids of other models, such as `functions.Bash:0` of Kimi, do not match (T01).
_ID = r"[a-zA-Z0-9_-]+"
_TOOL_NAME = r"[a-zA-Z0-9_-]{1,128}"
# The marks of a client, a gateway and tools together are easily more than four (T170).
_MAX_CACHE_MARKS = 4
# The budget must also be smaller than `max_tokens` (T47).
_MIN_THINKING_TOKENS = 1024
_MAX_IMAGE_BYTES = 5 * 1024 * 1024


def check(body: Wire, context: CheckContext) -> None:
    """Refuse a request body as the API would."""
    require(context.headers.get("anthropic-version"), "anthropic-version: header is required")
    _check_options(body)
    _check_tools(body)
    _check_system(body.get("system"))
    messages = objects(body.get("messages"))
    require(messages, "messages: at least one message is required")
    for index, message in enumerate(messages):
        _check_message(message, f"messages.{index}", context, is_last=index == len(messages) - 1)
    require(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    _check_call_pairs(messages)
    blocks = [block for message in messages for block in objects(message.get("content"))]
    # A request without tools, such as one for a summary, still has calls in its history (T36).
    has_calls = any(block.get("type") in ("tool_use", "tool_result") for block in blocks)
    require(
        body.get("tools") or not has_calls,
        "Requests which include `tool_use` or `tool_result` blocks must define tools",
    )
    _check_thinking(body, messages)
    _check_cache_marks(body, blocks)


def _check_options(body: Wire) -> None:
    for key in unknown_keys(body, _KEYS):
        refuse(f"{key}: Extra inputs are not permitted")
    for key in ("model", "max_tokens", "messages"):
        require(key in body, f"{key}: Field required")
    is_name = isinstance(body["model"], str) and body["model"]
    require(is_name, "model: Input should be a valid string")
    require(is_count(body["max_tokens"]), "max_tokens: Input should be greater than or equal to 1")
    for key in ("temperature", "top_p"):
        require(is_between(body.get(key), 0, 1), f"{key}: range: 0..1")
    for index, stop in enumerate(maybe_list(body.get("stop_sequences"))):
        is_visible = isinstance(stop, str) and stop.strip()
        text = f"stop_sequences.{index}: each stop sequence must contain non-whitespace"
        require(is_visible, text)


def _check_tools(body: Wire) -> None:
    names: list[Any] = []
    for index, tool in enumerate(objects(body.get("tools"))):
        name, path = tool.get("name"), f"tools.{index}.custom"
        names.append(name)
        if tool.get("type") in (None, "custom"):
            require(
                matches(_TOOL_NAME, name),
                f"{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
            )
            schema = maybe_object(tool.get("input_schema"))
            require(schema, f"{path}.input_schema: Field required")
            is_object = schema.get("type") == "object"
            require(is_object, f"{path}.input_schema.type: Input should be 'object'")
    require(len(names) == len(set(map(str, names))), "tools: Tool names must be unique.")
    choice = maybe_object(body.get("tool_choice"))
    if choice:
        require(names, "tool_choice may only be specified while providing tools")
    if choice.get("type") == "tool":
        name = choice.get("name")
        require(name in names, f"Tool '{name}' not found in provided tools")


def _check_system(system: Any) -> None:
    require(isinstance(system, str | list | None), "system: Input should be a valid string or list")
    for index, block in enumerate(objects(system)):
        is_text = block.get("type") == "text" and isinstance(block.get("text"), str)
        require(is_text, f"system.{index}: Input should be a text block")
        require(block["text"], "system: text content blocks must be non-empty")


def _check_message(message: Wire, path: str, context: CheckContext, *, is_last: bool) -> None:
    role, content = message.get("role"), message.get("content")
    require(role in ("user", "assistant"), f'{path}.role: Unexpected role "{role}"')
    for key in unknown_keys(message, ("role", "content")):
        refuse(f"{path}.{key}: Extra inputs are not permitted")
    require(isinstance(content, str | list), f"{path}.content: Input should be a valid list")
    # A last assistant message is the beginning of the reply, which the model continues (T79).
    is_prefill = is_last and role == "assistant"
    require(
        content or is_prefill,
        f"{path}: all messages must have non-empty content except for the optional final "
        "assistant message",
    )
    if isinstance(content, str):
        _check_text(content, is_prefill=is_prefill)
        return
    blocks = objects(content)
    for index, block in enumerate(blocks):
        _check_block(block, f"{path}.content.{index}", str(role), context)
        if block.get("type") == "text":
            _check_text(block["text"], is_prefill=is_prefill and index == len(blocks) - 1)


def _check_text(text: str, *, is_prefill: bool) -> None:
    if is_prefill:
        is_trimmed = text == text.rstrip()
        require(is_trimmed, "messages: final assistant content cannot end with trailing whitespace")
        return
    # Claude itself sends empty text blocks, but refuses them in history (T83, T84).
    require(text, "messages: text content blocks must be non-empty")
    require(text.strip(), "messages: text content blocks must contain non-whitespace text")


def _check_block(block: Wire, path: str, role: str, context: CheckContext) -> None:
    kind = block.get("type")
    require(isinstance(kind, str), f"{path}.type: Field required")
    for key in unknown_keys(block, _BLOCK_KEYS.get(str(kind), block)):
        refuse(f"{path}.{kind}.{key}: Extra inputs are not permitted")
    forbidden = _ASSISTANT_BLOCKS if role == "user" else _USER_BLOCKS
    allowed = kind not in forbidden
    require(allowed, f"{path}: `{kind}` blocks are not permitted in `{role}` messages")
    match kind:
        case "text":
            require(isinstance(block.get("text"), str), f"{path}.text.text: Field required")
        case "image":
            _check_image(block, path)
        case "tool_use":
            _check_call(block, f"{path}.tool_use")
        case "tool_result":
            _check_result(block, f"{path}.tool_result")
        case "thinking":
            # A signature of another model, account or host is refused, too (T40, T41).
            is_signed = context.signer.verify(block.get("signature"), str(block.get("thinking")))
            require(is_signed, f"{path}: Invalid `signature` in `thinking` block")
        case "redacted_thinking":
            # Only the issuer can read redacted thinking; others would have to drop it (T44).
            is_readable = context.signer.is_issued_here(block.get("data"))
            require(is_readable, f"{path}: Invalid `data` in `redacted_thinking` block")
        case _:
            pass


def _check_image(block: Wire, path: str) -> None:
    source, path = maybe_object(block.get("source")), f"{path}.image.source"
    if source.get("type") == "url":
        is_url = matches(r"https?://\S+", source.get("url"))
        require(is_url, f"{path}.url: Only HTTPS URLs are supported")
        return
    if source.get("type") == "file":
        return
    media_type, data, path = source.get("media_type"), source.get("data"), f"{path}.base64"
    require(
        media_type in IMAGE_TYPES,
        f"{path}.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or "
        "'image/webp'",
    )
    require(is_base64(data), f"{path}: invalid base64 data")
    size = len(str(data)) * 3 // 4
    require(
        size <= _MAX_IMAGE_BYTES,
        f"{path}: image exceeds 5 MB maximum: {size} bytes > 5242880 bytes",
    )
    # Clients often state the type by the file name, which may differ from the bytes (T89).
    actual_type = image_media_type(str(data))
    require(actual_type is not None, f"{path}.data: Could not process image")
    require(
        actual_type == media_type,
        f"{path}.data: Image does not match the provided media type {media_type}",
    )


def _check_call(block: Wire, path: str) -> None:
    has_id = matches(_ID, block.get("id"))
    require(has_id, f"{path}.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    # In history a name may be longer than in a definition.
    has_name = matches(r"(?s).{1,200}", block.get("name"))
    require(has_name, f"{path}.name: String should have between 1 and 200 characters")
    is_object = isinstance(block.get("input"), dict)
    require(is_object, f"{path}.input: Input should be a valid dictionary")


def _check_result(block: Wire, path: str) -> None:
    has_id = matches(_ID, block.get("tool_use_id"))
    require(has_id, f"{path}.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    for index, part in enumerate(objects(block.get("content"))):
        kind = part.get("type")
        if kind == "image":
            _check_image(part, f"{path}.content.{index}")
        if kind == "text":
            _check_text(str(part.get("text") or ""), is_prefill=False)
        if block.get("is_error") is True:
            require(kind == "text", f"{path}: all content must be type text if is_error is true")


def _values(message: Wire, kind: str, key: str) -> list[Any]:
    """Return a key of all blocks of a kind."""
    content = message.get("content")
    if isinstance(content, str):
        return []
    return [block.get(key) for block in objects(content) if block.get("type") == kind]


def _check_call_pairs(messages: list[Wire]) -> None:
    """Require one result for every call in the next message, and a call for every result."""
    # A call that was sent as a block and in `tool_calls` is there twice after conversion (T08).
    ids = [call for message in messages for call in _values(message, "tool_use", "id")]
    require(len(ids) == len(set(ids)), "messages: `tool_use` ids must be unique")
    for index, (previous, message) in enumerate(pairwise([{}, *messages, {}])):
        calls = _values(previous, "tool_use", "id")
        results = _values(message, "tool_result", "tool_use_id")
        if results:
            _check_results(message, calls, results, f"messages.{index}.content")
        # Results in a second user message do not count (T15), nor do interrupted calls (T19).
        if len(results) < len(calls):
            missing = ", ".join(call for call in calls if call not in results)
            refuse(
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {missing}. Each `tool_use` block must have a corresponding "
                "`tool_result` block in the next message."
            )


def _check_results(message: Wire, calls: list[Any], results: list[Any], path: str) -> None:
    # A trimmed history may have results without their calls (T20).
    for result in results:
        require(
            result in calls,
            f"{path}: unexpected `tool_use_id` found in `tool_result` blocks: {result}. Each "
            "`tool_result` block must have a corresponding `tool_use` block in the previous "
            "message.",
        )
    is_unique = len(results) == len(set(results))
    require(is_unique, f"{path}: each tool_use must have a single result.")
    # Text before the results of the same message is refused (T23).
    kinds = [block.get("type") for block in objects(message.get("content"))]
    require(
        kinds[: len(results)] == ["tool_result"] * len(results),
        f"{path}: `tool_result` blocks must come first in the content",
    )


def _check_thinking(body: Wire, messages: list[Wire]) -> None:
    thinking = maybe_object(body.get("thinking"))
    if thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    require(
        is_count(budget, _MIN_THINKING_TOKENS),
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    )
    require(
        body["max_tokens"] > thinking["budget_tokens"],
        "`max_tokens` must be greater than `thinking.budget_tokens`",
    )
    require(
        body.get("temperature") in (None, 1),
        "`temperature` may only be set to 1 when thinking is enabled",
    )
    # Output by a forced tool call is not possible while the model thinks (T46, T116).
    is_forced = maybe_object(body.get("tool_choice")).get("type") in ("any", "tool")
    require(not is_forced, "Thinking may not be enabled when tool_choice forces tool use.")
    # A tool loop that began without thinking cannot continue with it (T37).
    previous = [message for message in messages[-2:-1] if message.get("role") == "assistant"]
    kinds = [block.get("type") for one in previous for block in objects(one.get("content"))]
    if "tool_use" in kinds:
        require(
            kinds[0] in ("thinking", "redacted_thinking"),
            f"messages.{len(messages) - 2}.content.0.type: Expected `thinking` or "
            f"`redacted_thinking`, but found `{kinds[0]}`. When `thinking` is enabled, a final "
            "`assistant` message must start with a thinking block",
        )


def _check_cache_marks(body: Wire, blocks: list[Wire]) -> None:
    parts = [part for block in blocks for part in objects(block.get("content"))]
    holders = (*objects(body.get("tools")), *objects(body.get("system")), *blocks, *parts)
    count = sum(holder.get("cache_control") is not None for holder in holders)
    require(
        count <= _MAX_CACHE_MARKS,
        f"A maximum of 4 blocks with cache_control may be provided. Found {count}.",
    )
