"""Predicted throughput and times beside what others published: AMP, layouts, and FP32 on AMD's devices.

``python -m benchmarks.insight published FOLDER --keep TRACES``: FOLDER has ``timm_amp.csv``, ``nvidia_published.csv``
and ``amd_fp32.csv``. Of every table of timm (device, mode, layout, execution) the models are
``random.Random(3).sample(sorted names, 60)``. They are traced as timm's ``benchmark.py`` runs them: SGD with Nesterov
momentum, cross entropy, ``autocast`` without a scaler. Training was measured with PyTorch 1.12 and timm 0.6: attention
that is not fused, and an optimizer that visits one parameter after the other; inference with PyTorch 2.4. Norms of
inference were computed in float16 (timm's ``--fast-norm``): in float32, as autocast does otherwise, the traffic of
``vit_base_r26_s32_224`` alone takes longer at the data sheet's bandwidth than the whole step took. Traces are slow, so
the steady steps are kept as files. Nothing is fitted to a row.
"""

from __future__ import annotations

import csv
import gzip
import random
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import roller
from benchmarks.insight import models
from roller.insight.cost.step_cost import HOST_OP_S, price_step, pricer_with_disk_cache
from roller.insight.step.from_trace import build_priced_step_graph
from roller.insight.step.simulate import simulate
from roller.insight.trace.trace import Trace
from roller_runtime.core.files import write_atomically

#: Tables of timm that are eager, the releases of PyTorch they were measured with, and the mode of the older one.
TABLES = (
    ("rtx3090", "train", "nchw"), ("rtx3090", "train", "nhwc"), ("rtx3090", "infer", "nchw"),
    ("rtx3090", "infer", "nhwc"), ("rtx4090", "infer", "nchw"), ("rtx4090", "infer", "nhwc"),
)  # fmt: skip
RELEASES, OLD = {"train": "1.12", "infer": "2.4"}, "train"
#: Names of devices of AMD in published tables, and of specifications: one die of an MI250 has the units of an MI210.
AMD = {"AMD_Instinct_MI250": "mi210", "AMD_Instinct_MI210": "mi210", "AMD_Instinct_MI100": "mi100"}
#: Page of the results.
RESULTS = Path(__file__).parents[1] / "results" / "insight_published.md"
#: Gain of a layout from which its sign counts.
MATTERS = 0.05
SEED, SAMPLE = 3, 60


@dataclass(frozen=True)
class Case:
    """One published figure: seconds of a step."""

    group: str
    device: str
    model: str
    mode: str
    layout: str
    batch: int
    size: int
    seconds: float
    precision: str = "fp16"


def timm_cases(path: Path, table: tuple[str, str, str], count: int = SAMPLE) -> list[Case]:
    """Return the drawn models of one table; of a model with several images, every one."""
    rows = _all_rows(path, table)
    names = sorted({c.model for c in rows})
    drawn = set(random.Random(SEED).sample(names, min(SAMPLE, len(names)))[:count])
    return [replace(c, group=f"timm {' '.join(table)}") for c in rows if c.model in drawn]


def nvidia_cases(path: Path) -> list[Case]:
    """Return NVIDIA's published figures of ResNet-50."""
    return [
        Case("nvidia published", r["device"], r["model"], r["mode"], r["layout"], int(r["batch"]), 224,
             int(r["batch"]) / float(r["images_per_s"]), r["precision"])
        for r in csv.DictReader(path.open(encoding="utf-8"))
    ]  # fmt: skip


def amd_cases(path: Path) -> list[Case]:
    """Return whole models in FP32 on AMD's devices."""
    found = []
    for r in csv.DictReader(path.open(encoding="utf-8")):
        model, mode, length, batch = r["model-mode-sequence-batch"].rsplit("-", 3)
        device = AMD[r["device"]]
        seconds = float(r["total_ms"]) / 1e3
        found.append(Case("amd fp32", device, model, mode, "", int(batch), int(length), seconds, "fp32"))
    return found


def step_of(case: Case) -> Trace:
    """Return the traced steady step of a case."""
    if case.group == "amd fp32":
        step = models.trace(case.model, case.batch, case.size, training=case.mode == "train")
        kept = [o for o in step.steady() if o.phase in ("forward", "backward")]
        return replace(step, operators=tuple(kept), iterations=(0, len(kept)), events=(), storages={})
    old = case.mode == OLD and case.group.startswith("timm")
    build = (
        models.SUITE["resnet50"].build
        if case.group == "nvidia published"
        else _timm(case.model, fused=not old, fast_norm=not old)
    )
    options: dict[str, Any] = {
        "amp": "fp16" if case.precision == "fp16" else None, "scale_loss": False, "device": case.device,
        "channels_last": case.layout == "nhwc",
        "torch_release": RELEASES[case.mode] if case.group.startswith("timm") else None,
    }  # fmt: skip
    if case.mode == "train":
        options |= {
            "optimizer": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, foreach=not old),
            "loss": torch.nn.functional.cross_entropy,
            "targets": (torch.empty(case.batch, dtype=torch.int64, device="meta"),),
        }
    images = torch.empty(case.batch, 3, case.size, case.size, device="meta")
    step = roller.trace(build, images, **options)
    first, last = step.iterations[-2:]
    operators = step.operators[first:last]
    kept_options = {k: v for k, v in step.options.items() if isinstance(v, (str, int, float, bool, type(None)))}
    return Trace(operators, (), {}, (0, len(operators)), kept_options, step.warnings)


def _timm(model: str, *, fused: bool, fast_norm: bool) -> Callable[[], Any]:
    """Return what builds a model of timm."""
    import timm

    layers = getattr(timm, "layers", None)  # of a release of 2022, none of the switches
    for name, value in (("set_fused_attn", fused), ("set_fast_norm", fast_norm)):
        if hasattr(layers, name):
            getattr(layers, name)(value)
    return lambda: timm.create_model(model)


def kept_step(case: Case, folder: Path | None) -> Trace:
    """Return the step of a case from the folder of kept traces; what is not there yet is traced and kept."""
    parts = case.group.split()[0], case.device, case.mode, case.layout, case.precision, case.model
    return kept_trace(folder, f"{'-'.join(map(str, parts))}-{case.size}-{case.batch}", lambda: step_of(case))


def kept_trace(folder: Path | None, name: str, make: Callable[[], Trace]) -> Trace:
    """Return a trace from a folder; what is not there yet is made, and kept whole."""
    if folder is None:
        return make()
    path = folder / f"{name}.json.gz"
    if path.exists():
        return Trace.from_json(gzip.decompress(path.read_bytes()).decode(), path.name)
    step = make()
    folder.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as out:
        out.write(gzip.compress(replace(step, registered={}).to_json().encode(), 1))
    return step


def predicted(found: Iterable[Case], folder: Path | None) -> Iterator[tuple[Case, float | str]]:
    """Yield cases and their predicted seconds of a step; of one that does not trace, the reason."""
    kernels = {}
    for case in found:
        try:
            step = kept_step(case, folder)
        except Exception as error:  # noqa: BLE001 - of others' models, which may be of another release
            yield case, reason_of(error)
            continue
        spec = roller.load_spec(case.device)
        if case.device not in kernels:
            kernels[case.device] = pricer_with_disk_cache(spec).kernels
        priced = price_step(step, spec, kernels=kernels[case.device])
        yield case, simulate(build_priced_step_graph(priced, HOST_OP_S)).makespan_us / 1e6


def reason_of(error: Exception) -> str:
    """Return the first line of an error; the name of one without text."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def not_traced(untraced: Mapping[Case, str]) -> list[str]:
    """Return a line for each model that does not trace: it is in no mean."""
    figures: dict[tuple[str, str], int] = {}
    for case, reason in untraced.items():
        figures[case.model, reason] = figures.get((case.model, reason), 0) + 1
    return [f"Not traced: {model} ({reason}), {count} figures" for (model, reason), count in figures.items()]


def of_all(group: str, times: Collection[Case], untraced: Collection[Case]) -> str:
    """Return how many figures of a group are predicted, of how many."""
    count = sum(c.group == group for c in times)
    return f"{count} of {count + sum(c.group == group for c in untraced)}"


def summary(times: dict[Case, float], untraced: Mapping[Case, str]) -> list[str]:
    """Return lines: every group's count, mean absolute and signed relative error of seconds, worst."""
    lines = []
    for group in dict.fromkeys(c.group for c in times):
        errors = [s / c.seconds - 1 for c, s in times.items() if c.group == group]
        lines.append(
            f"{group:28} {of_all(group, times, untraced)} cases: "
            f"mean absolute error {100 * statistics.mean(map(abs, errors)):5.1f} %, "
            f"signed {100 * statistics.mean(errors):+6.1f} %, worst {100 * max(map(abs, errors)):5.1f} %"
        )
    return [*lines, *not_traced(untraced)]


def layout_signs(times: dict[Case, float]) -> list[str]:
    """Return lines: of models measured in both layouts at one size, how often the faster layout is the predicted one.

    Batches may differ, so seconds of a sample are compared.
    """
    by_layout: dict[tuple[str, str, str, int], dict[str, tuple[float, float]]] = {}
    for c, s in times.items():
        by_layout.setdefault((c.device, c.mode, c.model, c.size), {})[c.layout] = (c.seconds / c.batch, s / c.batch)
    lines = []
    for device, mode, _ in TABLES[::2]:
        both = [v for k, v in by_layout.items() if k[:2] == (device, mode) and {"nchw", "nhwc"} <= v.keys()]
        gains = [(v["nchw"][0] / v["nhwc"][0], v["nchw"][1] / v["nhwc"][1]) for v in both]
        counted = [(measured, predicted) for measured, predicted in gains if abs(measured - 1) >= MATTERS]
        right = sum((measured > 1) == (predicted > 1) for measured, predicted in counted)
        lines.append(f"layout {device} {mode}: {right} of {len(counted)} signs right, of {len(both)} models")
    return lines


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the published tables.")],
    *,
    keep: Annotated[Path | None, typer.Option(help="Folder of kept traces.")] = None,
    only: Annotated[str, typer.Option(help="Groups whose name contains this.")] = "",
    count: Annotated[int, typer.Option(min=1, help="Models of every table of timm.")] = SAMPLE,
    both: Annotated[bool, typer.Option(help="Every drawn model in both layouts, for the signs.")] = False,
    write: Annotated[bool, typer.Option(help="Write the page of the results.")] = False,
) -> None:
    """Predict every published figure and print the errors of every group."""
    found: list[Case] = []
    for table in TABLES:
        found += timm_cases(folder / "timm_amp.csv", table, count)
    if both:
        found += _other_layouts(folder / "timm_amp.csv", found)
    found += nvidia_cases(folder / "nvidia_published.csv") + amd_cases(folder / "amd_fp32.csv")
    times: dict[Case, float] = {}
    untraced: dict[Case, str] = {}
    for case, seconds in predicted([c for c in found if only in c.group], keep):
        if isinstance(seconds, str):
            untraced[case] = seconds
            print(f"{case.group} {case.model}: not traced: {seconds}", flush=True)
            continue
        times[case] = seconds
        print(
            f"{case.group:24} {case.precision} {case.device:8} {case.mode:5} {case.layout:4} {case.model:36} "
            f"{case.size:4} x {case.batch:4}: published {1e3 * case.seconds:8.1f} ms, predicted {1e3 * seconds:8.1f} "
            f"ms, {100 * (seconds / case.seconds - 1):+6.1f} %",
            flush=True,
        )
    for line in (*summary(times, untraced), *layout_signs(times)):
        print(line)
    if write:
        RESULTS.write_text(page(times, untraced), encoding="utf-8")


def page(times: dict[Case, float], untraced: Mapping[Case, str]) -> str:
    """Return the page of the results: errors of groups, then every figure."""
    lines = [
        "# Steps that others published, and what is predicted",
        "",
        f"`python -m benchmarks.insight published FOLDER --keep TRACES --both --write`, {date.today().isoformat()}.",
        "From every table of timm, the page compares the 60 models that `random.Random(3)` draws, with all image sizes",
        "of models that have several. It adds NVIDIA's ResNet-50, and whole models in FP32 on one die of an MI250",
        "(predicted with the specification of an MI210). No parameter is fitted to a row.",
        "",
        "| group | figures | mean absolute error | signed | median absolute |",
        "|---|---|---|---|---|",
    ]
    for group in dict.fromkeys(c.group for c in times):
        errors = [s / c.seconds - 1 for c, s in times.items() if c.group == group]
        lines.append(
            f"| {group} | {of_all(group, times, untraced)} | {100 * statistics.mean(map(abs, errors)):.1f} % | "
            f"{100 * statistics.mean(errors):+.1f} % | {100 * statistics.median(map(abs, errors)):.1f} % |"
        )
    lines += ["", *(f"- {line}" for line in (*layout_signs(times), *not_traced(untraced))), ""]
    lines += [
        "| group | model | image or length | batch | published ms | predicted ms | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for c, s in times.items():
        timm = c.group.startswith("timm")
        group = c.group if timm else f"{c.group} {c.device} {c.mode} {c.layout} {c.precision}"
        figures = f"{1e3 * c.seconds:.1f} | {1e3 * s:.1f} | {100 * (s / c.seconds - 1):+.1f} %"
        lines.append(f"| {group} | {c.model} | {c.size} | {c.batch} | {figures} |")
    return "\n".join(" ".join(line.split()) for line in lines) + "\n"


def _other_layouts(path: Path, found: list[Case]) -> list[Case]:
    """Return the cases in the other layout of drawn models, as a group of their own."""
    more = []
    for device, mode, layout in TABLES:
        drawn = {(c.model, c.size) for c in found if (c.device, c.mode) == (device, mode) and c.layout != layout}
        known = {(c.model, c.size) for c in found if (c.device, c.mode, c.layout) == (device, mode, layout)}
        rows = _all_rows(path, (device, mode, layout))
        more += [replace(c, group="timm other layout") for c in rows if (c.model, c.size) in drawn - known]
    return more


def _all_rows(path: Path, table: tuple[str, str, str]) -> list[Case]:
    rows = csv.DictReader(path.open(encoding="utf-8"))
    wanted = [r for r in rows if (r["device"], r["mode"], r["layout"], r["execution"]) == (*table, "eager")]
    return [
        Case("", r["device"], r["model"], r["mode"], r["layout"], int(r["batch"]), int(r["image"]),
             int(r["batch"]) / float(r["samples_per_s"]))
        for r in wanted
    ]  # fmt: skip
