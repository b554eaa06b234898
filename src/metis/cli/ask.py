"""`metis QUESTION`: one question, one answer; or a conversation if nothing is asked."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from metis.canonical import ContentBlock, Message, StopReason, TextBlock
from metis.cli.attachments import attachment_block, decode_text, read_attachment
from metis.cli.error_text import INCOMPLETE, INVALID, run_guarded
from metis.cli.render import count, first_code
from metis.cli.startup import (
    StartedSession,
    StartOptions,
    read_schema,
    start_session,
    tools_enabled,
)
from metis.projection.loss import Loss
from metis.session import text_of
from metis.session.events import CallFailed, Lost, ToolStarted, TurnEnded, TurnEvent, Warned
from metis.session.response import json_value_of
from metis.session.session import Prompt
from metis.streaming import TextDelta
from metis.tools.media import media_type

_WHOLE = frozenset({StopReason.END_TURN, StopReason.STOP_SEQUENCE})


class Question(Struct, frozen=True, kw_only=True):
    """What is asked at the command line, and how the answer is wanted."""

    words: str = ""
    files: tuple[Path, ...] = ()
    piped: bytes = b""
    as_json: bool = False
    is_extracted: bool = False
    """Whether only the first block of code is wanted."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked."""
        return not (self.words or self.files or self.piped.strip())

    def said(self) -> Prompt:
        """What the model is told: the words, then what came through the pipe, then the files."""
        words, blocks = self.words, list[ContentBlock]()
        if self.piped.strip():
            if media_type(self.piped[:16]) is None:
                text = decode_text(self.piped, "standard input")
                words = f"{words}\n\n{text}" if words else text
            else:
                blocks.append(attachment_block(self.piped, "standard input"))
        blocks += [read_attachment(path) for path in self.files]
        return words if not blocks else [*([TextBlock(words)] if words else []), *blocks]


class Printed(Struct, frozen=True, kw_only=True):
    """The answer as JSON: everything that a script may want to know."""

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
    wish: StartOptions,
    *,
    as_json: bool,
    is_extracted: bool = False,
) -> int:
    """Answer one question, or start a conversation at the terminal."""
    question = Question(
        words=" ".join(words),
        files=tuple(files),
        piped=_piped(),
        as_json=as_json,
        is_extracted=is_extracted,
    )
    if not question.is_empty:
        return run_guarded(lambda: asyncio.run(_answer(question, wish)))
    if not _has_terminal():
        click.echo("metis: nothing is asked; write the question behind `metis`", err=True)
        return INVALID
    return run_guarded(lambda: asyncio.run(_talk(wish)))


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _piped() -> bytes:
    """What comes through standard input, if it is no terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    return sys.stdin.buffer.read()


async def _talk(wish: StartOptions) -> int:
    from metis.cli.chat.chat import run  # noqa: PLC0415 - loaded only for a conversation

    async with start_session(wish) as ready:
        return await run(ready)


async def _answer(question: Question, wish: StartOptions) -> int:
    said = question.said()
    async with start_session(wish) as ready:
        if ready.notice:
            click.echo(click.style(ready.notice, dim=True), err=True)
        is_for_people = not (question.as_json or question.is_extracted or wish.schema)
        if sys.stdout.isatty() and is_for_people:
            return await _show(said, ready)
        paper = _Paper(ready, question)
        async for event in ready.session.send(said):
            paper.take(event)
        code = paper.finish()
        if wish.schema is not None and code == 0:
            json_value_of(paper.message, read_schema(wish.schema))
        return code


async def _show(said: Prompt, ready: StartedSession) -> int:
    from metis.cli.chat.turn_view import OneShotView  # noqa: PLC0415 - loaded only where somebody watches

    ended = await OneShotView(ready).run(said)
    message = None if ended is None else ended.message
    text = "" if message is None else text_of(message.content)
    return _verdict(ended, text)


class _Paper:
    """Where the answer goes that no terminal shows: when it is whole, or as it comes."""

    def __init__(self, ready: StartedSession, question: Question) -> None:
        self._ready = ready
        self._as_json = question.as_json
        self._is_extracted = question.is_extracted
        is_given_tools = tools_enabled(ready.loaded, ready.choice)
        # In a pipe the words before a call are no answer, and only the end tells which they are.
        is_plain = not question.as_json and not question.is_extracted
        self._streams = is_plain and not is_given_tools
        self._is_watched = sys.stderr.isatty()
        self._losses: list[Loss] = []
        self._ended: TurnEnded | None = None
        self._at_line_start = True

    def take(self, event: TurnEvent) -> None:
        """Print what an event says, as far as it is for people."""
        match event:
            case TextDelta() if self._streams:
                click.echo(event.text, nl=False)
                self._at_line_start = event.text.endswith("\n")
            case TurnEnded():
                self._ended = event
            case Lost():
                self._losses += event.losses
                self._tell(f"{count(len(event.losses), 'part')} of the history changed on the way")
            case ToolStarted():
                self._tell(f"→ {event.call.name}")
            case CallFailed() if event.next_in_s is not None:
                self._tell(f"{event.model}: {event.error_class}, again in {event.next_in_s:.1f} s")
            case Warned() if event.code != "outage":  # the error says the same
                self._tell(event.text)
            case _:
                pass

    @property
    def message(self) -> Message | None:
        """The answer."""
        return None if self._ended is None else self._ended.message

    def finish(self) -> int:
        """Print what is left, and say how it went."""
        ended, message = self._ended, self.message
        text = "" if message is None else text_of(message.content)
        if self._as_json:
            click.echo(msgspec.json.encode(self._printed(text, message)))
        elif not self._streams:
            shown = first_code(text) if self._is_extracted else text
            click.echo(shown, nl=not shown.endswith("\n"))
        else:
            self._end_line()
        return _verdict(ended, text)

    def _printed(self, text: str, message: Message | None) -> Printed:
        ended = self._ended
        metadata = None if message is None else message.metadata
        usage = None if metadata is None else metadata.usage
        return Printed(
            text=text,
            model=None if metadata is None else metadata.model,
            session_id=self._ready.session.id,
            message_id=None if message is None else message.id,
            stop_reason=str(StopReason.UNKNOWN if ended is None else ended.stop_reason),
            cost_usd=str(0 if ended is None else ended.cost_usd),
            input_tokens=0 if usage is None else usage.prompt_tokens,
            output_tokens=0 if usage is None else usage.output_tokens,
            losses=tuple(self._losses),
            is_simulated=self._ready.choice.is_simulated,
        )

    def _tell(self, text: str) -> None:
        """A dim line beside the answer, if somebody is watching."""
        if self._is_watched:
            self._end_line()
            click.echo(click.style(text, dim=True), err=True)

    def _end_line(self) -> None:
        if not self._at_line_start:
            click.echo()
            self._at_line_start = True


def _verdict(ended: TurnEnded | None, text: str) -> int:
    """The exit code, and why it is not zero."""
    reason = StopReason.UNKNOWN if ended is None else ended.stop_reason
    if reason in _WHOLE and text:
        return 0
    click.echo(f"metis: {_why_not_whole(reason, text)}", err=True)
    return INCOMPLETE


def _why_not_whole(reason: StopReason, text: str) -> str:
    if reason is StopReason.MAX_TOKENS:
        return 'the answer was cut by its limit; `metis -c "go on"` continues it'
    if reason in (StopReason.REFUSAL, StopReason.CONTENT_FILTER):
        return "the model refused to answer"
    return f"the answer is not whole ({reason})" if text else "the model said nothing"
