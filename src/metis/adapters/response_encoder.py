"""Responses of one provider, written for clients of another; what these cannot read is a loss."""

import logging
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.hosts import PROVIDERS
from metis.adapters.profile import Profile
from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message
from metis.projection import Loss, are_identical
from metis.streaming import BlockAdded, MessageComplete, MessageStart, StreamEvent
from metis.wire.codec import StreamEncoder

log = logging.getLogger("metis.adapters")

_COMMON_BLOCKS: Final = (ThinkingBlock, ToolUseBlock)
"""Blocks that the responses of every protocol can hold, beside text."""
_CHECKED_EVENTS: Final = (BlockAdded, MessageComplete, MessageStart)


def response_for_client(message: Message, profile: Profile) -> tuple[Message, list[Loss]]:
    """Return a response with only what the protocol of a client can express, and the losses."""
    if _is_plain(message.content):
        return message, []
    provider = message.metadata.provider or message.metadata.origin or ""
    response = _Response(profile, provider, session_id=message.session_id, message_id=message.id)
    content = tuple(response.blocks(message.content))
    same = are_identical(content, message.content)
    return (message if same else replace(message, content=content)), response.losses


def _is_plain(content: tuple[ContentBlock, ...]) -> bool:
    # Almost all responses are plain, and need no further look.
    return all(
        block.citations == () if type(block) is TextBlock else type(block) in _COMMON_BLOCKS
        for block in content
    )


class _Response:
    """One response of a provider on its way to a client of another."""

    def __init__(
        self, profile: Profile, provider: str, *, session_id: str, message_id: str
    ) -> None:
        self._profile = profile
        self._session_id = session_id
        self._message_id = message_id
        self._codec = CODECS[profile.protocol]
        issuer = PROVIDERS.get(provider)
        self._is_same_protocol = issuer is not None and issuer.protocol == profile.protocol
        self.losses: list[Loss] = []

    def blocks(self, content: tuple[ContentBlock, ...]) -> Iterator[ContentBlock]:
        """Yield the blocks that the client can read."""
        for index, block in enumerate(content):
            path = f"$.content[{index}]"
            if type(block) is TextBlock:
                yield self.text(block, path)
            elif self.accepts(block, path):
                yield block

    def accepts(self, block: ContentBlock, path: str) -> bool:
        """Whether the client can read a block; if not, its loss is recorded."""
        if type(block) in _COMMON_BLOCKS or self._can_express(block):
            return True
        kind = block.kind if type(block) is OpaqueBlock else None
        self._lose(block.type, path, f"responses of this protocol have no {kind or block.type}")
        return False

    def _can_express(self, block: ContentBlock) -> bool:
        codec = self._codec
        if type(block) is OpaqueBlock and codec.has_private_parts:
            return block.issuer in (self._profile.name, self._profile.protocol)
        if self._is_same_protocol:
            return True
        if type(block) is RedactedThinkingBlock:
            return codec.has_sealed_thinking
        if type(block) is not ArtifactBlock or not codec.has_generated_images:
            return False
        types = codec.generated_media_types
        return types is None or block.media_type in types

    def text(self, block: TextBlock, path: str) -> TextBlock:
        """Return a text with the citations that the protocol can express; others are lost."""
        if not block.citations or self._is_same_protocol:
            return block
        encode = self._codec.encode_citation
        citations = [replace(citation, raw=encode(citation)) for citation in block.citations]
        for index, citation in enumerate(citations):
            if citation.raw is None:
                self.lose_citation(f"{path}.citations[{index}]", f"have no {citation.kind}")
        return replace(block, citations=tuple(one for one in citations if one.raw is not None))

    def lose_citation(self, path: str, why: str) -> None:
        """Record a citation that does not reach the client."""
        self._lose("citation", path, f"responses of this protocol {why}")

    def _lose(self, block_type: str, path: str, reason: str) -> None:
        self.losses.append(
            Loss(
                session_id=self._session_id,
                message_id=self._message_id,
                block_type=block_type,
                adapter=self._profile.name,
                reason=reason,
                path=path,
            )
        )


class ClientStreamEncoder:
    """A stream encoder that leaves out, and logs, what the protocol of a client cannot express."""

    def __init__(self, encoder: StreamEncoder, profile: Profile, session_id: str) -> None:
        self._encoder = encoder
        self._encode = encoder.encode
        self._profile = profile
        self._session_id = session_id
        self._provider = ""
        """The provider of the response, if the stream names it."""

    def encode(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        return self._encode(event) if type(event) not in _CHECKED_EVENTS else self._checked(event)

    def finish(self) -> bytes:
        """Return the bytes that close the stream."""
        return self._encoder.finish()

    def _checked(self, event: StreamEvent) -> bytes:
        match event:
            case MessageStart():
                self._provider = (event.model or "").partition(":")[0]
            case BlockAdded() if not self._accepts(event):
                return b""
            case MessageComplete() if not _is_plain(event.message.content):
                return self._encode(replace(event, message=self._with_citations(event.message)))
            case _:
                pass
        return self._encode(event)

    def _accepts(self, event: BlockAdded) -> bool:
        response = self._response(event.message_id)
        is_accepted = response.accepts(event.block, f"$.content[{event.content_block_index}]")
        log_losses(response.losses)
        return is_accepted

    def _response(self, message_id: str) -> _Response:
        return _Response(
            self._profile, self._provider, session_id=self._session_id, message_id=message_id
        )

    def _with_citations(self, message: Message) -> Message:
        # A stream has sent its blocks already: only citations can still be left out.
        response = self._response(message.id)
        last = len(message.content) - 1
        supported = CODECS[self._profile.protocol].stream_citations
        content: list[ContentBlock] = []
        for index, block in enumerate(message.content):
            sent = block
            if type(block) is TextBlock and block.citations:
                path = f"$.content[{index}]"
                sent = response.text(block, path)
                if supported == "none" or (supported == "last" and index < last):
                    # Earlier texts are closed on the wire when their citations are known.
                    for n in range(len(sent.citations)):
                        response.lose_citation(f"{path}.citations[{n}]", "cite nothing this late")
                    sent = replace(sent, citations=())
            content.append(sent)
        log_losses(response.losses)
        return replace(message, content=tuple(content))


def log_losses(losses: list[Loss]) -> None:
    """Write each loss to the log, with its fields."""
    for loss in losses:
        log.warning("%s", loss, extra=loss.log_fields())
