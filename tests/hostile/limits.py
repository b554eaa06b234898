"""The limits of the tests, and what holds in every cell: limited memory, and no key."""

import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from hostile.kinds import ECHOES
from metis.streaming import StreamLimits

RESPONSE_LIMITS = StreamLimits(
    received_bytes=400_000,
    body_bytes=2_000_000,
    frame_bytes=500_000,
    events=20_000,
    blocks=100,
    calls=50,
    argument_bytes=100_000,
    text_bytes=300_000,
    containers=200_000,
)
MOST_MEMORY = 20 * RESPONSE_LIMITS.body_bytes


def assert_no_key(shown: str | bytes) -> None:
    text = shown if isinstance(shown, str) else shown.decode(errors="replace")
    present = [form for form, echo in ECHOES.items() if echo[4:-4] in text]
    assert not present


@asynccontextmanager
async def limited_memory() -> AsyncGenerator[None]:
    """Fail if what is inside allocates more than a response may."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY
