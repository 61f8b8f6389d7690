"""A parallel kernel, and threads and processes that run it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import roller
from roller import ops
from roller_runtime.cpu import threads
from tests.codegen.cpu_programs import canonical, kernel, program

M, N, K = 33, 50, 17
LINUX = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="placing threads needs Linux")
TWO = pytest.mark.skipif(len(threads.processors()) < 2, reason="needs a second processor")


def make_matmul():
    """Return a kernel with a parallel loop for all processors."""
    e = ops.matmul(M, N, K)
    tiles = {"i": 4, "j": 16}, {"i": 8, "j": 32}
    return kernel(e, program(canonical(e), "tiled", *tiles, "j", staged=("A", "B")))


def in_thread(work):
    """Return what ``work`` returns in a thread of its own, which has a pool of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    assert found, "the thread raised"
    return found[0]


def run(matmul):
    a, b = np.ones((M, K), np.float32), np.ones((K, N), np.float32)
    assert (matmul(a, b) == K).all()


#: Seconds after which a process hangs, not what it takes. Its kernels take milliseconds, its end (the interpreter's,
#: where TVM's package has loaded PyTorch, and threads that yield 300,000 times before they see it) up to a second of a
#: processor: nine seconds of the clock where ten programs share one.
HANGS_S = 240

HEAD = f"""
import os, signal, sys, time, warnings
import numpy as np
from roller.artifact import KernelArtifact
from roller.backends.cpu import CpuKernel
from roller_runtime.cpu import threads
warnings.simplefilter("ignore")
signal.alarm({2 * HANGS_S})
kernel = CpuKernel(KernelArtifact.load(sys.argv[1]))
a, b = np.ones((33, 17), "f"), np.ones((17, 50), "f")
def run():
    assert (kernel(a, b) == 17).all()
def in_child(work, leave=sys.exit):
    pid = os.fork()
    if pid == 0:
        signal.alarm({HANGS_S})
        work()
        leave(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def python(saved, script, before="", **environment):
    """Run a script in a Python of its own and return what it printed."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("TVM_")}
    variables |= {"PYTHONPATH": str(Path(roller.__file__).parent.parent), **environment}
    done = subprocess.run(
        [sys.executable, "-c", before + HEAD + script, str(saved)],
        capture_output=True,
        text=True,
        env=variables,
        timeout=3 * HANGS_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
