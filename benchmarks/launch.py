"""What a call of a CPU kernel costs beside its arithmetic, NumPy's own calls beside it, in turn in one process.

The kernels are so small (4 by 16 outputs, 64 sums) that their arithmetic does not show. A fork is the difference
between two builds of one kernel, of one task and of one task per core, bound: right after another call, when the
workers still look for work, and after they fell asleep. The limit is that of a checked call.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer
from common import JsonOption, check_outputs, screen, table, write_json

import roller
from roller.backends.cpu.launcher import CpuKernel
from roller.compiler.pipeline import lower
from roller.construction.explicit_tiles import program_from_tiles
from roller.hardware import load_spec

#: Seconds from a Python call to its kernel, all checks included.
LIMIT_S = 10e-6
#: Seconds of a turn: far below a scheduler's time slice.
TURN_S = 2e-4
#: Seconds without work after which TVM's workers sleep, with a margin for a busy machine.
ASLEEP_S = 1.0
Calls = dict[str, Callable[[], object]]


def small_calls() -> Calls:
    """Return the calls of tiny operators, from the barest to the most convenient, and NumPy's."""
    a, b = (np.ones(s, np.float32) for s in ((4, 4), (4, 16)))
    x, y = np.ones(64, np.float32), np.ones(64, np.float32)
    c, z = np.empty((4, 16), np.float32), np.empty(64, np.float32)
    out: Calls = {}
    for name, expr, arrays, result, rival in (
        ("matmul 4x4x16", roller.ops.matmul(4, 16, 4), (a, b), c, np.matmul),
        ("add 64", roller.ops.elementwise("add", (64,)), (x, y), z, np.add),
    ):
        kernel = roller.compile(expr, device="cpu", top_k=1)
        run, _ = kernel.launcher.bind(*arrays, out=result)
        views = kernel.launcher.bind(*arrays, out=result)[0].views
        out[f"{name}: the kernel's foreign function"] = lambda f=run.function, v=views: f(*v)
        out[f"{name}: bound"] = run
        out[f"{name}: checked, out="] = lambda k=kernel, v=arrays, r=result: k(*v, out=r)
        out[f"{name}: checked, new output"] = lambda k=kernel, v=arrays: k(*v)
        out[f"{name}: NumPy, out="] = lambda f=rival, v=arrays, r=result: f(*v, out=r)
    return out


def fork_calls(cores: int) -> Calls:
    """Return bound calls of one matmul built as one task, and as one task per core."""
    spec = load_spec("cpu")
    expr = roller.ops.matmul(4 * cores, 64, 4)
    arrays = [np.ones(t.shape, np.float32) for t in expr.inputs]
    out: Calls = {}
    for name, rows in (("one task", 4 * cores), ("one task per core", 4)):
        tiles = {"register": {"i": 4, "j": 16}, "l1": {"k": 4}, "l2": {"i": rows, "j": 64}}
        artifact = lower(program_from_tiles(expr, spec, tiles), expr, spec)
        out[name], _ = CpuKernel(artifact).bind(*arrays)
    return out


def in_turn(calls: Calls, rounds: int) -> dict[str, list[float]]:
    """Return seconds per call of every round; all take turns of equal time, so that other programs hit all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    each = {name: max(1, round(TURN_S / min(_timed(call, 20) for _ in range(3)))) for name, call in calls.items()}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            seconds[name].append(_timed(call, each[name]))
    return seconds


def _timed(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def after_sleep(call: Callable[[], object], times: int) -> list[float]:
    """Return seconds of single calls whose workers had fallen asleep."""
    seconds = []
    for _ in range(times):
        call()
        time.sleep(ASLEEP_S)
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every call.")] = 300,
    sleeps: Annotated[int, typer.Option(min=0, help="Calls to sleeping workers, a second each.")] = 10,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 above the limit.")] = False,
    json_path: JsonOption = None,
) -> None:
    """Time the calls and print medians and minima in microseconds."""
    check_outputs(json_path)
    cores = int(load_spec("cpu").units)
    seconds = in_turn(small_calls(), rounds)
    if cores > 1:
        forks = fork_calls(cores)
        seconds.update({f"matmul of {name}: bound": s for name, s in in_turn(forks, rounds).items()})
        for name, call in forks.items() if sleeps else ():
            seconds[f"matmul of {name}: bound, after {ASLEEP_S:g} s without work"] = after_sleep(call, sleeps)
    rows = [(n, f"{statistics.median(s) * 1e6:.2f}", f"{min(s) * 1e6:.2f}") for n, s in seconds.items()]
    out = screen()
    out.print(table(f"Time of a call, {cores} cores", ("call", "median us", "least us"), rows))
    checked = max(statistics.median(s) for n, s in seconds.items() if "checked" in n)
    out.print(
        f"slowest checked call: {checked * 1e6:.2f} us, limit {LIMIT_S * 1e6:g} us; load {os.getloadavg()[0]:.1f}"
    )
    write_json(json_path, seconds)
    if strict and checked > LIMIT_S:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
