"""CPU probes of overheads: tasks, single-element copies, kernel calls, and forks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from roller.backends.cpu.tvm_runtime import load_tvm_ffi
from roller.probing.cpu.compile_and_run_probes import WINDOW_S, CpuSession, compile_library
from roller.probing.probe_header import ProbeResult
from roller.probing.registry import microbench_folder
from roller.probing.robust_window_statistics import MeasuredValue, median_of_fastest_windows
from roller_runtime.cpu import threads
from roller_runtime.cpu.tvm_libraries import runtime_and_pool_resizer

#: Numbers of gathered elements, of rows, and of elements per row in one repetition of the copies, and cycles that the
#: model charges per row.
_GATHERED, _ROWS, _ROW_ELEMENTS, _ROW_CYCLES = 128 * 32, 128, 28, 8.0

#: Mean random extension of task rows in vectors, which makes their ends unpredictable for branch prediction.
_JITTER = 1.5


def measure_task_overhead(session: CpuSession) -> ProbeResult:
    """Measure the overhead of a task as the intercept of its time as a function of its row's length."""
    data, vector = session.blocks("tasks", 32768), 4 * session.spec.teu.lanes
    short, long = (session.seconds("task_rows", data, n * vector) for n in (4, 32))
    slope = (long.value - short.value) / 28
    over = short.value - (4 + _JITTER) * slope
    spread = max(short.spread, long.spread)
    return ProbeResult({"execution.barrier_s": MeasuredValue(over, spread, short.samples)})


def measure_element_copies(session: CpuSession) -> ProbeResult:
    """Measure the time per element for copies without whole vectors."""
    data = session.blocks("elements", 65536)
    gather, copy, scatter = (session.seconds(k, data) for k in ("gather_elements", "copy_rows", "scatter_elements"))
    row = copy.times(1 / _ROWS)
    moved = (row.value - _ROW_CYCLES / session.clock_hz) / _ROW_ELEMENTS
    return ProbeResult({
        "execution.element_gather_s": gather.times(1 / _GATHERED),
        "execution.element_copy_s": MeasuredValue(moved, row.spread, row.samples),
        "execution.element_scatter_s": scatter.times(1 / _GATHERED),
    })  # fmt: skip


def measure_launch(session: CpuSession) -> ProbeResult:
    """Measure the time to call an empty kernel through roller's launcher, and the additional time of a fork."""
    ffi = load_tvm_ffi()
    path = session.folder / "launch.so"
    if not path.exists():
        compile_library([microbench_folder() / "cpu" / "launch.c"], path, ("-DWITH_RUNTIME",))
    module = ffi.load_module(str(path))
    views = [ffi.from_dlpack(np.zeros(64, np.float32)) for _ in range(3)]

    def call(name: str) -> Callable[[], None]:
        function: Any = module[name]

        def run() -> None:
            threads.prepare_pool_for_kernel(session.cores, runtime_and_pool_resizer)
            function(*views)

        return run

    alone = _time_call_windows(session, call("call_only"))
    values = {"execution.launch_s": alone}
    if session.cores > 1:
        both = _time_call_windows(session, call("call_and_fork"))
        values["execution.fork_s"] = both.difference_from(alone)
    return ProbeResult(values)


def _time_call_windows(session: CpuSession, run: Callable[[], None]) -> MeasuredValue:
    for _ in range(200):
        run()
    start = time.perf_counter()
    for _ in range(50):
        run()
    count = max(1, round(WINDOW_S * 50 / (time.perf_counter() - start)))
    windows: list[float] = []
    end = time.perf_counter() + session.budget_s
    while len(windows) < session.windows and (len(windows) < 8 or time.perf_counter() < end):
        start = time.perf_counter()
        for _ in range(count):
            run()
        windows.append((time.perf_counter() - start) / count)
    return median_of_fastest_windows(windows)
