"""Seen: what kinds of things a conversation holds, kept up as it grows."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from metis.canonical.blocks import ContentBlock, ImageBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.projection.media import Media


class Seen:
    """What of a conversation matters for who can answer it."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.has_images = False
        self.has_calls = False
        self.has_files = False
        """Whether something is to be shown that lies in the workspace."""
        self.has_instructions = False
        self.extensions: set[str] = set()
        """The kinds of the files that calls have named, such as `.py`."""
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        """Look at one more message."""
        if message.role is Role.SYSTEM:
            self.has_instructions = True
        for block in message.content:
            if isinstance(block, ToolUseBlock):
                self.has_calls = True
                self._add_path(block.input.get("path"))
            else:
                self.has_images = self.has_images or has_image(block)
                self.has_files = self.has_files or has_file(block)

    def _add_path(self, path: object) -> None:
        suffix = PurePosixPath(path).suffix.lower() if isinstance(path, str) else ""
        if suffix:
            self.extensions.add(suffix)


def has_file(block: ContentBlock) -> bool:
    """Whether a block is a file of the workspace, or a result that holds one."""
    if isinstance(block, ToolResultBlock):
        return any(map(has_file, block.content))
    return isinstance(block, Media) and block.source.kind == "file_ref"


def has_image(block: ContentBlock) -> bool:
    """Whether a block is an image, or a result that holds one."""
    if isinstance(block, ToolResultBlock):
        return any(isinstance(part, ImageBlock) for part in block.content)
    return isinstance(block, ImageBlock)
