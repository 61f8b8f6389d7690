"""Predictions against the journal of measured random programs: errors, ranks, regret, and whether the limits hold."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.common import Verdict
from benchmarks.cpu_model.measure import Timed
from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.expected_errors import kernel_family_key
from roller.templates import price_with_templates
from roller.tile.geometry import Floats
from roller.tile.program import RProgram

#: Spearman of predicted against measured, median operator.
RANK = 0.85
#: Mean absolute percentage error over programs within ``NEAR`` times the fastest one of their operator, and over all.
NEAR, NEAR_ERROR, ALL_ERROR = 3.0, 0.30, 0.60
#: How much slower than the fastest sampled program the predicted fastest is, median operator.
REGRET = 0.10


@dataclass(frozen=True)
class Outcome:
    """One operator: predictions against measurements of its random programs.

    ``errors`` are ``predicted / measured - 1`` per program, ``near`` marks those within :data:`NEAR` of the fastest;
    ``rank`` is Spearman's, ``regret`` a fraction; ``roofline_errors`` are of the plain roofline, which knows no tiles.
    """

    operator: str
    programs: int
    fastest_s: float
    rank: float
    roofline_errors: tuple[float, ...]
    errors: tuple[float, ...]
    near: tuple[bool, ...]
    regret: float
    kernels: tuple[int, ...]

    @property
    def near_error(self) -> float:
        """Mean absolute error of the programs near the fastest."""
        return statistics.mean(abs(e) for e, n in zip(self.errors, self.near, strict=True) if n)

    @property
    def near_roofline_error(self) -> float:
        """Mean absolute error of the roofline for the programs near the fastest."""
        return statistics.mean(abs(e) for e, n in zip(self.roofline_errors, self.near, strict=True) if n)

    @property
    def all_error(self) -> float:
        """Mean absolute error of all programs."""
        return statistics.mean(abs(e) for e in self.errors)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "operator": self.operator, "programs": self.programs, "fastest_s": self.fastest_s,
            "spearman": self.rank, "near_programs": sum(self.near),
            "near_error": self.near_error, "near_error_of_roofline": self.near_roofline_error,
            "error": self.all_error, "regret": self.regret,
        }  # fmt: skip


def outcomes(timed: Sequence[Timed], spec: DeviceSpec) -> list[Outcome]:
    """Return what the model says of every operator of a journal."""
    return [_outcome([t for t in timed if t.operator == o], spec) for o in dict.fromkeys(t.operator for t in timed)]


def _outcome(timed: Sequence[Timed], spec: DeviceSpec) -> Outcome:
    programs = _sharing_expressions([t.program for t in timed])
    predicted = np.array([e.seconds for e in price_with_templates.estimate_programs(programs, spec)])
    measured = np.array([t.measured_s for t in timed])
    families = [kernel_family_key(p) for p in programs]
    numbers = {f: n for n, f in enumerate(dict.fromkeys(families))}
    return Outcome(
        timed[0].operator,
        len(timed),
        float(measured.min()),
        spearman(predicted, measured),
        tuple(float(roofline_s(p, spec) / m - 1.0) for p, m in zip(programs, measured, strict=True)),
        tuple(float(e) for e in predicted / measured - 1.0),
        tuple(bool(n) for n in measured <= NEAR * measured.min()),
        float(measured[int(predicted.argmin())] / measured.min() - 1.0),
        tuple(numbers[f] for f in families),
    )


def _sharing_expressions(programs: Sequence[RProgram]) -> list[RProgram]:
    """Return the programs with one object per expression: each was read from a line of its own."""
    known: dict[str, Any] = {}
    return [replace(p, expr=known.setdefault(p.expr.key, p.expr)) for p in programs]


def spearman(a: Floats, b: Floats) -> float:
    """Return the rank correlation of two samples; 0 where one of them is constant.

    Examples
    --------
    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0]))
    0.5
    """
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return round(float(np.corrcoef(*ranks)[0, 1]), 6)


def roofline_s(program: RProgram, spec: DeviceSpec) -> float:
    """Return the seconds of the plain roofline: arithmetic at peak or compulsory bytes at the bus, tiles ignored."""
    g, rate = program.expr, spec.compute.ops_per_cycle_per_unit
    per_point = sum(n / rate[c] for s in g.stages for c, n in instruction_mix(s.body, s.combiner).items())
    points = max(s.points for s in g.stages)
    moved = sum(t.nbytes for t in (*g.inputs, *g.output_tensors))
    return max(points * per_point / (spec.clock_hz * spec.units), moved / spec.layer("dram").bandwidth_bytes_per_s)


def verdicts(found: Sequence[Outcome]) -> list[Verdict]:
    """Return the limits of the issue with what was measured."""
    near = [abs(e) for o in found for e, n in zip(o.errors, o.near, strict=True) if n]
    every = [abs(e) for o in found for e in o.errors]
    rank, regret = statistics.median(o.rank for o in found), statistics.median(o.regret for o in found)
    return [
        Verdict("Spearman, median operator", f">= {RANK:g}", f"{rank:.3f}", rank >= RANK),
        Verdict(f"mean absolute error within {NEAR:g}x of the fastest", f"<= {NEAR_ERROR:.0%}",
                f"{statistics.mean(near):.1%}", statistics.mean(near) <= NEAR_ERROR),
        Verdict("mean absolute error, all programs", f"<= {ALL_ERROR:.0%}",
                f"{statistics.mean(every):.1%}", statistics.mean(every) <= ALL_ERROR),
        Verdict("regret of the predicted fastest, median operator", f"<= {REGRET:.0%}", f"{regret:.1%}",
                regret <= REGRET),
    ]  # fmt: skip


def accuracy(found: Sequence[Outcome]) -> dict[str, float]:
    """Return the fields of a spec's ``accuracy`` section: one sigma of ln(measured / predicted) near the fastest.

    ``prediction_error`` over all operators; ``ranking_error`` of the ratio of two programs of one operator;
    ``same_kernel_error`` of two that share a kernel. Robust sigmas: 1.4826 times the median absolute deviation.
    """
    every, pairs, alike = [], [], []
    for o in found:
        logs = [-np.log1p(e) for e in o.errors]
        kept = [i for i, n in enumerate(o.near) if n]
        every += [logs[i] for i in kept]
        for i in kept:
            for j in kept:
                if i < j:
                    (alike if o.kernels[i] == o.kernels[j] else pairs).append(logs[i] - logs[j])
    out = {"prediction_error": every, "ranking_error": pairs, "same_kernel_error": alike}
    return {k: round(1.4826 * float(np.median(np.abs(v))), 3) for k, v in out.items() if len(v) >= 8}
