"""What ``top_k="auto"`` times and loses on this processor: ten candidates timed in turn, then both choices from them.

Every candidate of an operator is timed once, all in turn in one process. Half of the rounds choose, as ``top_k=10``
and ``top_k="auto"`` would each from what it times; the other half says how fast the two choices are. The times are
kept: ``--replay FILE`` judges other errors of the model from them without timing anything. Run it as
``python -m benchmarks.auto_k --write`` on a machine that does nothing else.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

import roller
from benchmarks.common import HERE, FilterOption, Row, check_outputs, markdown, operators, screen, table, write_json
from roller.compiler.pipeline import lower
from roller.construction.worth_timing import positions_worth_timing
from roller.hardware import DeviceSpec, load_spec
from roller.perf.expected_errors import kernel_family_key, ranking_error
from roller.runtime.build_pool import build_all
from roller.runtime.candidate_records import Record
from roller.runtime.check_and_time_cpu_kernels import CpuBench
from roller.runtime.time_candidate_kernels import Contender
from roller.templates.cpu.emit import lower_cpu_program  # noqa: F401 - before forking, so that the children inherit TVM


def run_once(run: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


#: Candidates timed in the median operator at most, and time lost against the best of ten, geometric mean.
MEDIAN_TIMED, MEAN_LOSS = 3, 0.03
#: Seconds of one turn of a candidate and of its first calls; how much slower than the best it may be to go on.
TURN_S, WARM_S, DROP = 0.002, 0.02, 3.0
#: Errors of ratios that are tried on the recorded times.
GRID = (0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class Timed:
    """One candidate: predicted seconds, kernel family, seconds in the rounds that choose, and in those that judge."""

    predicted_s: float
    family: int
    choose_s: float | None = None
    judge_s: float | None = None
    structure: str = ""


@dataclass(frozen=True)
class Operator:
    """All candidates of one operator, best prediction first."""

    id: str
    expression: str
    candidates: tuple[Timed, ...]


@dataclass(frozen=True)
class Outcome:
    """What auto did on one operator: candidates timed, and time of its choice over that of the best of ten."""

    id: str
    timed: int
    ratio: float
    families: int


def measure(row: Row, spec: DeviceSpec, batch: int, rounds: int) -> Operator:
    """Construct, build and check ten candidates of an operator, and time the correct ones in turn."""
    expr = roller.ops.from_spec(row, batch=batch)
    found = roller.construct(expr, spec, top_k=10)
    built = build_all({c.id: c for c in found}, lambda c: lower(c.program, expr, spec))
    artifacts = {i: r.value for i, r in built.items() if r.value is not None}
    refused: dict[str, Record] = {}
    times = in_turn(list(CpuBench(expr).correct(artifacts, refused)), rounds)
    families = [kernel_family_key(c.program) for c in found]
    timed = tuple(
        Timed(c.estimate.seconds, families.index(f), *times.get(c.id, (None, None)), c.program.structure)
        for c, f in zip(found, families, strict=True)
    )
    return Operator(row["id"], str(expr), timed)


def in_turn(contenders: Sequence[Contender], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the fastest call of the even and of the odd rounds per candidate; hopeless candidates are left out.

    The fastest single call, because other programs only ever add to a time, and to most calls where they are many.
    """
    warm = {c.name: _warm(c) for c in contenders}
    best = min(warm.values(), default=0.0)
    ahead = [c for c in contenders if warm[c.name] <= DROP * best]
    calls = {c.name: max(1, round(TURN_S / warm[c.name])) for c in ahead}
    samples: dict[str, list[float]] = {c.name: [] for c in ahead}
    for n in range(2 * rounds):
        for c in ahead if n % 4 < 2 else reversed(ahead):
            samples[c.name].append(min(run_once(c.run) for _ in range(calls[c.name])))
    return {i: (min(s[0::2]), min(s[1::2])) for i, s in samples.items()}


def _warm(contender: Contender) -> float:
    """Return the fastest of the first calls: enough of them that a disturbance drops nobody."""
    first = min(run_once(contender.run) for _ in range(3))
    return min(first, *(run_once(contender.run) for _ in range(min(100, 1 + int(WARM_S / first)))))


def outcome(operator: Operator, error: float) -> Outcome | None:
    """Return what auto would have done with an expected error of ratios; ``None`` where nothing could be timed."""
    found = operator.candidates
    every = [n for n, c in enumerate(found) if c.choose_s is not None]
    if not every:
        return None
    seconds, families = [c.predicted_s for c in found], [c.family for c in found]
    chosen = positions_worth_timing(seconds, families, error, [c.structure for c in found])
    mine = [n for n in chosen if n in every] or every

    def fastest(of: Iterable[int]) -> float:
        return found[min(of, key=lambda n: found[n].choose_s or math.inf)].judge_s or math.nan

    # With one candidate nothing is timed: it is taken as it is.
    timed = len(chosen) if len(chosen) > 1 else 0
    return Outcome(operator.id, timed, fastest(mine) / fastest(every), len({c.family for c in found}))


def summary(found: Sequence[Outcome]) -> tuple[float, float, float]:
    """Return the median number of candidates timed, the mean loss (geometric) and the worst one."""
    ratios = [o.ratio for o in found]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    return statistics.median(o.timed for o in found), mean - 1, max(ratios) - 1


def error_of_ratios(measured: Sequence[Operator]) -> tuple[float, float]:
    """Return the root mean square of ``ln`` (measured ratio / predicted ratio) of candidates of other kernels, and own.

    Ratios to the first candidate of the operator, or of the kernel.
    """
    other, own = [], []
    for o in measured:
        for n, c in enumerate(o.candidates):
            for first in o.candidates[:1], o.candidates[c.family : c.family + 1]:
                base = first[0]
                if base is c or not (base.judge_s and c.judge_s):
                    continue
                off = math.log(c.judge_s / base.judge_s) - math.log(c.predicted_s / base.predicted_s)
                if base.family == c.family:
                    own.append(off)
                elif n:
                    other.append(off)
    return tuple(math.sqrt(statistics.fmean(x * x for x in v)) if v else math.nan for v in (other, own))  # type: ignore[return-value]


_COLUMNS = ("error of ratios", "timed (median)", "timed (mean)", "mean loss", "worst loss", "over 3 %")


def grid(measured: Sequence[Operator], errors: Iterable[float]) -> list[tuple[str, ...]]:
    """Return a row per expected error: what it would have timed and lost."""
    rows = []
    for error in errors:
        found = [o for o in (outcome(m, error) for m in measured) if o is not None]
        median, mean, worst = summary(found)
        over = sum(o.ratio > 1 + MEAN_LOSS for o in found)
        rows.append((f"{error:g}", f"{median:g}", f"{statistics.fmean(o.timed for o in found):.2f}", f"{mean:+.2%}",
                     f"{worst:+.1%}", f"{over} of {len(found)}"))  # fmt: skip
    return rows


def load(path: Path) -> list[Operator]:
    """Return the operators of a results file."""
    data = json.loads(path.read_text())["operators"]
    return [Operator(o["id"], o["expression"], tuple(Timed(**c) for c in o["candidates"])) for o in data]


def main(
    pattern: FilterOption = "*",
    batch: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Turns that choose; as many judge.")] = 7,
    replay: Annotated[Path | None, typer.Option(help="Judge the times of this file; time nothing.")] = None,
    write: Annotated[bool, typer.Option(help="Write results/auto_k.md and .json.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 where a limit is missed.")] = False,
    folder: Annotated[Path, typer.Option(help="Where --write puts them.")] = HERE / "results",
) -> None:
    """Time the candidates of the operators here, and judge what top_k="auto" takes of them."""
    paths = (folder / "auto_k.md", folder / "auto_k.json")
    if write:
        check_outputs(*paths)
    spec, out, measured = load_spec("cpu"), screen(), [] if replay is None else load(replay)
    for row in operators(pattern) if replay is None else ():
        measured.append(measure(row, spec, batch, rounds))
        if (o := outcome(measured[-1], ranking_error(spec))) is not None:
            out.print(f"{o.id:5} {o.timed:2} timed, {o.families} kernels, {o.ratio - 1:+.1%}")
        else:
            out.print(f"{row['id']:5} no candidate could be timed")
    error = ranking_error(spec)
    found = [o for o in (outcome(m, error) for m in measured) if o is not None]
    median, mean, worst = summary(found)
    other, own = error_of_ratios(measured)
    rows = grid(measured, sorted({*GRID, error}))
    out.print(table("", _COLUMNS, rows))
    lines = [
        f"{len(found)} operators, batch {batch}; accuracy.ranking_error, the expected error of ratios, is {error:g}",
        f"timed {median:g} candidates in the median (limit {MEDIAN_TIMED}), lost {mean:.2%} against the best of ten "
        f"in the geometric mean (limit {MEAN_LOSS:.0%}), {worst:.1%} at worst",
        f"ratios of candidates were off by {other:.3f} (other kernels) and {own:.3f} (same kernel), root mean square",
    ]
    for line in lines:
        out.print(line, soft_wrap=True)
    if write:
        body = ["# Adaptive K on this processor", "\n".join(f"- {x}" for x in lines), markdown(_COLUMNS, rows)]
        paths[0].write_text("\n\n".join(body) + "\n")
        write_json(paths[1], {"batch": batch, "rounds": rounds, "operators": [asdict(m) for m in measured]})
    if strict and (median > MEDIAN_TIMED or mean > MEAN_LOSS):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
