"""A turn on the screen while it runs, in a chat or for one question."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import aclosing
from typing import Literal

from rich.text import Text

from metis.canonical.blocks import RedactedThinkingBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.chat.rows import wrap
from metis.cli.chat.screen import Screen
from metis.cli.chat.turn_parts import (
    CollapsedThinking,
    LossKey,
    RowStream,
    ThinkingStream,
    call_rows,
    is_noticeable,
    loss_key,
    loss_rows,
    new_markdown_stream,
    reformatted_line,
    result_rows,
)
from metis.cli.render import render_block
from metis.cli.startup import StartedSession
from metis.cli.text import visible_controls
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

FRAME_S = 0.033
"""How long a picture stands at least."""
PATIENCE = 4
"""How much longer than it took to draw; a very long paragraph shall not keep a processor busy."""

OUTAGE = "outage"
"""The warning that says what the error, or whoever steps in, says as well."""

Kind = Literal["text", "thinking", "tools", "notice"]
_LOSSES = 4


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
        self._is_alone = is_single  # nothing stands above or below
        self._screen = screen
        self._told_losses = reported_losses
        self._shows_thinking = shows_thinking
        self._model = model
        self._doing = ""
        self._flow: RowStream | None = None
        self._kind: Kind | None = None
        self._done: list[Text] = [] if is_single else [Text()]
        self._calls: dict[str, ToolUseBlock] = {}
        self._asked: str | None = None
        self._began_s = time.monotonic()
        self._drawn_s = self._drawing_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.ended: TurnEnded | None = None
        self.routed: Routed | None = None
        self.is_paused = self._is_over = False
        """Whether somebody else has the screen."""

    # What happens

    def handle(self, event: TurnEvent) -> None:
        """Draw what an event tells; much that comes at once is drawn at once."""
        match event:
            case TextDelta():
                self._stream("text", event.text)
            case ThinkingDelta():
                if event.text:
                    self._stream("thinking", event.text)
            case ToolUseStart():
                self._doing = f"writes a call of {event.tool_name}"
            case BlockAdded():
                self._add_block(event)
            case ToolStarted():
                self._doing = f"runs {event.call.name}"
            case Stored():
                self._add_message(event.message)
            case _:
                self._take_notice(event)
        self._draw_soon()

    def _take_notice(self, event: TurnEvent) -> None:
        match event:
            case Routed():
                self.routed, self._model = event, event.record.chosen_model
            case Lost():
                self._add_losses(event)
            case Warned() if event.code != OUTAGE:
                self._notice(event.text)
            case CallFailed() if event.next_in_s is not None:
                again = f"asked again in {event.next_in_s:.0f} s"
                self._notice(f"{event.model}: {event.error_class}; {again}")
            case TurnEnded():
                self.ended = event
            case _:
                pass

    def _add_losses(self, event: Lost) -> None:
        """Tell what the model does not get, unless it was told before or is a matter of form."""
        fresh = [loss for loss in event.losses if loss_key(loss) not in self._told_losses]
        felt = [loss for loss in fresh if is_noticeable(loss)]
        if felt:
            head = f"{event.model} does not get everything as it was said:"
            rows = loss_rows(felt, self._screen.width, _LOSSES)
            self._add("notice", [Text(head, "yellow"), *rows])
        formal = reformatted_line(loss for loss in fresh if not is_noticeable(loss))
        if formal:
            self._add("notice", wrap(Text(formal, "dim"), self._screen.width))

    def _notice(self, text: str) -> None:
        self._add("notice", wrap(Text(visible_controls(text), "yellow"), self._screen.width))

    def _stream(self, kind: Kind, text: str) -> None:
        if self._screen.is_plain and kind == "text":
            self._put(text)
            return
        if self._kind != kind or self._flow is None:
            self._section(kind)
            self._flow = self._flow_of(kind)
        self._done += self._flow.feed(text, self._screen.width)

    def _flow_of(self, kind: Kind) -> RowStream:
        if kind == "text":
            return new_markdown_stream()
        return ThinkingStream() if self._shows_thinking else CollapsedThinking()

    def _put(self, text: str) -> None:
        """Write words at once, where nothing can be drawn again."""
        if self._kind != "text":
            self._section("text")
            self._screen.write(self._done)
            self._done = []
        self._screen.put(text)

    def _add(self, kind: Kind, rows: Sequence[Text]) -> None:
        self._section(kind)
        self._done += rows

    def _section(self, kind: Kind) -> None:
        """End what was being said; something of another kind stands apart from it."""
        self._end_flow()
        if self._kind is not None and self._kind != kind:
            self._done.append(Text())
        self._kind = kind

    def _end_flow(self) -> None:
        if self._screen.is_plain and self._kind == "text":
            self._screen.put("\n")
        if self._flow is not None:
            self._done += self._flow.end(self._screen.width)
            self._flow = None

    def _add_block(self, event: BlockAdded) -> None:
        if isinstance(event.block, RedactedThinkingBlock):
            return
        rows = wrap(Text(visible_controls(render_block(event.block))), self._screen.width)
        self._add("text", rows)

    def _add_message(self, message: Message) -> None:
        """Take an answer with its calls, or the result of one, under which the call is told."""
        if message.role is Role.ASSISTANT:
            calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
            self._calls = {call.id: call for call in calls}
            return
        self._add_call(message.metadata.parent_tool_use_id or "")
        self._add("tools", result_rows(message, self._screen.width))
        self._doing = ""

    def _add_call(self, call_id: str) -> None:
        """Tell a call; one that was asked about a moment ago stands there already."""
        call = self._calls.pop(call_id, None)
        if call is not None and self._asked != call_id:
            self._add("tools", call_rows(call, self._screen.width))
        self._asked = None

    # Drawing

    def _draw_soon(self) -> None:
        if self._timer is not None or self.is_paused:
            return
        wait = self._drawn_s + max(FRAME_S, PATIENCE * self._drawing_s) - time.monotonic()
        if wait <= 0:
            self.draw()
        else:
            self._timer = asyncio.get_running_loop().call_later(wait, self.draw)

    def draw(self) -> None:
        """Draw everything as it is now."""
        self._stop_timer()
        if self.is_paused:
            return
        began_s = time.monotonic()
        done, self._done = self._done, []
        self._screen.draw(done, self._live())
        self._drawn_s = time.monotonic()
        self._drawing_s = self._drawn_s - began_s

    def pause(self, call_id: str) -> None:
        """Leave the screen to a question about a call, with everything finished that can be."""
        self._section("tools")
        self._asked = call_id
        self.is_paused = True
        self._flush()

    def go_on(self) -> None:
        """Take the screen back."""
        self.is_paused = False
        self.draw()

    def end(self, note: str = "", style: str = "dim") -> None:
        """The turn is over; nothing is drawn any more, and who says so again is not heard."""
        if self._is_over:
            return
        self._is_over = True
        self._end_flow()
        for call_id in tuple(self._calls):
            self._add_call(call_id)
        if note:
            self._add("notice", wrap(Text(visible_controls(note), style), self._screen.width))
        if self._kind is not None and not self._is_alone:
            self._done.append(Text())
        self.is_paused = True
        self._flush()

    def _flush(self) -> None:
        self._stop_timer()
        done, self._done = self._done, []
        self._screen.write(done)

    def _live(self) -> list[Text]:
        tail = [] if self._flow is None else self._flow.tail(self._screen.width)
        gap = [Text()] if tail or self._kind is not None else []
        return [*tail, *gap, self._status()]

    def _status(self) -> Text:
        seconds = int(time.monotonic() - self._began_s)
        parts = [self._model, self._doing, f"{seconds} s", "Ctrl-C stops"]
        return Text(" · ".join(part for part in parts if part), "dim")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


TICK_S = 1.0
"""How often the seconds of a turn are told."""


class TurnDisplay:
    """Shows one turn after the other on a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._view: TurnView | None = None
        self._task: asyncio.Task[None] | None = None

    async def show(self, view: TurnView, events: AsyncGenerator[TurnEvent]) -> None:
        """Draw what happens until the turn ends; whoever calls says how it ended."""
        self._view = view
        self._task = asyncio.create_task(_watch(view, events))
        ticking = asyncio.create_task(_tick(view))
        try:
            await self._task
        finally:
            ticking.cancel()
            self._view = self._task = None

    def stop(self) -> bool:
        """End the turn that runs, if there is one; what has come is kept."""
        return self._task is not None and self._task.cancel()

    def resized(self) -> None:
        """Draw what is not finished anew, for the terminal has another size."""
        self._screen.resized()
        if self._view is not None:
            self._view.draw()

    @contextlib.contextmanager
    def paused(self, call_id: str) -> Generator[None]:
        """Have the screen for a question about a call."""
        view = self._view
        if view is not None:
            view.pause(call_id)
        try:
            yield
        finally:
            if view is not None:
                view.go_on()


async def _watch(view: TurnView, events: AsyncGenerator[TurnEvent]) -> None:
    async with aclosing(events) as told:
        async for event in told:
            view.handle(event)


async def _tick(view: TurnView) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        view.draw()


class OneShotView:
    """Shows a turn to somebody who asked one question, and asks them where a tool has to."""

    def __init__(self, ready: StartedSession) -> None:
        self._session = ready.session
        self._screen = Screen()
        self._stage = TurnDisplay(self._screen)
        if sys.stdin.isatty():
            ready.confirmation.handler = self._ask

    async def run(self, said: Prompt) -> TurnEnded | None:
        """Show the answer; gives how it ended."""
        view = TurnView(self._screen, shows_thinking=False, is_single=True)
        called = {signal.SIGINT: self._stage.stop, signal.SIGWINCH: self._stage.resized}
        loop = asyncio.get_running_loop()
        for number, call in called.items():
            loop.add_signal_handler(number, call)
        try:
            await self._stage.show(view, self._session.send(said))
        except asyncio.CancelledError:
            view.end("stopped · what came is kept")
            raise KeyboardInterrupt from None
        finally:
            for number in called:
                loop.remove_signal_handler(number)
            view.end()
        return view.ended

    async def _ask(self, question: Question) -> Answer:
        """Ask before a tool changes something."""
        # Loaded by the first question: the keyboard takes as long to load as a first answer.
        from metis.cli.chat.keyboard import ConfirmationDialog, keyboard_of  # noqa: PLC0415 - see above

        keyboard = keyboard_of(self._screen)
        return await ConfirmationDialog(
            self._screen, keyboard, self._stage.paused, self._stage.stop
        )(question)
