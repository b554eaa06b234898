"""What the requests of all protocols share: the messages of a request while they are decoded."""

from metis.canonical.blocks import ContentBlock
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import raw_constructor
from metis.wire.call import RequestContext

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

    def messages(self) -> tuple[Message, ...]:
        """Return the decoded messages, in order."""
        session_id, created_at = self._context.session_id, self._context.created_at
        ids = new_ulids(len(self._drafts))
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
                for message_id, (role, content, metadata) in zip(ids, self._drafts, strict=True)
            ]
        )
