"""Predicted times of whole models beside published ones, per device; nothing is fitted to a model.

``python -m benchmarks.insight time``, and the suite ``forecast``, read a table of times (device,
``model-mode-sequence-batch``, milliseconds), by default that of ``reference``. The models are those of
:mod:`benchmarks.insight.models`, by their published configurations; kernels are those of libraries, at the clock that
lasts. What is published of training is forward and backward, without an optimizer. Limits: a mean absolute error of
8 %, none above 20 %.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

import roller
from benchmarks.insight import models
from roller.insight.cost.operator_price import Pricer, price_operators_and_save
from roller.insight.cost.traffic_saved_by_shared_cache import cached_byte_shares
from roller.insight.trace.trace import Operator

#: Names of devices in the table, and of their specifications.
DEVICES = {
    "NVIDIA_A100-PCIE-40GB": "a100",
    "Tesla_P100-PCIE-16GB": "p100",
    "Tesla_T4": "t4",
    "Tesla_V100-PCIE-32GB": "v100",
}
MEAN_LIMIT, WORST_LIMIT = 0.08, 0.20
#: Models whose configuration is not published with the times: shown, and in no limit.
GUESSED = frozenset({"switchxl4"})
UNSURE = "guessed configuration"
RESULTS = Path(__file__).parents[1] / "results" / "insight_time.md"
#: NeuSight's times of whole models; ``reference/README.md`` says where they come from.
PUBLISHED = Path(__file__).parents[1] / "reference" / "model_times_fp32.csv"


@dataclass(frozen=True)
class Case:
    """One published time."""

    device: str
    model: str
    mode: str
    length: int
    batch: int
    seconds: float

    @property
    def name(self) -> str:
        """Model, mode, length and batch."""
        return f"{self.model}-{self.mode}-{self.length}-{self.batch}"


def cases(path: Path) -> list[Case]:
    """Return the published times of devices that have a specification."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        model, mode, length, batch = row["model-mode-sequence-batch"].rsplit("-", 3)
        if row["device"] in DEVICES:
            seconds = float(row["total_ms"]) / 1e3
            found.append(Case(DEVICES[row["device"]], model, mode, int(length), int(batch), seconds))
    return found


def predicted(found: list[Case]) -> dict[Case, float]:
    """Return predicted seconds of every case: the device's time of one step, steady state."""
    pricers = {c.device: Pricer(roller.load_spec(c.device).sustained, "library") for c in found}
    times: dict[Case, float] = {}
    for name in dict.fromkeys(c.name for c in found):
        alike = [c for c in found if c.name == name]
        operators = operators_of(alike[0])
        for case in alike:
            pricer = pricers[case.device]
            cached = cached_byte_shares(operators, pricer.spec)
            times[case] = sum(p.seconds for p in price_operators_and_save(pricer, operators, cached))
    return times


def operators_of(case: Case) -> list[Operator]:
    """Return the operators of a case's steady step, without those of an optimizer."""
    trace = models.trace(case.model, case.batch, case.length, training=case.mode == "train")
    return [o for o in trace.steady() if o.phase in ("forward", "backward")]


def summary(found: list[Case], times: dict[Case, float]) -> list[tuple[str, int, float, float]]:
    """Return name, number of cases, mean and worst error of every device, of all, and of guessed models."""
    sure = [c for c in found if c.model not in GUESSED]
    groups = {d: [c for c in sure if c.device == d] for d in dict.fromkeys(c.device for c in found)}
    groups |= {"all": sure, UNSURE: [c for c in found if c.model in GUESSED]}
    errors = {name: [abs(times[c] / c.seconds - 1) for c in group] for name, group in groups.items() if group}
    return [(name, len(e), statistics.mean(e), max(e)) for name, e in errors.items()]


def page(found: list[Case], times: dict[Case, float], rows: list[tuple[str, int, float, float]]) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Whole models, predicted beside published times",
        "",
        "FP32 times with the kernels of libraries at the sustained clock, predicted without a device from a trace of",
        "each model in its published configuration. Training is a forward and a backward pass. No parameter is fitted",
        "to a model. The configuration of `switchxl4` is not published with its times: it is shown but counts for no",
        "limit.",
        "",
        "| device | cases | mean error | worst | limits |",
        "|---|---|---|---|---|",
        *(f"| {n} | {k} | {100 * m:.1f} % | {100 * w:.1f} % | {_verdict(n, m, w)} |" for n, k, m, w in rows),
        "",
        "| device | model, mode, length, batch | published ms | predicted ms | error |",
        "|---|---|---|---|---|",
    ]
    for c in found:
        error = 100 * (times[c] / c.seconds - 1)
        lines.append(f"| {c.device} | {c.name} | {c.seconds * 1e3:.1f} | {times[c] * 1e3:.1f} | {error:+.1f} % |")
    return "\n".join(lines) + "\n"


def _verdict(name: str, mean: float, worst: float) -> str:
    if name == UNSURE:
        return "-"
    return "hold" if mean <= MEAN_LIMIT and worst <= WORST_LIMIT else "missed"


def main(file: Path = PUBLISHED, *, device: str = "", strict: bool = False, write: bool = False) -> None:
    """Predict every published time; with ``--strict`` a missed limit is an error."""
    found = [c for c in cases(file) if device in ("", c.device) and c.model in models.SUITE]
    times = predicted(found)
    table = Table("device", "case", "published ms", "predicted ms", "error", box=None)
    for c in found:
        error = times[c] / c.seconds - 1
        table.add_row(c.device, c.name, f"{c.seconds * 1e3:.1f}", f"{times[c] * 1e3:.1f}", f"{100 * error:+.1f} %")
    Console(width=100).print(table)
    rows = summary(found, times)
    for name, count, mean, worst in rows:
        print(f"{name:22} {count:3} cases: mean {100 * mean:4.1f} % (limit 8), worst {100 * worst:4.1f} % (limit 20)")
    missed = any(mean > MEAN_LIMIT or worst > WORST_LIMIT for name, _, mean, worst in rows if name != UNSURE)
    if write:
        RESULTS.write_text(page(found, times, rows), encoding="utf-8")
    if strict and missed:
        raise typer.Exit(1)
