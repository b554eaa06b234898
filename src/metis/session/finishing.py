"""Finishing: work that is done to its end, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end; a cancellation that comes meanwhile goes on afterwards.

    What is half written when a turn is cancelled is then either there or was never begun.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # it was looked at; the cancellation is what the caller hears of
        raise cancelled
    return task.result()
