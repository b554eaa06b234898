"""What the requests of all protocols share: the messages of a request while they are decoded."""

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
    """The messages of a request while they are decoded.

    They wait as role, content and metadata: ids are made for all of them at once.
    """

    def __init__(self, context: RequestContext, protocol: str) -> None:
        self._context = context
        self._origin = context.provider or protocol
        self._bare_metadata = _make_metadata(origin=self._origin)
        self._drafts: list[tuple[Role, tuple[ContentBlock, ...], MessageMetadata]] = []
        self._start = 0

    def paused(self) -> Self | None:
        """Return a draft that goes on after these messages and holds only those that follow.

        None if the next wire message may still change the last one of these.
        """
        other = object.__new__(type(self))
        drafts = self._drafts[-1:]  # a decoder may look at the message before
        changes = {"_drafts": drafts, "_start": len(drafts)}
        other.__dict__ = {**self.__dict__, **changes}
        other._detach()
        return other

    def _detach(self) -> None:
        """Copy the state that the draft changes, after it was made from another one."""

    @property
    def count(self) -> int:
        """The number of messages that were decoded."""
        return len(self._drafts) - self._start

    def messages(self) -> tuple[Message, ...]:
        """Return the decoded messages, in order."""
        session_id, created_at = self._context.session_id, self._context.created_at
        drafts = self._drafts[self._start :] if self._start else self._drafts
        ids = new_ulids(len(drafts))
        # A list first: a tuple of a generator takes longer, and histories are long.
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
    """How a protocol decodes a request, step by step; a reader goes on where an earlier one ended.

    What a wire message becomes depends on the wire messages before it and on nothing else: how
    often an id was used, which calls wait for results, whose turn it is. All of that is in the
    draft.
    """

    key: str
    """The key of a request that holds its list of wire messages."""
    response_mark: bytes
    """Bytes that a history with a response contains."""
    draft: Callable[[RequestContext], Any]
    """Makes the draft of an empty history."""
    begin: Callable[[Any, Wire], None]
    """Adds what is outside of the messages, such as a system prompt, and removes its key."""
    add: Callable[[Any, bytes, int], None]
    """Adds a wire message, as JSON, by its position."""
    end: Callable[[Wire, RequestContext], tuple[tuple[ToolDefinition, ...], AdapterOptions]]
    """Decodes the other keys of the request."""
    fits: Callable[[Any], bool] = _fits
    """Whether a whole request with the messages of a draft would be decoded by these steps."""
