"""Predicted times of compiled steps beside published ones: timm under AMP, and transformers in FP32, fused over eager.

``python -m benchmarks.insight published-compiled FOLDER --keep TRACES``: FOLDER has ``timm_amp.csv`` and
``fusion_fp32.csv``. Of the compiled rows of timm on each device the models are
``random.Random(3).sample(sorted names, 60)``; the first ``--count`` of them are predicted, beside the eager time of the
same model, so that an error is told apart from one that the eager step has too. Steps are those of
:mod:`benchmarks.insight.published`, with the kernels of the release that was measured (PyTorch 2.4; of the
transformers, published in 2024, it is assumed); their traces are kept. Nothing is fitted to a row.
"""

from __future__ import annotations

import csv
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

import roller
from benchmarks.insight.published import (
    RELEASES,
    SAMPLE,
    SEED,
    Case,
    kept_trace,
    not_traced,
    of_all,
    reason_of,
    step_of,
)
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.step_cost import HOST_OP_S, price_step, pricer_with_disk_cache
from roller.insight.step.from_trace import build_priced_step_graph
from roller.insight.step.simulate import simulate
from roller.insight.trace.trace import Trace

RESULTS = Path(__file__).parents[1] / "results" / "insight_compiled.md"
#: Begin of the page of results, and of its table.
HEAD = """# Compiled steps, predicted beside published times

Steps that `torch.compile` runs in its default mode, predicted with `policy="compiled"`: timm's inference throughputs
under AMP on an RTX 4090 with PyTorch 2.4, for the models of `random.Random(3).sample(sorted names, 60)`, and
transformers in FP32, for which NeuSight published both times. *Fused over eager* is the error against the published
compiled time if the published eager time is multiplied by the predicted ratio of compiled to eager time. No parameter
is fitted to a row.
`python -m benchmarks.insight published-compiled FOLDER --write`, {day}.
"""
TABLE = (
    "| device | model | size, length | batch | published ms | predicted ms | error | eager published | predicted "
    "| fused over eager |",
    "|---|---|---|---|---|---|---|---|---|---|",
)
#: Names of devices in ``fusion_fp32.csv``, and of specifications.
FUSION_DEVICES = {"NVIDIA_A100-PCIE-40GB": "a100", "NVIDIA_L4": "l4"}


@dataclass(frozen=True)
class Row:
    """One compiled step: published seconds of it and of the eager step, where known; predicted ones of both."""

    case: Case
    eager_s: float | None
    predicted_compiled_s: float
    predicted_eager_s: float

    @property
    def error(self) -> float:
        """Relative error of the compiled time."""
        return self.predicted_compiled_s / self.case.seconds - 1

    @property
    def ratio_error(self) -> float | None:
        """Error of the fused time, from the measured eager one, as a share of the fused time."""
        if self.eager_s is None:
            return None
        return self.eager_s * self.predicted_compiled_s / self.predicted_eager_s / self.case.seconds - 1


def timm_cases(path: Path, count: int) -> list[tuple[Case, dict[str, float]]]:
    """Return compiled cases of timm, each with the seconds of a sample of the eager step by layout."""
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    eager: dict[tuple[str, ...], float] = {}
    for r in rows:
        if r["execution"] == "eager":
            eager[r["device"], r["mode"], r["model"], r["image"], r["layout"]] = 1 / float(r["samples_per_s"])
    found = []
    compiled = [r for r in rows if r["execution"] == "compiled"]
    for device, mode in dict.fromkeys((r["device"], r["mode"]) for r in compiled):
        own = [r for r in compiled if (r["device"], r["mode"]) == (device, mode)]
        names = sorted({r["model"] for r in own})
        drawn = random.Random(SEED).sample(names, min(SAMPLE, len(names)))[:count]
        for name in drawn:
            for r in (r for r in own if r["model"] == name):
                batch = int(r["batch"])
                case = Case(f"timm {device} {mode}", device, name, mode, r["layout"], batch, int(r["image"]),
                            batch / float(r["samples_per_s"]))  # fmt: skip
                key = device, mode, name, r["image"]
                found.append((case, {n: batch * eager[(*key, n)] for n in ("nchw", "nhwc") if (*key, n) in eager}))
    return found


def fusion_cases(path: Path) -> list[tuple[Case, dict[str, float]]]:
    """Return the compiled transformers in FP32, each with the seconds of its eager step."""
    found = []
    for r in csv.DictReader(path.open(encoding="utf-8")):
        model, mode, length, batch = r["model-mode-sequence-batch"].rsplit("-", 3)
        case = Case("amd fp32", FUSION_DEVICES[r["device"]], model, mode, "", int(batch), int(length),
                    float(r["compiled_ms"]) / 1e3, "fp32")  # fmt: skip
        found.append((case, {"": float(r["eager_ms"]) / 1e3}))
    return found


def kept_step(case: Case, folder: Path | None) -> Trace:
    """Return the step of a case from the folder of kept traces; what is not there yet is traced and kept."""
    release = () if case.precision == "fp32" else (RELEASES[case.mode],)
    name = f"{'-'.join((*release, case.device, case.mode, case.model))}-{case.size}-{case.batch}"
    return kept_trace(folder, name, lambda: step_of(case))


def rows_of(found: Sequence[tuple[Case, dict[str, float]]], folder: Path | None) -> Iterator[Row | tuple[Case, str]]:
    """Yield predictions; of a case that does not trace, it and the reason."""
    kernels: dict[str, KernelPricer] = {}
    for case, eager in found:
        named = replace(case, group="fusion fp32") if case.precision == "fp32" else case
        try:
            step = kept_step(case, folder)
        except Exception as error:  # noqa: BLE001 - of others' models, which may be of another release
            yield named, reason_of(error)
            continue
        step = replace(step, options={**step.options, "torch_release": RELEASES["infer"]})
        spec = roller.load_spec(case.device)
        own = kernels.setdefault(case.device, pricer_with_disk_cache(spec).kernels)
        seconds = []
        for policy in ("compiled", "library"):
            priced = price_step(step, spec, policy, kernels=own)
            if case.precision == "fp32":  # published as the sum over kernels, without the host
                seconds.append(sum(p.seconds for _, p in priced.operators))
            else:
                seconds.append(simulate(build_priced_step_graph(priced, HOST_OP_S)).makespan_us / 1e6)
        own.save()
        yield Row(named, eager.get(case.layout), *seconds)


def line_of(row: Row) -> str:
    """Return a line about one step."""
    case, ratio = row.case, row.ratio_error
    measured = "      -" if row.eager_s is None else f"{1e3 * row.eager_s:7.1f}"
    return (
        f"{case.group:20} {case.device:8} {case.model:36} {case.size:4} x {case.batch:4}: compiled published "
        f"{1e3 * case.seconds:7.1f} predicted {1e3 * row.predicted_compiled_s:7.1f} ms {100 * row.error:+6.1f} %, "
        f"eager published {measured} predicted {1e3 * row.predicted_eager_s:7.1f} ms"
        + ("" if ratio is None else f", fused over eager {100 * ratio:+6.1f} %")
    )


def summary(rows: Sequence[Row], untraced: Mapping[Case, str]) -> list[str]:
    """Return lines: the errors of every group, of compiled times and of fused over eager."""
    lines = []
    for group in dict.fromkeys(r.case.group for r in rows):
        own = [r for r in rows if r.case.group == group]
        errors = [r.error for r in own]
        ratios = [e for r in own if (e := r.ratio_error) is not None]
        lines.append(
            f"{group:20} {of_all(group, [r.case for r in rows], untraced)} steps: "
            f"compiled {100 * statistics.mean(map(abs, errors)):5.1f} % mean absolute, "
            f"{100 * statistics.median(map(abs, errors)):5.1f} % median, {100 * statistics.mean(errors):+6.1f} % "
            f"signed; fused over eager {100 * statistics.mean(map(abs, ratios)):5.1f} %, "
            f"{100 * statistics.mean(ratios):+6.1f} % signed"
        )
    return [*lines, *not_traced(untraced)]


def page(rows: Sequence[Row], untraced: Mapping[Case, str], day: str) -> str:
    """Return the results as Markdown."""
    lines = [HEAD.format(day=day), *(f"- {line}" for line in summary(rows, untraced)), "", *TABLE]
    for r in rows:
        c, ratio = r.case, r.ratio_error
        eager = "-" if r.eager_s is None else f"{1e3 * r.eager_s:.1f}"
        lines.append(
            f"| {c.device} | {c.model} | {c.size} | {c.batch} | {1e3 * c.seconds:.1f} "
            f"| {1e3 * r.predicted_compiled_s:.1f} | {100 * r.error:+.1f} % | {eager} "
            f"| {1e3 * r.predicted_eager_s:.1f} | {'-' if ratio is None else f'{100 * ratio:+.1f} %'} |"
        )
    return "\n".join(lines) + "\n"


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the published tables.")],
    *,
    keep: Annotated[Path | None, typer.Option(help="Folder of kept traces.")] = None,
    only: Annotated[str, typer.Option(help="Groups whose name contains this: timm, fp32.")] = "",
    count: Annotated[int, typer.Option(min=1, help="Models of every table of timm.")] = SAMPLE,
    write: Annotated[bool, typer.Option(help="Write the page of results.")] = False,
) -> None:
    """Predict every published compiled step, and print the errors of every group."""
    found = fusion_cases(folder / "fusion_fp32.csv") + timm_cases(folder / "timm_amp.csv", count)
    rows: list[Row] = []
    untraced: dict[Case, str] = {}
    for row in rows_of([f for f in found if only in f[0].group], keep):
        if isinstance(row, Row):
            rows.append(row)
            print(line_of(row), flush=True)
        else:
            case, reason = row
            untraced[case] = reason
            print(f"{case.group} {case.model}: not traced: {reason}", flush=True)
    for line in summary(rows, untraced):
        print(line)
    if write:
        RESULTS.write_text(page(rows, untraced, datetime.now(timezone.utc).date().isoformat()), encoding="utf-8")
