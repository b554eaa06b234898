"""Files that are sent to a model: `-a FILE`, standard input, and `@file` in a chat message."""

import re
from collections.abc import Container
from pathlib import Path

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, DocumentBlock, ImageBlock, TextBlock
from metis.canonical.errors import InvalidValueError
from metis.cli.render import count
from metis.routing import AddressedPrompt, parse_override
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
    return attachment_block(data, str(path))


def attachment_block(data: bytes, name: str) -> ContentBlock:
    """Bytes as a block, by what they begin with."""
    kind = media_type(data[:16])
    limit = MAX_TEXT_BYTES if kind is None else MAX_BYTES
    if len(data) > limit:
        raise InvalidValueError(f"{name} cannot be attached: it is larger than {limit} bytes")
    if kind is not None:
        return media_block(data, kind, Path(name).name)
    return TextBlock(f"{name}:\n\n{decode_text(data, name)}")


def decode_text(data: bytes, name: str) -> str:
    """Bytes that have to be text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        told = f"{name} cannot be attached: it is neither text, nor a picture, nor a PDF"
        raise InvalidValueError(told)
    return text


_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|([^\s"]+))')
_TRAILING = ".,;:!?)"
_ENDING = re.compile(r"\w\.[A-Za-z]\w{0,4}$")


class PromptInput(Struct, frozen=True, kw_only=True):
    """What the user says: the words, and the files that go with them."""

    text: str
    model: str | None = None
    """Who answers this once, if the text begins with a model."""
    files: tuple[ContentBlock, ...] = ()
    notes: tuple[str, ...] = ()
    """A word for the user on each of them."""

    @property
    def blocks(self) -> tuple[ContentBlock, ...]:
        """Everything as blocks, files first, as models read them best."""
        return (*self.files, TextBlock(self.text))


def read_prompt(text: str, aliases: Container[str] = ()) -> PromptInput:
    """Attach the files that a text names; what is no file stays as it is.

    An alias at the start is a model, even if there is a file of that name.

    Raises:
        InvalidValueError: a file that cannot be shown to a model.
    """
    asked = _override(text, aliases)
    files: list[ContentBlock] = []
    notes: list[str] = []
    for found in _NAMED.finditer(asked.text):
        path = _file(found[1] or found[2])
        if path is not None:
            block = read_attachment(path)
            files.append(block)
            notes.append(_note(path, block))
        elif _looks_like_path(found[1] or found[2]):
            notes.append(f"{found[0]} is no file here, and is sent as it is written")
    return PromptInput(
        text=asked.text, model=asked.override, files=tuple(files), notes=tuple(notes)
    )


def _override(text: str, aliases: Container[str]) -> AddressedPrompt:
    """The model that the text begins with, if that is no file."""
    first = _NAMED.match(text)
    if first is not None and first[2] not in aliases and _file(first[1] or first[2]):
        return AddressedPrompt(text)
    return parse_override(text)


def _file(name: str) -> Path | None:
    """The file that a name stands for, also with a full stop behind it."""
    for written in (name, name.rstrip(_TRAILING)):
        path = Path(written).expanduser()
        if written and path.exists():
            return path
    return None


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~/")) or _ENDING.search(name) is not None


def _note(path: Path, block: ContentBlock) -> str:
    match block:
        case ImageBlock():
            return f"{path} · {block.media_type}"
        case DocumentBlock():
            return f"{path} · PDF"
        case TextBlock():
            return f"{path} · {count(_lines(block.text), 'line')}"
        case _:
            return str(path)


def _lines(text: str) -> int:
    """How many lines of a file stand under its name."""
    return len(text.rstrip("\n").split("\n")) - 2
