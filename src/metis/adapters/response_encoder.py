"""Responses of one provider, encoded for clients of another; what those cannot read is a loss."""

import logging
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from metis.adapters.codecs import CODECS
from metis.adapters.hosts import find_profile
from metis.adapters.profile import Profile
from metis.adapters.response_losses import can_state, unread_keys, unread_metadata
from metis.adapters.seals import ClientSeals, sealed_record
from metis.canonical.blocks import (
    ArtifactBlock,
    Citation,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason
from metis.projection import Change, Loss, are_identical
from metis.streaming import (
    BlockAdded,
    MessageComplete,
    MessageStart,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
)
from metis.wire.call import RequestContext
from metis.wire.codec import StreamEncoder
from metis.wire.original_form import has_foreign_form, original_form_of, without_original_form
from metis.wire.seals import value_of

log = logging.getLogger("metis.adapters")

_COMMON_BLOCKS: Final = (ThinkingBlock, ToolUseBlock)
"""Blocks that the responses of every protocol can have, beside text."""
_CHECKED_EVENTS: Final = (BlockAdded, MessageComplete, MessageStart, ToolUseEnd)


def response_for_client(
    message: Message, profile: Profile, client_seals: ClientSeals
) -> tuple[Message, list[Loss]]:
    """Return a response as a client of a provider can read it, and losses for all other parts.

    The original form of another host is not used even if it speaks the same protocol, because
    clients of one host do not know the ids and extra keys of another.
    """
    provider = message.metadata.provider or message.metadata.origin or ""
    response = _ClientResponse(
        profile, provider, client_seals, session_id=message.session_id, message_id=message.id
    )
    message = response.without_foreign_form(message)
    if _is_plain(message.content) or response.is_unchanged(message):
        return message, response.losses
    content = tuple(response.blocks(response.sealed(message.content)))
    return _replace_content(message, content), response.losses


def _replace_content(message: Message, content: tuple[ContentBlock, ...]) -> Message:
    if are_identical(content, message.content):
        return message
    metadata = message.metadata
    had_calls, has_calls = (
        any(type(block) is ToolUseBlock for block in blocks)
        for blocks in (message.content, content)
    )
    if metadata.stop_reason is StopReason.TOOL_USE and had_calls and not has_calls:
        # The only call was broken and is not sent. With the stop reason `tool_use` the client
        # would wait for a call.
        metadata = replace(metadata, stop_reason=StopReason.MAX_TOKENS)
    return replace(message, content=content, metadata=metadata)


def _is_plain(content: tuple[ContentBlock, ...]) -> bool:
    # Almost all responses are plain; they skip the checks of each block.
    return all(
        block.citations == ()
        if type(block) is TextBlock
        else (type(block) is ThinkingBlock and not block.signature)
        or (type(block) is ToolUseBlock and not block.invalid)
        for block in content
    )


class _ClientResponse:
    """Decides which parts of one response a client can read, and records losses for the others."""

    def __init__(  # noqa: PLR0913 - two for the client, the rest names the response in losses
        self,
        profile: Profile,
        provider: str,
        client_seals: ClientSeals,
        *,
        session_id: str,
        message_id: str,
        is_stream: bool = False,
    ) -> None:
        self._profile = profile
        self._provider = provider
        self._client_seals = client_seals
        self._session_id = session_id
        self._message_id = message_id
        self._codec = CODECS[profile.protocol]
        self._is_stream = is_stream
        self._is_native = provider == profile.name
        issuer = find_profile(provider)
        self._is_same_protocol = issuer is not None and issuer.protocol == profile.protocol
        self.losses: list[Loss] = []

    def without_foreign_form(self, message: Message) -> Message:
        """Return a response without an original form that its client cannot read.

        Keys of the original form without a canonical field are losses, and so is metadata that the
        client's protocol cannot state.
        """
        name, protocol = self._profile.name, self._profile.protocol
        is_foreign = has_foreign_form(
            message, protocol, name
        ) or self._client_seals.has_foreign_seals(message.content, self._provider)
        if message.metadata.provider == name and not is_foreign:
            return message
        for path, reason in unread_keys(message, None if is_foreign else protocol):
            self._lose("key", path, reason)
        for path, reason in unread_metadata(message, protocol):
            self._lose("metadata", path, reason, Change.ALTERED)
        return without_original_form(message) if is_foreign else message

    def is_unchanged(self, message: Message) -> bool:
        """Whether a response of the client's provider still has the content of its original form.

        Then it is written as it was, so that the provider's own client also reads a call whose
        arguments are JSON, but not an object.
        """
        digest = original_form_of(message, self._profile.protocol).get("digest")
        return self._is_native and digest is not None and digest == message.content_digest()

    def sealed(self, content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
        """Return content in which seals of other issuers are in envelopes.

        Where the protocol has no field for seals they are lost, unless the caller stores them.
        """
        if self._codec.has_sealed_thinking:
            sealed = self._client_seals.seal(content, self._provider)
            for index, (before, after) in enumerate(zip(content, sealed, strict=True)):
                if before is not after and not value_of(after):
                    self.lose_seal(index, "a seal of this length does not fit an envelope")
            return sealed
        if not self._client_seals.keeps_seals:
            for index, block in enumerate(content):
                if type(block) is ThinkingBlock and block.signature:
                    self.lose_seal(index, "responses of this protocol have no field for seals")
        return content

    def lose_seal(self, index: int, reason: str) -> None:
        """Record a seal that the client does not receive."""
        self._lose("seal", f"$.content[{index}].signature", reason)

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
        if type(block) is ToolUseBlock and block.invalid is not None:
            return self.accepts_broken_call(path)
        if type(block) in _COMMON_BLOCKS or self._can_express(block):
            return True
        kind = block.kind if type(block) is OpaqueBlock else None
        self._lose(block.type, path, f"responses of this protocol have no {kind or block.type}")
        return False

    def accepts_broken_call(self, path: str) -> bool:
        """Whether the client can read arguments that are not a JSON object; if not, it is a loss.

        Such a call is never written with other arguments, because a client would run it (T32,
        T161).
        """
        match self._codec.broken_calls:
            case "all":
                return True
            case "stream" if self._is_stream:
                return True
            case "native" if self._is_native:
                return True
            case _:
                pass
        self._lose("tool_use", path, "arguments of a call must be a JSON object here")
        return False

    def _can_express(self, block: ContentBlock) -> bool:
        codec = self._codec
        if type(block) is OpaqueBlock and codec.has_private_parts:
            return block.issuer in (self._profile.name, self._profile.protocol)
        if self._is_same_protocol:
            return True
        if type(block) is RedactedThinkingBlock:
            return codec.has_sealed_thinking
        return type(block) is ArtifactBlock and can_state(self._profile.protocol, block)

    def text(self, block: TextBlock, path: str) -> TextBlock:
        """Return a text with the citations that the protocol can express; others are losses."""
        citations = self.citations(block.citations, path)
        return block if citations is block.citations else replace(block, citations=citations)

    def citations(
        self, citations: tuple[Citation, ...], path: str, first: int = 0
    ) -> tuple[Citation, ...]:
        """Return the citations that the protocol can express; others are losses.

        `first` is the index of the first citation in its text, for the paths of the losses.
        """
        # A protocol whose texts have no citations stores them elsewhere in its responses.
        is_native = self._is_same_protocol and (self._codec.stream_citations != "none")
        if not citations or is_native or self._is_native:
            return citations
        encode = self._codec.encode_citation
        mapped = [replace(citation, raw=encode(citation)) for citation in citations]
        for index, citation in enumerate(mapped, first):
            if citation.raw is None:
                self.lose_citation(f"{path}.citations[{index}]", f"have no {citation.kind}")
        return tuple(citation for citation in mapped if citation.raw is not None)

    def lose_citation(self, path: str, verb_phrase: str) -> None:
        """Record a citation that does not reach the client."""
        self._lose("citation", path, f"responses of this protocol {verb_phrase}")

    def _lose(
        self, block_type: str, path: str, reason: str, change: Change = Change.DROPPED
    ) -> None:
        self.losses.append(
            Loss(
                session_id=self._session_id,
                message_id=self._message_id,
                block_type=block_type,
                adapter=self._profile.name,
                reason=reason,
                change=change,
                path=path,
            )
        )


class ClientStreamEncoder:
    """A stream encoder that leaves out what the protocol of a client cannot express.

    `losses` has what was left out so far; each loss is logged once. Blocks after one that was left
    out get lower indexes, because clients append blocks to a list.
    """

    def __init__(
        self,
        encoder: StreamEncoder,
        profile: Profile,
        client_seals: ClientSeals,
        context: RequestContext,
    ) -> None:
        self._encoder = encoder
        self._encode = encoder.encode
        self._profile = profile
        self._client_seals = client_seals
        self._context = context
        self._issuer: str | None = None
        """Who seals the thinking of this response."""
        self._has_started = False
        self._thinking = -1, 0
        """The index of the last thinking, and how many characters it has so far."""
        self._provider = ""
        """The provider of the response, if the stream names it."""
        self._dropped_count = 0
        self._logged_count = 0
        self._citations = CODECS[profile.protocol].stream_citations
        self._live_citations: dict[int, int] = {}
        """The number of citations that arrived with the deltas of a text, by its block index."""

    @property
    def losses(self) -> list[Loss]:
        """What the client does not receive of the response so far."""
        return self._encoder.losses

    def encode(self, event: StreamEvent) -> bytes:
        """Return the bytes for one event."""
        if type(event) is TextDelta:
            # Nearly all events are text deltas without citations.
            if not event.citations and not self._dropped_count:
                return self._encode(event)
            if event.citations:
                event = self._cited(event)
        elif type(event) is ThinkingDelta:
            event = self._sealed(event)
        if type(event) not in _CHECKED_EVENTS:
            return self._encode(self._renumbered(event) if self._dropped_count else event)
        encoded = self._checked(event)
        self._log_new_losses()
        return encoded

    def finish(self) -> bytes:
        """Return the bytes that close the stream."""
        encoded = self._encoder.finish()
        self._log_new_losses()
        return encoded

    def _log_new_losses(self) -> None:
        losses = self.losses
        if len(losses) > self._logged_count:
            log_losses(losses[self._logged_count :])
            self._logged_count = len(losses)

    def _renumbered(self, event: Any) -> Any:
        if not hasattr(event, "content_block_index"):
            return event
        return replace(event, content_block_index=event.content_block_index - self._dropped_count)

    def _checked(self, event: StreamEvent) -> bytes:
        match event:
            case MessageStart():
                return self._encode(self._start(event))
            case BlockAdded(block=ThinkingBlock() | RedactedThinkingBlock()):
                block, *_ = self._client_seals.seal((event.block,), self._issuer or self._provider)
                return self._encode_block(replace(event, block=block))
            case BlockAdded() | ToolUseEnd() if not self._accepts(event):
                self._dropped_count += 1
                return b""
            case MessageComplete():
                return self._encode(self._end(event))
            case _:
                return self._encode(self._renumbered(event) if self._dropped_count else event)

    def _encode_block(self, event: BlockAdded) -> bytes:
        if not self._accepts(event):
            self._dropped_count += 1
            return b""
        return self._encode(self._renumbered(event) if self._dropped_count else event)

    def _sealed(self, event: ThinkingDelta) -> ThinkingDelta:
        """Return a delta whose signature is in an envelope if another provider made it.

        A signature that does not fit is reported as a loss with the complete message.
        """
        index, before = self._thinking
        length = len(event.text) + (before if index == event.content_block_index else 0)
        self._thinking = event.content_block_index, length
        if not event.signature:
            return event
        if not self._has_started:
            return replace(event, signature=None)  # its issuer is unknown
        block = ThinkingBlock("", event.signature, event.id, event.format)
        sealed, *_ = self._client_seals.seal((block,), self._issuer or self._provider, length)
        signature = value_of(sealed) if type(sealed) is ThinkingBlock else None
        return event if signature == event.signature else replace(event, signature=signature)

    def _start(self, event: MessageStart) -> MessageStart:
        prefix = (event.model or "").partition(":")[0]
        self._provider = event.provider or (prefix if find_profile(prefix) else "")
        self._issuer = event.issuer
        self._has_started = True
        is_readable = self._provider in ("", self._profile.name) and (
            not self._provider or self._client_seals.is_readable(event.issuer or self._provider)
        )
        # As in a plain response: hosts of one protocol do not know each other's ids.
        return event if is_readable else replace(event, protocol=None, original_form=None)

    def _accepts(self, event: BlockAdded | ToolUseEnd) -> bool:
        if type(event) is ToolUseEnd and event.invalid is None:
            return True
        response = self._response(event.message_id)
        path = f"$.content[{event.content_block_index}]"
        if type(event) is BlockAdded:
            is_accepted = response.accepts(event.block, path)
        else:
            is_accepted = response.accepts_broken_call(path)
        self.losses.extend(response.losses)
        return is_accepted

    def _response(self, message_id: str) -> _ClientResponse:
        return _ClientResponse(
            self._profile,
            self._provider,
            self._client_seals,
            session_id=self._context.session_id,
            message_id=message_id,
            is_stream=True,
        )

    def _end(self, event: MessageComplete) -> MessageComplete:
        """Return the event with the message from which a plain response would be encoded."""
        message = event.message
        response = self._response(message.id)
        message = response.without_foreign_form(message)
        self.losses.extend(response.losses)
        if not _is_plain(message.content):
            report_seals(message, self._profile, self._context)
            response = self._response(message.id)
            message = replace(message, content=response.sealed(message.content))
            self.losses.extend(response.losses)
            message = self._with_citations(message)
        reason = event.stop_reason
        if message is not event.message and event.message.metadata.stop_reason is reason:
            reason = message.metadata.stop_reason or reason
        return replace(event, message=message, stop_reason=reason)

    def _cited(self, event: TextDelta) -> TextDelta:
        """Return a delta with the citations that can be written before their text is closed."""
        if self._citations != "last":
            return event  # all citations are written or recorded as losses with the message
        index = event.content_block_index
        first = self._live_citations.get(index, 0)
        self._live_citations[index] = first + len(event.citations)
        response = self._response(event.message_id)
        citations = response.citations(event.citations, f"$.content[{index}]", first)
        self.losses.extend(response.losses)
        return event if citations is event.citations else replace(event, citations=citations)

    def _with_citations(self, message: Message) -> Message:
        # Earlier events have reported the losses of whole blocks, and of citations in deltas.
        reported, late = self._response(message.id), self._response(message.id)
        last = len(message.content) - 1
        content: list[ContentBlock] = []
        for index, block in enumerate(message.content):
            path = f"$.content[{index}]"
            if type(block) is TextBlock and block.citations:
                count = self._live_citations.get(index, 0)
                live_citations = reported.citations(block.citations[:count], path)
                late_citations = late.citations(block.citations[count:], path, count)
                if self._citations == "last" and index < last:
                    # The earlier text is already closed on the wire.
                    for n in range(count, count + len(late_citations)):
                        late.lose_citation(f"{path}.citations[{n}]", "cite nothing this late")
                    late_citations = ()
                citations = (*live_citations, *late_citations)
                is_same = citations == block.citations
                content.append(block if is_same else replace(block, citations=citations))
            elif type(block) is TextBlock or reported.accepts(block, path):
                content.append(block)
        self.losses.extend(late.losses)
        return _replace_content(message, tuple(content))


def report_seals(message: Message, profile: Profile, context: RequestContext) -> None:
    """Pass the seals of a response to the caller, for clients whose protocol has no seals."""
    if context.on_seals is not None and CODECS[profile.protocol].joins_blocks:
        record = sealed_record(message, profile)
        if record is not None:
            context.on_seals(record)


def log_losses(losses: list[Loss]) -> None:
    """Write each loss to the log, with its fields."""
    for loss in losses:
        log.warning("%s", loss, extra=loss.log_fields())
