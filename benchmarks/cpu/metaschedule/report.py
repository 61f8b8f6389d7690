"""Markdown and JSON of the comparison, and whether its limits hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.common import markdown
from benchmarks.cpu.limits import Verdict, geometric_mean
from benchmarks.cpu.measure import ROLLER
from benchmarks.cpu.metaschedule.duel import CONSIDERED, FINALISTS, Record

#: Roller must be at least so many times as fast, and spend at most one in so many of the seconds.
SPEED, COMPILE = 1.0, 100.0
_COLUMNS = ("id", "kind", "roller ms", "metaschedule ms", "speed", "95 % interval", "its own ms", "trials", "failed",
            "tuning s", "top-k s", "top-1 s", "tuning / top-k", "in processor seconds", "busy with others")  # fmt: skip


def verdicts(records: Sequence[Record], trials: int) -> list[Verdict]:
    """Return every limit with what was measured; the least operator decides, and too few trials decide nothing."""
    raced = [r for r in records if r.ratio]
    full = [r for r in raced if r.tuning["trials"] >= trials]
    slowest = min(full, key=lambda r: r.ratio["median"], default=None)
    mean = geometric_mean(r.ratio["median"] for r in full)
    complete = f"{len(full)} of {len(records)}" + _names(r.id for r in records if r not in full)
    return [
        Verdict(f"tuned with {trials} trials, correct, raced", "all", complete, len(full) == len(records) or None),
        Verdict("speed, geometric mean", f">= {SPEED:g}", _text(mean, ".3f"), None if mean is None else mean >= SPEED),
        Verdict("speed, slowest operator", f">= {SPEED:g}",
                f"{slowest.ratio['median']:.3f} ({slowest.id})" if slowest else "-",
                slowest.ratio["median"] >= SPEED if slowest else None),
        _least("seconds of tuning over seconds of top-k, least", {r.id: r.quotient for r in full}),
        _least("the same in processor seconds, least", {r.id: r.processor_quotient for r in full}),
    ]  # fmt: skip


def _least(name: str, quotients: dict[str, float | None]) -> Verdict:
    known = {i: q for i, q in quotients.items() if q is not None}
    if not known:
        return Verdict(name, f">= {COMPILE:g}", "-", None)
    least = min(known, key=lambda i: known[i])
    return Verdict(name, f">= {COMPILE:g}", f"{known[least]:.0f} ({least})", known[least] >= COMPILE)


def to_json(records: Sequence[Record], head: dict[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, and the verdicts."""
    judged = [{**asdict(v), "verdict": v.word} for v in verdicts(records, head["trials"])]
    rows = [{**asdict(r), "quotient": r.quotient, "processor_quotient": r.processor_quotient} for r in records]
    return {"run": head, "limits": judged, "operators": rows}


def to_markdown(records: Sequence[Record], head: dict[str, Any]) -> str:
    """Return the report a person reads."""
    total = sum(r.tuning.get("seconds", 0.0) for r in records)
    spent = sum(r.top_k_s or 0.0 for r in records)
    loads = [r.tuning["load"] for r in records if r.tuning.get("trials")] or [0.0]
    imports = max((r.tuning.get("import_s", 0.0) for r in records), default=0.0)
    parts = [
        "# CPU kernels against TVM MetaSchedule\n",
        "; ".join(f"{k} {v}" for k, v in head.items()) + ".\n",
        "Operators: for each kind, the one of median work among the 119, at batch 1. Speed: the time of MetaSchedule's "
        "best program over Roller's (above 1, Roller is faster), as the median of paired ratios; both kernels run in "
        "turn in one process, with the same launcher, on the same arrays. MetaSchedule tunes the same expression, with "
        "padding written as a separate stage as in TVM's operator library (it performs far better this way).\n",
        f"The tuner measured on a machine shared with other work (load average up to {max(loads):.1f}). It took the "
        "fastest of many calls instead of TVM's mean, which on such a machine mostly reflects the scheduler's ticks. "
        f"Its {CONSIDERED} best programs by its own measurements are measured again, the fastest {FINALISTS} race, and "
        "the fastest of the race counts. Its seconds are wall-clock time from its start to its last trial; processor "
        "time does not grow with other work. They exclude the import of TVM's tensor intrinsics, which it needs once "
        f"per process ({imports:.0f} s).\n",
        f"All operators: {total:.0f} s of tuning, and {spent:.1f} s of compilation by Roller, with ten programs built, "
        "checked and timed per operator.\n",
        markdown(("limit", "must be", "is", ""),
                 [(v.name, v.limit, v.value, v.word) for v in verdicts(records, head["trials"])]),
        "\n## Operators\n",
        markdown(_COLUMNS, [_cells(r) for r in records]),
        "\n",
        *(f"- {r.id}: {r.expression}. Roller runs {r.program}" for r in records),
        *(f"- {r.id}: {name} left out: {why}" for r in records for name, why in r.skipped.items()),
        *(f"- {r.id}: not raced: {r.reason}" for r in records if r.reason),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _cells(r: Record) -> tuple[str, ...]:
    t = r.tuning
    return (
        r.id, r.kind, _milli(r.seconds.get(ROLLER)), _milli(r.seconds.get(r.best)),
        _text(r.ratio.get("median"), ".3f"),
        f"{r.ratio['low']:.3f} to {r.ratio['high']:.3f}" if r.ratio else "-",
        _milli(t.get("best_s")), str(t.get("trials", 0)), str(t.get("failures", 0)),
        _text(t.get("seconds"), ".0f"), _text(r.top_k_s, ".2f"), _text(r.top_1_s, ".2f"), _text(r.quotient, ".0f"),
        _text(r.processor_quotient, ".0f"), f"{r.foreign:.2f}",
    )  # fmt: skip


def _milli(seconds: float | None) -> str:
    return _text(None if seconds is None else seconds * 1e3, ".4g")


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _names(names: Any) -> str:
    listed = ", ".join(names)
    return f" (not {listed})" if listed else ""
