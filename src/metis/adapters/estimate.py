"""An estimate of the tokens that a request will take, without asking anybody."""

import base64
import binascii
import math
import re
from collections.abc import Sequence

import msgspec

from metis.canonical.blocks import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    MediaSource,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)
from metis.canonical.message import Message
from metis.canonical.tools import ToolDefinition
from metis.catalog.tokens import UNKNOWN_SIZE, TokenRates
from metis.projection.image_size import image_size
from metis.projection.target import Target

_write = msgspec.json.Encoder().encode
_pages = re.compile(rb"/Type\s*/Page(?![a-zA-Z])").findall
_PAGE_BYTES = 50_000
_SOUND_BYTES = 16_000
_FILM_BYTES = 250_000


class Estimate:
    """Adds up what a conversation and its tools come to for one family of models."""

    def __init__(self, rates: TokenRates, target: Target) -> None:
        self._rates = rates
        self._target = target
        self._texts: list[str] = []
        self._sum = 0.0

    def of(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> int:
        """The tokens of a whole request."""
        rates = self._rates
        for message in messages:
            self._add_all(message.content)
        total = rates.request + rates.message * len(messages) + self._sum
        total += rates.of_text("\n".join(self._texts))
        if tools:
            schemas = "\n".join(_schema(tool) for tool in tools)
            total += rates.tools + rates.tool * len(tools) + rates.schema * rates.of_text(schemas)
        return math.ceil(total)

    def _add_all(self, content: Sequence[ContentBlock]) -> None:
        for block in content:
            match block:
                case TextBlock():
                    self._texts.append(block.text)
                case ToolUseBlock():
                    self._sum += self._rates.call
                    self._texts.append(f"{block.name} {_write(block.input).decode()}")
                case ToolResultBlock():
                    self._sum += self._rates.call
                    self._add_all(block.content)
                case ThinkingBlock() | RedactedThinkingBlock() | OpaqueBlock():
                    self._add_sealed(block)
                case _:
                    self._add_media(block)

    def _add_sealed(self, block: ThinkingBlock | RedactedThinkingBlock | OpaqueBlock) -> None:
        """What only its issuer is sent."""
        if block.issuer not in self._target.issuers:
            return
        if isinstance(block, OpaqueBlock):
            self._texts.append(bytes(block.raw).decode())
        elif self._target.takes_thinking:
            is_clear = isinstance(block, ThinkingBlock)
            self._texts.append(block.text if is_clear else block.data)

    def _add_media(self, block: ContentBlock) -> None:
        match block:
            case ImageBlock():
                self._add_image(block)
            case DocumentBlock():
                self._add_document(block)
            case AudioBlock() if "audio" in self._target.user_blocks:
                self._sum += self._rates.sound * _size(block.source) / _SOUND_BYTES
            case VideoBlock() if "video" in self._target.user_blocks:
                self._sum += self._rates.film * _size(block.source) / _FILM_BYTES
            case _:
                pass  # artifacts and what this version does not know are not sent

    def _add_image(self, block: ImageBlock) -> None:
        if "image" in self._target.user_blocks:
            source = block.source
            size = image_size(source.data) if source.kind == "base64" else None
            self._sum += self._rates.image.tokens(*(size or UNKNOWN_SIZE))

    def _add_document(self, block: DocumentBlock) -> None:
        if block.source.kind == "text":
            self._texts.append(block.source.data)
        elif "document" in self._target.user_blocks:
            self._sum += self._rates.page * _page_count(block.source)


def _schema(tool: ToolDefinition) -> str:
    return f"{tool.name} {tool.description} {_write(tool.input_schema).decode()}"


def _page_count(source: MediaSource) -> int:
    """The pages that a document tells of; by its size if they are packed away."""
    if source.kind != "base64":
        return 1
    try:
        found = len(_pages(base64.b64decode(source.data)))
    except (binascii.Error, ValueError):
        found = 0
    return found or math.ceil(_size(source) / _PAGE_BYTES)


def _size(source: MediaSource | ImageSource) -> int:
    """How many bytes there are; of what lies elsewhere nobody knows, and one page is taken."""
    return len(source.data) * 3 // 4 if source.kind == "base64" else _PAGE_BYTES
