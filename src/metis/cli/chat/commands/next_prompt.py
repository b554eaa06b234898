"""Chat commands on the next prompt: /system, /attach and /undo."""

import asyncio
import shlex
import shutil
from collections.abc import Sequence

from metis.canonical.blocks import ContentBlock, DocumentBlock, ImageBlock, TextBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Role
from metis.cli.attachments import attachment_block, read_fragment
from metis.cli.chat.commands.command import Command
from metis.cli.chat.state import ChatState
from metis.cli.text import count, one_line
from metis.session import text_of
from metis.tools.media import MAX_BYTES

CLIPBOARD = "clipboard"
CLEAR = "clear"
# Programs that write the image of the clipboard to standard output.
CLIPBOARD_COMMANDS: Sequence[Sequence[str]] = (
    ("wl-paste", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-t", "image/png", "-o"),
    ("pngpaste", "-"),
)
_CLIPBOARD_TIMEOUT_S = 5.0
_EXCERPT_WIDTH = 60


async def system(state: ChatState, text: str) -> None:
    """Add instructions that hold from now on; without a text, show all."""
    if text:
        await state.session.add_instructions(text)
        state.refresh()
        state.screen.print("Added to the system prompt, from the next message on.", "dim")
        return
    instructions = [
        text_of(message.content)
        for message in state.session.messages
        if message.role in (Role.SYSTEM, Role.DEVELOPER)
    ]
    if not instructions:
        state.screen.print("There is no system prompt; /system TEXT sets one.", "dim")
    for part in instructions:
        state.screen.print(f"{part}\n")


async def undo(state: ChatState, _: str) -> None:
    """Take the last turn back and put its message into the prompt again."""
    if not state.session.turns:
        state.screen.print("There is nothing to undo.", "dim")
        return
    checkpoint = await state.session.checkpoint()
    content = await state.session.undo()
    state.refresh()
    state.draft = "\n".join(block.text for block in content[-1:] if isinstance(block, TextBlock))
    state.attachments[:] = content[:-1]
    state.screen.print(f"Took the last turn back; /rewind #{checkpoint} restores it.", "dim")


async def attach(state: ChatState, argument: str) -> None:
    """Add files, patterns, URLs or the image of the clipboard to the next message."""
    if argument == CLEAR:
        state.attachments.clear()
    sources = [] if argument == CLEAR else _split(argument)
    blocks: list[ContentBlock] = []
    for source in sources:
        is_clipboard = source == CLIPBOARD
        blocks += [await _clipboard_image()] if is_clipboard else await read_fragment(source)
    state.attachments += blocks
    for block in state.attachments:
        state.screen.print(f"  + {_describe(block)}", "dim")
    number = len(state.attachments)
    if number:
        state.screen.print(f"{count(number, 'attachment')} for the next message.", "dim")
    else:
        text = "Nothing is attached. /attach takes files, patterns, URLs, and clipboard."
        state.screen.print(text, "dim")


def _split(argument: str) -> list[str]:
    try:
        return shlex.split(argument)
    except ValueError:
        raise InvalidValueError('a quotation mark is missing: /attach "my notes.txt"') from None


def _describe(block: ContentBlock) -> str:
    match block:
        case TextBlock():
            return one_line(block.text, _EXCERPT_WIDTH)
        case ImageBlock():
            return f"image · {block.media_type}"
        case DocumentBlock():
            return f"{block.name or 'document'} · PDF"
        case _:
            return str(getattr(block, "type", "attachment"))


async def _clipboard_image() -> ContentBlock:
    """Return the image of the clipboard.

    Raises:
        InvalidValueError: there is no image, or no program that reads the clipboard.
    """
    commands = [command for command in CLIPBOARD_COMMANDS if shutil.which(command[0])]
    if not commands:
        programs = ", ".join(command[0] for command in CLIPBOARD_COMMANDS)
        raise InvalidValueError(f"no program reads the clipboard; install one of {programs}")
    for command in commands:
        data = await _output_of(command)
        if data:
            return attachment_block(data, "clipboard.png")
    raise InvalidValueError("the clipboard has no image")


async def _output_of(command: Sequence[str]) -> bytes:
    """Return what a program writes to standard output; nothing if it takes too long.

    Reading ends after the size limit, so that `attachment_block` refuses a longer output.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None  # noqa: S101 - stdout is a pipe
    data = bytearray()
    try:
        async with asyncio.timeout(_CLIPBOARD_TIMEOUT_S):
            while len(data) <= MAX_BYTES and (piece := await process.stdout.read(65536)):
                data += piece
    except TimeoutError:
        data.clear()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    return bytes(data)


COMMANDS = (
    Command("system", "[TEXT]", "show or add to the system prompt", system),
    Command(
        "attach", "[SOURCE…|clear]", "files, patterns, URLs, clipboard for the next", attach, "file"
    ),
    Command("undo", "", "take the last turn back and edit its message", undo),
)
