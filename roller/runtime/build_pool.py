"""Build many candidates in parallel, each in a process of its own.

The children are forked, so what the parent imported (TVM: seconds) is there already, and a crash of
LLVM or an endless compilation takes only its own candidate down. Results are keyed by id.
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
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from roller.core.cyclic import held_back
from roller.core.processor import usable_processors
from roller.core.scratch import scratch_folder
from roller.runtime.interrupts import interrupts_deferred
from roller.runtime.records import Record

T = TypeVar("T")
R = TypeVar("R")

_POLL_S = 0.05
#: Of ``linux/prctl.h``.
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class BuildResult(Generic[R]):
    """What a build gave: its record, and the value where it succeeded."""

    record: Record
    value: R | None = None


@dataclass
class _Job:
    process: Any
    connection: Any
    start: float


def build_all(
    jobs: Mapping[str, T],
    build: Callable[[T], R],
    *,
    workers: int | None = None,
    timeout_s: float = 60.0,
    on_result: Callable[[Record], None] | None = None,
) -> dict[str, BuildResult[R]]:
    """Apply ``build`` to every job in forked processes.

    Parameters
    ----------
    jobs
        What to build, by candidate id.
    build
        Called in the child with one job; its result must be picklable. Import heavy modules before
        calling this function, so that all children inherit them.
    workers
        Processes at a time; the processors this process may use when ``None``.
    timeout_s
        Seconds a build may take before it is killed.
    on_result
        Called with each record as it arrives (progress display).

    Returns
    -------
    dict
        A :class:`BuildResult` per id, in the order of ``jobs``.
    """
    limit = workers or usable_processors()
    waiting = list(jobs.items())
    running: dict[str, _Job] = {}
    done: dict[str, BuildResult[R]] = {}
    # The children's temporary files live here, so that those of a killed build are removed as well.
    with scratch_folder("build-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < limit:
                    name, job = waiting.pop(0)
                    with interrupts_deferred():  # also so that a child that was begun is known, and ended
                        running[name] = _start(build, job, folder)
                multiprocessing.connection.wait([j.connection for j in running.values()], timeout=_POLL_S)
                for name, current in list(running.items()):
                    result: BuildResult[R] | None = _collect(name, current, timeout_s)
                    if result is not None:
                        del running[name]
                        done[name] = result
                        if on_result is not None:
                            on_result(result.record)
        finally:
            for current in running.values():
                _stop(current)
    return {name: done[name] for name in jobs}


def build_here(jobs: Mapping[str, T], build: Callable[[T], R]) -> dict[str, BuildResult[R]]:
    """Apply ``build`` to every job in this process: no fork, for a single candidate. Results as :func:`build_all`."""
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


def _start(build: Callable[[T], R], job: T, folder: str) -> _Job:
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(build, job, send, folder, os.getpid()), daemon=True)
    with warnings.catch_warnings(), held_back():  # held back: the child leaves garbage that it inherits alone
        # Python warns of forking with threads; the child touches no lock that another thread may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    send.close()
    return _Job(process, receive, time.perf_counter())


def _child(build: Callable[[Any], Any], job: Any, send: Any, folder: str, parent: int) -> None:
    """Run one build in the child and send ``(error, value, seconds)``."""
    _end_with(parent)
    os.setsid()  # a group of its own, so that stopping the build also stops a linker it started
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides on an interrupt
    tempfile.tempdir = folder
    start = time.perf_counter()
    try:
        value = build(job)
        data = pickle.dumps((None, value, time.perf_counter() - start))
    except Exception as err:  # noqa: BLE001 - whatever it is, it is this candidate's reason
        data = pickle.dumps((f"{type(err).__name__}: {err}", None, time.perf_counter() - start))
    send.send_bytes(data)
    send.close()


def _end_with(parent: int) -> None:
    """Have Linux kill this process when the one that forked it is gone, however it ended; nothing elsewhere.

    The signal comes when the forking *thread* ends: :func:`build_all` leaves no child behind when it returns.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before it could be asked for
        os._exit(1)


def _collect(name: str, job: _Job, timeout_s: float) -> BuildResult[Any] | None:
    """Return the result of a job that has ended, or ``None`` while it runs."""
    if job.connection.poll():
        try:
            error, value, seconds = pickle.loads(job.connection.recv_bytes())
        except (EOFError, OSError):
            return _crashed(name, job)
        _stop(job, wait_s=5.0)
        if error is not None:
            return BuildResult(Record(name, "failed", error, build_s=seconds))
        return BuildResult(Record(name, "built", build_s=seconds), value)
    if not job.process.is_alive():
        return _crashed(name, job)
    if time.perf_counter() - job.start > timeout_s:
        _stop(job)
        return BuildResult(Record(name, "timeout", f"the build took longer than {timeout_s:g} s and was stopped"))
    return None


def _crashed(name: str, job: _Job) -> BuildResult[Any]:
    job.process.join(5.0)
    code = job.process.exitcode
    _stop(job)
    how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
    return BuildResult(Record(name, "crashed", f"the build process ended by {how}"))


def _stop(job: _Job, wait_s: float = 0.0) -> None:
    """End a child's process and release its pipe."""
    if wait_s:
        job.process.join(wait_s)
    if job.process.is_alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.kill()
    job.process.join()
    job.process.close()
    job.connection.close()
