"""Words: the rules by which the simulator answers in plain text."""

import re
from collections.abc import Callable, Iterator, Mapping

from metis.sim.picture import descriptions
from metis.sim.turn import Turn, text_of

WHO = (
    "I am the metis simulator. I am not a language model: I answer by fixed rules, "
    "so that programs can be tried without a key and without a network."
)
_LONGEST_QUOTE = 400
_MOST_WORDS = 5000
_FILLER = [
    "this",
    "sentence",
    "was",
    "made",
    "by",
    "the",
    "metis",
    "simulator",
    "to",
    "be",
    "as",
    "long",
    "as",
    "somebody",
    "asked",
    "for",
]
_SUM = re.compile(r"(-?\d{1,12})\s*([-+*x])\s*(-?\d{1,12})")
_SIGNS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
_NAME = re.compile(r"\b[Mm]y name is (\w+)")


def say(turn: Turn) -> str:
    """The answer to a turn in words."""
    parts = [*_told_results(turn)]
    if not parts:
        parts = [*descriptions(turn.asked)]
        if turn.text.strip() or not parts:
            parts.append(_reply(turn))
    text = " ".join(parts)
    return text if turn.begun is None else f" {text}"


def _reply(turn: Turn) -> str:
    for pattern, answer in _RULES:
        found = pattern.search(turn.text)
        if found is not None:
            reply = answer(found, turn)
            if reply is not None:
                return reply
    text = turn.text.strip()
    if not text:
        return f"Nobody has said anything yet. {WHO}"
    return f'You said: "{_quote(text)}" That is {len(text.split())} words. (metis simulator)'


def _told_results(turn: Turn) -> Iterator[str]:
    names = {call.id: call.name for call in turn.calls}
    for result in turn.results:
        text = text_of(result.content).strip()
        told = [f'"{_quote(text)}"'] if text else []
        told += [one.removesuffix(".") for one in descriptions(result.content)]
        how = "failed" if result.is_error else "gave"
        name = names.get(result.tool_use_id, "The tool")
        yield f"{name} {how}: {' and '.join(told) or 'nothing'}."


def _quote(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


def _who(_found: re.Match[str], _turn: Turn) -> str:
    return WHO


def _repeat(found: re.Match[str], _turn: Turn) -> str:
    return found[1].strip().strip("\"'`")


def _long(found: re.Match[str], _turn: Turn) -> str:
    number = min(int(found[1]), _MOST_WORDS)
    return " ".join(_FILLER[index % len(_FILLER)] for index in range(number))


def _count(found: re.Match[str], _turn: Turn) -> str:
    return ", ".join(str(number) for number in range(1, min(int(found[1]), _MOST_WORDS) + 1))


def _sum(found: re.Match[str], _turn: Turn) -> str:
    sign = found[2] if found[2] in _SIGNS else "*"
    return f"{found[1]} {sign} {found[3]} = {_SIGNS[sign](int(found[1]), int(found[3]))}"


def _my_name(_found: re.Match[str], turn: Turn) -> str | None:
    told = [name for words in turn.earlier_words() for name in _NAME.findall(words)]
    return f"Your name is {told[-1]}." if told else None


def _first_words(_found: re.Match[str], turn: Turn) -> str:
    return f'You began with: "{_quote(turn.earlier_words()[0].strip())}"'


def _gist(_found: re.Match[str], turn: Turn) -> str:
    words = turn.earlier_words()[:-1]
    began = f' It began with: "{_quote(words[0].strip())}"' if words else ""
    return f"In short, {len(words)} things were asked.{began} (metis simulator)"


def _greeting(_found: re.Match[str], _turn: Turn) -> str:
    return "Hello! This is the metis simulator. What shall I do?"


def _rule(
    pattern: str, answer: Callable[[re.Match[str], Turn], str | None]
) -> tuple[re.Pattern[str], Callable[[re.Match[str], Turn], str | None]]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL), answer


_RULES = (
    _rule(r"^\s*sum up (?:our|this) conversation\b", _gist),
    _rule(r"\bwho are you|what are you|which model|are you (?:a |real|an? ai|sim)", _who),
    _rule(r"^\s*(?:say|repeat|reply with|answer with)(?: exactly)?:?\s+(.+)$", _repeat),
    _rule(r"\b(\d{1,6}) words\b", _long),
    _rule(r"\bcount to (\d{1,6})\b", _count),
    _rule(_SUM.pattern, _sum),
    _rule(r"\bwhat(?:'s| is) my name\b", _my_name),
    _rule(r"\bwhat did I say first\b", _first_words),
    _rule(r"^\s*(?:hi|hello|hey|good (?:morning|day|evening))\b", _greeting),
)
