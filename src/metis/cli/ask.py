"""`metis QUESTION`: one question, one answer; or a conversation if nothing is asked."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from metis.canonical import ContentBlock, Message, StopReason, TextBlock
from metis.cli.attachment import as_text, attach, read_attachment
from metis.cli.failure import NOT_WHOLE, WRONG, guarded
from metis.cli.render import count
from metis.cli.schema_file import read_schema
from metis.cli.start import Opened, Wish, has_tools, opened
from metis.projection.loss import Loss
from metis.session.facts import words_of
from metis.session.notices import CallFailed, Lost, ToolStarted, TurnEnded, TurnEvent, Warned
from metis.session.session import Said
from metis.session.value import value_of
from metis.streaming import TextDelta
from metis.tools.media import media_type
from metis.wire.output import OutputFormat

_WHOLE = frozenset({StopReason.END_TURN, StopReason.STOP_SEQUENCE})


class Question(Struct, frozen=True, kw_only=True):
    """What is asked at the command line, and how the answer is wanted."""

    words: str = ""
    files: tuple[Path, ...] = ()
    piped: bytes = b""
    as_json: bool = False
    schema: Path | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked."""
        return not (self.words or self.files or self.piped.strip())

    def form(self) -> OutputFormat | None:
        """What the answer shall be."""
        return None if self.schema is None else read_schema(self.schema)

    def said(self) -> Said:
        """What the model is told: the words, then what came through the pipe, then the files."""
        words, blocks = self.words, list[ContentBlock]()
        if self.piped.strip():
            if media_type(self.piped[:16]) is None:
                text = as_text(self.piped, "standard input")
                words = f"{words}\n\n{text}" if words else text
            else:
                blocks.append(attach(self.piped, "standard input"))
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
    wish: Wish,
    *,
    as_json: bool,
    schema: Path | None = None,
) -> int:
    """Answer one question, or start a conversation at the terminal."""
    question = Question(
        words=" ".join(words),
        files=tuple(files),
        piped=_piped(),
        as_json=as_json,
        schema=schema,
    )
    if not question.is_empty:
        return guarded(lambda: asyncio.run(_answer(question, wish)))
    if not _has_terminal():
        click.echo("metis: nothing is asked; write the question behind `metis`", err=True)
        return WRONG
    return guarded(lambda: asyncio.run(_talk(wish)))


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _piped() -> bytes:
    """What comes through standard input, if it is no terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    return sys.stdin.buffer.read()


async def _talk(wish: Wish) -> int:
    from metis.cli.chat import run  # noqa: PLC0415 - loaded only for a conversation

    async with opened(wish) as ready:
        return await run(ready)


async def _answer(question: Question, wish: Wish) -> int:
    said, form = question.said(), question.form()
    async with opened(wish) as ready:
        if ready.notice:
            click.echo(click.style(ready.notice, dim=True), err=True)
        paper = _Paper(ready, question)
        async for event in ready.session.send(said, output=form):
            paper.take(event)
        code = paper.finish()
        if form is not None and code == 0:
            value_of(paper.message, form)
        return code


class _Paper:
    """Where the answer goes: to a terminal as it comes, to a pipe when it is whole."""

    def __init__(self, ready: Opened, question: Question) -> None:
        self._ready = ready
        self._as_json = question.as_json
        is_given_tools = has_tools(ready.loaded, ready.choice)
        # In a pipe the words before a call are no answer, and only the end tells which they are.
        self._streams = not question.as_json and (sys.stdout.isatty() or not is_given_tools)
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
            case Warned():
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
        text = "" if message is None else words_of(message.content)
        if self._as_json:
            click.echo(msgspec.json.encode(self._printed(text, message)))
        elif not self._streams:
            click.echo(text, nl=not text.endswith("\n"))
        else:
            self._end_line()
        reason = StopReason.UNKNOWN if ended is None else ended.stop_reason
        if reason in _WHOLE and text:
            return 0
        click.echo(f"metis: {_why_not_whole(reason, text)}", err=True)
        return NOT_WHOLE

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


def _why_not_whole(reason: StopReason, text: str) -> str:
    if reason is StopReason.MAX_TOKENS:
        return 'the answer was cut by its limit; `metis -c "go on"` continues it'
    if reason in (StopReason.REFUSAL, StopReason.CONTENT_FILTER):
        return "the model refused to answer"
    return f"the answer is not whole ({reason})" if text else "the model said nothing"
