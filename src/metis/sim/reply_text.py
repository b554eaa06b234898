"""Rules for replies in plain text."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.sim.media import describe_media


class LastTurn:
    """What the user said last, and what was done about it since."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        spoken = [i for i, message in enumerate(messages) if message.role is Role.USER]
        last = spoken[-1] if spoken else len(messages)
        first = last
        while first > 0 and messages[first - 1].role is Role.USER:
            first -= 1
        self.prompt: list[ContentBlock] = [
            block for message in messages[first : last + 1] for block in message.content
        ]
        since = [block for message in messages[last + 1 :] for block in message.content]
        self.calls = [block for block in since if isinstance(block, ToolUseBlock)]
        self.results = [block for block in since if isinstance(block, ToolResultBlock)]

    @property
    def text(self) -> str:
        """The words of the user."""
        return block_texts(self.prompt)

    @property
    def awaits_first_reply(self) -> bool:
        """Whether the user spoke last."""
        return bool(self.messages) and self.messages[-1].role is Role.USER

    @property
    def prefill(self) -> str | None:
        """The beginning of an answer that is to be gone on with."""
        if self.messages and self.messages[-1].role is Role.ASSISTANT:
            return block_texts(self.messages[-1].content)
        return None

    def user_texts(self) -> list[str]:
        """Everything that users have said, the oldest first."""
        return [block_texts(one.content) for one in self.messages if one.role is Role.USER]


def block_texts(content: Sequence[ContentBlock]) -> str:
    """The text of some blocks."""
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


SELF_DESCRIPTION = (
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


def reply_text(turn: LastTurn) -> str:
    """The answer to a turn in words."""
    parts = [*_told_results(turn)]
    if not parts:
        parts = [*describe_media(turn.prompt)]
        if turn.text.strip() or not parts:
            parts.append(_reply(turn))
    text = " ".join(parts)
    return text if turn.prefill is None else f" {text}"


def _reply(turn: LastTurn) -> str:
    for pattern, answer in _RULES:
        found = pattern.search(turn.text)
        if found is not None:
            reply = answer(found, turn)
            if reply is not None:
                return reply
    text = turn.text.strip()
    if not text:
        return f"Nobody has said anything yet. {SELF_DESCRIPTION}"
    return f'You said: "{_quote(text)}" That is {len(text.split())} words. (metis simulator)'


def _told_results(turn: LastTurn) -> Iterator[str]:
    names = {call.id: call.name for call in turn.calls}
    for result in turn.results:
        text = block_texts(result.content).strip()
        told = [f'"{_quote(text)}"'] if text else []
        told += [one.removesuffix(".") for one in describe_media(result.content)]
        how = "failed" if result.is_error else "gave"
        name = names.get(result.tool_use_id, "The tool")
        yield f"{name} {how}: {' and '.join(told) or 'nothing'}."


def _quote(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


def _who(_found: re.Match[str], _turn: LastTurn) -> str:
    return SELF_DESCRIPTION


def _repeat(found: re.Match[str], _turn: LastTurn) -> str:
    return found[1].strip().strip("\"'`")


def _long(found: re.Match[str], _turn: LastTurn) -> str:
    number = min(int(found[1]), _MOST_WORDS)
    return " ".join(_FILLER[index % len(_FILLER)] for index in range(number))


def _count(found: re.Match[str], _turn: LastTurn) -> str:
    return ", ".join(str(number) for number in range(1, min(int(found[1]), _MOST_WORDS) + 1))


def _sum(found: re.Match[str], _turn: LastTurn) -> str:
    sign = found[2] if found[2] in _SIGNS else "*"
    return f"{found[1]} {sign} {found[3]} = {_SIGNS[sign](int(found[1]), int(found[3]))}"


def _my_name(_found: re.Match[str], turn: LastTurn) -> str | None:
    told = [name for words in turn.user_texts() for name in _NAME.findall(words)]
    return f"Your name is {told[-1]}." if told else None


def _first_words(_found: re.Match[str], turn: LastTurn) -> str:
    return f'You began with: "{_quote(turn.user_texts()[0].strip())}"'


def _gist(_found: re.Match[str], turn: LastTurn) -> str:
    words = turn.user_texts()[:-1]
    began = f' It began with: "{_quote(words[0].strip())}"' if words else ""
    return f"In short, {len(words)} things were asked.{began} (metis simulator)"


def _greeting(_found: re.Match[str], _turn: LastTurn) -> str:
    return "Hello! This is the metis simulator. What shall I do?"


def _rule(
    pattern: str, answer: Callable[[re.Match[str], LastTurn], str | None]
) -> tuple[re.Pattern[str], Callable[[re.Match[str], LastTurn], str | None]]:
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
