"""Rules for replies in plain text."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.sim.media import describe_media

SELF_DESCRIPTION = (
    "I am the metis simulator. I am not a language model: I answer by fixed rules, "
    "so that programs can be tried without a key and without a network."
)
_GREETING = (
    "Hello! This is the metis simulator, not an AI. "
    'Try: "count to 5", "say hello", "read README.md", "200 words".'
)
_FILLER = "this sentence was written by the metis simulator to be as long as the prompt asked for"
_MAX_QUOTE_CHARACTERS = 400
# A prompt can ask for any number of words.
_MAX_WORDS = 5000
_USER_NAME = re.compile(r"\b[Mm]y name is (\w+)")
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


class LastTurn:
    """The last prompt of a conversation, and the tool calls and results since then."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        user_indexes = [i for i, message in enumerate(messages) if message.role is Role.USER]
        last = user_indexes[-1] if user_indexes else len(messages)
        first = last
        # Some clients send one prompt as several user messages.
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
        """The text of the prompt."""
        return _joined_text(self.prompt)

    @property
    def awaits_first_reply(self) -> bool:
        """Whether the prompt has no response yet."""
        return bool(self.messages) and self.messages[-1].role is Role.USER

    @property
    def is_prefilled(self) -> bool:
        """Whether the conversation ends with the beginning of the response (a prefill)."""
        return bool(self.messages) and self.messages[-1].role is Role.ASSISTANT

    def user_texts(self) -> list[str]:
        """Return the texts of all user messages, the oldest first."""
        return [_joined_text(one.content) for one in self.messages if one.role is Role.USER]


def _joined_text(content: Sequence[ContentBlock]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_of(1, "word"), count_of(2, "word")
    ('1 word', '2 words')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def reply_text(turn: LastTurn) -> str:
    """Return the reply to a turn: about its tool results, else about media and the prompt."""
    parts = [*_describe_results(turn)]
    if not parts:
        parts = describe_media(turn.prompt)
        if turn.text.strip() or not parts:
            parts.append(_reply_to_prompt(turn))
    text = " ".join(parts)
    # The client appends the continuation to the prefilled text, so it begins with a space.
    return f" {text}" if turn.is_prefilled else text


def _describe_results(turn: LastTurn) -> Iterator[str]:
    names = {call.id: call.name for call in turn.calls}
    for result in turn.results:
        text = _joined_text(result.content).strip()
        parts = [f'"{_quote(text)}"'] if text else []
        parts += [sentence.removesuffix(".") for sentence in describe_media(result.content)]
        verb = "failed" if result.is_error else "gave"
        name = names.get(result.tool_use_id, "The tool")
        yield f"{name} {verb}: {' and '.join(parts) or 'nothing'}."


def _reply_to_prompt(turn: LastTurn) -> str:
    for pattern, rule in _RULES:
        match = re.search(pattern, turn.text, re.IGNORECASE | re.DOTALL)
        reply = rule(match, turn) if match else None
        if reply is not None:
            return reply
    text = turn.text.strip()
    if not text:
        return f"The prompt is empty. {SELF_DESCRIPTION}"
    size = count_of(len(text.split()), "word")
    return f'You said: "{_quote(text)}" That is {size}. (metis simulator)'


def _quote(text: str) -> str:
    is_long = len(text) > _MAX_QUOTE_CHARACTERS
    return f"{text[:_MAX_QUOTE_CHARACTERS]}…" if is_long else text


def _words(match: re.Match[str], _turn: LastTurn) -> str:
    words = _FILLER.split()
    return " ".join(words[index % len(words)] for index in range(min(int(match[1]), _MAX_WORDS)))


def _count(match: re.Match[str], _turn: LastTurn) -> str:
    return ", ".join(map(str, range(1, min(int(match[1]), _MAX_WORDS) + 1)))


def _calculation(match: re.Match[str], _turn: LastTurn) -> str:
    sign = match[2].lower().replace("x", "*")
    return f"{match[1]} {sign} {match[3]} = {_OPERATORS[sign](int(match[1]), int(match[3]))}"


def _user_name(_match: re.Match[str], turn: LastTurn) -> str | None:
    names = [name for text in turn.user_texts() for name in _USER_NAME.findall(text)]
    return f"Your name is {names[-1]}." if names else None


def _first_prompt(_match: re.Match[str], turn: LastTurn) -> str:
    return f'You began with: "{_quote(turn.user_texts()[0].strip())}"'


def _summary(_match: re.Match[str], turn: LastTurn) -> str:
    prompts = turn.user_texts()[:-1]
    start = f' The first was: "{_quote(prompts[0].strip())}"' if prompts else ""
    return f"In short, there were {count_of(len(prompts), 'prompt')}.{start} (metis simulator)"


_Rule = Callable[[re.Match[str], LastTurn], str | None]
_RULES: tuple[tuple[str, _Rule], ...] = (
    (r"^\s*(?:sum up|summari[sz]e) (?:our|this) conversation\b", _summary),
    (
        r"\bwho are you|what are you|which model|are you (?:a |real|an? ai|sim)",
        lambda _match, _turn: SELF_DESCRIPTION,
    ),
    (
        r"^\s*(?:say|repeat|reply with|answer with)(?: exactly)?:?\s+(.+)$",
        lambda match, _turn: match[1].strip().strip("\"'`"),
    ),
    (r"\b(\d{1,6}) words\b", _words),
    (r"\bcount to (\d{1,6})\b", _count),
    (r"(-?\d{1,12})\s*([-+*x])\s*(-?\d{1,12})", _calculation),
    (r"\bwhat(?:'s| is) my name\b", _user_name),
    (r"\bwhat did I say first\b", _first_prompt),
    (r"^\s*(?:hi|hello|hey|good (?:morning|day|evening))\b", lambda _match, _turn: _GREETING),
)
