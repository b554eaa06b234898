"""Content: what a server answers, as our blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import (
    ArtifactBlock,
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    TextBlock,
)
from metis.tools.tool import ToolOutput

_PDF = "application/pdf"


def tool_output(result: Mapping[str, Any]) -> ToolOutput:
    """The result of a call as it came over the wire, as an output."""
    parts: Sequence[Mapping[str, Any]] = result.get("content") or ()
    value = result.get("structuredContent", UNSET)
    return ToolOutput(
        content=tuple(content_block(part) for part in parts),
        success=not result.get("isError", False),
        value=value,
    )


def content_block(part: Mapping[str, Any]) -> ContentBlock:
    """One part of a result; a kind that is not known is told in words."""
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return ImageBlock(ImageSource(kind="base64", data=data), media_type=kind)
        case {"type": "audio", "data": str(data), "mimeType": str(kind)}:
            return AudioBlock(MediaSource(kind="base64", data=data), media_type=kind)
        case {"type": "resource", "resource": {"uri": _}}:
            return _resource(part["resource"])
        case {"type": "resource_link", "uri": uri}:
            name, description = part.get("name"), part.get("description")
            words = [str(word) for word in (name, uri, description) if word]
            return TextBlock(f"[resource] {': '.join(words)}")
        case _:
            return TextBlock(f"[a part of the kind {part.get('type')!r}, which is not known]")


def _resource(resource: Mapping[str, Any]) -> ContentBlock:
    uri = str(resource.get("uri", ""))
    kind = str(resource.get("mimeType") or "application/octet-stream")
    if "text" in resource:
        return TextBlock(f"[{uri}]\n{resource['text']}")
    data = str(resource.get("blob", ""))
    if kind.startswith("image/"):
        return ImageBlock(ImageSource(kind="base64", data=data), media_type=kind)
    source = MediaSource(kind="base64", data=data)
    if kind == _PDF:
        return DocumentBlock(source, media_type=kind, name=uri)
    return ArtifactBlock(source, media_type=kind, name=uri)
