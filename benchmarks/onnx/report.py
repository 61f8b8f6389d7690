"""Limits, Markdown and JSON of the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.common import Verdict, markdown
from benchmarks.onnx.measure import PEER, ROLLER, Record

#: Geometric mean of speed, the least of any model, error, and memory, as the project's issue has them.
MEAN, LEAST, ERROR, MEMORY = 1.0, 0.7, 1e-3, 1.3
#: Seconds of a cold compile at batch 1, and of any warm one.
COLD_S = {"light_resnet50": 60.0, "bert_large": 60.0, "lstm": 30.0, "lstm_unrolled": 30.0, "nasnet_a_mobile": 200.0}
WARM_S = 3.0

_COLUMNS = ("model", "batch", "roller ms", "ONNX Runtime ms", "speed", "95 % interval", "error", "memory", "roller MB",
            "cold s", "warm s", "kernels", "steps", "busy with others")  # fmt: skip


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean, ``None`` of nothing."""
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else None


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Judge every limit."""
    raced = [r for r in records if r.ratio is not None]
    mean = geometric_mean([r.ratio or 0.0 for r in raced])
    least = min(raced, key=lambda r: r.ratio or 0.0, default=None)
    wrong = max((r for r in records if r.error is not None), key=lambda r: r.error or 0.0, default=None)
    heavy = max((r for r in records if r.memory is not None), key=lambda r: r.memory or 0.0, default=None)
    warm = max((r for r in records if r.warm_s is not None), key=lambda r: r.warm_s or 0.0, default=None)
    found = [
        _at_least("speed over all models, geometric mean", MEAN, mean, ""),
        _at_least("slowest model", LEAST, least and least.ratio, least.id if least else ""),
        _at_most("largest error", ERROR, wrong and wrong.error, wrong.id if wrong else ""),
        _at_most("peak memory over ONNX Runtime's, worst", MEMORY, heavy and heavy.memory, heavy.id if heavy else ""),
        _at_most("warm compile, slowest (s)", WARM_S, warm and warm.warm_s, warm.id if warm else ""),
    ]
    for name, limit in COLD_S.items():
        mine = next((r.cold_s for r in records if r.model == name and r.batch == 1), None)
        found.append(_at_most(f"cold compile of {name} (s)", limit, mine, ""))
    failed = [r.id for r in records if r.reason]
    found.append(Verdict("compiled and run", "all", f"{len(records) - len(failed)} of {len(records)}", not failed))
    return found


def _at_least(name: str, limit: float, value: float | None, where: str) -> Verdict:
    return Verdict(name, f">= {limit:g}", _shown(value, where), None if value is None else value >= limit)


def _at_most(name: str, limit: float, value: float | None, where: str) -> Verdict:
    return Verdict(name, f"<= {limit:g}", _shown(value, where), None if value is None else value <= limit)


def _shown(value: float | None, where: str) -> str:
    return "-" if value is None else f"{value:.3g}" + (f" ({where})" if where else "")


def to_json(records: Sequence[Record], head: dict[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, and the verdicts."""
    judged = [{**asdict(v), "verdict": v.word} for v in verdicts(records)]
    return {"run": head, "limits": judged, "models": [{**asdict(r), "ratio": r.ratio} for r in records]}


def to_markdown(records: Sequence[Record], head: dict[str, Any]) -> str:
    """Return the report a person reads."""
    means = []
    for batch in sorted({r.batch for r in records}):
        mine = [r.ratio for r in records if r.batch == batch and r.ratio is not None]
        mean = geometric_mean(mine)
        means.append((str(batch), "-" if mean is None else f"{mean:.3f} ({len(mine)})"))
    parts = [
        "# Whole models against ONNX Runtime\n",
        "; ".join(f"{k} {v}" for k, v in head.items()) + ".",
        "\nSpeed: ONNX Runtime's time over Roller's (above 1, Roller is faster), as the median of paired ratios. "
        "Memory: peak memory of a process that loads the model and runs it, over ONNX Runtime's.\n",
        markdown(("limit", "must be", "is", ""), [(v.name, v.limit, v.value, v.word) for v in verdicts(records)]),
        "\n## Geometric mean of speed per batch\n",
        markdown(("batch", "speed"), means),
        "\n## Models\n",
        markdown(_COLUMNS, [_cells(r) for r in records]),
    ]
    failed = [f"- {r.id}: {r.reason}" for r in records if r.reason]
    parts += ["\n## Failed\n", *failed] if failed else []
    return "\n".join(parts) + "\n"


def _cells(r: Record) -> tuple[str, ...]:
    def number(value: float | None, form: str = ".3g", scale: float = 1.0) -> str:
        return "-" if value is None else format(value * scale, form)

    interval = f"{r.speed['low']:.2f} to {r.speed['high']:.2f}" if r.speed else "-"
    return (
        r.model, str(r.batch), number(r.seconds.get(ROLLER), ".4g", 1e3), number(r.seconds.get(PEER), ".4g", 1e3),
        number(r.ratio), interval, number(r.error, ".1e"), number(r.memory, ".2f"),
        number(r.peak_bytes.get(ROLLER), ".0f", 1e-6), number(r.cold_s, ".1f"), number(r.warm_s, ".2f"),
        str(r.kernels), str(r.steps), f"{r.foreign:.2f}",
    )  # fmt: skip
