"""A time limit, and a cancellation that comes as the work ends."""

from __future__ import annotations

import asyncio

import pytest

from roller.server.time_limit import await_with_limit


def test_work_within_its_limit() -> None:
    async def fails() -> None:
        raise ValueError("as it was raised")

    async def act() -> None:
        assert await await_with_limit(10.0, asyncio.sleep(0, "result")) == "result"
        with pytest.raises(ValueError, match="as it was raised"):
            await await_with_limit(10.0, fails())
        sleeping = asyncio.ensure_future(asyncio.sleep(1000))
        with pytest.raises(asyncio.TimeoutError):
            await await_with_limit(0.0, sleeping)
        assert sleeping.cancelled()
        with pytest.raises(asyncio.TimeoutError):  # what is shielded goes on
            await await_with_limit(0.0, asyncio.shield(asyncio.get_running_loop().create_future()))

    asyncio.run(act())


def test_a_cancellation_is_not_lost_where_the_work_ends_in_the_same_turn() -> None:
    async def act() -> None:
        reader = asyncio.StreamReader()
        waiting = asyncio.ensure_future(await_with_limit(10.0, reader.readexactly(4)))
        await asyncio.sleep(0.01)
        reader.feed_data(b"data")  # what asyncio.wait_for of Python 3.10 and 3.11 would return
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(act())
