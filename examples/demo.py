"""Compile real operators of the Roller paper for this CPU, check them, and time them against NumPy.

Run by ``make demo``. Every row is constructed, built, checked against the float64 reference at sampled points by
the error bound ``|y - ref| <= 4 eps sqrt(K) sum|a||b| + eps |ref|``, and timed on the machine it runs on.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.lib.stride_tricks import sliding_window_view
from rich import box
from rich.console import Console
from rich.table import Table

import roller
from roller.expr.evaluate import evaluate

ROWS = Path(__file__).resolve().parent.parent / "benchmarks" / "operators.yaml"

#: Row of the paper and the batch it runs at here (a matmul of the paper has 512 rows per batch): sizes that take
#: a laptop milliseconds.
CHOSEN = (("M4", 1), ("M1", 1), ("C0", 8), ("C5", 8), ("D12", 8), ("E7", 8), ("P11", 8), ("R2", 8))
SAMPLES = 400
SECONDS_PER_TIMING = 0.3


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    id: str
    text: str
    flops: float
    compile_s: float
    predicted_s: float
    roller_s: float
    numpy_s: float
    numpy_way: str
    correct: bool


def main() -> int:
    """Run the demo; return 1 where a result was wrong."""
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False, markup=False)
    spec = roller.load_spec("cpu")
    console.print(f"{spec.description}: {spec.units} cores, {spec.teu.lanes} lanes, code for {spec.target['mcpu']}")
    rows = {row["id"]: row for row in yaml.safe_load(ROWS.read_text(encoding="utf-8"))["operators"]}
    results = []
    for name, batch in CHOSEN:
        result = run(rows[name], batch)
        results.append(result)
        console.print(f"  {name}: {'correct' if result.correct else 'WRONG'}, {result.roller_s * 1e3:.3f} ms")
    console.print(table(results))
    ratios = [r.numpy_s / r.roller_s for r in results]
    console.print(f"geometric mean against NumPy: {statistics.geometric_mean(ratios):.2f}x")
    console.print(
        "predicted: by the white-box model from the device's numbers, before anything ran; the others are measured"
    )
    return 0 if all(r.correct for r in results) else 1


def run(row: dict[str, Any], batch: int) -> Result:
    """Compile, check and time one row of the benchmark."""
    expr = roller.ops.from_spec(row, batch=batch)
    start = time.perf_counter()
    kernel = roller.compile(expr, device="cpu", top_k=10, cache=False)  # the demo times the whole road
    compile_s = time.perf_counter() - start
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(t.shape).astype(t.dtype) for t in expr.inputs]
    out = kernel(*arrays)
    numpy_way, reference = numpy_of(row, arrays)
    return Result(
        id=row["id"],
        text=str(expr),
        flops=float(expr.flops),
        compile_s=compile_s,
        predicted_s=kernel.estimate.seconds,
        roller_s=median_seconds(lambda: kernel(*arrays, out=out)),
        numpy_s=median_seconds(reference),
        numpy_way=numpy_way,
        correct=is_correct(expr, arrays, out),
    )


def is_correct(expr: roller.TensorExpr, arrays: list[np.ndarray], out: np.ndarray) -> bool:
    """Compare sampled points, the corners included, with the float64 reference by the bound above."""
    generator = np.random.default_rng(1)
    points = np.stack([generator.integers(0, n, SAMPLES) for n in out.shape], axis=1)
    points[0], points[1] = 0, np.array(out.shape) - 1
    reference = evaluate(expr, arrays, points)[0]
    magnitude = evaluate(expr, arrays, points, magnitude=True)[0]
    length = np.prod([a.extent for a in expr.axes if a.kind == "reduction"], initial=1.0)
    eps = np.finfo(out.dtype).eps
    bound = 4 * eps * np.sqrt(length) * magnitude + eps * np.abs(reference)
    return bool(np.all(np.abs(out[tuple(points.T)] - reference) <= bound))


def numpy_of(row: dict[str, Any], arrays: list[np.ndarray]) -> tuple[str, Callable[[], np.ndarray]]:
    """Return the way an experienced NumPy user computes the operator, and a call that does it."""
    x = arrays[0]
    if row["op"] == "matmul":
        return "matmul", lambda: np.matmul(x, arrays[1])
    if row["op"] == "elementwise":
        return "maximum", lambda: np.maximum(x, 0)
    if row["op"] == "reduce":
        return "sum", lambda: np.sum(x, axis=tuple(row["axes"]))
    if row["op"] == "pooling":
        return "windows, mean", lambda: windows(row, x).mean(axis=(4, 5))
    weight = arrays[1]
    if row["op"] == "depthwise_conv2d":
        return "windows, einsum", lambda: np.einsum("nchwij,cij->nchw", windows(row, x), weight[:, 0])
    n, f = len(x), len(weight)

    def im2col() -> np.ndarray:
        view = windows(row, x)
        columns = view.transpose(0, 1, 4, 5, 2, 3).reshape(n, -1, view.shape[2] * view.shape[3])
        return np.matmul(weight.reshape(f, -1), columns).reshape(n, f, view.shape[2], view.shape[3])

    return "im2col, matmul", im2col


def windows(row: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Return the padded input as a view ``(n, c, ho, wo, kh, kw)``."""
    pads = ((0, 0), (0, 0), (row["pad_top"], row["pad_bottom"]), (row["pad_left"], row["pad_right"]))
    padded = np.pad(x, pads) if any(a or b for a, b in pads) else x
    view = sliding_window_view(padded, (row["KH"], row["KW"]), axis=(2, 3))
    return view[:, :, :: row["stride"], :: row["stride"]]


def median_seconds(call: Callable[[], object]) -> float:
    """Return the median time of enough calls, the first one left out."""
    call()
    times: list[float] = []
    end = time.perf_counter() + SECONDS_PER_TIMING
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def table(results: list[Result]) -> Table:
    """Return the results as a table."""
    out = Table(box=box.SIMPLE, title="Operators of the Roller paper on this CPU", title_justify="left")
    for name in ("", "operator"):
        out.add_column(name)
    for name in ("compile s", "predicted ms", "roller ms", "GFLOP/s", "NumPy ms"):
        out.add_column(name, justify="right")
    out.add_column("NumPy way")
    out.add_column("speed-up", justify="right")
    out.add_column("check")
    for r in results:
        out.add_row(r.id, r.text, f"{r.compile_s:.2f}", f"{r.predicted_s * 1e3:.3f}", f"{r.roller_s * 1e3:.3f}",
                    f"{r.flops / r.roller_s / 1e9:.1f}", f"{r.numpy_s * 1e3:.3f}", r.numpy_way,
                    f"{r.numpy_s / r.roller_s:.2f}x", "correct" if r.correct else "WRONG")  # fmt: skip
    return out


if __name__ == "__main__":
    sys.exit(main())
