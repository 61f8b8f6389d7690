"""Compile all 119 operators at batch 1 for this processor, check and time them; matmul beside NumPy."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import typer
from common import FilterOption, JsonOption, Row, check_outputs, operators, screen, table, write_json
from rich.console import Console

import roller
from roller.runtime.check import check
from roller.runtime.random_inputs import random_inputs
from roller.templates.cpu.emit import lower_cpu_program  # noqa: F401 - TVM's own import is no part of a compilation

#: Limits: speed against NumPy, top-1 compile median, top-10 wall time beyond 15 kernel times (seconds).
NUMPY_RATIO, COMPILE_S, TOP10_S, TOP10_KERNELS = 0.85, 0.5, 5.0, 15.0
#: Seed of the inputs of the final check; candidates were checked with another.
_SEED = 20220711


@dataclass(frozen=True)
class Result:
    """One operator; ``reason`` says why it failed and is empty where it is correct."""

    id: str
    expression: str
    predicted_ms: float | None = None
    measured_ms: float | None = None
    gflops: float | None = None
    compile_s: float | None = None
    error_of_bound: float | None = None
    bottleneck: str = ""
    program: str = ""
    reason: str = ""


def run(row: Row, top_k: int, batch: int) -> Result:
    """Compile one operator, run it on fresh inputs and compare with the float64 reference."""
    expr = roller.ops.from_spec(row, batch=batch)
    start = time.perf_counter()
    try:
        kernel = roller.compile(expr, device="cpu", top_k=top_k, cache=False)
        compile_s = time.perf_counter() - start
        arrays = random_inputs(expr, _SEED)
        verdict = check(expr, arrays, kernel(*arrays))
    except roller.RollerError as err:
        reason = f"{type(err).__name__}: {err}"
        return Result(row["id"], str(expr), compile_s=time.perf_counter() - start, reason=reason)
    measured = kernel.measured_s or float("nan")
    return Result(
        row["id"], str(expr), kernel.estimate.seconds * 1e3, measured * 1e3, operations(expr) / measured / 1e9,
        compile_s, verdict.max_ratio, kernel.estimate.bottleneck, str(kernel.program),
        "" if verdict.ok else verdict.message,
    )  # fmt: skip


def operations(expr: roller.TensorExpr) -> float:
    """Return floating-point operations: two per point of a summed product, one per point of anything else."""
    anchor = expr.anchor
    return float(anchor.points) * (2.0 if anchor.combiner == "sum" and len(anchor.loads) > 1 else 1.0)


def paired_ratio(
    baseline: Callable[[], Any], candidate: Callable[[], Any], pairs: int = 41
) -> tuple[float, float, float]:
    """Return the median of ``baseline / candidate`` over alternating runs, and both medians (seconds)."""
    times: list[tuple[float, float]] = []
    for n in range(pairs + 3):
        one = []
        for call in (baseline, candidate):
            start = time.perf_counter()
            call()
            one.append(time.perf_counter() - start)
        if n >= 3:  # caches, page faults and thread pools are warm
            times.append((one[0], one[1]))
    first, second = zip(*times, strict=True)
    return statistics.median(a / b for a, b in times), statistics.median(first), statistics.median(second)


def matmul_against_numpy(out: Console, size: int = 1024) -> dict[str, float]:
    """Compile the best ten programs of a square matmul and time the best one in turn with NumPy."""
    expr = roller.ops.matmul(size, size, size)
    start = time.perf_counter()
    kernel = roller.compile(expr, device="cpu", top_k=10, cache=False)
    wall_s = time.perf_counter() - start
    a, b = random_inputs(expr, _SEED)
    c, d = np.empty((size, size), np.float32), np.empty((size, size), np.float32)
    ratio, numpy_s, roller_s = paired_ratio(lambda: np.matmul(a, b, out=c), lambda: kernel(a, b, out=d))
    limit_s = TOP10_S + TOP10_KERNELS * roller_s
    out.print(f"matmul {size}^3: {ratio:.3f} of NumPy's speed (limit {NUMPY_RATIO}; median of paired ratios), "
              f"{roller_s * 1e3:.2f} ms against {numpy_s * 1e3:.2f} ms")  # fmt: skip
    out.print(f"top 10 constructed, built, checked and timed in {wall_s:.2f} s (limit {limit_s:.2f} s)")
    return {"ratio": ratio, "numpy_s": numpy_s, "roller_s": roller_s, "top10_wall_s": wall_s}


_COLUMNS = ("id", "predicted ms", "measured ms", "measured/predicted", "GFLOP/s", "bound by", "error/bound",
            "compile s", "")  # fmt: skip


def _cells(r: Result) -> tuple[str, ...]:
    if r.measured_ms is None or r.predicted_ms is None:
        return (r.id, *("-" for _ in _COLUMNS[1:-1]), f"FAILED {r.reason.splitlines()[0][:90]}")
    return (
        r.id, f"{r.predicted_ms:.4g}", f"{r.measured_ms:.4g}", f"{r.measured_ms / r.predicted_ms:.2f}",
        f"{r.gflops:.1f}", r.bottleneck,
        f"{r.error_of_bound:.2f}", f"{r.compile_s:.2f}", f"WRONG {r.reason}"[:90] if r.reason else "",
    )  # fmt: skip


def summary(results: list[Result]) -> str:
    """Return how many are right, how near the model is, and how long compiling took."""
    good = [r for r in results if r.measured_ms is not None and not r.reason]
    if not good:
        return f"none of {len(results)} correct"
    ratios = statistics.median((r.measured_ms or 0.0) / (r.predicted_ms or 1.0) for r in good)
    seconds = [r.compile_s or 0.0 for r in good]
    return (
        f"{len(good)} of {len(results)} correct; measured/predicted median {ratios:.2f}; compile median "
        f"{statistics.median(seconds):.2f} s (limit {COMPILE_S} s for top 1), worst {max(seconds):.2f} s"
    )


def main(
    pattern: FilterOption = "*",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 1,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    matmul: Annotated[bool, typer.Option(help="Also time a 1024^3 matmul against NumPy.")] = True,
    json_path: JsonOption = None,
) -> None:
    """Run the operators here; exit 1 where one fails or is wrong."""
    check_outputs(json_path)
    out, results = screen(), []
    rows = operators(pattern)
    roller.compile(roller.ops.matmul(16, 16, 16), device="cpu", top_k=1, cache=False)  # first use imports modules
    for row in rows:
        results.append(run(row, top_k, batch))
    out.print(table(f"batch {batch}, top {top_k}, this processor", _COLUMNS, (_cells(r) for r in results)))
    out.print(summary(results))
    out.print(f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors")
    failed = [r for r in results if r.reason]
    for r in failed:
        out.print(f"{r.id} ({r.expression}): {r.reason}")
    extra = matmul_against_numpy(out) if matmul else {}
    write_json(json_path, {"operators": [asdict(r) for r in results], "matmul": extra})
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
