"""What must hold, in one place, and whether it does."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.common import Verdict
from benchmarks.cpu.measure import ROLLER, Record

#: Geometric mean of speed against the best peer per operator: over everything, and per class.
ALL, PER_CLASS = 1.05, {
    "matmul": 0.97, "conv": 1.0, "depthwise": 1.3, "pooling": 1.5, "element-wise": 1.0, "reduction": 1.0,
}  # fmt: skip
#: Slowest single operator.
WORST = 0.7
#: Top-1 over the best of the top 50, geometric mean; both must have been built and timed.
REGRET, REGRET_OF = 1.10, 50
#: Construct, lower and LLVM for one program, median (seconds).
COMPILE_S = 0.3
#: Ten programs built, checked and timed, per operator: seconds, and times of the kernel.
TOP_K_S, TOP_K_KERNELS = 3.0, 15.0


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean, ``None`` of nothing."""
    values = list(values)
    return statistics.geometric_mean(values) if values else None


def ratios(records: Iterable[Record]) -> list[float]:
    """Return the ratios against the best peer of the operators that have one."""
    return [r.ratio for r in records if r.ratio is not None]


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Return every limit with what was measured."""
    return [*_speed(records), _slowest(records), _regret(records), *_compile_times(records), _failures(records)]


def _at_least(name: str, limit: float, value: float | None) -> Verdict:
    return Verdict(
        name, f">= {limit:g}", "-" if value is None else f"{value:.3f}", None if value is None else value >= limit
    )


def _speed(records: Sequence[Record]) -> list[Verdict]:
    out = [_at_least("all operators, geometric mean", ALL, geometric_mean(ratios(records)))]
    for kind, limit in PER_CLASS.items():
        mean = geometric_mean(ratios(r for r in records if r.kind == kind))
        out.append(_at_least(f"{kind}, geometric mean", limit, mean))
    return out


def _slowest(records: Sequence[Record]) -> Verdict:
    worst = min((r for r in records if r.ratio is not None), key=lambda r: r.ratio or 0.0, default=None)
    verdict = _at_least("slowest operator", WORST, worst.ratio if worst else None)
    return Verdict(verdict.name, verdict.limit, f"{verdict.value} ({worst.id})" if worst else "-", verdict.holds)


def _regret(records: Sequence[Record]) -> Verdict:
    full = [r.regret for r in records if r.regret is not None and r.regret_of > 10]
    mean, name = geometric_mean(full), f"top 1 over best of top {REGRET_OF}, geometric mean"
    return Verdict(
        name, f"<= {REGRET:g}", "-" if mean is None else f"{mean:.3f}", None if mean is None else mean <= REGRET
    )


def _compile_times(records: Sequence[Record]) -> list[Verdict]:
    seconds = [r.compile_s for r in records if r.compile_s is not None]
    median = statistics.median(seconds) if seconds else None
    value, holds = ("-", None) if median is None else (f"{median:.3f} s", median < COMPILE_S)
    first = Verdict("construct, lower and LLVM of one program, median", f"< {COMPILE_S:g} s", value, holds)
    tens = [(r, top_k_share(r)) for r in records if ROLLER in r.seconds and r.top_k_s is not None]
    name, limit = "ten programs built, checked, timed, worst", f"<= {TOP_K_S:g} s + {TOP_K_KERNELS:g} kernels"
    if not tens:
        return [first, Verdict(name, limit, "-", None)]
    worst, share = max(tens, key=lambda t: t[1])
    missed = sum(s > 1 for _, s in tens)
    value = f"{worst.top_k_s:.2f} s, {share:.2f} of it ({worst.id}); {missed} of {len(tens)} over"
    return [first, Verdict(name, limit, value, missed == 0)]


def top_k_share(record: Record) -> float:
    """Return seconds of the top-k compilation over what its limit allows."""
    return (record.top_k_s or 0.0) / (TOP_K_S + TOP_K_KERNELS * record.seconds[ROLLER])


def _failures(records: Sequence[Record]) -> Verdict:
    failed = [r.id for r in records if r.reason]
    value = f"{len(records) - len(failed)} of {len(records)}" + (f" (not {', '.join(failed)})" if failed else "")
    return Verdict("compiled and correct", "all", value, not failed if records else None)
