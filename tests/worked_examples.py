"""The four worked examples of the base specification (sections 8.1 to 8.4)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from metis.canonical import (
    ContentBlock,
    ImageBlock,
    ImageSource,
    Message,
    MessageMetadata,
    Role,
    RoutingDecisionRecord,
    RoutingMode,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UlidSource,
    Usage,
)
from metis.catalog import price

SONNET = "anthropic:claude-sonnet-4-6"
GPT = "openai:gpt-5"
START = datetime(2026, 5, 8, 9, 30, tzinfo=UTC)
SWAPPED = "user swap via /model command"

_DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Example(NamedTuple):
    """One worked example: its title, what it shows, and its messages."""

    title: str
    note: str
    messages: list[Message]


class _SessionBuilder:
    """Builds the messages of one session, one second apart."""

    def __init__(self, session_id: str, ids: UlidSource) -> None:
        self._session_id = session_id
        self._ids = ids
        self._second = 0
        self.messages: list[Message] = []

    def new_call(self, name: str, **arguments: str) -> ToolUseBlock:
        return ToolUseBlock(id=f"tu_{self._ids.mint()}", name=name, input=arguments)

    def add(
        self, role: Role, *content: ContentBlock, metadata: MessageMetadata | None = None
    ) -> None:
        self._second += 1
        self.messages.append(
            Message(
                id=self._ids.mint(),
                session_id=self._session_id,
                role=role,
                content=content,
                metadata=metadata or MessageMetadata(),
                created_at=START + timedelta(seconds=self._second),
            )
        )

    def user(self, *content: ContentBlock) -> None:
        self.add(Role.USER, *content)

    def assistant(
        self,
        *content: ContentBlock,
        tokens: tuple[int, int],
        latency_ms: int,
        model: str = SONNET,
        mode: RoutingMode = RoutingMode.DEFAULT,
        reason: str = "workspace default",
    ) -> None:
        usage = Usage(
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            cost_usd=Decimal(0),
            pricing_version="unpriced",
            latency_ms=latency_ms,
        )
        metadata = MessageMetadata(
            model=model,
            provider=model.partition(":")[0],
            routing=RoutingDecisionRecord(mode=mode, chosen_model=model, reason=reason),
            usage=price(usage, model, START),
        )
        self.add(Role.ASSISTANT, *content, metadata=metadata)

    def tool(self, call: ToolUseBlock, text: str) -> None:
        result = ToolResultBlock(tool_use_id=call.id, content=(TextBlock(text),))
        self.add(Role.TOOL, result, metadata=MessageMetadata(parent_tool_use_id=call.id))


def worked_examples(now_ms: Callable[[], int] = lambda: 1_778_232_600_000) -> list[Example]:
    """Return the examples of sections 8.1 to 8.4; the second and third are one session."""
    ids = UlidSource(now_ms=now_ms, random_bits=lambda: 0)
    swap = _SessionBuilder(f"sess_{ids.mint()}", ids)
    return [
        Example(
            "A simple exchange",
            "Two messages; the response has its model, the reason for it, and its cost.",
            _simple_exchange(_SessionBuilder(f"sess_{ids.mint()}", ids)),
        ),
        Example(
            "A tool call and its result",
            "A result is a message of its own, linked to the call by our id.",
            _tool_round_trip(swap),
        ),
        Example(
            "The session continues at another provider",
            "The form does not change when the model does.",
            _swapped(swap),
        ),
        Example(
            "An image in the history",
            "A model without vision is refused before anything is sent.",
            _image(_SessionBuilder(f"sess_{ids.mint()}", ids)),
        ),
    ]


def _simple_exchange(builder: _SessionBuilder) -> list[Message]:
    builder.user(TextBlock("What's a ULID?"))
    builder.assistant(
        TextBlock("A ULID is a 128-bit identifier that sorts by the time it was made."),
        tokens=(8, 42),
        latency_ms=820,
    )
    return list(builder.messages)


def _tool_round_trip(builder: _SessionBuilder) -> list[Message]:
    builder.user(TextBlock("Summarize README.md"))
    call = builder.new_call("read_file", path="README.md")
    builder.assistant(TextBlock("I'll read the file."), call, tokens=(31, 58), latency_ms=1140)
    builder.tool(call, "# Project Foo\n\nA tool for counting foos.")
    builder.assistant(
        TextBlock("The README describes Project Foo, a tool for counting foos."),
        tokens=(112, 23),
        latency_ms=760,
    )
    return list(builder.messages)


def _swapped(builder: _SessionBuilder) -> list[Message]:
    before = len(builder.messages)
    builder.user(TextBlock("What about the LICENSE file?"))
    call = builder.new_call("read_file", path="LICENSE")
    builder.assistant(
        call, tokens=(148, 19), latency_ms=930, model=GPT, mode=RoutingMode.MANUAL, reason=SWAPPED
    )
    builder.tool(call, "MIT License")
    builder.assistant(
        TextBlock("It is under the MIT licence."),
        tokens=(176, 11),
        latency_ms=610,
        model=GPT,
        mode=RoutingMode.MANUAL,
        reason=SWAPPED,
    )
    return builder.messages[before:]


def _image(builder: _SessionBuilder) -> list[Message]:
    image = ImageBlock(ImageSource(kind="base64", data=_DOT), media_type="image/png")
    builder.user(TextBlock("What colour is this?"), image)
    builder.assistant(TextBlock("A single transparent pixel."), tokens=(74, 9), latency_ms=540)
    return list(builder.messages)
