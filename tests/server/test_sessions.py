"""Sessions and their processes: what a project's code may do, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from roller.server.live_profile_session import Session
from roller.server.profile_request import StepOptions
from roller.server.profiling_process_connections import WorkerEnded, WorkerProcesses
from roller.server.project_files import Project
from tests.server.entries import NET, edited
from tests.server.processes import alive, descendants_of, wait_until

pytestmark = [
    pytest.mark.slow,  # each starts a process that imports PyTorch
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc"),
]
_ROOT = Path(__file__).parents[2]


class Watched:
    """A session, and what it has told."""

    def __init__(self, session: Session, processes: WorkerProcesses) -> None:
        self.session, self.processes = session, processes
        self.told: list[dict[str, Any]] = []
        session.listen(self.told.append)

    async def until(self, is_so: Callable[[], object], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, f"waited for too long: {self.session.state}"
            await asyncio.sleep(0.02)

    async def ended(self) -> None:
        await self.until(lambda: self.session.state.status in ("ready", "failed", "stale"))

    @property
    def error(self) -> str:
        error = self.session.state.error
        return "" if error is None else error["text"]


def _run(entry: Path, act: Callable[[Watched], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a session until ``act`` has returned, and hold that no process of it is left then."""
    before = descendants_of(os.getpid())  # what other tests keep: a tracker of resources, a pool

    async def whole() -> None:
        processes = WorkerProcesses()
        watched = Watched(Session(Project(entry), processes, StepOptions(), **options), processes)
        try:
            await watched.session.start()
            await act(watched)
            left = descendants_of(os.getpid()) - before
        finally:
            await watched.session.close()
            await processes.close()
        assert left, "the process that forks should have run"
        await watched.until(lambda: not alive(left))

    asyncio.run(whole())
    assert descendants_of(os.getpid()) <= before


def _entry(folder: Path, body: str, where: str = "def model_provider():\n") -> Path:
    """Write an entry file whose provider runs a body first."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (folder / "train.py").write_text(edited(NET, where, where + lines))
    return folder / "train.py"


def test_what_a_projects_code_may_do(tmp_path: Path) -> None:
    """One session: each body is one save; what is said of it, and that the next one profiles as if nothing had been."""
    bodies = {
        "import os; os._exit(3)": "its end with status 3",
        "print('last words', flush=True); import os; os._exit(0)": "last words",
        "import sys; sys.exit(5)": "got SystemExit at train.py:27: 5",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "its end by signal 9",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": "its end by signal 11",
        "raise BaseException('odd')": "odd",
        "raise KeyboardInterrupt": "KeyboardInterrupt",
        "f = open(1, 'w', closefd=False); f.write('x' * 10_000_000); f.flush(); raise ValueError('long')": "long",
        "open('/dev/full', 'w').write('x' * 100_000)": "No space left on device",
        "f = open('large', 'wb'); f.truncate(1 << 31)": "File too large",
        "import os; os.close(2); os.close(1); os.close(0); raise ValueError('closed')": "closed",
        "import os; os.closerange(0, 100); raise ValueError('all closed')": "its end",
        "import sys; sys.stdout = sys.stderr = None; raise ValueError('no streams')": "no streams",
        "import os, threading; threading.Thread(target=lambda: os._exit(9)).start(); import time; time.sleep(60)": (
            "its end with status 9"
        ),
        "def f(): f()\nf()": "recursion",
        "import ctypes; ctypes.string_at(0)": "its end by signal 11",
    }

    async def act(watched: Watched) -> None:
        for body, words in bodies.items():
            await asyncio.sleep(0.6)  # a person's save, not one that the profile makes of itself
            _entry(tmp_path, f"import os; os.chdir({str(tmp_path)!r})\n{body}")
            watched.session.check_files_for_changes()
            await watched.ended()
            assert watched.session.state.status == "failed", body
            assert words in watched.error, (body, watched.error)
            assert "expected" in watched.error
            assert "Traceback" not in watched.error
        (tmp_path / "train.py").write_text(NET)
        watched.session.check_files_for_changes()
        await watched.ended()
        assert watched.session.state.status == "ready", watched.error

    _entry(tmp_path, "raise ValueError('first')")
    _run(tmp_path / "train.py", act)
    assert not (tmp_path / "large").exists() or (tmp_path / "large").stat().st_size <= 1 << 30


def test_what_a_project_writes_into_the_conversation_is_no_answer(tmp_path: Path) -> None:
    sockets = (
        "import json, os, stat, struct, time\n"
        "for n in range(3, 64):\n"
        "    try:\n"
        "        if not stat.S_ISSOCK(os.fstat(n).st_mode): continue\n"
        "    except OSError: continue\n"
    )
    frame = "    os.write(n, struct.pack('<Q', len(t)) + t)\n"
    bodies = {
        "    os.write(n, b'garbage garbage garbage')\n": "what is no answer",
        "    t = b'[' * 5000\n" + frame: "what is no answer",
        '    t = b\'{"x": 1, "blobs": []}\'\n' + frame: "what is no answer",
        "    for i in range(200):\n"
        "        t = json.dumps({'id': i, 'stage': 'profile', 'blobs': []}).encode()\n    " + frame: "got others",
    }

    async def act(watched: Watched) -> None:
        for body, words in bodies.items():
            _entry(tmp_path, sockets + body + "time.sleep(1000)")
            watched.session.check_files_for_changes()
            await watched.ended()
            assert words in watched.error, (body, watched.error)

    _run(_entry(tmp_path, "raise ValueError('first')"), act)


def test_nothing_is_imported_from_where_the_server_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yaml.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)

    async def act() -> None:
        processes = WorkerProcesses()
        try:
            await processes.fork()
        finally:
            await processes.close()

    asyncio.run(act())
    assert not (tmp_path / "ran").exists()


def test_a_provider_that_never_ends_is_named_with_its_line(tmp_path: Path) -> None:
    async def act(watched: Watched) -> None:
        await watched.ended()
        assert "train.py:26: expected progress within 8 s" in watched.error
        assert watched.session.state.error["problems"][0]["line"] == 26

    _run(_entry(tmp_path, "while True: pass"), act, patience_s=8.0)


def test_what_a_project_forks_and_detaches_ends_with_it(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    body = (
        "import os, time, signal\n"
        "for sig in (signal.SIGTERM, signal.SIGHUP): signal.signal(sig, signal.SIG_IGN)\n"
        "for depth in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        f"            open({str(numbers)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "            time.sleep(1000)\n"
        "        os._exit(0)\n"
        f"open({str(numbers)!r}, 'a').close()\n"
        f"while open({str(numbers)!r}).read().count('\\n') < 3: time.sleep(0.05)"
    )

    async def act(watched: Watched) -> None:
        await watched.ended()
        pids = {int(line) for line in numbers.read_text().split()}
        assert len(pids) >= 3  # a provider may run more than once
        (tmp_path / "train.py").write_text(NET)  # a save ends the process that forked them
        watched.session.check_files_for_changes()
        await watched.ended()
        assert watched.session.state.status == "ready", watched.error
        await watched.until(lambda: not alive(pids))

    _run(_entry(tmp_path, body + "\nraise ValueError('enough')"), act)


def test_prints_without_end_are_read_and_forgotten(tmp_path: Path) -> None:
    async def act(watched: Watched) -> None:
        await watched.ended()
        error = watched.session.state.error
        assert "expected progress within 8 s" in error["text"]
        assert len(error["output"]) <= 200
        assert max(map(len, error["output"])) <= 2000

    _run(_entry(tmp_path, "while True: print('x' * 5000, end='')"), act, patience_s=8.0)


def test_two_saves_give_one_result_of_the_second(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NET)

    async def act(watched: Watched) -> None:
        await watched.ended()
        watched.told.clear()
        _entry(tmp_path, "import time; time.sleep(1000)")
        watched.session.check_files_for_changes()
        await watched.until(lambda: watched.session._worker is not None)
        first = watched.session._worker
        assert first is not None
        (tmp_path / "train.py").write_text(edited(NET, "batch_size=16", "batch_size=48"))
        watched.session.check_files_for_changes()
        await watched.until(lambda: not alive({first.pid}))
        await watched.ended()
        found = [x for x in watched.told if x["type"] == "result" and x["stage"] == "profile"]
        assert [x["data"]["profile"]["batch"] for x in found] == [48]

    _run(tmp_path / "train.py", act)


def test_a_worker_that_ends_before_it_is_asked_says_so(tmp_path: Path) -> None:
    async def act() -> None:
        processes = WorkerProcesses()
        try:
            worker = await processes.fork()
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(WorkerEnded, match="signal 9"):
                await worker.send({"id": 1})
                await worker.receive()
            await processes.kill(worker)
            again = await processes.fork()
            assert again.pid != worker.pid
        finally:
            await processes.close()

    asyncio.run(act())


def test_a_fork_that_nobody_waits_for_is_killed(tmp_path: Path) -> None:
    async def act() -> None:
        processes = WorkerProcesses()
        try:
            for pause in (0.0, 0.001, 0.01, 0.5):
                forking = asyncio.ensure_future(processes.fork())
                await asyncio.sleep(pause)
                forking.cancel()
                await asyncio.wait([forking])
            kept = await processes.fork()
            server = processes._process
            assert server is not None
            for _ in range(5000):
                if descendants_of(server.pid) == {kept.pid}:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError(f"left over: {descendants_of(server.pid)}")
        finally:
            await processes.close()

    asyncio.run(act())


def test_the_process_that_forks_may_be_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NET)

    async def act(watched: Watched) -> None:
        await watched.ended()
        server = watched.processes._process
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        (tmp_path / "train.py").write_text(edited(NET, "batch_size=16", "batch_size=8"))
        watched.session.check_files_for_changes()
        await watched.ended()
        if watched.session.state.status == "failed":  # it was asked before its end was noticed
            assert "expected" in watched.error
            watched.session.profile()
            await watched.ended()
        assert watched.session.state.status == "ready", watched.error

    _run(tmp_path / "train.py", act)


_SERVER = """
import asyncio, sys
from roller.server.project_files import Project
from roller.server.live_profile_session import Session
from roller.server.profiling_process_connections import WorkerProcesses

async def main():
    session = Session(Project(sys.argv[1]), WorkerProcesses())
    await session.start()
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_a_server_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    body = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        f"    open({str(numbers)!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(1000)\ntime.sleep(1000)"
    )
    entry = _entry(tmp_path, body)
    server = subprocess.Popen([sys.executable, "-c", _SERVER, str(entry)], cwd=_ROOT)
    try:
        wait_until(lambda: numbers.exists() and numbers.read_text(), 120.0)
        below = descendants_of(server.pid)
        assert len(below) >= 3  # it forks, one profiles, and what the project forked
    finally:
        server.kill()
        server.wait()
    wait_until(lambda: not alive(below), 60.0)
