"""Entry files' steps on this machine's processor: measured, beside a loop written by hand and beside what is predicted.

    python -m benchmarks.insight measured examples/training/resnet50.py:4 examples/training/vit.py:8 --rounds 3

``FILE:N`` asks for a batch of N samples. Every round runs the loop and the measurement one after the other, each in a
process of its own, and the other way round in the next round, so that what else runs on the machine meets both. The
ratio of a file is the median of its rounds. Shares of modules are of the operators' time alone. The targets: measured
within 5 % of the loop; predicted within 15 % on average and 30 % at worst, no share off by more than 10 points.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

_LOOP = """
import importlib.util, statistics, sys, time
path, batch, budget_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sys.path.insert(0, path.rpartition("/")[0] or ".")
spec = importlib.util.spec_from_file_location("entry", path)
entry = importlib.util.module_from_spec(spec)
sys.modules["entry"] = entry
spec.loader.exec_module(entry)
model = entry.model_provider()
inputs = entry.input_provider(batch_size=batch) if batch else entry.input_provider()
step = entry.iteration_provider(model)
for _ in range(5):
    step(*inputs)
blocks, end = [], time.perf_counter() + budget_s
while len(blocks) < 3 or time.perf_counter() < end:
    start = time.perf_counter()
    step(*inputs), step(*inputs), step(*inputs)
    blocks.append((time.perf_counter() - start) / 3)
print(statistics.median(blocks))
"""


@dataclass(frozen=True)
class Round:
    """One round of a file: seconds of a step by the loop and measured, and the measurement."""

    loop_s: float
    measured: Any


@dataclass(frozen=True)
class Row:
    """A file: what its rounds say, and what is predicted.

    Parameters
    ----------
    same
        Whether the predicted operators are the measured ones.
    shares
        Module -> its measured and predicted share.
    operators
        Lines on the operators that are off most.
    """

    file: str
    batch: int
    rounds: Sequence[Round]
    predicted_s: float
    same: bool
    shares: dict[str, tuple[float, float]]
    operators: Sequence[str]

    @property
    def measured_s(self) -> float:
        """Measured seconds of a step, the median of rounds."""
        return statistics.median(r.measured.iteration_s for r in self.rounds)

    @property
    def loop_ratio(self) -> float:
        """Measured seconds of a step over those of the loop, the median of rounds."""
        return statistics.median(r.measured.iteration_s / r.loop_s for r in self.rounds)

    @property
    def predicted_ratio(self) -> float:
        """Predicted seconds over measured ones, the median of rounds."""
        return statistics.median(self.predicted_s / r.measured.iteration_s for r in self.rounds)

    @property
    def untracked(self) -> float:
        """Share of a step outside of its operators, the median of rounds."""
        return statistics.median(r.measured.untracked_s / r.measured.iteration_s for r in self.rounds)

    @property
    def worst_share(self) -> tuple[str, float]:
        """The module whose share is off most, and by how much."""
        module = max(self.shares, key=lambda m: abs(self.shares[m][1] - self.shares[m][0]))
        return module, self.shares[module][1] - self.shares[module][0]


def shares(operators: Iterable[Any], seconds: Iterable[float], depth: int) -> dict[str, float]:
    """Return the share of every module, its path cut after ``depth`` names; the update is one of them."""
    found: dict[str, float] = defaultdict(float)
    for operator, each in zip(operators, seconds, strict=True):
        path = ".".join(operator.module.split(".")[:depth]) or "(outside)"
        found["(update)" if operator.phase == "optimizer" else path] += each
    total = math.fsum(found.values())
    return {module: each / total for module, each in found.items()}


def off_most(operators: Iterable[Any], measured_s: Iterable[float], predicted_s: Iterable[float]) -> list[str]:
    """Return lines on the kinds of operators whose measured and predicted seconds are furthest apart."""
    kinds: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for operator, a, b in zip(operators, measured_s, predicted_s, strict=True):
        row = kinds[operator.name, operator.phase]
        row[0], row[1], row[2] = row[0] + 1, row[1] + a, row[2] + b
    total = math.fsum(row[1] for row in kinds.values())
    order = sorted(kinds.items(), key=lambda item: -abs(item[1][2] - item[1][1]))
    return [
        f"{name} ({phase}, {count:.0f}): measured {1e3 * a:.1f} ms, predicted {1e3 * b:.1f} ms, "
        f"{100 * (b - a) / total:+.1f} % of the operators"
        for (name, phase), (count, a, b) in order[:5]
    ]


def loop_seconds(path: Path, batch: int | None, budget_s: float) -> float:
    """Return the seconds of a step in a loop by hand, in a process of its own."""
    command = [sys.executable, "-c", _LOOP, str(path.absolute()), str(batch or 0), str(budget_s)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.strip().splitlines()[-1])


def _round(path: Path, batch: int | None, budget_s: float, turned: bool) -> Round:
    from roller.insight.measured_step import measure_step

    found: dict[str, Any] = {}

    def loop() -> None:
        found["loop"] = loop_seconds(path, batch, budget_s)

    def measure() -> None:
        found["measured"] = measure_step(path, batch=batch, budget_s=budget_s)

    for run in (measure, loop) if turned else (loop, measure):
        run()
    return Round(found["loop"], found["measured"])


def row(path: Path, batch: int | None, rounds: int, budget_s: float, depth: int) -> Row:
    """Measure and predict a file."""
    import roller
    from roller.insight.tracing import trace_entry

    spec = roller.load_spec("cpu")
    step = trace_entry(path, batch=batch, device=spec)
    forecast = step.forecast(spec)
    seen = [_round(path, batch, budget_s, bool(n % 2)) for n in range(rounds)]
    best = min(seen, key=lambda r: r.measured.iteration_s).measured
    real, told = best.trace.steady(), step.steady()
    same = [(o.name, o.phase, o.module, o.stack, o.input_shapes) for o in real] == [
        (o.name, o.phase, o.module, o.stack, o.input_shapes) for o in told
    ]
    predicted_s = [price.seconds for _, price in forecast.operators]
    a, b = shares(real, best.operator_s, depth), shares(told, predicted_s, depth)
    both = {module: (a.get(module, 0.0), b.get(module, 0.0)) for module in sorted({*a, *b})}
    lines = off_most(real, best.operator_s, predicted_s) if len(real) == len(told) else []
    return Row(path.name, int(step.options["batch"]), seen, forecast.iteration_s, same, both, lines)


def report(rows: Sequence[Row]) -> list[str]:
    """Return what is printed."""
    lines = []
    for r in rows:
        module, points = r.worst_share
        lower, upper = min(x.measured.lower_s for x in r.rounds), max(x.measured.upper_s for x in r.rounds)
        stable = sum(x.measured.is_stable for x in r.rounds)
        lines += [
            f"{r.file}, batch {r.batch}: measured {1e3 * r.measured_s:.1f} ms ({1e3 * lower:.1f} to "
            f"{1e3 * upper:.1f}, {stable} of {len(r.rounds)} rounds stable), predicted {1e3 * r.predicted_s:.1f} ms",
            f"  measured / loop {r.loop_ratio:.3f} "
            f"({', '.join(f'{x.measured.iteration_s / x.loop_s:.3f}' for x in r.rounds)})",
            f"  predicted / measured {r.predicted_ratio:.3f}; untracked {100 * r.untracked:+.1f} %; "
            f"operators {'as predicted' if r.same else 'differ'}",
            f"  share off most: {module} {100 * points:+.1f} points",
            *(f"  {line}" for line in r.operators),
        ]
    errors = [abs(r.predicted_ratio - 1) for r in rows]
    lines += [
        f"measured beside the loop: worst {100 * max(abs(r.loop_ratio - 1) for r in rows):.1f} % (target 5)",
        f"predicted beside measured: mean {100 * statistics.mean(errors):.1f} % (target 15), "
        f"worst {100 * max(errors):.1f} % (target 30); "
        f"worst share {100 * max(abs(r.worst_share[1]) for r in rows):.1f} points (target 10)",
    ]
    return lines


def main(
    files: Annotated[list[str], typer.Argument(help="Entry files; FILE:N for a batch of N.")],
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Processes that measure each file.")] = 3,
    budget_s: Annotated[float, typer.Option(min=0.1, help="Seconds of each process.")] = 20.0,
    depth: Annotated[int, typer.Option(min=1, help="Names of a module's path that make a share.")] = 2,
) -> None:
    """Measure entry files on this machine, beside a loop by hand and beside the prediction."""
    rows = []
    for file in files:
        path, colon, batch = file.rpartition(":")
        rows.append(row(Path(path if colon else file), int(batch) if colon else None, rounds, budget_s, depth))
    for line in report(rows):
        print(line)
