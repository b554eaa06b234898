"""Serving: an answer of one provider as a client of another protocol can read it."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.hosts import HOSTS
from metis.adapters.profile import Profile
from metis.adapters.profiles import COMPATIBLE, PROFILES
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
from metis.wire.codec import Cite

_PLAIN: Final = (ThinkingBlock, ToolUseBlock)


def served(message: Message, profile: Profile) -> tuple[Message, list[Loss]]:
    """An answer in what the protocol has words for, and what is left of it unsaid."""
    content = message.content
    if _is_plain(content) or _speaks(message, profile.protocol):
        return message, []
    answer = _Answer(message, profile)
    kept = tuple(answer.blocks())
    return replace(message, content=kept), answer.losses


def _is_plain(content: tuple[ContentBlock, ...]) -> bool:
    """Whether there are only blocks that every protocol has: what almost all answers are."""
    return all(
        block.citations == () if type(block) is TextBlock else type(block) in _PLAIN
        for block in content
    )


def _speaks(message: Message, protocol: str) -> bool:
    """Whether an answer came in this protocol."""
    name = message.metadata.provider or message.metadata.origin or ""
    row = PROFILES.get(name) or HOSTS.get(name) or (COMPATIBLE if name == COMPATIBLE.name else None)
    return row is not None and row.protocol == protocol


class _Answer:
    """One answer on its way to a client of another protocol."""

    def __init__(self, message: Message, profile: Profile) -> None:
        self._message = message
        self._profile = profile
        self._codec = CODECS[profile.protocol]
        self.losses: list[Loss] = []

    def blocks(self) -> Iterator[ContentBlock]:
        for index, block in enumerate(self._message.content):
            path = f"$.content[{index}]"
            if type(block) is TextBlock:
                yield self._text(block, path)
            elif type(block) in _PLAIN or self._has_place_for(block):
                yield block
            else:
                kind = block.kind if type(block) is OpaqueBlock else None
                self._lose(block.type, path, f"answers here have no place for {kind or block.type}")

    def _has_place_for(self, block: ContentBlock) -> bool:
        if type(block) is RedactedThinkingBlock:
            return self._codec.seals
        return type(block) is ArtifactBlock and self._codec.pictures

    def _text(self, block: TextBlock, path: str) -> TextBlock:
        if not block.citations:
            return block
        cite: Cite = self._codec.cite
        told = [replace(each, raw=cite(each)) for each in block.citations]
        for index, each in enumerate(told):
            if each.raw is None:
                reason = f"answers here cite no {each.kind}"
                self._lose("citation", f"{path}.citations[{index}]", reason)
        return replace(block, citations=tuple(each for each in told if each.raw is not None))

    def _lose(self, kind: str, path: str, reason: str) -> None:
        self.losses.append(
            Loss(
                session_id=self._message.session_id,
                message_id=self._message.id,
                block_type=kind,
                adapter=self._profile.name,
                reason=reason,
                change=Change.DROPPED,
                path=path,
            )
        )
