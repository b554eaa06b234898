"""A session format: what `metis import` reads of a file of another program.

user: hello
assistant: hi
"""

from collections.abc import Iterator

from metis import Role, TextBlock
from metis.interchange import ForeignConversation, ForeignMessage, MessageListFormat, Source

MARK = b"acme chat 1\n"


class AcmeChat(MessageListFormat):
    """A chat of Acme: a mark, then one line for each message."""

    name = "acme-chat"
    system = "acme"

    def fits(self, source: Source) -> bool:
        """Return whether a file begins with the mark."""
        return source.sample().startswith(MARK)

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the one conversation of a file."""
        lines = source.read().removeprefix(MARK).decode("utf-8", "replace").splitlines()
        messages: list[ForeignMessage] = []
        for number, line in enumerate(lines, 2):
            speaker, _, text = line.partition(": ")
            role = Role.ASSISTANT if speaker == "assistant" else Role.USER
            messages.append(
                ForeignMessage(role=role, parts=[TextBlock(text)], at=number, key=str(number))
            )
        yield ForeignConversation(foreign_id=source.identity, messages=messages)
