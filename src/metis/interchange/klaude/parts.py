"""Message parts and usage of klaude-code, and the blocks and counts that they stand for."""

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from metis.canonical.blocks import (
    ANY_IMAGE_TYPE,
    ArtifactBlock,
    ContentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.errors import CatalogError, DecodeError
from metis.canonical.message import Role
from metis.canonical.metadata import MessageMetadata, StopReason, Usage
from metis.catalog import catalog
from metis.interchange.conversion import ConversionContext, is_media_type
from metis.interchange.document import convert_to
from metis.interchange.klaude import types
from metis.streaming.arguments import parse_arguments
from metis.wire.call import UNPRICED
from metis.wire.json_access import Wire, maybe_object

SYSTEM = "klaude-code"
_SIGNING_ISSUERS = frozenset({"anthropic", "bedrock"})
"""Whose signatures belong to thinking; others seal the thinking itself."""
_ARTIFACT_ROLES = (Role.ASSISTANT, Role.TOOL)

STOP_REASONS = {
    "stop": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "tool_use": StopReason.TOOL_USE,
    "error": StopReason.ERROR,
    "aborted": StopReason.CANCELLED,
}
"""Our stop reasons by those of klaude-code."""
_FOREIGN_STOP_REASONS = {reason: name for name, reason in STOP_REASONS.items()}


def decode_parts(
    parts: Sequence[Wire], role: Role, conversion: ConversionContext, path: str = "$.data.parts"
) -> tuple[list[ContentBlock], list[str]]:
    """Return the blocks of a message's parts, and the foreign ids of its tool calls."""
    blocks: list[ContentBlock] = []
    calls: list[str] = []
    unsigned: int | None = None  # index of the nearest thinking block without a signature
    for index, part in enumerate(parts):
        part_path = f"{path}[{index}]"
        kind = part.get("type")
        if role == Role.ASSISTANT and kind == "thinking_signature":
            signature = convert_to(types.ThinkingSignaturePart, part, part_path)
            if unsigned is not None:
                blocks[unsigned] = _sign(blocks[unsigned], signature)
                unsigned = None
            else:
                blocks.append(_lone_signature(signature))
            continue
        if role == Role.ASSISTANT and kind == "thinking_text":
            unsigned = len(blocks)
        if role == Role.ASSISTANT and kind == "tool_call":
            call = convert_to(types.ToolCallPart, part, part_path)
            calls.append(call.call_id)
            blocks.append(_decode_call(call, conversion))
        else:
            blocks.append(_decode_part(part, role, part_path))
    return blocks, calls


def _decode_part(part: Wire, role: Role, path: str) -> ContentBlock:
    kind = part.get("type")
    if not isinstance(kind, str):
        raise DecodeError("a part has no type", path=f"{path}.type")
    if kind == "text":
        # klaude-code keeps all text of a result in `output_text`; a text part would be lost there.
        if role == Role.TOOL:
            raise DecodeError("the text of a tool result is its `output_text`", path=path)
        return TextBlock(convert_to(types.TextPart, part, path).text)
    if role == Role.SYSTEM:
        raise DecodeError(f"a system message holds text only, no {kind}", path=path)
    match kind:
        case "image_url":
            return _decode_url(convert_to(types.ImageURLPart, part, path), role)
        case "image_file":
            return _decode_file(convert_to(types.ImageFilePart, part, path), role)
        case "thinking_text" if role == Role.ASSISTANT:
            thinking = convert_to(types.ThinkingTextPart, part, path)
            return ThinkingBlock(thinking.text, id=thinking.id, issuer=_issuer(thinking.model_id))
        case _:
            # A part of a newer klaude-code goes back unchanged, and to no provider.
            return OpaqueBlock(SYSTEM, Raw(msgspec.json.encode(part)), kind)


def _decode_url(part: types.ImageURLPart, role: Role) -> ContentBlock:
    head, comma, data = part.url.partition(",")
    media = head.removeprefix("data:").removesuffix(";base64")
    # A data URL holds the image itself; any other URL stays a reference.
    is_inline = comma and head == f"data:{media};base64" and is_media_type(media)
    kind, value = ("base64", data) if is_inline else ("url", part.url)
    media = media if is_inline else ANY_IMAGE_TYPE
    if role == Role.ASSISTANT:
        return ArtifactBlock(MediaSource(kind, value), media, id=part.id)
    return ImageBlock(ImageSource(kind, value), media)


def _decode_file(part: types.ImageFilePart, role: Role) -> ContentBlock:
    media = part.mime_type or ANY_IMAGE_TYPE if is_media_type(part.mime_type) else ANY_IMAGE_TYPE
    if role in _ARTIFACT_ROLES:
        return ArtifactBlock(MediaSource("file_ref", part.file_path), media)
    return ImageBlock(ImageSource("file_ref", part.file_path), media)


def _decode_call(part: types.ToolCallPart, conversion: ConversionContext) -> ToolUseBlock:
    arguments, invalid = parse_arguments(part.arguments_json)
    tool_use_id = conversion.open_tool_call(part.call_id, part.tool_name)
    return ToolUseBlock(tool_use_id, part.tool_name, arguments, invalid)


def _sign(block: ContentBlock, part: types.ThinkingSignaturePart) -> ContentBlock:
    assert isinstance(block, ThinkingBlock)  # noqa: S101 - the index is only set for these
    issuer = block.issuer or _issuer(part.model_id) or SYSTEM
    return replace(
        block,
        signature=part.signature,
        id=block.id or part.id,
        format=part.format,
        issuer=issuer,
    )


def _lone_signature(part: types.ThinkingSignaturePart) -> ContentBlock:
    # Without a known issuer no provider can read it; klaude-code as the issuer sends it to none.
    issuer = _issuer(part.model_id) or SYSTEM
    # Claude signs thinking whose text it withholds, and refuses the signature as redacted data.
    if issuer in _SIGNING_ISSUERS:
        return ThinkingBlock("", part.signature, part.id, part.format, issuer)
    return RedactedThinkingBlock(part.signature, part.id, part.format, issuer)


@lru_cache(maxsize=256)
def _issuer(model_id: str | None) -> str | None:
    """Return who can read what a model sealed: its provider, if the catalog has the model."""
    if not model_id:
        return None
    try:
        # A model name such as `sonnet` does not say who can read its signature; the catalog does.
        return catalog().resolve(model_id).partition(":")[0]
    except CatalogError:
        return model_id


def encode_parts(
    blocks: Sequence[ContentBlock], calls: Sequence[str | None], model: str | None
) -> list[Wire]:
    """Return the parts of blocks; opaque parts of klaude-code are written as they were read."""
    ids = iter(calls)
    return [part for block in blocks for part in _encode_block(block, ids, model)]


def _encode_block(
    block: ContentBlock, calls: Iterator[str | None], model: str | None
) -> Iterator[Wire]:
    match block:
        case TextBlock():
            yield {"type": "text", "text": block.text}
        case ToolUseBlock():
            yield {
                "type": "tool_call",
                "call_id": next(calls, None) or block.id,
                "tool_name": block.name,
                "arguments_json": _arguments(block),
            }
        case ThinkingBlock():
            model_id = _model_id(block.issuer, model)
            if block.text or block.signature is None:
                yield {
                    "type": "thinking_text",
                    "id": block.id,
                    "text": block.text,
                    "model_id": model_id,
                }
            if block.signature is not None:
                yield _encode_signature(block.signature, block, model_id)
        case RedactedThinkingBlock():
            yield _encode_signature(block.data, block, _model_id(block.issuer, model))
        case ImageBlock() | ArtifactBlock():
            yield _encode_image(block)
        case OpaqueBlock() if block.issuer == SYSTEM:
            yield maybe_object(block.data)
        case _:
            return


def _encode_signature(
    signature: str, block: ThinkingBlock | RedactedThinkingBlock, model_id: str | None
) -> Wire:
    return {
        "type": "thinking_signature",
        "id": block.id,
        "signature": signature,
        "model_id": model_id,
        "format": block.format,
    }


def _model_id(issuer: str | None, model: str | None) -> str | None:
    """Return the name of the model that issued a thinking block; else the issuer itself."""
    provider, _, name = (model or "").partition(":")
    if issuer == SYSTEM:
        return None
    # klaude-code expects the model, not the provider; both agree if the message names its model.
    return name if issuer and issuer == provider and name else issuer


def _encode_image(block: ImageBlock | ArtifactBlock) -> Wire:
    artifact_id = block.id if isinstance(block, ArtifactBlock) else None
    source = block.source
    if source.kind == "file_ref":
        mime = None if block.media_type == ANY_IMAGE_TYPE else block.media_type
        return {
            "type": "image_file",
            "file_path": source.data,
            "mime_type": mime,
            "byte_size": None,
            "sha256": None,
        }
    url = source.data
    if source.kind == "base64":
        url = f"data:{block.media_type};base64,{source.data}"
    return {"type": "image_url", "url": url, "id": artifact_id}


def _arguments(block: ToolUseBlock) -> str:
    if block.invalid is not None:
        return block.invalid.raw
    return json.dumps(block.input, ensure_ascii=False)


def has_same_arguments(first: Any, second: Any) -> bool:
    """Return whether two argument texts are the same JSON."""
    if not isinstance(first, str) or not isinstance(second, str):
        return False
    parsed, other = parse_arguments(first), parse_arguments(second)
    return parsed[1] is None and other[1] is None and parsed == other


def encode_stop_reason(metadata: MessageMetadata) -> str | None:
    """Return klaude-code's stop reason; a message that a person cancelled is `aborted`."""
    # klaude-code has no status of its own: a cancelled message is one that was aborted.
    if metadata.status == "cancelled":
        return "aborted"
    if metadata.status == "error":
        return "error"
    reason = metadata.stop_reason
    return None if reason is None else _FOREIGN_STOP_REASONS.get(reason, "stop")


def decode_usage(wire: types.Usage) -> Usage | None:
    """Return our disjoint counts; None if the foreign counts contradict each other.

    klaude-code counts cached tokens as part of the input, and its costs are floats.
    """
    counts = (wire.input_tokens, wire.cached_tokens, wire.reasoning_tokens, wire.output_tokens)
    if not all(0 <= count < 2**63 for count in counts):
        return None
    # Contradicting counts would make our disjoint buckets negative.
    if wire.cached_tokens > wire.input_tokens or wire.reasoning_tokens > wire.output_tokens:
        return None
    return Usage(
        input_tokens=wire.input_tokens - wire.cached_tokens,
        cached_input_tokens=wire.cached_tokens,
        output_tokens=wire.output_tokens,
        reasoning_output_tokens=wire.reasoning_tokens,
        cost_usd=Decimal(0),
        pricing_version=UNPRICED,
        latency_ms=0,
    )


def decode_model(wire: types.Usage) -> dict[str, Any]:
    """Return model and provider as metadata fields, if both names make a model id."""
    provider, name = wire.provider or "", wire.model_name
    if not provider or not name or ":" in provider:
        return {}
    return {"model": f"{provider}:{name}", "provider": provider}


def encode_usage(metadata: MessageMetadata) -> Wire | None:
    """Return klaude-code's counts, with the model that it stores beside them."""
    usage = metadata.usage
    if usage is None and metadata.model is None:
        return None
    provider, _, name = (metadata.model or "").partition(":")
    counts: Wire = {}
    if usage is not None:
        counts = {
            "input_tokens": usage.input_tokens
            + usage.cached_input_tokens
            + usage.cache_creation_input_tokens,
            "cached_tokens": usage.cached_input_tokens,
            "reasoning_tokens": usage.reasoning_output_tokens,
            "output_tokens": usage.output_tokens,
        }
    return counts | {"model_name": name, "provider": provider or None}
