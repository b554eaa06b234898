"""Request decoding that all protocols share: the draft of the messages, and the decoding steps."""

from collections.abc import Callable
from typing import Any, Self

from msgspec import Struct

from metis.canonical.blocks import ContentBlock
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.json_access import Wire

_make_message = raw_constructor(Message)
_make_metadata = raw_constructor(MessageMetadata)


class RequestDraft:
    """The messages of a request while they are decoded, as role, content and metadata.

    Message ids are created for all of them together, because that is faster.
    """

    def __init__(self, context: RequestContext, protocol: str) -> None:
        self._context = context
        self._origin = context.provider or protocol
        self._bare_metadata = _make_metadata(origin=self._origin)
        self._drafts: list[tuple[Role, tuple[ContentBlock, ...], MessageMetadata]] = []
        self._start = 0

    def paused(self) -> Self | None:
        """Return a draft that continues after these messages and contains only later ones.

        None if the next wire message may still change the last message of this draft.
        """
        other = object.__new__(type(self))
        drafts = self._drafts[-1:]  # decoders may read the preceding message
        changes = {"_drafts": drafts, "_start": len(drafts)}
        other.__dict__ = {**self.__dict__, **changes}
        other._detach()
        return other

    def _detach(self) -> None:
        """Copy mutable state, after `paused` created this draft with the state of another one."""

    @property
    def count(self) -> int:
        """The number of messages that were decoded."""
        return len(self._drafts) - self._start

    def messages(self) -> tuple[Message, ...]:
        """Return the decoded messages, in order."""
        session_id, created_at = self._context.session_id, self._context.created_at
        drafts = self._drafts[self._start :] if self._start else self._drafts
        ids = new_ulids(len(drafts))
        # `tuple` of a list is faster than of a generator; a gateway decodes long histories.
        return tuple(
            [
                _make_message(
                    id=message_id,
                    session_id=session_id,
                    role=role,
                    content=content,
                    metadata=metadata,
                    created_at=created_at,
                )
                for message_id, (role, content, metadata) in zip(ids, drafts, strict=True)
            ]
        )


def _fits(_: object) -> bool:
    return True


class RequestSteps(Struct, frozen=True, kw_only=True):
    """The steps by which a protocol decodes a request; decoding can resume after any message.

    How a wire message is decoded depends only on the wire messages before it: how often an id was
    used, which calls have no result yet, which role was last. The draft contains this state.
    """

    key: str
    """The key of the list of wire messages in a request."""
    response_mark: bytes
    """Bytes that every history with a response contains."""
    draft: Callable[[RequestContext], Any]
    """Creates the draft of an empty history."""
    begin: Callable[[Any, Wire], None]
    """Adds content outside of the message list, such as a system prompt, and removes its key."""
    add: Callable[[Any, bytes, int], None]
    """Adds a wire message, given as JSON with its position in the list."""
    end: Callable[[Wire, RequestContext], tuple[tuple[ToolDefinition, ...], AdapterOptions]]
    """Decodes the other keys of the request."""
    fits: Callable[[Any], bool] = _fits
    """Whether `decode_request` would decode a request with the messages of a draft the same way."""
