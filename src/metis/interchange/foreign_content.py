"""Values of other programs as canonical types: roles, content, media, times, usage, models."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
)
from metis.canonical.errors import MetisError
from metis.canonical.message import Role
from metis.canonical.metadata import Usage
from metis.interchange.conversion import is_media_type, parse_time
from metis.wire.json_access import Wire, maybe_count, maybe_list, maybe_object, maybe_text
from metis.wire.response import new_usage

_ROLES = {
    "user": Role.USER,
    "human": Role.USER,
    "assistant": Role.ASSISTANT,
    "ai": Role.ASSISTANT,
    "model": Role.ASSISTANT,
    "agent": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
}


class Call(Struct, frozen=True):
    """A tool call in a message of another program."""

    foreign_id: str | None
    name: str
    arguments: Any
    """An object, or text that should be one."""


class Result(Struct, frozen=True):
    """The result of a call, which becomes a separate message in the canonical form."""

    foreign_id: str | None
    name: str
    content: Sequence[ContentBlock]
    is_error: bool = False


Part = ContentBlock | Call | Result


def role_of(name: object, default: Role | None = None) -> Role | None:
    """Return the role of a foreign role name; the default if the name is unknown."""
    return _ROLES.get(name, default) if isinstance(name, str) else default


def text_parts(value: object, issuer: str) -> list[ContentBlock]:
    """Return text, or a list of texts and parts, as blocks."""
    if value is None:
        return []
    if isinstance(value, str):
        return [TextBlock(value)] if value else []
    if isinstance(value, list):
        blocks = (content_block(item, issuer) for item in cast("list[Any]", value))
        return [block for block in blocks if block is not None]
    return [TextBlock(to_text(value))]


def content_block(value: object, issuer: str) -> ContentBlock | None:
    """Return a part of a message as a block, by the keys that most programs share.

    A part of an unknown type becomes an opaque block, which only its program understands.
    """
    if isinstance(value, str):
        return TextBlock(value) if value else None
    part = maybe_object(value)
    kind = part.get("type")
    text = part.get("text")
    if kind in ("text", "input_text", "output_text", "refusal", None) and isinstance(
        text or part.get("refusal") or part.get("content"), str
    ):
        return TextBlock(cast("str", text or part.get("refusal") or part.get("content")))
    if kind in ("thinking", "reasoning", "think") or (kind is None and "thinking" in part):
        thinking = part.get("thinking") or text or part.get("think") or part.get("content")
        if isinstance(thinking, str):
            signature = maybe_text(part.get("signature"))
            return ThinkingBlock(
                thinking, signature=signature, issuer=issuer if signature else None
            )
    if kind == "redacted_thinking" and isinstance(part.get("data"), str):
        return RedactedThinkingBlock(part["data"], issuer=issuer)
    return media_block(part) or opaque(part, issuer)


def media_block(part: Wire) -> ContentBlock | None:
    """Return the image or document of a part; None if the part has neither."""
    source = maybe_object(part.get("source"))
    media_type = maybe_text(source.get("media_type")) or maybe_text(part.get("mediaType")) or ""
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return _media("base64", source["data"], media_type)
    url = part.get("image_url") or source.get("url") or part.get("url")
    address = url.get("url") if isinstance(url, dict) else url  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - JSON
    if not isinstance(address, str) or not address:
        return None
    if not address.startswith("data:"):
        is_image = part.get("type") in ("image", "image_url", "input_image") or (
            media_type.startswith("image/")
        )
        return _media("url", address, media_type or (ANY_IMAGE_TYPE if is_image else ""))
    head, _, data = address[5:].partition(",")
    if not head.endswith(";base64"):
        return None
    return _media("base64", data, head.removesuffix(";base64"))


def _media(kind: Any, data: str, media_type: str) -> ContentBlock | None:
    if not is_media_type(media_type):
        return None
    try:
        if media_type.startswith("image/"):
            return ImageBlock(ImageSource(kind, data), media_type)
        return DocumentBlock(MediaSource(kind, data), media_type)
    except MetisError:
        return None


def text_document(name: str, text: str) -> DocumentBlock:
    """Return the text of a file that was attached."""
    return DocumentBlock(MediaSource("text", text), "text/plain", name=name or None)


def opaque(value: object, issuer: str) -> OpaqueBlock:
    """Return a part that only the other program understands, as it is."""
    kind = maybe_text(maybe_object(value).get("type"))
    return OpaqueBlock(issuer=issuer, raw=Raw(msgspec.json.encode(value)), kind=kind)


def anthropic_parts(content: object, issuer: str) -> list[Part]:
    """Return the content of a message in the form of the Anthropic protocol."""
    if not isinstance(content, list):
        return list(text_parts(content, issuer))
    parts: list[Part] = []
    for item in cast("list[Any]", content):
        part = maybe_object(item)
        kind = str(part.get("type") or "").replace("-", "_")
        if kind in ("tool_use", "tool_call") and isinstance(part.get("name"), str):
            parts.append(Call(maybe_text(part.get("id")), part["name"], part.get("input") or {}))
        elif kind == "tool_result":
            parts.append(
                Result(
                    maybe_text(part.get("tool_use_id")),
                    maybe_text(part.get("name")) or "",
                    text_parts(part.get("content"), issuer),
                    part.get("is_error") is True,
                )
            )
        else:
            block = content_block(item, issuer)
            if block is not None:
                parts.append(block)
    return parts


def to_text(value: object) -> str:
    """Return JSON as text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def time_of(value: object) -> datetime | None:
    """Return a time: in ISO form, or as seconds or milliseconds since 1970."""
    if isinstance(value, str):
        return parse_time(value.replace("Z", "+00:00"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    seconds = value / 1000 if value > 1e11 else value  # noqa: PLR2004 - 1e11 s is the year 5138, 1e11 ms is 1973
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def usage_of(counts: Mapping[str, Any], names: Mapping[str, str]) -> Usage | None:
    """Return the usage of token counts; `names` maps our buckets to the program's keys.

    The input count of most programs includes the tokens that were read from a cache.
    """
    buckets = {bucket: maybe_count(counts.get(name)) or 0 for bucket, name in names.items()}
    prompt, cached = buckets.get("input", 0), buckets.get("cached", 0)
    output = buckets.get("output", 0)
    if not prompt and not output:
        return None
    return new_usage(
        latency_ms=0,
        input_tokens=max(0, prompt - cached),
        cached_input_tokens=min(cached, prompt),
        output_tokens=output,
        reasoning_output_tokens=min(buckets.get("reasoning", 0), output),
    )


_PROVIDERS_BY_PREFIX = {
    "claude": "anthropic",
    "gpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "text-davinci": "openai",
    "chatgpt": "openai",
    "gemini": "gemini",
    "grok": "xai",
    "deepseek": "deepseek",
    "mistral": "mistral",
}


def provider_model(name: object, provider: str | None = None) -> str | None:
    """Return `provider:name` for a model name; without a provider it is guessed."""
    if not isinstance(name, str) or not name:
        return None
    for prefix, prefix_provider in _PROVIDERS_BY_PREFIX.items():
        if provider is None and name.startswith(prefix):
            provider = prefix_provider
    return f"{provider or 'unknown'}:{name}"


def list_digest(values: Sequence[object]) -> str:
    """Return an id for a list without one: a digest of its first message, which never changes."""
    first = msgspec.json.encode(list(values[:1]), order="sorted")
    return sha256(first).hexdigest()[:32]


def objects(value: object) -> list[Wire]:
    """Return the objects of a list."""
    return [cast("Wire", item) for item in maybe_list(value) if isinstance(item, dict)]
