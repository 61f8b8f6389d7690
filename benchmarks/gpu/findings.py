"""What a run on a GPU says to do next: what is wrong, then what the model misjudges, then what peers do better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.plan import OPERATORS, VARIANTS
from benchmarks.gpu.ranking import peer_ratio, winners
from benchmarks.gpu.report import table
from roller.artifact import KernelArtifact
from roller.runtime.candidate_records import Record

if TYPE_CHECKING:
    from benchmarks.gpu.bring_home import FinishedRun

#: Relative difference of a prediction, and a peer's time against ours, from which on a row is worth a look; rows shown.
_OFF, _BEHIND, _SHOWN = 0.25, 0.9, 8
#: Terms of the model that stand beside the profiler's figures: ours, and its own.
_BESIDE = (("dram_bytes", "dram_read_bytes"), ("l2_bytes", "l2_bytes"), ("registers", "registers_per_thread"),
           ("blocks_per_unit", "blocks_by_scratchpad"))  # fmt: skip


@dataclass(frozen=True)
class _Row:
    """The best kernel of an operator, as predicted and as measured."""

    operator: str
    artifact: KernelArtifact
    predicted_s: float
    measured_s: float

    @property
    def bound(self) -> str:
        """What the model takes for its bound."""
        return str(self.artifact.estimate.get("bottleneck", ""))

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s


def todo(run: FinishedRun) -> str:
    """Return a numbered list, the most urgent first."""
    rows = list(_best(run))
    found = [*_wrong(run), *_misjudged(rows), *_behind(run, rows), *_reached(run)]
    return "\n".join(f"{n}. {text}" for n, text in enumerate(found, 1)) or "Nothing: all right, as predicted, and fast."


def _best(run: FinishedRun) -> Iterable[_Row]:
    """Yield the fastest kernel of every operator."""
    if run.part(OPERATORS) is None:
        return
    bundle, records = run.pack.kernels(OPERATORS), run.data.records.get(OPERATORS, {})
    best = winners(records)
    for e in bundle.operators:
        measured_s = records[e.id][best[e.id]].measured_s if e.id in best else None
        if measured_s:
            artifact = dict(bundle.load(e))[best[e.id]]
            yield _Row(e.id, artifact, e.predicted_s[e.candidates.index(best[e.id])], measured_s)


def _wrong(run: FinishedRun) -> list[str]:
    """Return the kernels that are wrong, hang or crash, by expression; then models."""
    found = []
    for phase in (VARIANTS, OPERATORS, "races"):
        for operator, records in run.data.records.get(phase, {}).items():
            bad = {c: r for c, r in records.items() if not r.ok}
            if bad:
                found.append((len(bad) < len(records), f"**{operator}**: {_told(bad, len(records))}"))
    out = [text for _, text in sorted(found, key=lambda x: x[0])]
    for name, rows in run.data.models.items():
        bad_phases = [p for p, r in rows.items() if not r.get("ok", True)]
        if bad_phases:
            reason = rows[bad_phases[0]].get("reason") or "outputs differ"
            out.append(f"**model {name}** is not right ({', '.join(bad_phases)}): {reason}")
    return out


def _told(bad: Mapping[str, Record], count: int) -> str:
    """Return how many are not right, which, and the first one's reason."""
    kinds = sorted({r.status for r in bad.values()})
    names = ", ".join(list(bad)[:6]) + (", ..." if len(bad) > 6 else "")
    reason = next((r.reason.splitlines()[0][:160] for r in bad.values() if r.reason), "")
    return f"{len(bad)} of {count} kernels {' or '.join(kinds)} ({names}): {reason}"


def _misjudged(rows: list[_Row]) -> list[str]:
    """Return what the model misjudges, by what it takes for the bound, the furthest off first."""
    groups: dict[str, list[_Row]] = {}
    for r in rows:
        groups.setdefault(r.bound, []).append(r)
    found = []
    for bound, mine in groups.items():
        median = statistics.median(r.ratio for r in mine)
        off = [r for r in mine if abs(math.log(r.ratio)) > math.log1p(_OFF)]
        if off:
            worst = sorted(off, key=lambda r: -abs(math.log(r.ratio)))[:4]
            named = ", ".join(f"{r.operator} {r.ratio:.2f}" for r in worst)
            weight = sum(abs(math.log(r.ratio)) for r in off)
            text = f"bound by {bound}: {len(off)} of {len(mine)} rows are more than {_OFF:.0%} off"
            found.append((-weight, f"{text}; measured over predicted {median:.2f} in the median, furthest: {named}"))
    return [text for _, text in sorted(found)]


def _behind(run: FinishedRun, rows: list[_Row]) -> list[str]:
    """Return the rows furthest behind their fastest peer, with what the profiler says."""
    found = []
    for r in rows:
        ratio = peer_ratio(run.data.peers, r.operator)
        if ratio is not None and ratio < _BEHIND:
            times = f"{r.measured_s * 1e3:.4g} ms, predicted {r.predicted_s * 1e3:.4g}, bound by {r.bound}"
            text = f"{r.operator} takes {1 / ratio:.2f} times its fastest peer's time ({times})"
            found.append((ratio, text + _figures(run, r.operator)))
    return [text for _, text in sorted(found)[:_SHOWN]]


def _figures(run: FinishedRun, operator: str) -> str:
    kernels = run.data.profiles.get(operator, {}).get("kernels") or []
    names = ("dram_busy_percent", "unit_busy_percent", "matrix_busy_percent", "warps_active_percent")
    figures = kernels[0] if kernels else {}
    told = [f"{n.removesuffix('_percent').replace('_', ' ')} {figures[n]:.0f} %" for n in names if n in figures]
    return f": {', '.join(told)}" if told else ""


def _reached(run: FinishedRun) -> list[str]:
    """Return what the time did not suffice for."""
    out = []
    for phase in (VARIANTS, OPERATORS):
        if run.part(phase) is not None:
            records = run.data.records.get(phase, {})
            left = sum(len(set(e.candidates) - set(records.get(e.id, ()))) for e in run.pack.kernels(phase).operators)
            if left:
                out.append(f"{left} kernels of {phase} were not reached: run the pack again with the same --results")
    return out + [f"{phase} did not run: {reason}" for phase, reason in run.data.skipped.items()]


def profiled(run: FinishedRun) -> list[str]:
    """Return the profiler's figures beside the terms of the model."""
    if not run.data.profiles or run.part(OPERATORS) is None:
        return []
    bundle, rows = run.pack.kernels(OPERATORS), []
    entries = {e.id: e for e in bundle.operators}
    for operator, profile in run.data.profiles.items():
        if profile["reason"] or operator not in entries:
            rows.append([operator, profile["reason"], "", "", ""])
            continue
        artifact = dict(bundle.load(entries[operator]))[profile["candidate"]]
        terms = artifact.estimate.get("terms", {})
        for kernel in profile["kernels"]:
            beside = [f"{a}: {terms[a]:.4g} | {b}: {kernel[b]:.4g}".replace("|", "and")
                      for a, b in _BESIDE if a in terms and b in kernel]  # fmt: skip
            rows.append([operator, str(kernel["kernel"])[:40], _ms(kernel.get("time_s")),
                         _ms(artifact.estimate["seconds"]), "; ".join([*beside, *_rest(kernel)])])  # fmt: skip
    columns = ("operator", "kernel", "ncu ms", "predicted ms", "model and ncu")
    return ["## Profiles", table(columns, rows)]


def _rest(kernel: Mapping[str, Any]) -> list[str]:
    shown = {b for _, b in _BESIDE} | {"kernel", "time_s"}
    return [f"{k} {v:.4g}" for k, v in kernel.items() if k not in shown]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.4g}"
