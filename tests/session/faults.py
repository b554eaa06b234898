"""Fault injection for session tests: faults at a wait, and checks afterwards."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from metis.canonical import (
    Message,
    MessageStatus,
    ToolResultBlock,
    ToolUseBlock,
    validate_session,
)
from metis.session import Metis, Options, Session
from metis.tools import Registry
from metis.transport import Retry
from metis.wire.call import AdapterOptions
from session.helpers import ReadFile

MODELS = (
    "anthropic:claude-sonnet-4-6",
    "openai:gpt-5",
    "openai-responses:gpt-5",
    "gemini:gemini-2.5-flash",
    "ollama:llama3.2",
)
"""One model of each protocol."""

ALL = os.environ.get("METIS_TEST_FAULTS") == "all"
"""Whether every fault is tested on every protocol; otherwise each fault on one protocol in turn."""

THINKS = AdapterOptions(
    max_output_tokens=3000,
    native={
        "anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "ollama": {"think": True},
    },
)


class At:
    """Runs a coroutine and calls a function at its n-th wait."""

    def __init__(
        self, work: Coroutine[Any, Any, None], at: int, fault: Callable[[], BaseException]
    ) -> None:
        self._work = work
        self._at = at
        self._fault = fault
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                if self.waits == self._at:
                    self.waits += 1
                    waiting = self._work.throw(self._fault())
                elif error is not None:
                    waiting = self._work.throw(error)
                else:
                    waiting = self._work.send(value)
            except StopIteration:
                return
            self.waits += 1
            value = error = None
            try:
                value = yield waiting
            except BaseException as thrown:  # noqa: BLE001 - it is passed on
                error = thrown


async def run_with(
    session: Session, words: str, at: int, fault: Callable[[], BaseException]
) -> bool:
    """Send a prompt with a fault at the n-th wait; return whether that wait was reached."""
    turn = session._new_turn(words)  # pyright: ignore[reportPrivateUsage] - the task itself
    work = At(session._run(turn), at, fault)  # pyright: ignore[reportPrivateUsage] - the same

    async def run() -> None:
        await work

    task = asyncio.create_task(run())
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
    return work.waits > at


def options_for(base_url: str, **fields: Any) -> Options:
    given: dict[str, Any] = {
        "base_urls": dict.fromkeys((model.partition(":")[0] for model in MODELS), base_url),
        "retry": Retry(attempts=1),
        "tools": Registry(ReadFile),
        "options": THINKS,
    }
    return Options(**given | fields)


def check_whole(messages: list[Message]) -> None:
    """Check that every message is finished and every call has its result."""
    assert validate_session(messages) == []
    calls = [b.id for m in messages for b in m.content if isinstance(b, ToolUseBlock)]
    results = [b.tool_use_id for m in messages for b in m.content if isinstance(b, ToolResultBlock)]
    assert sorted(calls) == sorted(results)
    assert all(m.metadata.status is not MessageStatus.PARTIAL for m in messages)


async def check_goes_on(m: Metis, session_id: str, number: int) -> None:
    """Check that the session is valid and the strict simulator accepts its next request."""
    session = await m.resume(session_id)
    stored = await m.store.messages(session_id)
    assert session.messages == stored
    check_whole(stored)
    for model in MODELS if ALL else (MODELS[number % len(MODELS)],):
        other = await session.fork()
        await other.swap(model)
        assert await other.ask("say all is well") is not None
        check_whole(await m.store.messages(other.id))
