"""Builds many candidates in parallel in forked processes.

The children inherit what the parent imported (TVM takes seconds), and a crash of LLVM or an endless compilation ends
only its own candidate. Results are returned by id.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from roller.runtime.candidate_records import Record
from roller.runtime.defer_interrupts import interrupts_deferred
from roller.runtime.run_in_new_thread import run_in_new_thread
from roller_runtime.core.gc_pause import gc_paused
from roller_runtime.core.processor_features_and_count import usable_processors
from roller_runtime.core.temporary_folders import scratch_folder
from roller_runtime.cpu.threads import forking_without_workers

T = TypeVar("T")
R = TypeVar("R")

_POLL_S = 0.05
#: Constant of ``linux/prctl.h``.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class BuildResult(Generic[R]):
    """Record of a build, and its value if it succeeded."""

    record: Record
    value: R | None = None


@dataclass
class _Worker:
    """A child process, its current job (``None`` if idle) and that job's start time."""

    process: Any
    connection: Any
    name: str | None = None
    start: float = 0.0


def build_all(
    jobs: Mapping[str, T],
    build: Callable[[T], R],
    *,
    workers: int | None = None,
    timeout_s: float = 60.0,
    on_result: Callable[[Record], None] | None = None,
    reuse: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> dict[str, BuildResult[R]]:
    """Apply ``build`` to every job in forked processes; with ``reuse``, children take further jobs."""
    # Import heavy modules before this call, so that the children inherit them. Forking a process that holds TVM, and
    # copying the pages it writes to, takes 20 ms, which reuse saves. Temporary files of the children are created in
    # this folder, so that those of a killed build are removed as well.
    with scratch_folder("build-") as folder:
        pool = _Pool(
            jobs,
            workers or usable_processors(),
            timeout_s,
            on_result,
            reuse,
            partial(_start_worker, build, jobs, folder),
        )
        try:
            if meanwhile is not None:
                pool.beside(meanwhile)
            while pool.busy or pool.waiting:
                pool.assign_jobs()
                pool.collect()
        finally:
            pool.close()
    return {name: pool.done[name] for name in jobs}


class _Pool:
    """Workers, waiting jobs and results."""

    def __init__(
        self, jobs: Mapping[str, Any], limit: int, timeout_s: float, on_result: Callable[[Record], None] | None,
        reuse: bool, start: Callable[[], _Worker],
    ) -> None:  # fmt: skip
        self.waiting, self.done = list(jobs), dict[str, BuildResult[Any]]()
        self._limit, self._timeout_s, self._told, self._reuse, self._start = limit, timeout_s, on_result, reuse, start
        self._crew: list[_Worker] = []

    @property
    def busy(self) -> list[_Worker]:
        """Workers with a job."""
        return [w for w in self._crew if w.name is not None]

    def assign_jobs(self, *, start: bool = True) -> None:
        """Give a job to every idle worker and, if ``start``, to new workers up to the limit."""
        limit = self._limit if start else 0
        while self.waiting and (free := _idle_or_new_worker(self._crew, limit, self._start)) is not None:
            _send_job(free, self.waiting.pop(0))

    def collect(self) -> None:
        """Collect finished results, waiting at most one poll interval."""
        busy = self.busy
        multiprocessing.connection.wait([w.connection for w in busy], timeout=_POLL_S)
        for worker in busy:
            result: BuildResult[Any] | None = _collect_result(worker, self._timeout_s)
            if result is None:
                continue
            self.done[result.record.candidate_id] = result
            if worker.process is None or not self._reuse:
                self._crew.remove(worker)
                _dismiss_worker(worker)
            if self._told is not None:
                self._told(result.record)

    def beside(self, act: Callable[[], object]) -> None:
        """Run ``act`` in this thread while another thread hands out jobs to existing workers."""
        self.assign_jobs()
        # The other thread starts no workers, since a fork copies one thread only.
        over, failures = threading.Event(), list[BaseException]()

        def serve() -> None:
            try:
                while self.busy and not over.is_set():
                    self.collect()
                    if not over.is_set():
                        self.assign_jobs(start=False)
            except BaseException as err:  # noqa: BLE001 - raised again after the join
                failures.append(err)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        try:
            act()
        finally:
            over.set()
            server.join()
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Stop all workers, busy or not."""
        idle = [w for w in self._crew if w.name is None]
        for worker in self.busy:
            _kill_worker(worker)
        for worker in idle:
            _dismiss_worker(worker)


def _idle_or_new_worker(worker_pool: list[_Worker], limit: int, start: Callable[[], _Worker]) -> _Worker | None:
    """Return an idle worker or, below the limit, a new one; ``None`` if there is neither."""
    found = next((w for w in worker_pool if w.name is None), None)
    if found is None and len(worker_pool) < limit:
        with interrupts_deferred():  # an interrupt here must not leave a child that nobody ends
            found = start()
            worker_pool.append(found)
    return found


def _send_job(worker: _Worker, name: str) -> None:
    """Send a worker its next job; if the worker is dead, this is noticed when its result is collected."""
    worker.name, worker.start = name, time.perf_counter()
    with contextlib.suppress(OSError):
        worker.connection.send(name)


def build_all_without_fork(jobs: Mapping[str, T], build: Callable[[T], R]) -> dict[str, BuildResult[R]]:
    """Apply ``build`` to every job in this process, without a fork; return results as :func:`build_all` does."""
    done: dict[str, BuildResult[R]] = {}
    for name, job in jobs.items():
        start = time.perf_counter()
        try:
            value = build(job)
        except Exception as err:  # noqa: BLE001 - whatever it is, it is this candidate's reason
            reason = f"{type(err).__name__}: {err}"
            done[name] = BuildResult(Record(name, "failed", reason, build_s=time.perf_counter() - start))
        else:
            done[name] = BuildResult(Record(name, "built", build_s=time.perf_counter() - start), value)
    return done


def _start_worker(build: Callable[[T], R], jobs: Mapping[str, T], folder: str) -> _Worker:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_run_child_jobs, args=(build, jobs, there, folder, os.getpid()), daemon=True)
    # The child must not collect inherited garbage.
    with warnings.catch_warnings(), gc_paused(), forking_without_workers():
        # Python warns of forking with threads; the child uses no lock that another thread may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    there.close()
    return _Worker(process, here)


def _run_child_jobs(
    build: Callable[[Any], Any], jobs: Mapping[str, Any], connection: Any, folder: str, parent: int
) -> None:
    """Run, in the child, the jobs that the parent names; send ``(error, value, seconds)`` for each job."""
    _die_with_parent(parent)
    os.setsid()  # own process group, so that stopping the build also stops its linker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    tempfile.tempdir = folder
    run_in_new_thread(partial(_answer_job_names, build, jobs, connection))


def _answer_job_names(build: Callable[[Any], Any], jobs: Mapping[str, Any], connection: Any) -> None:
    while (name := _receive_job_name(connection)) is not None:
        start = time.perf_counter()
        try:
            value = build(jobs[name])
            data = pickle.dumps((None, value, time.perf_counter() - start))
        except Exception as err:  # noqa: BLE001 - whatever it is, it is this candidate's reason
            data = pickle.dumps((f"{type(err).__name__}: {err}", None, time.perf_counter() - start))
        connection.send_bytes(data)
        del data
    connection.close()


def _receive_job_name(connection: Any) -> str | None:
    """Return the name of the next job; ``None`` at the end, or if the parent is gone."""
    try:
        name: str | None = connection.recv()
    except EOFError:
        return None
    return name


def _die_with_parent(parent: int) -> None:
    """Have Linux kill this process when its parent is gone; do nothing on other operating systems."""
    # The signal comes when the forking thread ends: build_all leaves no child running when it returns.
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl was called
        os._exit(1)


def _collect_result(worker: _Worker, timeout_s: float) -> BuildResult[Any] | None:
    """Return the result of a finished job, or ``None`` while it runs; after a crash, the worker has no process."""
    assert worker.name is not None
    if worker.connection.poll():
        try:
            error, value, seconds = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            return _crash_result(worker)
        name, worker.name = worker.name, None
        if error is not None:
            return BuildResult(Record(name, "failed", error, build_s=seconds))
        return BuildResult(Record(name, "built", build_s=seconds), value)
    if not worker.process.is_alive():
        return _crash_result(worker)
    if time.perf_counter() - worker.start > timeout_s:
        name = worker.name
        _kill_worker(worker)
        return BuildResult(Record(name, "timeout", f"its process took longer than {timeout_s:g} s and was stopped"))
    return None


def _crash_result(worker: _Worker) -> BuildResult[Any]:
    name = worker.name or ""
    worker.process.join(5.0)
    code = worker.process.exitcode
    _kill_worker(worker)
    how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
    return BuildResult(Record(name, "crashed", f"the build process ended by {how}"))


def _dismiss_worker(worker: _Worker) -> None:
    """Make an idle worker exit and release its process and pipe."""
    if worker.process is None:
        return
    with contextlib.suppress(OSError):
        worker.connection.send(None)
    worker.process.join(5.0)
    _kill_worker(worker)


def _kill_worker(worker: _Worker) -> None:
    """Kill a worker's process and close its pipe."""
    if worker.process.is_alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
    worker.process.join()
    worker.process.close()
    worker.connection.close()
    worker.process, worker.name = None, None
