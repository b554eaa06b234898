"""Turn: the end of a conversation, as the simulator looks at it."""

from collections.abc import Sequence

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role


class Turn:
    """What the user said last, and what was done about it since."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        spoken = [i for i, message in enumerate(messages) if message.role is Role.USER]
        last = spoken[-1] if spoken else len(messages)
        first = last
        while first > 0 and messages[first - 1].role is Role.USER:
            first -= 1
        self.asked: list[ContentBlock] = [
            block for message in messages[first : last + 1] for block in message.content
        ]
        since = [block for message in messages[last + 1 :] for block in message.content]
        self.calls = [block for block in since if isinstance(block, ToolUseBlock)]
        self.results = [block for block in since if isinstance(block, ToolResultBlock)]

    @property
    def text(self) -> str:
        """The words of the user."""
        return text_of(self.asked)

    @property
    def is_first(self) -> bool:
        """Whether the user spoke last."""
        return bool(self.messages) and self.messages[-1].role is Role.USER

    @property
    def begun(self) -> str | None:
        """The beginning of an answer that is to be gone on with."""
        if self.messages and self.messages[-1].role is Role.ASSISTANT:
            return text_of(self.messages[-1].content)
        return None

    def earlier_words(self) -> list[str]:
        """Everything that users have said, the oldest first."""
        return [text_of(one.content) for one in self.messages if one.role is Role.USER]


def text_of(content: Sequence[ContentBlock]) -> str:
    """The text of some blocks."""
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))
