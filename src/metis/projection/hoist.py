"""Hoisting: media that a result cannot hold stands in a user message behind the results."""

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.projection.exchanges import calls_of, result_of
from metis.projection.media import Media


class Hoist:
    """Gathers the media of the results of one turn, each under the call that it belongs to."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._content: list[ContentBlock] = []
        self._last: Message | None = None

    def note_calls(self, message: Message) -> None:
        """Take the calls of a turn as those that the next results answer."""
        calls = calls_of(message)
        if calls:
            self._names = {
                call.id: f"call {number} of {len(calls)}, {call.name}"
                for number, call in enumerate(calls, 1)
            }

    def take(self, message: Message, media: list[Media]) -> None:
        """Keep the media of a result for the message behind the results."""
        result = result_of(message)
        name = self._names.get(result.tool_use_id, "a call") if result else "a call"
        for block in media:
            self._content += (TextBlock(f"[{block.type} from the result of {name}]"), block)
            self._last = message

    def give(self) -> list[Message]:
        """The message with the media that was gathered, if there was any (T27)."""
        if self._last is None:
            return []
        hoisted = replace(
            self._last,
            role=Role.USER,
            content=tuple(self._content),
            metadata=MessageMetadata(origin="projection"),
        )
        self._content, self._last = [], None
        return [hoisted]
