"""Scope: what one host sealed for one account, nobody else can open, not even its namesake (T203).

A provider at its usual host goes by its name alone. At another host, at a place of its own or for a
named account it is an issuer of its own: its sealed parts are kept under that name and go back
there only. Codecs know nothing of this; the names are put on and taken off here.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.canonical.blocks import (
    ArtifactBlock,
    ContentBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
)
from metis.canonical.message import Message, Role
from metis.streaming import BlockAdded, MessageComplete, StreamError, StreamEvent
from metis.wire.codec import StreamReader

_Names = dict[str | None, str]
_SEALED = (ThinkingBlock, RedactedThinkingBlock, OpaqueBlock)


def stamped(message: Message, profile: Profile) -> Message:
    """An answer whose sealed parts say which host and account they belong to."""
    return _renamed(message, dict.fromkeys((None, profile.name, *profile.issuers), profile.issuer))


def known(messages: Sequence[Message], profile: Profile) -> Sequence[Message]:
    """The messages as one host knows them: its own parts are its own, its namesakes' are not."""
    usual = f"{profile.name}@{profile.usual_host}"
    names: _Names = {**dict.fromkeys((profile.name, *profile.issuers), usual)}
    names[profile.issuer] = profile.name
    # A part that does not say whose it is belongs to whoever gave the answer.
    unsaid: _Names = {**names, None: usual}
    found = [
        message
        if message.role is not Role.ASSISTANT
        else _renamed(message, unsaid if message.metadata.provider == profile.name else names)
        for message in messages
    ]
    return found if any(map(_is_not, found, messages)) else messages


def _is_not(one: object, other: object) -> bool:
    return one is not other


def _renamed(message: Message, names: _Names) -> Message:
    for block in message.content:
        if type(block) in _SEALED or type(block) is ArtifactBlock:
            content = tuple(_under(each, names) for each in message.content)
            return replace(message, content=content)
    return message


def _under(block: ContentBlock, names: _Names) -> ContentBlock:
    if isinstance(block, _SEALED):
        name = names.get(block.issuer)
        return block if name is None else replace(block, issuer=name)
    if isinstance(block, ArtifactBlock) and block.source.issuer is not None:
        name = names.get(block.source.issuer)
        return block if name is None else replace(block, source=replace(block.source, issuer=name))
    return block


class ScopeReader:
    """A stream reader that says of sealed parts which host and account they belong to."""

    def __init__(self, reader: StreamReader, profile: Profile) -> None:
        self._reader = reader
        self._profile = profile

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        return stamped(self._reader.message, self._profile)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        return [self._read(event) for event in self._reader.feed(chunk)]

    def finish(self) -> list[StreamEvent]:
        """The last events."""
        return [self._read(event) for event in self._reader.finish()]

    def _read(self, event: StreamEvent) -> StreamEvent:
        profile = self._profile
        match event:
            case MessageComplete():
                return replace(event, message=stamped(event.message, profile))
            case StreamError() if event.message is not None:
                return replace(event, message=stamped(event.message, profile))
            case BlockAdded():
                names = dict.fromkeys((None, profile.name, *profile.issuers), profile.issuer)
                return replace(event, block=_under(event.block, names))
            case _:
                return event
