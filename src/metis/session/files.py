"""Files that messages speak of: read when a model is first shown them, and the same ever after."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolResultBlock
from metis.canonical.message import Message
from metis.session.seen import has_file
from metis.tools import Workspace, WorkspaceError, embed


class Files:
    """The messages of a session with the bytes of files in the place of their names.

    A message is stored with the name alone. What was read stays for the session, so that a file
    that changes does not change what was sent before. A file that cannot be read stays a name, and
    the model gets a note in its place.
    """

    def __init__(self) -> None:
        self._read: dict[str, Message] = {}

    async def shown(
        self, messages: Sequence[Message], workspace: Workspace | None
    ) -> Sequence[Message]:
        """The messages with all files that the workspace has."""
        if workspace is not None:
            for message in messages:
                if message.id not in self._read and any(map(has_file, message.content)):
                    read = await asyncio.to_thread(_with_files, message.content, workspace)
                    self._read[message.id] = replace(message, content=read)
        return self.known(messages)

    def known(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with the files that were read so far."""
        return [self._read.get(message.id, message) for message in messages]


def _with_files(blocks: tuple[ContentBlock, ...], workspace: Workspace) -> tuple[ContentBlock, ...]:
    return tuple(_with_file(block, workspace) for block in blocks)


def _with_file(block: ContentBlock, workspace: Workspace) -> ContentBlock:
    if isinstance(block, ToolResultBlock):
        return replace(block, content=_with_files(block.content, workspace))
    try:
        return embed((block,), workspace)[0]
    except WorkspaceError:
        return block
