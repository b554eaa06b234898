"""Reads a regular expression into steps: what the search follows, one character after the other."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

MAX_PATTERN = 500
"""The longest pattern."""
MAX_STEPS = 2000
"""The most steps that a pattern may unfold into."""
_MAX_DEPTH = 50

Test = Callable[[str], bool]


def is_word(character: str) -> bool:
    """Whether a character is one that words are made of."""
    return character.isalnum() or character == "_"


_CLASSES: dict[str, Test] = {
    "d": str.isdecimal,
    "D": lambda c: not c.isdecimal(),
    "s": str.isspace,
    "S": lambda c: not c.isspace(),
    "w": is_word,
    "W": lambda c: not is_word(c),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}


class Flags(Struct, frozen=True):
    """How letters, lines and ends of lines are read: `(?i)`, `(?m)`, `(?s)`."""

    ignores_case: bool = False
    is_multiline: bool = False
    dot_is_all: bool = False


class Step(NamedTuple):
    """One step of the way through a pattern.

    A step reads a character (`test`), asks about the place (`place`), forks (both None), or is the
    end of the pattern (nothing follows).
    """

    test: Test | None
    place: str | None
    then: tuple[int, ...]


class Parser:
    """Reads a pattern from the end of what follows: each part is told where it leads to."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise ValueError(f"longer than {MAX_PATTERN} characters")
        self._pattern = pattern
        self._at = 0
        self._flags = Flags()
        self.steps: list[Step] = []

    def compile(self) -> int:
        """The first step of the pattern."""
        self._read_flags()
        tree = self._alternatives(0)
        if self._at < len(self._pattern):
            raise ValueError(f"unexpected {self._peek()!r} at {self._at}")
        return tree(self._step(None, None, ()))

    def _read_flags(self) -> None:
        if not self._pattern.startswith("(?") or self._pattern[2:3] not in set("ims"):
            return
        letters, closing, _ = self._pattern[2:].partition(")")
        if not closing or set(letters) - set("ims"):
            raise ValueError("flags are i, m and s")
        self._flags = Flags("i" in letters, "m" in letters, "s" in letters)
        self._at = len(letters) + 3

    def _step(self, test: Test | None, place: str | None, then: tuple[int, ...]) -> int:
        if len(self.steps) >= MAX_STEPS:
            raise ValueError(f"unfolds into more than {MAX_STEPS} steps")
        self.steps.append(Step(test, place, then))
        return len(self.steps) - 1

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise ValueError("ends too early")
        self._at += 1
        return character

    def _alternatives(self, depth: int) -> "_Part":
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        ways = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            ways.append(self._sequence(depth))
        if len(ways) == 1:
            return ways[0]
        return lambda then: self._step(None, None, tuple(way(then) for way in ways))

    def _sequence(self, depth: int) -> "_Part":
        parts: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom(depth)))

        def build(then: int) -> int:
            for part in reversed(parts):
                then = part(then)
            return then

        return build

    def _repeated(self, part: "_Part") -> "_Part":
        bounds = self._bounds()
        if bounds is None:
            return part
        if self._peek() == "?":  # lazy: which of the matches it is does not matter
            self._at += 1
        if self._bounds() is not None:
            raise ValueError("a repeat of a repeat; put the first one in a group")
        least, most = bounds
        return lambda then: self._unfold(part, least, most, then)

    def _unfold(self, part: "_Part", least: int, most: int | None, then: int) -> int:
        if most is None:
            loop = self._step(None, None, ())
            self.steps[loop] = Step(None, None, (part(loop), then))
            then = loop
        else:
            end = then
            for _ in range(most - least):
                then = self._step(None, None, (part(then), end))
        for _ in range(least):
            then = part(then)
        return then

    def _bounds(self) -> tuple[int, int | None] | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self._at += 1
            return simple
        if self._peek() != "{":
            return None
        inside, closing, _ = self._pattern[self._at + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        if not closing or not (least + most).isdecimal() or not (least + most).isascii():
            return None  # a brace that stands for itself
        self._at += len(inside) + 2
        low = int(least or 0)
        high = (int(most) if most else None) if comma else low
        if max(low, high or 0) > MAX_STEPS or (high is not None and high < low):
            raise ValueError(f"{{{inside}}} is no number of times")
        return low, high

    def _atom(self, depth: int) -> "_Part":
        character = self._take()
        match character:
            case "(":
                return self._group(depth)
            case "[":
                return self._reading(self._set())
            case ".":
                is_all = self._flags.dot_is_all
                return self._reading(lambda c: is_all or c != "\n")
            case "^" | "$":
                return self._standing(character + ("m" if self._flags.is_multiline else ""))
            case "\\":
                return self._escaped()
            case "*" | "+" | "?":
                raise ValueError(f"nothing to repeat at {self._at - 1}")
            case _:
                return self._reading(self._one_of({character}))

    def _group(self, depth: int) -> "_Part":
        if self._peek() == "?":
            self._at += 1
            if self._take() != ":":
                raise ValueError("groups are (…) and (?:…); there is no looking around")
        part = self._alternatives(depth + 1)
        if self._peek() != ")":
            raise ValueError("a group is not closed")
        self._at += 1
        return part

    def _escaped(self) -> "_Part":
        character = self._take()
        if character in ("b", "B"):
            return self._standing(character)
        if character in ("A", "Z"):
            return self._standing("^" if character == "A" else "end")
        if character in _CLASSES:
            return self._reading(_CLASSES[character])
        return self._reading(self._one_of({self._literal(character)}))

    def _literal(self, character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character.isalnum() and character.isascii():
            raise ValueError(f"\\{character} is not known here")
        return character

    def _set(self) -> Test:
        is_negated = self._peek() == "^"
        self._at += is_negated
        singles: set[str] = set()
        tests: list[Test] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            self._set_item(singles, tests)
        self._at += 1
        single = self._one_of(singles)
        return lambda c: (single(c) or any(test(c) for test in tests)) != is_negated

    def _set_item(self, singles: set[str], tests: list[Test]) -> None:
        first = self._take()
        if first == "\\":
            letter = self._take()
            if letter in _CLASSES:
                tests.append(_CLASSES[letter])
                return
            first = "\b" if letter == "b" else self._literal(letter)
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            singles.add(first)
            return
        self._at += 1
        last = self._take()
        last = self._literal(self._take()) if last == "\\" else last
        if last < first:
            raise ValueError(f"{first}-{last} is no range")
        tests.append(self._cased(lambda c: first <= c <= last))

    def _one_of(self, characters: set[str]) -> Test:
        return self._cased(characters.__contains__)

    def _cased(self, test: Test) -> Test:
        if not self._flags.ignores_case:
            return test
        return lambda c: test(c) or test(c.lower()) or test(c.upper())

    def _reading(self, test: Test) -> "_Part":
        return lambda then: self._step(test, None, (then,))

    def _standing(self, place: str) -> "_Part":
        return lambda then: self._step(None, place, (then,))


_Part = Callable[[int], int]
