"""Files that change in each profile: the next one waits, and at last it is said."""

from __future__ import annotations

import asyncio

import pytest

from roller.errors import RollerError
from roller.server import count_interrupted_profiles
from roller.server.count_interrupted_profiles import InterruptionCounter


def test_a_step_that_writes_its_own_source_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count_interrupted_profiles, "_REST_S", 0.0)
    stopped: list[int] = []

    async def act() -> None:
        found = InterruptionCounter()
        for count in range(15):
            assert found.must_wait == (count >= 10)
            if found.must_wait:
                await found.rest("train.py", lambda: stopped.append(1))
            found.count_file_change(is_running=True)
        with pytest.raises(RollerError, match=r"train\.py: expected files that stay as they are"):
            await found.rest("train.py", lambda: None)
        assert not found.must_wait

    asyncio.run(act())
    assert len(stopped) == 5


def test_a_change_while_nothing_runs_is_a_persons() -> None:
    found = InterruptionCounter()
    for _ in range(12):
        found.count_file_change(is_running=True)
    found.count_file_change(is_running=False)
    assert not found.must_wait
