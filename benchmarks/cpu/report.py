"""Markdown, JSON and plot of the records."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import markdown
from benchmarks.cpu.limits import PER_CLASS, geometric_mean, ratios, verdicts
from benchmarks.cpu.measure import ROLLER, Record

_COLUMNS = ("id", "class", "batch", "roller ms", "best peer", "peer ms", "speed", "95 % interval", "others",
            "predicted/measured", "regret", "compile s", "top-k s", "busy with others")  # fmt: skip
_COLOURS = {"matmul": "C0", "conv": "C1", "depthwise": "C2", "pooling": "C3", "element-wise": "C4", "reduction": "C5"}


def to_json(records: Sequence[Record], head: dict[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, and the verdicts."""
    judged = [{**asdict(v), "verdict": v.word} for v in verdicts(records)]
    return {"run": head, "limits": judged, "operators": [{**asdict(r), "ratio": r.ratio} for r in records]}


def to_markdown(records: Sequence[Record], head: dict[str, Any], absent: dict[str, str]) -> str:
    """Return the report a person reads."""
    loads = [r.load for r in records] or [0.0]
    parts = [
        "# CPU kernels against the best peer\n",
        "; ".join(f"{k} {v}" for k, v in head.items())
        + f"; load average {min(loads):.1f} to {max(loads):.1f}; processors busy with other work during the races: "
        f"{_foreign(records)}.",
        *(f"Without {name}: {reason}." for name, reason in absent.items()),
        "\nSpeed: the best peer's time over Roller's (above 1, Roller is faster), as the median of paired ratios.\n",
        markdown(("limit", "must be", "is", ""), [(v.name, v.limit, v.value, v.word) for v in verdicts(records)]),
        "\n## Geometric means per set and class\n",
        markdown(("set", *PER_CLASS, "all"), _means(records)),
        f"\n{_model(records)}\n",
        "## Operators\n",
        markdown(_COLUMNS, [_cells(r) for r in records]),
    ]
    failed = [f"- {r.id} ({r.expression}): {r.reason}" for r in records if r.reason]
    skipped = sorted({f"- {name}: {why}" for r in records for name, why in r.skipped.items()})
    parts += ["\n## Failed\n", *failed] if failed else []
    parts += ["\n## Peers left out\n", *skipped] if skipped else []
    return "\n".join(parts) + "\n"


def _foreign(records: Sequence[Record]) -> str:
    shares = [r.foreign for r in records if r.seconds]
    return f"mean {statistics.mean(shares):.2f}, most {max(shares):.2f} (distrust rows above 0.1)" if shares else "-"


def _means(records: Sequence[Record]) -> list[tuple[str, ...]]:
    rows = []
    for name in (*dict.fromkeys(r.set for r in records), "all"):
        mine = [r for r in records if name in (r.set, "all")]
        cells = [_mean([r for r in mine if r.kind == k]) for k in PER_CLASS]
        rows.append((name, *cells, _mean(mine)))
    return rows


def _mean(records: Sequence[Record]) -> str:
    values = ratios(records)
    mean = geometric_mean(values)
    return "-" if mean is None else f"{mean:.3f} ({len(values)})"


def _model(records: Sequence[Record]) -> str:
    found = [_prediction(r) for r in records]
    values = sorted(v for v in found if v is not None)
    if not values:
        return "No prediction beside a measurement."
    return f"Predicted over measured: median {statistics.median(values):.2f}, from {values[0]:.2f} to {values[-1]:.2f}."


def _prediction(r: Record) -> float | None:
    return r.predicted_s / r.seconds[ROLLER] if r.predicted_s is not None and ROLLER in r.seconds else None


def _cells(r: Record) -> tuple[str, ...]:
    batch = "-" if r.batch is None else str(r.batch)
    if r.reason:
        return (r.id, r.kind, batch, "failed", *"-" * (len(_COLUMNS) - 4))
    others = ", ".join(f"{n} {v['median']:.2f}" for n, v in r.ratios.items() if n != r.best_peer)
    best = r.ratios.get(r.best_peer)
    return (
        r.id, r.kind, batch, _number(r.seconds[ROLLER] * 1e3), r.best_peer or "-",
        _number(r.seconds[r.best_peer] * 1e3) if best else "-", _number(r.ratio, ".3f"),
        f"{best['low']:.3f} to {best['high']:.3f}" if best else "-", others or "-", _number(_prediction(r), ".2f"),
        _number(r.regret, ".2f") + (f" of {r.regret_of}" if r.regret else ""), _number(r.compile_s, ".2f"),
        _number(r.top_k_s, ".2f"), f"{r.foreign:.2f}",
    )  # fmt: skip


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)


def plot(records: Sequence[Record], path: Path) -> str:
    """Draw speed per operator with its interval; return why not where matplotlib is missing, else nothing."""
    try:
        import matplotlib
    except ImportError as err:
        return f"no plot: matplotlib is not installed ({err}); pip install 'roller[bench]'"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [r for k in PER_CLASS for r in sorted((r for r in records if r.kind == k), key=lambda r: r.ratio or 0)
             if r.ratio is not None]  # fmt: skip
    figure, axes = pyplot.subplots(figsize=(max(6.0, 0.11 * len(shown)), 4.5), layout="constrained")
    for kind, limit in PER_CLASS.items():
        at = [n for n, r in enumerate(shown) if r.kind == kind]
        if not at:
            continue
        middle = [shown[n].ratio or 0.0 for n in at]
        ends = [shown[n].ratios[shown[n].best_peer] for n in at]
        errors = [[m - e["low"] for m, e in zip(middle, ends, strict=True)],
                  [e["high"] - m for m, e in zip(middle, ends, strict=True)]]  # fmt: skip
        axes.errorbar(at, middle, yerr=errors, fmt="o", markersize=3, linewidth=1, color=_COLOURS[kind], label=kind)
        axes.hlines(limit, at[0] - 0.5, at[-1] + 0.5, colors=_COLOURS[kind], linestyles="dashed", linewidth=1)
    axes.set(yscale="log", xlim=(-1, len(shown)), ylabel="speed: best peer's time / Roller's")
    axes.set_title(
        "Roller against the best of PyTorch, ONNX Runtime and NumPy (dashed: limit of the class)", fontsize=8
    )
    axes.axhline(1.0, color="grey", linewidth=0.5)
    axes.set_xticks(range(len(shown)), [r.id for r in shown], rotation=90, fontsize=6)
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    if shown:
        axes.legend(fontsize=7, ncols=6, loc="upper center")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return ""


class Journal:
    """Records as JSON lines: an operator that is in it, measured with the same settings, is not measured again.

    Parameters
    ----------
    path
        The file; made on the first record.
    settings
        What a record depends on besides its operator; lines of other settings are left alone and not read.
    kind
        Class of the records: a dataclass with an ``id``.
    """

    def __init__(self, path: Path, settings: dict[str, Any], kind: Callable[..., Any] = Record) -> None:
        self.path, self.settings, self.kind = path, settings, kind

    def read(self) -> dict[str, Any]:
        """Return the records by id, the last line of each; a line that a kill cut short is passed over."""
        found = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            try:
                data = json.loads(line)
                if data["settings"] == self.settings:
                    found[data["record"]["id"]] = self.kind(**data["record"])
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def add(self, record: Any) -> None:
        """Append a record, on a line of its own even after one that was cut short."""
        cut = self.path.exists() and not self.path.read_bytes().endswith(b"\n") and self.path.stat().st_size > 0
        line = json.dumps({"settings": self.settings, "record": asdict(record)})
        with self.path.open("a") as file:
            file.write(("\n" if cut else "") + line + "\n")
