"""Message: a role, an ordered list of blocks, and their metadata."""

from datetime import UTC, datetime
from typing import Annotated, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from metis.canonical import digest
from metis.canonical.blocks import ContentBlock, comparable_blocks
from metis.canonical.errors import InvalidValueError
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import OpenEnum, Sealed, Value, set_field

SCHEMA_VERSION = 1
"""The version of the canonical form that this package writes."""

NO_METADATA = MessageMetadata()


class Role(OpenEnum):
    """The author of a message."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"
    DEVELOPER = "developer"


# One shared instance, because most user messages have no metadata.
def _no_metadata() -> MessageMetadata:
    return NO_METADATA


def _schema_version() -> int:
    return SCHEMA_VERSION


class Message(Value, frozen=True, kw_only=True):
    """One message of a conversation, immutable and hashable."""

    content: tuple[ContentBlock, ...]
    created_at: Annotated[datetime, Meta(tz=True)]
    id: str
    metadata: MessageMetadata = msgspec.field(default_factory=_no_metadata)
    role: Role
    schema_version: Annotated[int, Meta(ge=1, le=2**31)] = msgspec.field(
        default_factory=_schema_version
    )
    sealed: Sealed | UnsetType = UNSET
    """The exact bytes of a message that a newer version wrote."""
    session_id: str
    tuple_fields = ("content",)

    def digest(self) -> str:
        """Return the SHA-256 of this message: the same in every process and after every save."""
        return digest.digest(self)

    def content_digest(self) -> str:
        """Return the SHA-256 of role and blocks only, with tool ids replaced by their ordinals."""
        return digest.content_digest(self.role, self.content)

    def normalise(self) -> None:
        """Normalise the arguments of the constructor."""
        super().normalise()
        set_field(self, "role", Role(self.role))
        set_field(self, "created_at", to_utc(self.created_at))

    def comparable(self) -> Self:
        """Return the message without the parts that equality ignores, such as original forms."""
        metadata, content = self.metadata.comparable(), comparable_blocks(self.content)
        if metadata is self.metadata and content is self.content:
            return self
        return replace(self, metadata=metadata, content=content)


def to_utc(moment: datetime) -> datetime:
    """Convert a time to UTC; raise InvalidValueError if it has no time zone."""
    if moment.tzinfo is None:
        raise InvalidValueError("a time without a zone; give UTC", path="$.created_at")
    try:
        return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    except OverflowError:
        raise InvalidValueError("the time is out of range in UTC", path="$.created_at") from None
