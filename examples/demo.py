"""Compile real operators of the Roller paper for this CPU, check them, and time them against other libraries.

Run by ``make demo`` behind the whole models, which :mod:`examples.model` races. Every row is constructed, built,
checked against the float64 reference at sampled points by the error bound ``|y - ref| <= 4 eps sqrt(K) sum|a||b| + eps
|ref|``, and timed on the machine it runs on; so is the same operator of PyTorch and of ONNX Runtime, whichever is
installed, in turn with it. The faster of them is the yardstick; NumPy only where there is neither. No ratio is told
of times that other programs disturbed, or that spread too far.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich import box
from rich.table import Table

import roller
from benchmarks.cpu.peers import NumpyPeer, OnnxPeer, Peer, Skipped, TorchPeer
from examples.racing import Raced, raced
from roller.cli.screen import console
from roller.expr.evaluate import evaluate

ROWS = Path(__file__).resolve().parent.parent / "benchmarks" / "operators.yaml"

#: Row of the paper and the batch it runs at here (a matmul of the paper has 512 rows per batch): sizes that take
#: a laptop milliseconds.
CHOSEN = (("M4", 1), ("M1", 1), ("C0", 8), ("C5", 8), ("D12", 8), ("E7", 8), ("P11", 8), ("R2", 8))
SAMPLES = 400
#: What results of one operator may be apart, relative to the largest of them.
SAME = 1e-3


@dataclass(frozen=True)
class Result:
    """One line of the table; ``raced`` has the times of roller and of other libraries, by name.

    ``doubt`` says what disturbed the choice of the kernel; it is empty where nothing did.
    """

    id: str
    text: str
    compile_s: float
    predicted_s: float
    raced: Raced
    correct: bool
    doubt: str = ""

    @property
    def withheld(self) -> str:
        """Why no ratio is told; ``""`` where there is one, or no other library."""
        return self.doubt or self.raced.why("roller")

    @property
    def speed_up(self) -> float | None:
        """How many times as fast as the fastest other library; ``None`` where none has it, or times are doubtful."""
        found = None if self.doubt else self.raced.ratio("roller")
        return None if found is None else found.median


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
        screen.print(f"    {'correct' if result.correct else 'WRONG'}, {result.raced.text('roller')}", soft_wrap=True)
        if result.withheld:
            screen.print(f"    doubtful: {result.withheld}", soft_wrap=True)
    screen.print(table(results, [peer.name for peer in peers]))
    for line in summary(results, [peer.name for peer in peers]):
        screen.print(line, soft_wrap=True)
    screen.print(
        "predicted: by the white-box model from the device's numbers, before anything ran; the others are measured"
    )
    return 0 if all(r.correct for r in results) else 1


def summary(results: list[Result], peers: list[str]) -> list[str]:
    """Return the mean speed-up of the steady times, and what is said of the others."""
    ratios = [r.speed_up for r in results if r.speed_up is not None]
    compared, said = [r for r in results if len(r.raced.times) > 1], []
    whom = peers[0] if len(peers) == 1 else f"the faster of {' and '.join(peers)}"
    if ratios:
        among = "" if len(ratios) == len(compared) else f" (of {len(ratios)} of {len(compared)} operators)"
        said.append(f"speed-up over {whom}, geometric mean{among}: {statistics.geometric_mean(ratios):.2f}x")
    elif compared:
        said.append(f"speed-up over {whom}: withheld (all doubtful)")
    if any(r.withheld for r in results):
        said.append("*: no ratio of these times, see above; run it again on a quieter machine")
    return said


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
    return Result(
        id=row["id"],
        text=str(expr),
        compile_s=compile_s,
        predicted_s=kernel.estimate.seconds,
        raced=raced(calls),
        correct=is_correct(expr, arrays, out),
        doubt=kernel.doubt,
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


def table(results: list[Result], peers: list[str]) -> Table:
    """Return the results as a table."""
    out = Table(box=box.SIMPLE, title="Operators of the Roller paper on this CPU", title_justify="left")
    out.add_column("")
    for name in ("compile\ns", "predicted\nms", "roller\nms", *(f"{p}\nms" for p in peers), "speed-up"):
        out.add_column(name, justify="right")
    out.add_column("check")
    for r in results:
        measured = [f"{r.raced.median_s(p) * 1e3:.3f}" if p in r.raced.times else "-" for p in ("roller", *peers)]
        measured[0] += "*" * bool(r.withheld)
        faster = "-" if r.speed_up is None else f"{r.speed_up:.2f}x"
        times = (f"{r.compile_s:.2f}", f"{r.predicted_s * 1e3:.3f}")
        out.add_row(r.id, *times, *measured, faster, "correct" if r.correct else "WRONG")
    return out


if __name__ == "__main__":
    sys.exit(main())
