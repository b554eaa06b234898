"""Losses of responses for clients of another protocol: keys, usage counts, stop reasons, files.

Keys that the canonical form has a field for are listed for each protocol; every other key of a
response is a loss. Whether a protocol can state a count, a stop reason or a generated file is not
listed but tried out: a response with it is encoded and decoded, once per process.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from metis.adapters.codecs import CODECS
from metis.canonical.blocks import ArtifactBlock, MediaSource, TextBlock, ToolUseBlock
from metis.canonical.errors import MetisError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, MessageStatus, StopReason, Usage
from metis.wire.call import UNPRICED, RequestContext
from metis.wire.json_access import maybe_list, maybe_object
from metis.wire.original_form import is_meaningful


class UnreadKey(NamedTuple):
    """A part of a response that the client does not read, and why."""

    path: str
    reason: str


_CHAT_USAGE = frozenset(
    {
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
        "prompt_cache_hit_tokens",
        "prompt_cache_miss_tokens",
        "num_cached_tokens",
        "cached_tokens",
        "cost",
        "server_tool_use",
        "server_tool_use_details",
    }
)
_CONVERSE_USAGE = frozenset(
    {
        "inputTokens",
        "outputTokens",
        "totalTokens",
        "cacheReadInputTokens",
        "cacheWriteInputTokens",
        "cacheReadInputTokenCount",
        "cacheWriteInputTokenCount",
        "cacheDetails",
        "serverToolUsage",
    }
)
_RESPONSES_KEYS = frozenset(
    {
        *("id", "object", "created_at", "status", "model", "output", "usage", "service_tier"),
        *("incomplete_details", "error"),
        # Options of the request, which a response repeats.
        *("background", "frequency_penalty", "instructions", "max_output_tokens", "metadata"),
        *("max_tool_calls", "parallel_tool_calls", "presence_penalty", "previous_response_id"),
        *("prompt", "prompt_cache_key", "prompt_cache_retention", "reasoning", "store"),
        *("safety_identifier", "temperature", "text", "tool_choice", "tools", "top_logprobs"),
        *("top_p", "truncation", "user"),
    }
)
_MAPPED_KEYS: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "anthropic": {
        "": frozenset({"id", "type", "role", "model", "content", "stop_reason", "usage"}),
        "usage": frozenset(
            {
                "input_tokens",
                "output_tokens",
                "output_tokens_details",
                "cache_creation_input_tokens",
                "cache_read_input_tokens",
                "cache_creation",
                "service_tier",
                "server_tool_use",
            }
        ),
        "usage.output_tokens_details": frozenset({"thinking_tokens"}),
    },
    "bedrock_converse": {
        "": frozenset({"output", "stopReason", "usage", "serviceTier"}),
        "usage": _CONVERSE_USAGE,
    },
    "gemini": {
        "": frozenset({"candidates", "modelVersion", "responseId", "usageMetadata"}),
        "candidates": frozenset({"content", "finishReason", "index"}),
        "usageMetadata": frozenset(
            {
                "promptTokenCount",
                "totalTokenCount",
                "candidatesTokenCount",
                "thoughtsTokenCount",
                "cachedContentTokenCount",
                "toolUsePromptTokenCount",
                "serviceTier",
            }
        ),
    },
    "ollama": {
        "": frozenset(
            {
                *("created_at", "done", "done_reason", "eval_count", "message", "model"),
                *("prompt_eval_count", "response", "thinking"),
            }
        ),
    },
    "openai_chat": {
        "": frozenset({"id", "object", "created", "model", "choices", "usage", "service_tier"}),
        "choices": frozenset({"index", "message", "finish_reason"}),
        "usage": _CHAT_USAGE,
        "usage.prompt_tokens_details": frozenset(
            {"cached_tokens", "cache_write_tokens", "cache_creation_tokens"}
        ),
        "usage.completion_tokens_details": frozenset({"reasoning_tokens"}),
    },
    "openai_responses": {
        "": _RESPONSES_KEYS,
        "usage": frozenset(
            {
                *("input_tokens", "input_tokens_details", "output_tokens", "total_tokens", "cost"),
                "output_tokens_details",
            }
        ),
        "usage.input_tokens_details": frozenset({"cached_tokens", "cache_write_tokens"}),
        "usage.output_tokens_details": frozenset({"reasoning_tokens"}),
    },
}
"""The keys of responses that blocks and metadata represent, by the path of their object.

`tests/wire/test_sdk_responses.py` compares it with what the codecs read of every field that the
official SDKs have types for.
"""


_TIER_KEYS = frozenset({"service_tier", "serviceTier"})


def unread_keys(message: Message, protocol: str | None) -> Iterator[UnreadKey]:
    """Yield the keys of a response that only its host has; those of `protocol` can be read."""
    for source, form in (message.metadata.provider_raw or {}).items():
        if source == protocol or source not in CODECS:
            continue
        reason = f"the key exists at {message.metadata.provider or source} only"
        for path in CODECS[source].unmapped_paths(message):
            yield UnreadKey(path, reason)
        body = maybe_object(maybe_object(form).get("response"))
        if message.metadata.usage is None:
            # Our usage has a field for the tier; streams of Chat Completions may state a tier
            # without a usage.
            for key in _TIER_KEYS & body.keys():
                if is_meaningful(key, body[key]):
                    yield UnreadKey(f"$.{key}", reason)
        for path in _unmapped(body, _MAPPED_KEYS[source]):
            yield UnreadKey(path, reason)


def _unmapped(
    body: Mapping[str, Any], mapped: Mapping[str, frozenset[str]], name: str = "", path: str = "$"
) -> Iterator[str]:
    """Yield the paths of keys that are not mapped in an object, and in those within it."""
    names = mapped[name]
    for key, value in body.items():
        mapped_key = key
        if key not in names:
            if not is_meaningful(key, value):
                continue
            mapped_key = _camel_if(key, names)
            if mapped_key not in names:
                yield f"{path}.{key}"
                continue
        inner = f"{name}.{mapped_key}" if name else mapped_key
        if inner not in mapped:
            continue
        if not isinstance(value, list):
            yield from _unmapped(maybe_object(value), mapped, inner, f"{path}.{key}")
            continue
        first, *others = maybe_list(value) or [None]
        yield from _unmapped(maybe_object(first), mapped, inner, f"{path}.{key}[0]")
        for index in range(1, len(others) + 1):
            yield f"{path}.{key}[{index}]"  # an alternative response; only the first is decoded


def _camel_if(key: str, names: frozenset[str]) -> str:
    """Return a snake-case key in camel case if that is a listed name: Gemini uses both."""
    if "_" not in key:
        return key
    first, *others = key.split("_")
    camel = first + "".join(map(str.capitalize, others))
    return camel if camel in names else key


_FULL_USAGE: Final = Usage(
    input_tokens=100,
    output_tokens=50,
    cached_input_tokens=20,
    cache_creation_input_tokens=10,
    cache_creation_1h_input_tokens=5,
    reasoning_output_tokens=7,
    reported_cost_usd=Decimal("0.5"),
    server_tool_requests={"web_search": 2},
    service_tier="priority",
    cost_usd=Decimal(0),
    pricing_version=UNPRICED,
    latency_ms=0,
)
_COUNTS = (
    "cached_input_tokens",
    "cache_creation_input_tokens",
    "cache_creation_1h_input_tokens",
    "reasoning_output_tokens",
    "reported_cost_usd",
    "server_tool_requests",
    "service_tier",
)
"""The fields of a usage that not every protocol has."""


def unread_metadata(message: Message, protocol: str) -> Iterator[UnreadKey]:
    """Yield the usage counts and the stop reason of a response that the protocol cannot state."""
    metadata = message.metadata
    if metadata.usage is not None:
        for name in unstated_counts(protocol):
            if getattr(metadata.usage, name):
                reason = f"responses of {protocol} do not state it"
                yield UnreadKey(f"$.metadata.usage.{name}", reason)
    reason = metadata.stop_reason
    if reason is not None and metadata.status is MessageStatus.COMPLETE:
        has_calls = any(type(block) is ToolUseBlock for block in message.content)
        stated = stated_reason(protocol, reason, has_calls=has_calls)
        is_unknown = reason is StopReason.UNKNOWN and stated is None
        if stated is not reason and not is_unknown:
            yield UnreadKey("$.metadata.stop_reason", f"{reason} is stated as {stated}")


@cache
def unstated_counts(protocol: str) -> tuple[str, ...]:
    """Return the fields of a usage that responses of a protocol do not state."""
    metadata = MessageMetadata(usage=_FULL_USAGE, stop_reason=StopReason.END_TURN)
    read = _read_again(protocol, _response((TextBlock("x"),), metadata))
    usage = read and read.metadata.usage
    return tuple(
        name for name in _COUNTS if getattr(usage, name, None) != getattr(_FULL_USAGE, name)
    )


@cache
def stated_reason(protocol: str, reason: StopReason, *, has_calls: bool) -> StopReason | None:
    """Return the stop reason that a client decodes from an encoded one; None if decoding fails."""
    call = ToolUseBlock("tu_00000000000000000000000000", "f", {})
    content = (call,) if has_calls else (TextBlock("x"),)
    read = _read_again(protocol, _response(content, MessageMetadata(stop_reason=reason)))
    return None if read is None else read.metadata.stop_reason


_PIXEL: Final = "iVBORw0KGgoAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
_MAX_FILE_KINDS = 256
"""The size of the cache by kind of file; bounded because media types come from providers."""


def can_state(protocol: str, block: ArtifactBlock) -> bool:
    """Whether responses of a protocol can have a generated file of this kind."""
    source = block.source
    scheme = source.data[: source.data.find("://") + 3] if source.kind == "url" else ""
    return _states_file(protocol, source.kind, block.media_type, scheme)


@lru_cache(_MAX_FILE_KINDS)
def _states_file(protocol: str, kind: Any, media_type: str, scheme: str) -> bool:
    data = f"{scheme}host/file" if scheme else _PIXEL
    file = ArtifactBlock(MediaSource(kind, data, protocol), media_type, id="file_1")
    read = _read_again(protocol, _response((TextBlock("x"), file), MessageMetadata()))
    family = media_type.partition("/")[0]
    return read is not None and any(
        type(block) is ArtifactBlock
        and block.source.data == data
        and block.media_type.partition("/")[0] == family
        for block in read.content
    )


def _response(
    content: tuple[ArtifactBlock | TextBlock | ToolUseBlock, ...], metadata: MessageMetadata
) -> Message:
    return Message(
        id="0" * 26,
        session_id="s",
        role=Role.ASSISTANT,
        content=content,
        metadata=metadata,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def _read_again(protocol: str, message: Message) -> Message | None:
    codec, context = CODECS[protocol], RequestContext(session_id="s", model="m")
    try:
        return codec.decode_response(codec.encode_response(message, context), context)
    except MetisError:  # a response that counts as failed
        return None
