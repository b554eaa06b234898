"""The conversation that the protocols are measured with: calls, results, thoughts, one picture."""

import base64
import random
from datetime import UTC, datetime

from msgspec.structs import replace

from metis.canonical import (
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.ids import new_tool_use_id, new_ulid
from metis.canonical.tools import SideEffects

_WORDS = [
    "the",
    "index",
    "of",
    "a",
    "table",
    "is",
    "read",
    "before",
    "its",
    "rows",
    "and",
    "a",
    "lock",
    "on",
    "both",
    "is",
    "held",
    "until",
    "every",
    "reader",
    "has",
    "seen",
    "the",
    "same",
    "state",
    "so",
    "a",
    "writer",
    "who",
    "waits",
    "for",
    "it",
    "may",
    "starve",
    "unless",
    "readers",
    "take",
    "turns",
    "which",
    "is",
    "why",
    "größe",
    "naïve",
    "and",
    "日本語",
    "stand",
    "here",
    "among",
    "the",
    "plain",
    "words",
    "of",
    "a",
    "long",
    "answer",
]
_NOW = datetime(2026, 5, 8, tzinfo=UTC)
_PICTURE = 75_000
_LONG_TEXTS = 0.3


class Talk:
    """Makes messages that look like those of a coding session, the same every time."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a workload, no secret
        self.messages: list[Message] = []

    def words(self, letters: int) -> str:
        """A text of about that many letters."""
        text = " ".join(self._random.choices(_WORDS, k=letters // 5))
        return text[:letters] + "."

    def say(self) -> str:
        """A text, short or long, as it comes."""
        return self.words(
            2000 if self._random.random() < _LONG_TEXTS else self._random.randint(40, 200)
        )

    def add(self, role: Role, *blocks: object, parent: str | None = None) -> None:
        """Add a message."""
        self.messages.append(
            Message(
                id=new_ulid(),
                session_id="sess_bench",
                role=role,
                content=blocks,  # pyright: ignore[reportArgumentType] - blocks, whatever they are
                created_at=_NOW,
                metadata=MessageMetadata(parent_tool_use_id=parent),
            )
        )

    def turn(self, *, thinks: bool) -> None:
        """A question, two calls, their results, an answer."""
        self.add(Role.USER, TextBlock(self.say()))
        calls = [
            ToolUseBlock(
                new_tool_use_id(),
                self._random.choice(("read_file", "search", "run_tests")),
                {"path": self.words(30), "limit": 20, "flags": ["i"], "deep": {"all": True}},
            )
            for _ in range(2)
        ]
        signature = base64.b64encode(self._random.randbytes(150)).decode()
        thought = ThinkingBlock(self.words(300), signature, issuer="anthropic")
        self.add(Role.ASSISTANT, *([thought] if thinks else []), TextBlock(self.say()), *calls)
        for call in calls:
            result = ToolResultBlock(call.id, (TextBlock(self.say()),))
            self.add(Role.TOOL, result, parent=call.id)
        self.add(Role.ASSISTANT, TextBlock(self.say()))

    def answer(self, *, thinks: bool) -> Message:
        """A long answer that calls two tools."""
        self.turn(thinks=thinks)
        message = next(m for m in reversed(self.messages) if len(m.content) > 1)
        long = (TextBlock(self.words(2000)), *message.content[-2:])
        thought = ThinkingBlock(self.words(1500), "c2lnbmF0dXJl", issuer="anthropic")
        return replace(message, content=(thought, *long) if thinks else long)

    def show(self) -> None:
        """A picture of 100 KB."""
        data = base64.b64encode(self._random.randbytes(_PICTURE)).decode()
        picture = ImageBlock(ImageSource("base64", data), "image/png")
        self.add(Role.USER, TextBlock(self.say()), picture)
        self.add(Role.ASSISTANT, TextBlock(self.say()))


def conversation(count: int, *, thinks: bool) -> list[Message]:
    """About that many messages, ending with a question."""
    talk = Talk()
    talk.add(Role.SYSTEM, TextBlock(talk.words(3000)))
    talk.show()
    while len(talk.messages) < count - 1:
        talk.turn(thinks=thinks)
    talk.add(Role.USER, TextBlock(talk.say()))
    return talk.messages


def next_turn(messages: list[Message], *, thinks: bool) -> list[Message]:
    """The same conversation one turn later."""
    talk = Talk(seed=len(messages))
    talk.turn(thinks=thinks)
    return [*messages, *talk.messages[1:], talk.messages[0]]


def tools() -> tuple[ToolDefinition, ...]:
    """The tools that are called."""
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where to look"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
            "flags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "object", "properties": {"all": {"type": "boolean"}}},
        },
        "required": ["path"],
    }
    return tuple(
        ToolDefinition(
            name=name,
            description=f"{name}: works on the folder",
            input_schema=schema,
            side_effects=SideEffects.READ,
        )
        for name in ("read_file", "search", "run_tests")
    )
