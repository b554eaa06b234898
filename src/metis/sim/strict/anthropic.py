"""What Anthropic Messages refuses."""

from collections.abc import Iterator, Mapping
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
from metis.sim.strict.keys import ANTHROPIC
from metis.wire.json_access import Wire, maybe_list, maybe_object

_BLOCK_KEYS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "cache_control", "citations"}),
    "image": frozenset({"type", "source", "cache_control"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
}
_USER_ONLY = frozenset({"image", "document", "tool_result"})
_ASSISTANT_ONLY = frozenset({"tool_use", "thinking", "redacted_thinking"})
_ID = r"[a-zA-Z0-9_-]+"
_NAME = r"[a-zA-Z0-9_-]{1,128}"
_MOST_MARKS = 4
_LEAST_BUDGET = 1024
_IMAGE_BYTES = 5 * 1024 * 1024


def check(wire: Wire, case: CheckContext) -> None:
    """Refuse what the API refuses."""
    require(case.headers.get("anthropic-version"), "anthropic-version: header is required")
    _check_options(wire)
    _check_tools(wire)
    _check_system(wire.get("system"))
    messages = objects(wire.get("messages"))
    require(messages, "messages: at least one message is required")
    for index, message in enumerate(messages):
        _check_message(message, f"messages.{index}", case, is_last=index == len(messages) - 1)
    require(messages[0]["role"] == "user", 'messages: first message must use the "user" role')
    _check_calls(messages)
    _check_defined(wire, messages)
    _check_thinking(wire, messages)
    marks = sum(1 for _ in _marks(wire))
    require(
        marks <= _MOST_MARKS,
        f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.",
    )


def _check_defined(wire: Wire, messages: list[Wire]) -> None:
    parts = (part for message in messages for part in objects(message.get("content")))
    has_calls = any(part.get("type") in ("tool_use", "tool_result") for part in parts)
    require(
        wire.get("tools") or not has_calls,
        "Requests which include `tool_use` or `tool_result` blocks must define tools",
    )


def _check_options(wire: Wire) -> None:
    for key in unknown_keys(wire, ANTHROPIC):
        refuse(f"{key}: Extra inputs are not permitted")
    for key in ("model", "max_tokens", "messages"):
        require(key in wire, f"{key}: Field required")
    require(
        isinstance(wire["model"], str) and wire["model"], "model: Input should be a valid string"
    )
    require(is_count(wire["max_tokens"]), "max_tokens: Input should be greater than or equal to 1")
    for key in ("temperature", "top_p"):
        require(is_between(wire.get(key), 0, 1), f"{key}: range: 0..1")
    for index, stop in enumerate(maybe_list(wire.get("stop_sequences"))):
        fits = isinstance(stop, str) and stop.strip()
        require(fits, f"stop_sequences.{index}: each stop sequence must contain non-whitespace")


def _check_tools(wire: Wire) -> None:
    names: list[Any] = []
    for index, tool in enumerate(objects(wire.get("tools"))):
        name, path = tool.get("name"), f"tools.{index}.custom"
        names.append(name)
        if tool.get("type") in (None, "custom"):
            require(
                matches(_NAME, name),
                f"{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
            )
            schema = maybe_object(tool.get("input_schema"))
            require(schema, f"{path}.input_schema: Field required")
            fits = schema.get("type") == "object"
            require(fits, f"{path}.input_schema.type: Input should be 'object'")
    require(len(names) == len(set(map(str, names))), "tools: Tool names must be unique.")
    choice = maybe_object(wire.get("tool_choice"))
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


def _check_message(message: Wire, path: str, case: CheckContext, *, is_last: bool) -> None:
    role, content = message.get("role"), message.get("content")
    require(role in ("user", "assistant"), f'{path}.role: Unexpected role "{role}"')
    for key in unknown_keys(message, ("role", "content")):
        refuse(f"{path}.{key}: Extra inputs are not permitted")
    require(isinstance(content, str | list), f"{path}.content: Input should be a valid list")
    is_begun = is_last and role == "assistant"
    require(
        content or is_begun,
        f"{path}: all messages must have non-empty content except for the optional final "
        "assistant message",
    )
    if isinstance(content, str):
        _check_text(content, is_begun=is_begun)
        return
    blocks = objects(content)
    for index, block in enumerate(blocks):
        begun = is_begun and index == len(blocks) - 1
        _check_block(block, f"{path}.content.{index}", str(role), case)
        if block.get("type") == "text":
            _check_text(block["text"], is_begun=begun)


def _check_text(text: str, *, is_begun: bool) -> None:
    if is_begun:
        fits = text == text.rstrip()
        require(fits, "messages: final assistant content cannot end with trailing whitespace")
        return
    require(text, "messages: text content blocks must be non-empty")
    require(text.strip(), "messages: text content blocks must contain non-whitespace text")


def _check_block(block: Wire, path: str, role: str, case: CheckContext) -> None:
    kind = block.get("type")
    require(isinstance(kind, str), f"{path}.type: Field required")
    for key in unknown_keys(block, _BLOCK_KEYS.get(str(kind), block)):
        refuse(f"{path}.{kind}.{key}: Extra inputs are not permitted")
    wrong = _ASSISTANT_ONLY if role == "user" else _USER_ONLY
    require(kind not in wrong, f"{path}: `{kind}` blocks are not permitted in `{role}` messages")
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
            signed = case.signer.verify(block.get("signature"), str(block.get("thinking")))
            require(signed, f"{path}: Invalid `signature` in `thinking` block")
        case "redacted_thinking":
            own = case.signer.is_issued_here(block.get("data"))
            require(own, f"{path}: Invalid `data` in `redacted_thinking` block")
        case _:
            pass


def _check_image(block: Wire, path: str) -> None:
    source = maybe_object(block.get("source"))
    if source.get("type") == "url":
        fits = matches(r"https?://\S+", source.get("url"))
        require(fits, f"{path}.image.source.url: Only HTTPS URLs are supported")
        return
    if source.get("type") == "file":
        return
    media, data = source.get("media_type"), source.get("data")
    require(
        media in IMAGE_TYPES,
        f"{path}.image.source.base64.media_type: Input should be "
        "'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
    )
    require(is_base64(data), f"{path}.image.source.base64: invalid base64 data")
    size = len(str(data)) * 3 // 4
    require(
        size <= _IMAGE_BYTES,
        f"{path}.image.source.base64: image exceeds 5 MB maximum: {size} bytes > 5242880 bytes",
    )
    seen = image_media_type(str(data))
    require(seen is not None, f"{path}.image.source.base64.data: Could not process image")
    require(
        seen == media,
        f"{path}.image.source.base64.data: Image does not match the provided media type {media}",
    )


def _check_call(block: Wire, path: str) -> None:
    require(
        matches(_ID, block.get("id")),
        f"{path}.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    )
    require(
        matches(r"(?s).{1,200}", block.get("name")),
        f"{path}.name: String should have between 1 and 200 characters",
    )
    fits = isinstance(block.get("input"), dict)
    require(fits, f"{path}.input: Input should be a valid dictionary")


def _check_result(block: Wire, path: str) -> None:
    require(
        matches(_ID, block.get("tool_use_id")),
        f"{path}.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    )
    for index, part in enumerate(objects(block.get("content"))):
        kind = part.get("type")
        if kind == "image":
            _check_image(part, f"{path}.content.{index}")
        if kind == "text":
            _check_text(str(part.get("text") or ""), is_begun=False)
        if block.get("is_error") is True:
            require(kind == "text", f"{path}: all content must be type text if is_error is true")


def _parts(message: Wire, kind: str, key: str) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return []
    return [block.get(key) for block in objects(content) if block.get("type") == kind]


def _check_calls(messages: list[Wire]) -> None:
    """Every call is answered once and at once, and every result answers a call."""
    made = [call for message in messages for call in _parts(message, "tool_use", "id")]
    require(len(made) == len(set(made)), "messages: `tool_use` ids must be unique")
    for index, (before, message) in enumerate(pairwise([{}, *messages, {}])):
        calls = _parts(before, "tool_use", "id")
        results = _parts(message, "tool_result", "tool_use_id")
        if results:
            _check_results(calls, results, index)
            _check_first(message, index)
        if len(results) < len(calls):
            missing = ", ".join(call for call in calls if call not in results)
            refuse(
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {missing}. Each `tool_use` block must have a corresponding "
                "`tool_result` block in the next message."
            )


def _check_results(calls: list[Any], results: list[Any], index: int) -> None:
    for result in results:
        require(
            result in calls,
            f"messages.{index}.content: unexpected `tool_use_id` found in `tool_result` "
            f"blocks: {result}. Each `tool_result` block must have a corresponding "
            "`tool_use` block in the previous message.",
        )
    require(
        len(results) == len(set(results)),
        f"messages.{index}.content: each tool_use must have a single result.",
    )


def _check_first(message: Wire, index: int) -> None:
    kinds = [block.get("type") for block in objects(message.get("content"))]
    count = kinds.count("tool_result")
    require(
        kinds[:count] == ["tool_result"] * count,
        f"messages.{index}.content: `tool_result` blocks must come first in the content",
    )


def _check_thinking(wire: Wire, messages: list[Wire]) -> None:
    thinking = maybe_object(wire.get("thinking"))
    if thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    require(
        is_count(budget, _LEAST_BUDGET),
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    )
    require(
        wire["max_tokens"] > maybe_object(thinking)["budget_tokens"],
        "`max_tokens` must be greater than `thinking.budget_tokens`",
    )
    require(
        wire.get("temperature") in (None, 1),
        "`temperature` may only be set to 1 when thinking is enabled",
    )
    forced = maybe_object(wire.get("tool_choice")).get("type") in ("any", "tool")
    require(not forced, "Thinking may not be enabled when tool_choice forces tool use.")
    last = [message for message in messages[-2:-1] if message.get("role") == "assistant"]
    kinds = [block.get("type") for one in last for block in objects(one.get("content"))]
    if "tool_use" in kinds:
        require(
            kinds[0] in ("thinking", "redacted_thinking"),
            f"messages.{len(messages) - 2}.content.0.type: Expected `thinking` or "
            f"`redacted_thinking`, but found `{kinds[0]}`. When `thinking` is enabled, a final "
            "`assistant` message must start with a thinking block",
        )


def _marks(wire: Wire) -> Iterator[Any]:
    """Every mark of a cache in a request."""
    content = [block for m in objects(wire.get("messages")) for block in objects(m.get("content"))]
    inner = [part for block in content for part in objects(block.get("content"))]
    for block in (*objects(wire.get("tools")), *objects(wire.get("system")), *content, *inner):
        if block.get("cache_control") is not None:
            yield block
