"""Attachment: a file, or what comes through a pipe, as a block that a model is shown."""

from pathlib import Path

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.errors import InvalidValueError
from metis.tools.media import MAX_BYTES, media_block, media_type

MAX_TEXT_BYTES = 2_000_000
"""The largest text that is attached."""


def read_attachment(path: Path) -> ContentBlock:
    """A file as a block: a picture, a PDF, or a text under its name.

    Raises:
        InvalidValueError: it is not there, too large, or neither of these.
    """
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise InvalidValueError(f"{path} cannot be attached: it is a folder; name a file") from None
    except OSError as error:
        raise InvalidValueError(f"{path} cannot be attached: {error.strerror}") from None
    return attach(data, str(path))


def attach(data: bytes, name: str) -> ContentBlock:
    """Bytes as a block, by what they begin with."""
    kind = media_type(data[:16])
    limit = MAX_TEXT_BYTES if kind is None else MAX_BYTES
    if len(data) > limit:
        raise InvalidValueError(f"{name} cannot be attached: it is larger than {limit} bytes")
    if kind is not None:
        return media_block(data, kind, Path(name).name)
    return TextBlock(f"{name}:\n\n{as_text(data, name)}")


def as_text(data: bytes, name: str) -> str:
    """Bytes that have to be text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        told = f"{name} cannot be attached: it is neither text, nor a picture, nor a PDF"
        raise InvalidValueError(told)
    return text
