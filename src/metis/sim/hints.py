"""Hints: what a request in plain words names: files, places, numbers, words in quotes."""

import re
from functools import cached_property

_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)")
_URL = re.compile(r"https?://[^\s<>\"'`)]+")
_NOTE = re.compile(r"\[(?:image|audio|video|document)\b[^\]\n]*\]")
"""What stands in place of media that a model is not shown; it names no file to read."""
_PATH = re.compile(
    r"(?<![\w/.:])(?:~?\.{0,2}/)?(?:[\w-]+/)*[\w-]*\.?[\w-]+\.[A-Za-z]\w{0,7}\b|"
    r"(?<![\w/.:])\.{0,2}/?(?:[\w.-]+/)+[\w.-]*"
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)")
_PLACE = re.compile(r"\b(?:in|for|at|of|from|to)\s+((?:[A-Z][\w-]+)(?:\s(?:[A-Z][\w-]+))*)")
_AND_PLACE = re.compile(r"(?:,\s*|\s+and\s+(?:in\s+)?|,\s*and\s+)([A-Z][\w-]+(?:\s[A-Z][\w-]+)*)")
_AFTER_VERB = re.compile(
    r"\b(?:grep|search|find|look)\s+(?:for\s+)?(?:the\s+(?:word|text)\s+)?(\S+)", re.IGNORECASE
)


class Hints:
    """What can be taken from a text to fill the arguments of a tool."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def quoted(self) -> list[str]:
        """Everything that stands in quotes or backticks."""
        return ["".join(found) for found in _QUOTED.findall(self.text)]

    @cached_property
    def urls(self) -> list[str]:
        """Addresses, without the full stop that ends the sentence."""
        return [found.rstrip(".,;:!?") for found in _URL.findall(self.text)]

    @cached_property
    def paths(self) -> list[str]:
        """Names of files and folders, each once.

        >>> Hints("Read notes.txt and src/main.py, please.").paths
        ['notes.txt', 'src/main.py']
        """
        bare = _NOTE.sub(" ", _URL.sub(" ", self.text))
        return list(dict.fromkeys(found.rstrip(".,;:!?") for found in _PATH.findall(bare)))

    @cached_property
    def numbers(self) -> list[float]:
        """Numbers that stand alone."""
        return [float(found) for found in _NUMBER.findall(self.text)]

    @cached_property
    def places(self) -> list[str]:
        """Names behind in, for, at, of, from and to, and those joined to them.

        >>> Hints("What is the weather in Paris and New York?").places
        ['Paris', 'New York']
        """
        first = _PLACE.search(self.text)
        if first is None:
            return []
        places, at = [first[1]], first.end()
        while following := _AND_PLACE.match(self.text, at):
            places.append(following[1])
            at = following.end()
        return places

    @cached_property
    def needle(self) -> str:
        """What shall be looked for."""
        if self.quoted:
            return self.quoted[0]
        found = _AFTER_VERB.search(self.text)
        return found[1].strip(".,;:!?") if found else self.text.strip()
