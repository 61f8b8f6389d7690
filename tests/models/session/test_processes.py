"""Threads and processes of servers, as docs/guides/deployment.md describes them: forks, workers, affinity, the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from roller.models.graph.memory_plan import plan_memory
from roller.models.session.saved import load_model
from roller.models.session.start_session import start_session
from roller_runtime.cpu.threads import processors
from tests.models.session import programs

ROOT = Path(__file__).resolve().parents[3]
LINUX = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
TWO = pytest.mark.skipif(len(processors()) < 2, reason="needs a second processor")
FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
#: Loads a model with parallel steps, which wakes other threads.
HEAD = """
import os, sys, threading, time
import numpy as np
from roller.models.session.saved import load_model
def load(threads): return load_model(sys.argv[1], threads=threads)
def feeds(session): return {d.name: np.ones(d.shape, d.dtype) for d in session.inputs}
def tasks(): return len(os.listdir("/proc/self/task"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    program = programs.lanes()
    session = start_session(plan_memory(program), programs.kernels(program), cores=2)
    assert session._wakes
    return session.save(tmp_path_factory.mktemp("saved") / "lanes")


def python(folder: Path, script: str) -> list[str]:
    """Run a script in a process of its own and return what it printed."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", HEAD + script, str(folder)], capture_output=True, text=True,
                          env=variables, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def in_child(work) -> int:
    """Return the exit status of a forked process that does some work: 7 if it returns."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            work()
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@FORK
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads: what is tested
@pytest.mark.parametrize("threads", [1, 2])
def test_processes_forked_while_other_threads_call_serve_and_so_does_their_parent(folder, threads):
    session = load_model(folder, threads=threads)
    fed = {d.name: np.ones(d.shape, d.dtype) for d in session.inputs}
    wanted = [a.tobytes() for a in session.run(fed).values()]
    stop, wrong = threading.Event(), []

    def call(count: int = 10**9) -> None:
        for _ in range(count):
            if stop.is_set():
                return
            if [a.tobytes() for a in session.run(fed).values()] != wanted:
                wrong.append(1)

    def serve() -> None:
        callers = [threading.Thread(target=call, args=(20,)) for _ in range(3)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        found = session.metrics()
        assert not wrong and (found.calls, found.failures, found.in_progress) == (60, 0, 0)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    try:
        assert [in_child(serve) for _ in range(8)] == [7] * 8
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert not wrong
    found = session.metrics()
    assert found.in_progress == 0 and found.arenas <= max(2, len(processors()))


@LINUX
@TWO
def test_sessions_share_their_workers_and_one_thread_starts_none(folder):
    script = """
before = tasks()
one = load(1); one.run(feeds(one))
print(tasks() - before)
for _ in range(3):
    session = load(2); session.run(feeds(session))
print(tasks() - before)
"""
    assert python(folder, script) == ["0", "1"]


@LINUX
@TWO
def test_a_process_bound_to_one_processor_starts_no_workers(folder):
    script = f"""
os.sched_setaffinity(0, {{{processors()[0]}}})
before = tasks()
session = load(2); session.run(feeds(session))
print(tasks() - before)
"""
    assert python(folder, script) == ["0"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_may_end_while_daemon_threads_call(folder, threads):
    script = f"""
session = load({threads})
def call():
    while True: session.run(feeds(session))
for _ in range(3): threading.Thread(target=call, daemon=True).start()
time.sleep(0.2)
print("ends")
"""
    assert python(folder, script) == ["ends"]


@LINUX
def test_processes_share_the_weights_of_a_folder(tmp_path):
    program = programs.mlp()
    folder = start_session(plan_memory(program), programs.kernels(program), cores=1).save(tmp_path / "mlp")
    script = """
sessions = load(1), load(1)
for s in sessions: s.run(feeds(s))
print(open("/proc/self/smaps").read())
"""
    printed = " ".join(python(folder, script))
    own = re.findall(r"arrays\.bin .*?Private_Dirty: (\d+) kB", printed)
    assert own and set(own) == {"0"}, "no page of the weights is a process's own"
