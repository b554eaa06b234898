"""Regular expressions that cannot take long, whatever the pattern and the text.

The engine of the standard library goes back and forth, so that a short pattern in a rules file can
stop the program for hours. Here all ways through the pattern are followed at the same time: a
search looks at each character once. What that way of working cannot do (groups that are referred
to, looking around) is refused when the pattern is read.
"""

from collections.abc import Iterable
from typing import NamedTuple

from metis.routing.regex_parser import Parser, is_word

MAX_TEXT = 20_000
"""How much of a text is searched."""
_MAX_KNOWN = 2000
_LAST_NEWLINE = "$\n"


class Around(NamedTuple):
    """What stands at both sides of a place; an empty text is the edge of the whole."""

    before: str
    after: str

    def is_at(self, place: str) -> bool:
        """Whether the place is of this kind."""
        match place:
            case "^":
                return not self.before
            case "$":
                return self.after in ("", _LAST_NEWLINE)
            case "end":
                return not self.after
            case "^m":
                return self.before in ("", "\n")
            case "$m":
                return self.after in ("", "\n", _LAST_NEWLINE)
            case _:
                is_edge = _is_wordy(self.before) != _is_wordy(self.after)
                return is_edge if place == "b" else not is_edge


def _is_wordy(character: str) -> bool:
    return bool(character) and is_word(character)


def _characters(text: str) -> Iterable[str]:
    """The characters, of which a newline at the very end is marked."""
    return (*text[:-1], _LAST_NEWLINE) if text.endswith("\n") else text


class _Place:
    """Where one can stand in a pattern, and where each character leads to from there."""

    __slots__ = ("before", "onward", "standing")

    def __init__(self, standing: frozenset[int], before: str) -> None:
        self.standing = standing
        self.before = before
        self.onward: dict[str, _Place | None] = {}


class Regex:
    """A compiled pattern; `search` tells whether it occurs anywhere in a text."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        parsed = Parser(pattern)
        self._start = parsed.compile()
        self._steps = parsed.steps
        self._asks_places = any(step.place is not None for step in self._steps)
        self._places: dict[tuple[frozenset[int], str], _Place] = {}
        self._first = self._place(frozenset((self._start,)), "")

    def search(self, text: str) -> bool:
        """Whether the pattern occurs in the first `MAX_TEXT` characters."""
        place = self._first
        for character in _characters(text[:MAX_TEXT]):
            onward = place.onward
            following = onward[character] if character in onward else self._learn(place, character)
            if following is None:
                return True
            place = following
        return self._reaches_end(self._reach(place.standing, Around(place.before, "")))

    def _learn(self, place: "_Place", character: str) -> "_Place | None":
        """Where a character leads to from a place, remembered for the next time."""
        standing = self._advance(place.standing, Around(place.before, character))
        following = None if standing is None else self._place(standing, character)
        place.onward[character] = following
        return following

    def _place(self, standing: frozenset[int], before: str) -> "_Place":
        key = (standing, before if self._asks_places else "")
        if key not in self._places:
            if len(self._places) >= _MAX_KNOWN:  # forget all but the first
                self._places.clear()
                self._first.onward.clear()
            self._places[key] = _Place(*key)
        return self._places[key]

    def _advance(self, standing: frozenset[int], around: Around) -> frozenset[int] | None:
        """Where one can stand after the next character; None if the end is reached before it."""
        reached = self._reach(standing, around)
        if self._reaches_end(reached):
            return None
        steps, character = self._steps, around.after[-1]
        following = {
            steps[at].then[0]
            for at in reached
            if (test := steps[at].test) is not None and test(character)
        }
        return frozenset((*following, self._start))

    def _reach(self, standing: Iterable[int], around: Around) -> set[int]:
        """Every step that can be reached without reading."""
        reached: set[int] = set()
        open_steps = list(standing)
        while open_steps:
            at = open_steps.pop()
            if at in reached:
                continue
            reached.add(at)
            step = self._steps[at]
            if step.test is None and (step.place is None or around.is_at(step.place)):
                open_steps += step.then
        return reached

    def _reaches_end(self, reached: set[int]) -> bool:
        return any(
            step.test is None and step.place is None and not step.then
            for step in (self._steps[at] for at in reached)
        )
