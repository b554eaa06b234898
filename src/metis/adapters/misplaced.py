"""Misplaced answers: JSON that a host gave as a thought, with nothing said beside it (T118).

Such an answer is said as text, too, if it keeps to the form that was asked for; the thought stays
as it came, and it is told that this was done.
"""

from collections.abc import Callable
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from metis.canonical.answer_check import compile_answer
from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Message
from metis.canonical.tool_input import InputCheck
from metis.projection.loss import Change, Loss
from metis.streaming import MessageComplete, StreamEvent, TextDelta
from metis.wire.codec import StreamReader
from metis.wire.output import OutputFormat

_read = msgspec.json.Decoder().decode
_REASON = "the answer stood where thoughts stand, and is said as text, too"


class Misplaced:
    """Finds answers of one form that stand among thoughts."""

    def __init__(self, output: OutputFormat, adapter: str, tell: Callable[[Loss], None]) -> None:
        self._output = output
        self._adapter = adapter
        self._tell = tell

    def settled(self, message: Message) -> Message:
        """The message with its answer as text."""
        found = self.find(message)
        if found is None:
            return message
        self._tell(
            Loss(
                session_id=message.session_id,
                message_id=message.id,
                block_type="thinking",
                adapter=self._adapter,
                reason=_REASON,
                change=Change.SYNTHESISED,
                path=f"$.content[{len(message.content)}]",
            )
        )
        return replace(message, content=(*message.content, TextBlock(found)))

    def find(self, message: Message) -> str | None:
        """The answer among the thoughts of a message that says nothing else."""
        thoughts: list[str] = []
        for block in message.content:
            if isinstance(block, ToolUseBlock) or (
                isinstance(block, TextBlock) and block.text.strip()
            ):
                return None
            if isinstance(block, ThinkingBlock):
                thoughts.append(block.text)
        text = "".join(thoughts).strip()
        return text if text and self._is_kept_to(text) else None

    def _is_kept_to(self, text: str) -> bool:
        try:
            value = _read(text)
        except (ValueError, RecursionError):
            return False
        if self._output.schema is None:
            return isinstance(value, dict)
        try:
            return not _check(msgspec.json.encode(self._output.schema))(value)
        except InvalidValueError:
            return False


@lru_cache(maxsize=64)
def _check(schema: bytes) -> InputCheck:
    return compile_answer(_read(schema))


class MisplacedReader:
    """A stream reader that says an answer which stood among thoughts."""

    def __init__(self, reader: StreamReader, misplaced: Misplaced) -> None:
        self._reader = reader
        self._misplaced = misplaced

    @property
    def message(self) -> Message:
        """The message as far as it has come."""
        message = self._reader.message
        found = self._misplaced.find(message)
        if found is None:
            return message
        return replace(message, content=(*message.content, TextBlock(found)))

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are complete with this chunk."""
        return self._read(self._reader.feed(chunk))

    def finish(self) -> list[StreamEvent]:
        """The last events."""
        return self._read(self._reader.finish())

    def _read(self, events: list[StreamEvent]) -> list[StreamEvent]:
        end = events[-1] if events else None
        if not isinstance(end, MessageComplete):
            return events
        message = self._misplaced.settled(end.message)
        if message is end.message:
            return events
        last = message.content[-1]
        text = last.text if isinstance(last, TextBlock) else ""
        said = TextDelta(end.message_id, len(message.content) - 1, text)
        return [*events[:-1], said, replace(end, message=message)]
