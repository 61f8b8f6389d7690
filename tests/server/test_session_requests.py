"""What a session asks of its processes, and when: with processes that only note what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from roller.server.baseline_profiles import BaselineProfiles
from roller.server.live_profile_session import Session
from roller.server.profile_request import STAGES, StepOptions
from roller.server.project_files import Project
from tests.git_repositories import commit_all

_ENTRY = "def input_provider(batch_size=16): ...\n"


class _Worker:
    """Notes requests, and gives the answers that a function makes of them; without any it waits."""

    def __init__(self, answers_to: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.output: tuple[str, ...] = ()
        self._answers_to = answers_to
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(self, request: dict[str, Any]) -> None:
        self.requests.append(request)
        for answer in self._answers_to(request):
            self._answers.put_nowait({"id": request["id"], **answer})

    async def receive(self) -> dict[str, Any]:
        return await self._answers.get()


class _Processes:
    """Starts one worker, whose first start can take until it is cancelled, and some time more."""

    def __init__(self, worker: _Worker, stuck_s: float | None = None) -> None:
        self.worker, self._stuck_s = worker, stuck_s
        self.killed = 0

    async def fork(self) -> _Worker:
        stuck_s, self._stuck_s = self._stuck_s, None
        if stuck_s is not None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(stuck_s)
        return self.worker

    def kill_soon(self, worker: _Worker) -> None:
        self.killed += 1

    async def kill(self, worker: _Worker) -> None:
        self.killed += 1


def _session(folder: Path, processes: Any) -> Session:
    (folder / "train.py").write_text(_ENTRY)
    return Session(Project(folder / "train.py"), processes)


def test_of_three_profiles_in_a_row_the_last_alone_is_asked_for(tmp_path: Path) -> None:
    worker = _Worker(lambda request: [])

    async def act() -> None:
        session = _session(tmp_path, _Processes(worker, stuck_s=0.1))
        for batch in (1, 2, 3):  # the first takes a while to end, the second waits for it as the third comes
            session.set_options(StepOptions(batch=batch))
            await asyncio.sleep(0.02)
        while not worker.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await session.close()

    asyncio.run(asyncio.wait_for(act(), 30))
    assert [request["options"]["batch"] for request in worker.requests] == [3]


def test_after_a_failure_all_stages_are_asked_for(tmp_path: Path) -> None:
    worker = _Worker(lambda request: [{"stage": "error", "text": "expected more, got less.", "problems": []}])

    async def act() -> None:
        session = _session(tmp_path, _Processes(worker))
        for changes in ((), ("amp",)):
            session.set_options(StepOptions(batch=4, changes=changes))
            while session.state.status != "failed":
                await asyncio.sleep(0)
        await session.close()

    asyncio.run(asyncio.wait_for(act(), 30))
    assert [tuple(request["wanted"]) for request in worker.requests] == [STAGES, STAGES]


def test_a_profile_of_head_names_files_as_the_project_does(tmp_path: Path) -> None:
    """The project is a folder of the repository: lines that moved are found by names within the project."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "pyproject.toml").write_text("")
    entry = tmp_path / "part" / "train.py"
    entry.write_text(_ENTRY)
    commit_all(tmp_path)
    worker = _Worker(
        lambda request: [
            {"stage": "profile", "data": {"profile": {}}},
            {"stage": "done", "files": [request["entry"], str(tmp_path / "elsewhere.py")]},
        ]
    )

    async def act() -> None:
        processes: Any = _Processes(worker)
        earlier = BaselineProfiles(Project(entry), processes, 30.0)
        for _ in range(2):  # the second time it is known
            found, moved = await earlier.head(StepOptions(), {"train.py": "# new\n" + _ENTRY})
            assert found.texts == {"train.py": _ENTRY}
            assert moved["train.py:1"] == "train.py:2"
        assert processes.killed == len(worker.requests) == 1

    asyncio.run(act())
