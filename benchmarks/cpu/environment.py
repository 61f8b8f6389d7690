"""One thread count for everybody, and what machine the figures come from."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

#: Read by OpenMP (PyTorch), MKL, OpenBLAS (NumPy) and TVM's pool when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")

#: No page faults inside anybody's timing: what a peer frees stays with the process, as it does in a running model.
#: Without this, PyTorch pays for fresh pages at every large output, and Roller, which writes to ``out``, does not.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 26)}

_PACKAGES = ("torch", "onnxruntime", "onnx", "numpy", "apache-tvm", "roller")


def wanted(threads: int) -> dict[str, str]:
    """Return the variables that must stand before any of the libraries is loaded.

    Examples
    --------
    >>> wanted(2)["OMP_NUM_THREADS"]
    '2'
    """
    return {
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "TVM_BIND_THREADS": "0",
        "OMP_DYNAMIC": "FALSE",
        **ALLOCATOR,
    }


def missing(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of :func:`wanted` that ``environ`` lacks."""
    return {k: v for k, v in wanted(threads).items() if environ.get(k) != v}


def restart_with(threads: int, module: str = "benchmarks.cpu") -> None:
    """Start this command again, on as many processors as threads and with the variables set; return where they are.

    ``module`` is what was run with ``python -m``.
    The libraries read them once, when they are loaded, so setting them now would come too late.
    """
    if len(os.sched_getaffinity(0)) > threads:  # so that Roller detects the same number of cores
        os.sched_setaffinity(0, set(first_of_each_core()[:threads]))
    lacking = missing(threads, os.environ)
    if lacking:
        sys.stdout.flush()
        arguments = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **lacking})


def first_of_each_core(root: Path = Path("/")) -> list[int]:
    """Return the processors of the affinity mask, first threads of all cores before their siblings."""
    found, seen = [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        core = path.read_text().strip() if path.exists() else str(cpu)
        found.append((core in seen, cpu))
        seen.add(core)
    return [cpu for _, cpu in sorted(found)]


@contextmanager
def parted(tasks: Path = Path("/proc/self/task")) -> Iterator[None]:
    """Bind this thread to its first processor for a while, and keep every other thread of the process off it.

    Some schedulers pack threads onto few processors: a library's worker is then woken where its caller runs, and the
    library runs at half its speed for as long as the scheduler does not notice. Everybody is spared that alike. Threads
    that keep off already stay where they are.
    """
    processors, mine = os.sched_getaffinity(0), threading.get_native_id()
    first, *others = sorted(processors)
    os.sched_setaffinity(0, {first})
    try:
        for number in {int(t.name) for t in tasks.iterdir()} - {mine}:
            if others and first in os.sched_getaffinity(number):
                os.sched_setaffinity(number, others)
        yield
    finally:
        os.sched_setaffinity(0, processors)


def facts(threads: int) -> dict[str, Any]:
    """Return processor, threads and versions, for the head of a report."""
    cpu_info = Path("/proc/cpuinfo")
    models = [s for s in cpu_info.read_text().splitlines() if s.startswith("model name")] if cpu_info.exists() else []
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.processor(),
        "processors": len(os.sched_getaffinity(0)),
        "threads": threads,
        "python": platform.python_version(),
        **{name: version for name in _PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def load_average() -> float:
    """Return the load of the last minute, in processes."""
    return round(os.getloadavg()[0], 2)


def foreign_s(stat: Path = Path("/proc/stat")) -> float:
    """Return processor seconds used on this machine by anybody but this process, since it was started.

    Time taken by the hypervisor counts as used; zero where the system does not tell.
    """
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _iowait, *others = (int(v) for v in stat.read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK") - time.process_time()
