"""Time limit for a coroutine; the caller's cancellation is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_Result = TypeVar("_Result")


async def await_with_limit(seconds: float, work: Awaitable[_Result]) -> _Result:
    """Return the result of an awaitable; after ``seconds``, cancel it and raise ``asyncio.TimeoutError``."""
    # asyncio.wait_for of Python 3.10 and 3.11 swallows the caller's cancellation if the work ends in the same turn of
    # the event loop: a replaced profile would continue, and a closed connection would never end.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # mark it as retrieved, even if the caller was cancelled
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
