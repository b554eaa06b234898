"""`metis QUESTION`: one question and its response; without a question, a chat."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from metis.canonical import ContentBlock, Message, StopReason, TextBlock
from metis.canonical.errors import InvalidValueError
from metis.cli.attachments import (
    MAX_ATTACHMENT_BYTES,
    attachment_block,
    decode_text,
    read_attachment,
    read_fragment,
)
from metis.cli.command_group import INTERRUPTED
from metis.cli.error_text import INCOMPLETE, INVALID, retry_notice
from metis.cli.output import echo, echo_json, echo_notice, write_data
from metis.cli.render import first_code
from metis.cli.schemas import read_schema
from metis.cli.startup import (
    StartedSession,
    StartOptions,
    start_session,
    tools_enabled,
)
from metis.cli.text import count, style
from metis.projection.loss import Loss
from metis.session import text_of
from metis.session.events import CallFailed, Lost, ToolStarted, TurnEnded, TurnEvent, Warned
from metis.session.response import json_value_of
from metis.session.session import Prompt
from metis.streaming import TextDelta
from metis.tools.media import media_type

_COMPLETE = frozenset({StopReason.END_TURN, StopReason.STOP_SEQUENCE})


class Question(Struct, frozen=True, kw_only=True):
    """A question from the command line, and how to print the response."""

    words: str = ""
    files: tuple[Path, ...] = ()
    fragments: tuple[str, ...] = ()
    """Files, patterns of files and URLs whose text is added."""
    piped: bytes = b""
    as_json: bool = False
    code_only: bool = False
    """Whether to print only the first code block."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (self.words or self.files or self.fragments or self.piped.strip())

    async def prompt(self) -> Prompt:
        """Return what to send: the words, then standard input, then the files and fragments."""
        words, blocks = self.words, list[ContentBlock]()
        if self.piped.strip():
            if media_type(self.piped[:16]) is None:
                text = decode_text(self.piped, "standard input")
                words = f"{words}\n\n{text}" if words else text
            else:
                blocks.append(attachment_block(self.piped, "standard input"))
        blocks += [read_attachment(path) for path in self.files]
        for fragment in self.fragments:
            blocks += await read_fragment(fragment)
        return words if not blocks else [*([TextBlock(words)] if words else []), *blocks]


class JsonResponse(Struct, frozen=True, kw_only=True):
    """The response as `--json` prints it."""

    text: str
    model: str | None
    session_id: str
    message_id: str | None
    stop_reason: str
    cost_usd: str
    input_tokens: int
    output_tokens: int
    losses: tuple[Loss, ...]
    is_simulated: bool


def run_ask(
    words: Sequence[str],
    files: Sequence[Path],
    start: StartOptions,
    fragments: Sequence[str] = (),
    **output: bool,
) -> int:
    """Answer one question, or start a chat at the terminal; `output` are fields of a Question."""
    question = Question(
        words=" ".join(words),
        files=tuple(files),
        piped=_piped_input(),
        fragments=tuple(fragments),
        **output,
    )
    if question.is_empty and not _has_terminal():
        echo('metis: no question given. Usage: metis "your question"', err=True)
        return INVALID
    try:
        return asyncio.run(_chat(start) if question.is_empty else _answer(question, start))
    except KeyboardInterrupt:
        return INTERRUPTED  # the view has already printed that the answer was stopped


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _piped_input() -> bytes:
    # A process without standard input, such as one started by cron, has None here.
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    data = sys.stdin.buffer.read(MAX_ATTACHMENT_BYTES + 1)  # a pipe may have no end
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise InvalidValueError(f"standard input has more than {MAX_ATTACHMENT_BYTES:,} bytes")
    return data


async def _chat(start: StartOptions) -> int:
    from metis.cli.chat.chat import run_chat  # noqa: PLC0415 - loaded only for a chat

    async with start_session(start) as started:
        return await run_chat(started)


async def _answer(question: Question, start: StartOptions) -> int:
    prompt = await question.prompt()
    async with start_session(start) as started:
        if started.notice:
            echo_notice(started.notice, dim=True)
        is_for_people = not (question.as_json or question.code_only or start.schema)
        # Markdown is drawn for a person only; a program gets the text as the model wrote it.
        if sys.stdout.isatty() and is_for_people:
            return await _show(prompt, started)
        printer = _ResponsePrinter(started, question)
        async for event in started.session.send(prompt):
            printer.handle(event)
        code = printer.finish()
        # The response is printed before it is checked: a script may still use most of it.
        if start.schema is not None and code == 0:
            json_value_of(printer.message, read_schema(start.schema))  # raises if it does not match
        return code


async def _show(prompt: Prompt, started: StartedSession) -> int:
    from metis.cli.chat.turn_view import OneShotView  # noqa: PLC0415 - loaded only at a terminal

    ended = await OneShotView(started).run(prompt)
    message = None if ended is None else ended.message
    text = "" if message is None else text_of(message.content)
    return _exit_code(ended, text)


class _ResponsePrinter:
    """Prints a response to a pipe or file: as it streams if possible, else at the end."""

    def __init__(self, started: StartedSession, question: Question) -> None:
        self._started = started
        self._as_json = question.as_json
        self._code_only = question.code_only
        # Text before a tool call is not the answer, and only the end of the turn shows which
        # text came last.
        has_tools = tools_enabled(started.loaded, started.choice)
        self._is_streaming = not (question.as_json or question.code_only or has_tools)
        self._has_notices = sys.stderr.isatty()
        self._losses: list[Loss] = []
        self._ended: TurnEnded | None = None
        self._is_line_start = True

    def handle(self, event: TurnEvent) -> None:
        """Print what an event adds to the response, and notices to standard error."""
        match event:
            case TextDelta() if self._is_streaming:
                write_data(event.text)
                self._is_line_start = event.text.endswith("\n")
            case TurnEnded():
                self._ended = event
            case Lost():
                self._losses += event.losses
                parts = count(len(event.losses), "part")
                self._notice(f"{parts} of the conversation could not be sent unchanged")
            case ToolStarted():
                self._notice(f"→ {event.call.name}")
            case CallFailed() if event.next_in_s is not None:
                self._notice(retry_notice(event.error_class, event.next_in_s))
            case Warned() if event.code != "outage":  # the error that follows repeats it
                self._notice(event.text)
            case _:
                pass

    @property
    def message(self) -> Message | None:
        """The response."""
        return None if self._ended is None else self._ended.message

    def finish(self) -> int:
        """Print what is not printed yet, and return the exit code."""
        message = self.message
        text = "" if message is None else text_of(message.content)
        if self._as_json:
            echo_json(msgspec.json.encode(self._json_response(text, message)))
        elif not self._is_streaming:
            output = first_code(text) if self._code_only else text
            write_data(output, nl=not output.endswith("\n"))
        else:
            self._end_line()
        return _exit_code(self._ended, text)

    def _json_response(self, text: str, message: Message | None) -> JsonResponse:
        ended = self._ended
        metadata = None if message is None else message.metadata
        usage = None if metadata is None else metadata.usage
        return JsonResponse(
            text=text,
            model=None if metadata is None else metadata.model,
            session_id=self._started.session.id,
            message_id=None if message is None else message.id,
            stop_reason=str(StopReason.UNKNOWN if ended is None else ended.stop_reason),
            cost_usd=str(0 if ended is None else ended.cost_usd),
            input_tokens=0 if usage is None else usage.prompt_tokens,
            output_tokens=0 if usage is None else usage.output_tokens,
            losses=tuple(self._losses),
            is_simulated=self._started.choice.is_simulated,
        )

    def _notice(self, text: str) -> None:
        """Print a dim line to standard error, if that is a terminal."""
        if self._has_notices:
            self._end_line()
            echo(style(text, dim=True), err=True)

    def _end_line(self) -> None:
        if not self._is_line_start:
            echo()
            self._is_line_start = True


def _exit_code(ended: TurnEnded | None, text: str) -> int:
    """Return the exit code of a turn, and print why it is not zero."""
    reason = StopReason.UNKNOWN if ended is None else ended.stop_reason
    if reason in _COMPLETE and text:
        return 0
    echo_notice(f"metis: {_why_incomplete(reason, text)}")
    return INCOMPLETE


def _why_incomplete(reason: StopReason, text: str) -> str:
    if reason is StopReason.MAX_TOKENS:
        return 'the answer reached its length limit; `metis -c "go on"` continues it'
    if reason in (StopReason.REFUSAL, StopReason.CONTENT_FILTER):
        return "the model refused to answer"
    return f"the answer is incomplete ({reason})" if text else "the model gave no answer"
