"""A turn on the screen while it runs, in a chat or for one question."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import aclosing
from typing import Literal

from msgspec.structs import replace
from rich.text import Text

from metis.canonical.blocks import RedactedThinkingBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.chat.rows import wrap
from metis.cli.chat.screen import Screen, signal_handlers
from metis.cli.chat.turn_parts import (
    NO_TOOLS_TEXT,
    CollapsedThinking,
    LossKey,
    RowStream,
    ThinkingStream,
    call_rows,
    is_noticeable,
    is_unsupported_tool,
    loss_key,
    loss_rows,
    new_markdown_stream,
    result_rows,
)
from metis.cli.error_text import retry_notice
from metis.cli.render import render_block
from metis.cli.startup import StartedSession
from metis.cli.text import unstyled, visible_controls
from metis.session import (
    CallFailed,
    Lost,
    Routed,
    Stored,
    ToolStarted,
    TurnEnded,
    TurnEvent,
    Warned,
)
from metis.session.session import Prompt
from metis.streaming import BlockAdded, TextDelta, ThinkingDelta, ToolUseStart
from metis.tools import Answer, Question

# The shortest time between two redraws.
FRAME_S = 0.033
# The time between two redraws, as a multiple of the duration of the last one: a very long paragraph
# takes long to draw and must not keep a processor busy.
REDRAW_FACTOR = 4
# How many characters are drawn at once, which takes less than a tenth of a second.
MAX_DELTA = 4_000
# How often the elapsed seconds are updated.
TICK_S = 1.0
# The note under a turn that Ctrl-C has stopped.
STOPPED = "stopped; partial answer saved"

# The code of a warning that the following error, or the fallback model, repeats.
_OUTAGE = "outage"
_MAX_LOSS_KINDS = 4

Kind = Literal["text", "thinking", "tools", "notice"]


class TurnView:
    """Draws the events of one turn."""

    def __init__(
        self,
        screen: Screen,
        *,
        shows_thinking: bool,
        model: str = "",
        reported_losses: Collection[LossKey] = (),
        is_single: bool = False,
    ) -> None:
        self._screen = screen
        self._is_single = is_single  # one question at the command line: no empty rows around it
        self._reported_losses = reported_losses
        self._shows_thinking = shows_thinking
        self._model = model
        self._activity = ""
        self._stream: RowStream | None = None
        self._kind: Kind | None = None
        self._done: list[Text] = [] if is_single else [Text()]
        self._calls: dict[str, ToolUseBlock] = {}
        self._confirmed_call: str | None = None
        self._started_s = time.monotonic()
        self._drawn_s = self._drawing_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self.ended: TurnEnded | None = None
        self.is_paused = False
        """Whether a question has the screen."""

    def handle(self, event: TurnEvent) -> None:
        """Add an event to the view; events that arrive together are drawn together."""
        match event:
            case TextDelta():
                self._add_text("text", event.text)
            case ThinkingDelta():
                if event.text:
                    self._add_text("thinking", event.text)
            case ToolUseStart():
                self._activity = f"writing a call of {event.tool_name}"
            case BlockAdded():
                self._add_block(event)
            case ToolStarted():
                self._activity = f"running {event.call.name}"
            case Stored():
                self._add_message(event.message)
            case _:
                self._handle_notice(event)
        self._draw_soon()

    def _handle_notice(self, event: TurnEvent) -> None:
        match event:
            case Routed():
                self._name_model(event.record.chosen_model)
            case Lost():
                self._add_losses(event)
            case Warned() if event.code != _OUTAGE:
                self._add_notice(event.text)
            case CallFailed() if event.next_in_s is not None:
                self._add_notice(retry_notice(event.error_class, event.next_in_s))
            case TurnEnded():
                self.ended = event
            case _:
                pass

    def _name_model(self, model: str) -> None:
        """Name the model that answers if it is not the one below the prompt."""
        if self._model not in ("", model):
            self._add("notice", wrap(Text(visible_controls(model), "dim"), self._screen.width))
        self._model = model

    def _add_losses(self, event: Lost) -> None:
        """Show what the model does not receive, unless it was shown before or is not noticeable."""
        losses = [
            loss
            for loss in event.losses
            if loss_key(loss) not in self._reported_losses and is_noticeable(loss)
        ]
        if any(map(is_unsupported_tool, losses)):
            self._add_notice(f"{event.model} {NO_TOOLS_TEXT}; continuing without them")
            losses = [loss for loss in losses if not is_unsupported_tool(loss)]
        if losses:
            heading = Text(f"Not sent to {event.model} unchanged:", "yellow")
            rows = loss_rows(losses, self._screen.width, _MAX_LOSS_KINDS)
            self._add("notice", [heading, *rows])

    def _add_notice(self, text: str, style: str = "yellow") -> None:
        self._add("notice", wrap(Text(visible_controls(text), style), self._screen.width))

    def _add_text(self, kind: Kind, text: str) -> None:
        if self._screen.is_plain and kind == "text":
            self._put(text)
            return
        if self._kind != kind or self._stream is None:
            self._begin_section(kind)
            self._stream = self._new_stream(kind)
        self._done += self._stream.feed(text, self._screen.width)

    def _new_stream(self, kind: Kind) -> RowStream:
        if kind == "text":
            return new_markdown_stream()
        return ThinkingStream() if self._shows_thinking else CollapsedThinking()

    def _put(self, text: str) -> None:
        """Write text at once, on a screen that redraws nothing."""
        if self._kind != "text":
            self._begin_section("text")
            self._screen.write(self._done)
            self._done = []
        self._screen.put(text)

    def _add(self, kind: Kind, rows: Sequence[Text]) -> None:
        self._begin_section(kind)
        self._done += rows

    def _begin_section(self, kind: Kind) -> None:
        """End the text that is streaming; an empty row separates parts of different kinds."""
        self._end_stream()
        if self._kind is not None and self._kind != kind:
            self._done.append(Text())
        self._kind = kind

    def _end_stream(self) -> None:
        if self._screen.is_plain and self._kind == "text":
            self._screen.put("\n")
        if self._stream is not None:
            self._done += self._stream.end(self._screen.width)
            self._stream = None

    def _add_block(self, event: BlockAdded) -> None:
        if isinstance(event.block, RedactedThinkingBlock):
            return
        rows = wrap(Text(visible_controls(unstyled(render_block(event.block)))), self._screen.width)
        self._add("text", rows)

    def _add_message(self, message: Message) -> None:
        """Remember the calls of a response, or show a result under its call."""
        if message.role is Role.ASSISTANT:
            calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
            self._calls = {call.id: call for call in calls}
            return
        self._add_call(message.metadata.parent_tool_use_id or "")
        self._add("tools", result_rows(message, self._screen.width))
        self._activity = ""

    def _add_call(self, call_id: str) -> None:
        """Show a call, unless the question about it has just shown it."""
        # Results arrive in the order in which tools finish, not in that of the calls.
        call = self._calls.pop(call_id, None)
        if call is not None and self._confirmed_call != call_id:
            self._add("tools", call_rows(call, self._screen.width))
        self._confirmed_call = None

    def _draw_soon(self) -> None:
        if self._timer is not None or self.is_paused:
            return
        interval_s = max(FRAME_S, REDRAW_FACTOR * self._drawing_s)
        wait_s = self._drawn_s + interval_s - time.monotonic()
        if wait_s <= 0:
            self.draw()
        else:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.draw)

    def draw(self) -> None:
        """Draw everything as it is now."""
        self._stop_timer()
        if self.is_paused:
            return
        started_s = time.monotonic()
        done, self._done = self._done, []
        self._screen.draw(done, self._live_rows())
        self._drawn_s = time.monotonic()
        self._drawing_s = self._drawn_s - started_s

    def pause(self, call_id: str) -> None:
        """Finish what can be finished, and leave the screen to a question about a call."""
        self._begin_section("tools")
        self._confirmed_call = call_id
        self.is_paused = True
        self._flush()

    def resume(self) -> None:
        """Draw again after a question."""
        self.is_paused = False
        self.draw()

    def end(self, note: str = "", style: str = "dim") -> None:
        """Finish the view, with a note below; further calls do nothing."""
        if self._is_over:
            return
        self._is_over = True
        self._end_stream()
        for call_id in tuple(self._calls):
            self._add_call(call_id)
        if note:
            self._add_notice(note, style)
        if self._kind is not None and not self._is_single:
            self._done.append(Text())
        self.is_paused = True
        self._flush()

    def _flush(self) -> None:
        self._stop_timer()
        done, self._done = self._done, []
        self._screen.write(done)

    def _live_rows(self) -> list[Text]:
        tail = [] if self._stream is None else self._stream.tail(self._screen.width)
        gap = [Text()] if tail or self._kind is not None else []
        return [*tail, *gap, self._status()]

    def _status(self) -> Text:
        seconds = int(time.monotonic() - self._started_s)
        parts = [self._model, self._activity, f"{seconds} s", "Ctrl-C stops"]
        return Text(" · ".join(part for part in parts if part), "dim")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TurnDisplay:
    """Shows one turn after the other; the running one can be stopped and paused."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._view: TurnView | None = None
        self._task: asyncio.Task[None] | None = None

    async def show(self, view: TurnView, events: AsyncGenerator[TurnEvent]) -> None:
        """Draw the events of a turn until it ends; the caller ends the view."""
        self._view = view
        self._task = asyncio.create_task(_handle_all(view, events))
        ticking = asyncio.create_task(_tick(view))
        try:
            await self._task
        finally:
            ticking.cancel()
            self._view = self._task = None

    def stop(self) -> bool:
        """Cancel the running turn and store what it received; return whether one was running."""
        return self._task is not None and self._task.cancel()

    def resized(self) -> None:
        """Redraw the unfinished rows: the terminal has a new size."""
        self._screen.resized()
        if self._view is not None:
            self._view.draw()

    @contextlib.contextmanager
    def paused(self, call_id: str) -> Generator[None]:
        """Leave the screen to a question about a call."""
        view = self._view
        if view is not None:
            view.pause(call_id)
        try:
            yield
        finally:
            if view is not None:
                view.resume()


async def _handle_all(view: TurnView, events: AsyncGenerator[TurnEvent]) -> None:
    async with aclosing(events) as turn_events:
        async for event in turn_events:
            if isinstance(event, TextDelta | ThinkingDelta) and len(event.text) > MAX_DELTA:
                await _handle_long(view, event)
            else:
                view.handle(event)


async def _handle_long(view: TurnView, event: TextDelta | ThinkingDelta) -> None:
    """Draw a long delta in parts, so that keys and other tasks are handled in between."""
    for start in range(0, len(event.text), MAX_DELTA):
        view.handle(replace(event, text=event.text[start : start + MAX_DELTA]))
        await asyncio.sleep(0)


async def _tick(view: TurnView) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        view.draw()


class OneShotView:
    """Shows the turn of one question at the command line, and asks for confirmations."""

    def __init__(self, started: StartedSession) -> None:
        self._session = started.session
        self._screen = Screen(theme=started.loaded.settings.theme)
        self._display = TurnDisplay(self._screen)
        if sys.stdin.isatty():
            started.confirmation.handler = self._confirm

    async def run(self, prompt: Prompt) -> TurnEnded | None:
        """Show the turn, and return how it ended."""
        view = TurnView(self._screen, shows_thinking=False, is_single=True)
        display = self._display
        try:
            with signal_handlers(stop=display.stop, resized=display.resized):
                await display.show(view, self._session.send(prompt))
        # `run_ask` turns a KeyboardInterrupt into the exit code of an interrupt.
        except asyncio.CancelledError:
            view.end(STOPPED)
            raise KeyboardInterrupt from None
        finally:
            view.end()
        return view.ended

    async def _confirm(self, question: Question) -> Answer:
        """Ask whether a tool call may run."""
        # Loaded by the first question: prompt_toolkit takes as long to import as a short response.
        from metis.cli.chat.confirmation import ConfirmationDialog  # noqa: PLC0415 - see above
        from metis.cli.chat.keyboard import keyboard_of  # noqa: PLC0415 - see above

        dialog = ConfirmationDialog(
            self._screen, keyboard_of(self._screen), self._display.paused, self._display.stop
        )
        return await dialog(question)
