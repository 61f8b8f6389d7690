"""Compile real operators of the Roller paper for this CPU, check them, and time them against other libraries.

Run by ``make demo`` behind the whole models, which :mod:`examples.model` races. Every row is constructed, built,
checked against the float64 reference at sampled points by the error bound ``|y - ref| <= 4 eps sqrt(K) sum|a||b| + eps
|ref|``, and timed on the machine it runs on; so is the same operator of PyTorch and of ONNX Runtime, whichever is
installed. The faster of them is the yardstick; NumPy only where there is neither.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich import box
from rich.table import Table

import roller
from benchmarks.cpu.peers import NumpyPeer, OnnxPeer, Peer, Skipped, TorchPeer
from examples.racing import watched
from roller.cli.screen import console
from roller.expr.evaluate import evaluate

ROWS = Path(__file__).resolve().parent.parent / "benchmarks" / "operators.yaml"

#: Row of the paper and the batch it runs at here (a matmul of the paper has 512 rows per batch): sizes that take
#: a laptop milliseconds.
CHOSEN = (("M4", 1), ("M1", 1), ("C0", 8), ("C5", 8), ("D12", 8), ("E7", 8), ("P11", 8), ("R2", 8))
SAMPLES = 400
#: What results of one operator may be apart, relative to the largest of them.
SAME = 1e-3
SECONDS_PER_TIMING = 0.3


@dataclass(frozen=True)
class Result:
    """One line of the table; ``peers_s`` are the seconds of other libraries by name.

    ``doubt`` says what disturbed the choice of the kernel or the race; it is empty where nothing did.
    """

    id: str
    text: str
    compile_s: float
    predicted_s: float
    roller_s: float
    peers_s: Mapping[str, float]
    correct: bool
    doubt: str = ""

    @property
    def speed_up(self) -> float | None:
        """How many times faster than the fastest other library; ``None`` where none has the operator."""
        return min(self.peers_s.values()) / self.roller_s if self.peers_s else None


def main() -> int:
    """Run the demo; return 1 where a result was wrong."""
    screen = console()
    spec = roller.load_spec("cpu")
    screen.print(f"{spec.description}: {spec.units} cores, {spec.teu.lanes} lanes, code for {spec.target['mcpu']}")
    rows = {row["id"]: row for row in yaml.safe_load(ROWS.read_text(encoding="utf-8"))["operators"]}
    peers, results = installed_peers(spec.units), []
    for name, batch in CHOSEN:
        result = run(rows[name], batch, peers)
        results.append(result)
        screen.print(f"  {name}: {result.text}", soft_wrap=True)
        screen.print(f"    {'correct' if result.correct else 'WRONG'}, {result.roller_s * 1e3:.3f} ms")
        if result.doubt:
            screen.print(f"    doubtful: {result.doubt}", soft_wrap=True)
    screen.print(table(results, [peer.name for peer in peers]))
    ratios = [r.speed_up for r in results if r.speed_up is not None]
    names = " and ".join(peer.name for peer in peers)
    if ratios:
        whom = names if len(peers) == 1 else f"the faster of {names}"
        screen.print(f"speed-up over {whom}, geometric mean: {statistics.geometric_mean(ratios):.2f}x")
    if any(r.doubt for r in results):
        screen.print("*: other programs disturbed these times; run the demo again on a quieter machine")
    screen.print(
        "predicted: by the white-box model from the device's numbers, before anything ran; the others are measured"
    )
    return 0 if all(r.correct for r in results) else 1


def installed_peers(threads: int) -> list[Peer]:
    """Return PyTorch and ONNX Runtime as far as they are installed; NumPy where neither is."""
    found: list[Peer] = []
    for make in (lambda: TorchPeer(threads), lambda: OnnxPeer(threads)):
        with contextlib.suppress(Skipped):
            found.append(make())
    return found or [NumpyPeer()]


def run(row: dict[str, Any], batch: int, peers: list[Peer]) -> Result:
    """Compile, check and time one row of the benchmark."""
    expr = roller.ops.from_spec(row, batch=batch)
    start = time.perf_counter()
    kernel = roller.compile(expr, device="cpu", top_k=10, cache=False)  # the demo times the whole road
    compile_s = time.perf_counter() - start
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(t.shape).astype(t.dtype) for t in expr.inputs]
    out = kernel(*arrays)
    calls: dict[str, Callable[[], object]] = {"roller": lambda: kernel(*arrays, out=out)}
    for peer in peers:
        with contextlib.suppress(Skipped):
            prepared = peer.prepare(row, arrays, out.shape)
            prepared.call()
            apart = float(np.abs(prepared.result() - out).max() / np.abs(out).max())
            assert apart < SAME, f"{peer.name} computes another operator: results are {apart:.1e} apart"
            calls[peer.name] = prepared.call
    with watched() as machine:
        seconds = {name: median_seconds(call) for name, call in calls.items()}
    return Result(
        id=row["id"],
        text=str(expr),
        compile_s=compile_s,
        predicted_s=kernel.estimate.seconds,
        roller_s=seconds.pop("roller"),
        peers_s=seconds,
        correct=is_correct(expr, arrays, out),
        doubt=machine.doubt or kernel.doubt,
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


def table(results: list[Result], peers: list[str]) -> Table:
    """Return the results as a table."""
    out = Table(box=box.SIMPLE, title="Operators of the Roller paper on this CPU", title_justify="left")
    out.add_column("")
    for name in ("compile\ns", "predicted\nms", "roller\nms", *(f"{p}\nms" for p in peers), "speed-up"):
        out.add_column(name, justify="right")
    out.add_column("check")
    for r in results:
        others = [f"{r.peers_s[p] * 1e3:.3f}" if p in r.peers_s else "-" for p in peers]
        faster = "-" if r.speed_up is None else f"{r.speed_up:.2f}x"
        times = (f"{r.compile_s:.2f}", f"{r.predicted_s * 1e3:.3f}", f"{r.roller_s * 1e3:.3f}{'*' * bool(r.doubt)}")
        out.add_row(r.id, *times, *others, faster, "correct" if r.correct else "WRONG")
    return out


if __name__ == "__main__":
    sys.exit(main())
