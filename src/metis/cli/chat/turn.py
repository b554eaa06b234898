"""TurnView: a turn as it is seen while it runs."""

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Literal

from rich.text import Text

from metis.canonical.blocks import RedactedThinkingBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.cli.chat.calls import call_rows, result_rows
from metis.cli.chat.felt import form_line, is_felt
from metis.cli.chat.flow import Flow, FoldedFlow, ThoughtFlow, markdown_flow
from metis.cli.chat.letters import harmless
from metis.cli.chat.losses import LossKey, loss_key, loss_rows
from metis.cli.chat.rows import wrapped
from metis.cli.chat.screen import Screen
from metis.cli.render import render_block
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
from metis.streaming import BlockAdded, TextDelta, ThinkingDelta, ToolUseStart

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
        told_losses: Collection[LossKey] = (),
        is_alone: bool = False,
    ) -> None:
        self._is_alone = is_alone  # nothing stands above or below
        self._screen = screen
        self._told_losses = told_losses
        self._shows_thinking = shows_thinking
        self._model = model
        self._doing = ""
        self._flow: Flow | None = None
        self._kind: Kind | None = None
        self._done: list[Text] = [] if is_alone else [Text()]
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

    def take(self, event: TurnEvent) -> None:
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
        felt = [loss for loss in fresh if is_felt(loss)]
        if felt:
            head = f"{event.model} does not get everything as it was said:"
            rows = loss_rows(felt, self._screen.width, _LOSSES)
            self._add("notice", [Text(head, "yellow"), *rows])
        formal = form_line(loss for loss in fresh if not is_felt(loss))
        if formal:
            self._add("notice", wrapped(Text(formal, "dim"), self._screen.width))

    def _notice(self, text: str) -> None:
        self._add("notice", wrapped(Text(harmless(text), "yellow"), self._screen.width))

    def _stream(self, kind: Kind, text: str) -> None:
        if self._screen.is_plain and kind == "text":
            self._put(text)
            return
        if self._kind != kind or self._flow is None:
            self._section(kind)
            self._flow = self._flow_of(kind)
        self._done += self._flow.feed(text, self._screen.width)

    def _flow_of(self, kind: Kind) -> Flow:
        if kind == "text":
            return markdown_flow()
        return ThoughtFlow() if self._shows_thinking else FoldedFlow()

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
        rows = wrapped(Text(harmless(render_block(event.block))), self._screen.width)
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
            self._add("notice", wrapped(Text(harmless(note), style), self._screen.width))
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
