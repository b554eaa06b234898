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
    interrupted: BaseException | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except BaseException as error:  # noqa: BLE001 - it goes on below
            interrupted = error
    if interrupted is not None:
        task.exception()  # it was looked at; the interruption is what the caller hears of
        raise interrupted
    return task.result()
