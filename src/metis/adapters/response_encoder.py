"""Responses of one provider, written for clients of another.

what these cannot read becomes a loss.
"""

import logging
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.hosts import HOSTS
from metis.adapters.profile import Profile
from metis.adapters.profiles import OPENAI_COMPATIBLE, PROFILES
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
from metis.projection.loss import Change, Loss
from metis.streaming import BlockAdded, MessageComplete, MessageStart, StreamEvent
from metis.wire.codec import EncodeCitation, StreamEncoder

log = logging.getLogger("metis.adapters")

_PLAIN: Final = (ThinkingBlock, ToolUseBlock)
_TOLD: Final = (BlockAdded, MessageComplete, MessageStart)


def response_for_client(message: Message, profile: Profile) -> tuple[Message, list[Loss]]:
    """An answer in what the protocol has words for, and what is left of it unsaid."""
    if _is_plain(message.content):
        return message, []
    metadata = message.metadata
    name = metadata.provider or metadata.origin or ""
    answer = _Answer(profile, name, session_id=message.session_id, message_id=message.id)
    kept = tuple(answer.blocks(message.content))
    same = len(kept) == len(message.content) and all(map(_is, kept, message.content))
    return (message if same else replace(message, content=kept)), answer.losses


def _is(one: object, other: object) -> bool:
    return one is other


def _is_plain(content: tuple[ContentBlock, ...]) -> bool:
    """Whether there are only blocks that every protocol has: what almost all answers are."""
    return all(
        block.citations == () if type(block) is TextBlock else type(block) in _PLAIN
        for block in content
    )


def _protocol_of(name: str) -> str | None:
    """The protocol that a provider speaks."""
    row = (
        PROFILES.get(name)
        or HOSTS.get(name)
        or (OPENAI_COMPATIBLE if name == OPENAI_COMPATIBLE.name else None)
    )
    return None if row is None else row.protocol


class _Answer:
    """One answer on its way to a client of another provider."""

    def __init__(self, profile: Profile, name: str, *, session_id: str, message_id: str) -> None:
        self._profile = profile
        self._session_id = session_id
        self._message_id = message_id
        self._codec = CODECS[profile.protocol]
        self._is_own = _protocol_of(name) == profile.protocol
        self.losses: list[Loss] = []

    def blocks(self, content: tuple[ContentBlock, ...]) -> Iterator[ContentBlock]:
        """What can be given out of an answer."""
        for index, block in enumerate(content):
            path = f"$.content[{index}]"
            if type(block) is TextBlock:
                yield self.text(block, path)
            elif self.takes(block, path):
                yield block

    def takes(self, block: ContentBlock, path: str) -> bool:
        """Whether a block can be given out; what cannot is lost."""
        if type(block) in _PLAIN or self._has_place_for(block):
            return True
        kind = block.kind if type(block) is OpaqueBlock else None
        self._lose(block.type, path, f"answers here have no place for {kind or block.type}")
        return False

    def _has_place_for(self, block: ContentBlock) -> bool:
        if type(block) is OpaqueBlock and self._codec.has_private_parts:
            return block.issuer in (self._profile.name, self._profile.protocol)
        if self._is_own:
            return True
        if type(block) is RedactedThinkingBlock:
            return self._codec.has_sealed_thinking
        if type(block) is not ArtifactBlock or not self._codec.has_generated_images:
            return False
        known = self._codec.generated_media_types
        return known is None or block.media_type in known

    def text(self, block: TextBlock, path: str) -> TextBlock:
        """A text with what it cites in the words of the protocol; the rest is lost."""
        if not block.citations or self._is_own:
            return block
        cite: EncodeCitation = self._codec.encode_citation
        told = [replace(each, raw=cite(each)) for each in block.citations]
        for index, each in enumerate(told):
            if each.raw is None:
                self.lose_citation(f"{path}.citations[{index}]", f"cite no {each.kind}")
        return replace(block, citations=tuple(each for each in told if each.raw is not None))

    def lose_citation(self, path: str, why: str) -> None:
        """Tell of a citation that does not reach the client."""
        self._lose("citation", path, f"answers here {why}")

    def _lose(self, kind: str, path: str, reason: str) -> None:
        self.losses.append(
            Loss(
                session_id=self._session_id,
                message_id=self._message_id,
                block_type=kind,
                adapter=self._profile.name,
                reason=reason,
                change=Change.DROPPED,
                path=path,
            )
        )


class ClientStreamEncoder:
    """A stream writer that tells what of an answer the stream of its protocol has no place for."""

    def __init__(self, writer: StreamEncoder, profile: Profile, session_id: str) -> None:
        self._writer = writer
        self._write = writer.encode
        self._profile = profile
        self._session_id = session_id
        self._name = ""
        """Who answers, if the stream says it."""

    def encode(self, event: StreamEvent) -> bytes:
        """The bytes for one event."""
        return self._write(event) if type(event) not in _TOLD else self._encode(event)

    def finish(self) -> bytes:
        """The bytes that close the stream."""
        return self._writer.finish()

    def _encode(self, event: StreamEvent) -> bytes:
        match event:
            case MessageStart():
                self._name = (event.model or "").partition(":")[0]
            case BlockAdded() if not self._takes(event):
                return b""
            case MessageComplete() if not _is_plain(event.message.content):
                return self._write(replace(event, message=self._cited(event.message)))
            case _:
                pass
        return self._write(event)

    def _takes(self, event: BlockAdded) -> bool:
        answer = self._answer(event.message_id)
        found = answer.takes(event.block, f"$.content[{event.content_block_index}]")
        log_losses(answer.losses)
        return found

    def _answer(self, message_id: str) -> _Answer:
        own = self._session_id
        return _Answer(self._profile, self._name, session_id=own, message_id=message_id)

    def _cited(self, message: Message) -> Message:
        """The answer with the citations that its stream can still tell; no block goes away."""
        answer = self._answer(message.id)
        last = len(message.content) - 1
        can = CODECS[self._profile.protocol].stream_citations
        content: list[ContentBlock] = []
        for index, block in enumerate(message.content):
            kept = block
            if type(block) is TextBlock and block.citations:
                path = f"$.content[{index}]"
                kept = answer.text(block, path)
                if can == "none" or (can == "last" and index < last):
                    for place in range(len(kept.citations)):
                        answer.lose_citation(f"{path}.citations[{place}]", "cite nothing so late")
                    kept = replace(kept, citations=())
            content.append(kept)
        log_losses(answer.losses)
        return replace(message, content=tuple(content))


def log_losses(losses: list[Loss]) -> None:
    """Write each loss to the log."""
    for loss in losses:
        log.warning("%s", loss, extra=log_fields(loss))


def log_fields(loss: Loss) -> dict[str, str]:
    """What a log record of a loss says beside its words."""
    return {
        "session_id": loss.session_id,
        "message_id": loss.message_id,
        "block_type": loss.block_type,
        "adapter": loss.adapter,
        "reason": loss.reason,
    }
