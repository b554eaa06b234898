"""Tooling: the calls of one answer, run, told, traced, and each stored with a result."""

from collections.abc import Sequence

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message
from metis.canonical.metadata import OutcomeStatus
from metis.canonical.tools import ToolDefinition
from metis.events import Actor, Event
from metis.events.work import ToolConfirmationResolved
from metis.session.answer import ABORTED, calls_of
from metis.session.calling import Calling
from metis.session.notices import ToolStarted
from metis.session.setup import Toolbox, TurnRef
from metis.session.telling import Telling
from metis.session.trace import asked_for, input_invalid, tool_called, tool_ended
from metis.tools import Answer, Question, Verdict

_NO_TOOLS = "There are no tools here."


class Tooling:
    """Runs the calls of the answers of one turn."""

    def __init__(
        self,
        toolbox: Toolbox | None,
        calling: Calling,
        session_id: str,
        telling: Telling,
    ) -> None:
        self.count = 0
        """How many calls have a result."""
        self._toolbox = toolbox
        self._calling = calling
        self._turn = TurnRef(session_id=session_id, turn_id=telling.turn_id)
        self._telling = telling

    async def run(self, answer: Message) -> None:
        """Run the calls of an answer, and store a result for each, also when this is cancelled."""
        calls, calling = calls_of(answer), self._calling
        if self._toolbox is None:
            await calling.keep(calling.results(calls, _NO_TOOLS, OutcomeStatus.ERROR))
            return
        watch = _Watch(self._telling, calling.parent)
        try:
            await self._toolbox.run(calls, self._turn, watch)
        finally:
            self.count += len(watch.answers)
            calling.parent = watch.last
            aborted = calling.results(calls, ABORTED, OutcomeStatus.ABORTED)
            await calling.keep(
                [
                    watch.answers.get(call.id, rest)
                    for call, rest in zip(calls, aborted, strict=True)
                ]
            )


class _Watch:
    """Passes on what the dispatcher tells of the calls of one answer."""

    def __init__(self, telling: Telling, after: Event | None) -> None:
        self.answers: dict[str, Message] = {}
        self.last = after
        """What the next call of the model comes of."""
        self._telling = telling
        self._trace = telling.trace
        self._after = after
        self._called: dict[str, Event | None] = {}
        self._asked: dict[str, tuple[str, Event | None]] = {}

    def refused(self, call: ToolUseBlock, problems: Sequence[str]) -> None:
        """The arguments of a call do not match its schema."""
        self._trace.emit(input_invalid(call, problems), parent=self._after)

    def asking(self, question: Question) -> None:
        """Somebody is asked whether a call may run."""
        own = new_ulid()
        event = self._trace.emit(asked_for(question, own), parent=self._after)
        self._asked[question.call.id] = own, event

    def decided(self, question: Question, answer: Answer | None) -> None:
        """Somebody has said whether a call may run."""
        own, event = self._asked[question.call.id]
        is_denied = answer is not None and answer.verdict is Verdict.DENY
        lasts = answer is not None and answer.verdict is Verdict.ALLOW_FOR_SESSION
        resolved = ToolConfirmationResolved(
            tool_use_id=question.call.id,
            confirmation_request_id=own,
            decision="timeout" if answer is None else "deny" if is_denied else "allow",
            scope="session" if lasts else "once",
        )
        self._trace.emit(resolved, parent=event, actor=Actor.USER)

    def called(self, call: ToolUseBlock, definition: ToolDefinition) -> None:
        """A call starts to run."""
        self._telling.tell(ToolStarted(turn_id=self._telling.turn_id, call=call))
        called = tool_called(call, definition.side_effects)
        self._called[call.id] = self._trace.emit(called, parent=self._after)

    def answered(self, call: ToolUseBlock, message: Message, latency_ms: int) -> None:
        """A call has its answer."""
        self.answers[call.id] = message
        cause = self._called.get(call.id) or self._after
        ended = tool_ended(message, latency_ms)
        self.last = self._trace.emit(ended, parent=cause, actor=Actor.TOOL) or self.last
