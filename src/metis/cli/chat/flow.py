"""Flow: words of a model on their way to the screen."""

from typing import Protocol

from rich.text import Text

from metis.cli.chat.letters import harmless
from metis.cli.chat.rows import beside, wrapped


class Flow(Protocol):
    """Takes words; gives rows that are finished, and those that are not yet."""

    def feed(self, text: str, width: int) -> list[Text]:
        """Take more words, and give what is finished by them."""
        ...

    def tail(self, width: int) -> list[Text]:
        """What is not finished, as it looks now."""
        ...

    def end(self, width: int) -> list[Text]:
        """Give all that is left."""
        ...


class ThoughtFlow:
    """Thoughts that are shown: dim, behind a bar, line by line."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str, width: int) -> list[Text]:
        """Take more words, and give what is finished by them."""
        *lines, self._rest = (self._rest + harmless(text)).split("\n")
        return [row for line in lines for row in _thought(line, width)]

    def tail(self, width: int) -> list[Text]:
        """What is not finished, as it looks now."""
        return _thought(self._rest, width) if self._rest else []

    def end(self, width: int) -> list[Text]:
        """Give all that is left."""
        rows, self._rest = self.tail(width), ""
        return rows


class FoldedFlow:
    """Thoughts that are not shown; their words are counted."""

    def __init__(self) -> None:
        self._count = 0

    def feed(self, text: str, width: int) -> list[Text]:
        """Count more words."""
        del width
        self._count += text.count(" ") + text.count("\n")
        return []

    def tail(self, width: int) -> list[Text]:
        """A word on what goes on."""
        del width
        return [Text("thinking …", "dim italic")]

    def end(self, width: int) -> list[Text]:
        """A word on what went on."""
        del width
        return [Text(f"thought, about {self._count + 1} words · /thinking show", "dim italic")]


def _thought(line: str, width: int) -> list[Text]:
    return beside("│ ", wrapped(Text(line, "dim italic"), width - 2), style="dim")


def markdown_flow() -> Flow:
    """Words that are markdown."""
    # Loaded while the first words are written, and not before the first prompt.
    from metis.cli.chat.markdown import MarkdownFlow  # noqa: PLC0415 - the reason stands above

    return MarkdownFlow()
