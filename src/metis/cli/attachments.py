"""Files that are sent to a model: `-a FILE`, standard input, and `@file` in a chat message."""

import asyncio
import glob
import os
import re
from collections.abc import Container
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from metis.canonical.blocks import ContentBlock, DocumentBlock, ImageBlock, TextBlock
from metis.canonical.errors import InvalidValueError
from metis.cli.text import count
from metis.routing import AddressedPrompt, parse_override
from metis.tools.media import MAX_BYTES, media_block, media_type
from metis.tools.tool import ToolContext, ToolFailedError

# The largest text that can be attached.
MAX_TEXT_BYTES = 2_000_000
# The largest file that can be attached, of any kind.
MAX_ATTACHMENT_BYTES = max(MAX_TEXT_BYTES, MAX_BYTES)
# How many files, directories and links one pattern may match before it is refused.
MAX_MATCHES = 20_000
# How many files one pattern may attach.
MAX_FRAGMENT_FILES = 200

# An `@` inside a word, as in an e-mail address, does not name a file.
_REFERENCE = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|([^\s"]+))')
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_TRAILING_PUNCTUATION = ".,;:!?)"
_FILE_EXTENSION = re.compile(r"\w\.[A-Za-z]\w{0,4}$")


def read_attachment(path: Path) -> ContentBlock:
    """Return a file as a block: an image, a PDF, or text under its name.

    Raises:
        InvalidValueError: the file is missing, too large, or of another type.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            # A device or a pipe has no end, and a large file does not have to be in memory.
            data = file.read(MAX_ATTACHMENT_BYTES + 1)
    except IsADirectoryError:
        raise InvalidValueError(f"cannot attach {path}: it is a directory; name a file") from None
    except OSError as error:
        raise InvalidValueError(f"cannot attach {path}: {error.strerror}") from None
    return attachment_block(data, str(path))


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a named pipe that nobody writes to is empty, and not waited for."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


async def read_fragment(source: str) -> list[ContentBlock]:
    """Return the blocks of a fragment: the text of a URL, a file, or all files of a pattern.

    Raises:
        InvalidValueError: the file does not exist or cannot be read, or the URL cannot be fetched.
    """
    if source.startswith(("http://", "https://")):
        return await _read_url(source)
    return await asyncio.to_thread(_read_files, source)


def _read_files(source: str) -> list[ContentBlock]:
    path = Path(source).expanduser()
    if path.exists() and not path.is_dir():
        return [read_attachment(path)]
    pattern = str(path / "**" / "*") if path.is_dir() else str(path)
    matches = glob.iglob(pattern, recursive=True)  # noqa: PTH207 - the pattern may be absolute
    # Two links of a directory to itself would make the recursion endless.
    names = list(islice(matches, MAX_MATCHES + 1))
    if len(names) > MAX_MATCHES:
        raise InvalidValueError(f"cannot add {source}: more than {MAX_MATCHES:,} files and links")
    files = [path for path in sorted(map(Path, names)) if path.is_file()]
    if not files:
        raise InvalidValueError(f"cannot add {source}: no such file")
    if len(files) > MAX_FRAGMENT_FILES:
        limit = f"the limit is {MAX_FRAGMENT_FILES}"
        raise InvalidValueError(f"cannot add {source}: {count(len(files), 'file')}; {limit}")
    return [read_attachment(path) for path in files]


async def _read_url(url: str) -> list[ContentBlock]:
    # The HTTP client takes a sixth of the time to the first prompt, so it is imported here.
    from metis.tools.builtin.fetch_url import FetchUrl  # noqa: PLC0415 - only for a URL

    context = ToolContext(session_id="", turn_id="", cancel=asyncio.Event())
    # The user typed the URL, so a server on this machine is allowed; what it redirects to is not.
    try:
        host = urlsplit(url).hostname or ""
        output = await FetchUrl(allowed_hosts=(host,)).execute({"url": url}, context)
    except ToolFailedError as error:
        raise InvalidValueError(f"cannot add {url}: {error.text}") from None
    except ValueError:  # such as "http://[::"
        raise InvalidValueError(f"cannot add {url}: it is not a URL") from None
    return list(output.content)


def attachment_block(data: bytes, name: str) -> ContentBlock:
    """Return bytes as a block whose type follows from the first bytes.

    Raises:
        InvalidValueError: they are too large, or neither text, an image nor a PDF.
    """
    kind = media_type(data[:16])
    limit = MAX_TEXT_BYTES if kind is None else MAX_BYTES
    if len(data) > limit:
        raise InvalidValueError(f"cannot attach {name}: it is larger than {limit:,} bytes")
    if kind is not None:
        return media_block(data, kind, Path(name).name)
    return TextBlock(f"{name}:\n\n{decode_text(data, name)}")


def decode_text(data: bytes, name: str) -> str:
    """Return bytes as text.

    Raises:
        InvalidValueError: they are not text; the error names the file.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Old text files are Latin-1, in which every byte is a character. Control characters other
        # than white space show that the file is binary.
        text = "\0" if _BINARY.search(data) else data.decode("cp1252", "replace")
    # A NUL byte is valid UTF-8, but no text file has one.
    if "\0" in text:
        problem = "unsupported file type (text, images and PDF only)"
        raise InvalidValueError(f"cannot attach {name}: {problem}")
    return text


class PromptInput(Struct, frozen=True, kw_only=True):
    """A chat message as the user wrote it, and the files that it attaches."""

    text: str
    model: str | None = None
    """The model that answers this message only, if the text begins with one."""
    files: tuple[ContentBlock, ...] = ()
    notes: tuple[str, ...] = ()
    """A line for the user about each file."""

    @property
    def blocks(self) -> tuple[ContentBlock, ...]:
        """Files and text as blocks; files first, as providers recommend."""
        return (*self.files, TextBlock(self.text))


def read_prompt(text: str, aliases: Container[str] = ()) -> PromptInput:
    """Attach the files that a text names with `@`; other words with `@` stay text.

    An alias at the start names a model, even if there is a file of that name.

    Raises:
        InvalidValueError: a file cannot be attached.
    """
    addressed = _addressed(text, aliases)
    files: list[ContentBlock] = []
    notes: list[str] = []
    for reference in _REFERENCE.finditer(addressed.text):
        name = reference[1] or reference[2]
        path = _existing_file(name)
        if path is not None:
            block = read_attachment(path)
            files.append(block)
            notes.append(_note(path, block))
        elif _looks_like_path(name):
            notes.append(f"{reference[0]}: no such file; sent as plain text")
    return PromptInput(
        text=addressed.text, model=addressed.override, files=tuple(files), notes=tuple(notes)
    )


def _addressed(text: str, aliases: Container[str]) -> AddressedPrompt:
    """Return the text without the model that it begins with, unless that is a file."""
    first = _REFERENCE.match(text)
    # The alias of a model wins over a file of the same name: it is typed far more often.
    if first is not None and first[2] not in aliases and _existing_file(first[1] or first[2]):
        return AddressedPrompt(text)
    return parse_override(text)


def _existing_file(name: str) -> Path | None:
    """Return the file of a name, with or without the punctuation behind it."""
    for candidate in (name, name.rstrip(_TRAILING_PUNCTUATION)):
        path = Path(candidate).expanduser()
        if candidate and path.exists():
            return path
    return None


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~/")) or _FILE_EXTENSION.search(name) is not None


def _note(path: Path, block: ContentBlock) -> str:
    match block:
        case ImageBlock():
            return f"{path} · {block.media_type}"
        case DocumentBlock():
            return f"{path} · PDF"
        case TextBlock():
            # The block begins with the name of the file and an empty line.
            lines = len(block.text.rstrip("\n").split("\n")) - 2
            return f"{path} · {count(lines, 'line')}"
        case _:
            return str(path)
