"""Rows of Daydream (Zhu et al., USENIX ATC 2020): changes of a training step, and their errors."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from benchmarks.reproduced.rows import NO_GPU, RESULTS, Row, cell, cells, percent, source_of, used, value_of
from benchmarks.suites import whatif
from benchmarks.suites.values import Value

RUN = f"whatif-{whatif.PUBLISHED_DEVICE}"
P3_RUN = f"whatif-{whatif.P3_DEVICE}"


def what_ifs() -> Iterator[Row]:
    """Yield errors of predicted changes, measured on a processor, and gains, predicted for the published device."""
    errors = errors_of_what_ifs()
    other = "our errors are on processors, where changes can be made"
    below = f"below {percent(whatif.ERRORS[whatif.OF_AMP_AND_ADAM][1], 0)}"
    published = {
        "fused Adam": below, "bf16": f"AMP: {below}", "freeze half": "no figure", "batch x2": "no figure",
        "recompute": "no figure",
    }  # fmt: skip
    mean = statistics.fmean(errors.values())
    yield Row(
        "mean error of predicted steps", f"about {percent(whatif.ERRORS[whatif.OF_ALL][1], 0)}",
        f"{mean:.1f} % of {len(errors)} changes; {other}",
        "no: an error needs a measurement", "whatif_cpu.md",
    )  # fmt: skip
    for name, theirs in published.items():
        yield Row(f"error, {name}", theirs, f"{errors[name]:.1f} %", "no: as above", "whatif_cpu.md")
    yield from _gains()
    yield from _several_devices()
    yield Row("BlueConnect, MetaFlow, vDNN, Gist and DGC", "modelled, not measured", "no: as theirs",
              "no: no figure is published to compare with; `roller whatif` has them", "-")  # fmt: skip


def _gains() -> Iterator[Row]:
    for (model, change), figures in whatif.GAINS.items():
        case = f"{model}, {change}"
        theirs = "; ".join(
            f"{percent(gain)} ({name})" if gain is not None else f"{note} ({name})" for name, gain, note in figures
        )
        both = [value_of(RUN, case, "gain", series) for series in (whatif.MODEL, whatif.FACTORS)]
        shown = [v for v in both if not v.note.startswith("not in")]
        ours = [f"{cell(v, percent)} ({v.series}{_reason(v)})" for v in shown]
        yield Row(f"share of the step that is saved, {case}, RTX 2080 Ti", theirs, NO_GPU, ", ".join(ours),
                  source_of(RUN), used(RUN, *shown))  # fmt: skip
    for model, (share, kernels) in whatif.UPDATES.items():
        found = value_of(RUN, model, "share of the update", "Roller")
        yield Row(f"share of the update in a step, {model}", f"about {percent(share, 0)}", NO_GPU, cell(found, percent),
                  source_of(RUN), used(RUN, found))  # fmt: skip
        counted = value_of(RUN, model, "kernels of the update", "Roller", "counted")
        yield Row(f"kernels of the update, {model}", f"{kernels}", NO_GPU, cell(counted, lambda v: f"{v:.0f}"),
                  source_of(RUN), used(RUN, counted))  # fmt: skip


def _reason(found: Value) -> str:
    return f": {whatif.NO_GAIN[0].lower()}{whatif.NO_GAIN[1:]}" if whatif.NO_GAIN in found.note else ""


def _several_devices() -> Iterator[Row]:
    of_ddp, of_p3 = (whatif.ERRORS[case][1] for case in (whatif.OF_DDP, whatif.OF_P3))
    for model in ("resnet50", "gnmt", "bert_base"):
        steps = [
            value_of(RUN, f"{model}, DDP on {whatif.DEVICES}, {gbits} Gb/s", "step, times one device", whatif.MODEL)
            for gbits in whatif.NETWORKS_GBITS
        ]
        speeds = ", ".join(map(str, whatif.NETWORKS_GBITS))
        yield Row(f"DDP on {whatif.DEVICES} devices, {model}: step over one device's at {speeds} Gb/s",
                  f"no figure of this ratio (error of most models at most {percent(of_ddp, 0)})",
                  "no: no cluster is here", cells(steps, "{:.2f}".format), source_of(RUN),
                  used(RUN, *steps))  # fmt: skip
    for model in whatif.P3_MODELS:
        gains = [
            value_of(P3_RUN, f"{model}, P3 on {whatif.P3_SERVERS}, {gbits} Gb/s", "gain", "P3")
            for gbits in whatif.P3_GBITS
        ]
        speeds = ", ".join(map(str, whatif.P3_GBITS))
        yield Row(f"P3 on {whatif.P3_SERVERS} P4000, {model}: share saved at {speeds} Gb/s",
                  f"no figure of this share (error at most {percent(of_p3)}; gains shrink with bandwidth)",
                  "no: no cluster is here", cells(gains, percent), source_of(P3_RUN), used(P3_RUN, *gains))  # fmt: skip
    name, _, devices = whatif.GPT2
    found = value_of("whatif-h100", f"{name}, DDP on {devices} by the device's own link", "step, times one device",
                     whatif.MODEL)  # fmt: skip
    yield Row("GPT-2 large on four H100, step over one device's (NeuSight)", f"{whatif.published_ddp(devices):.3f}",
              "no: no cluster is here", cell(found, lambda v: f"{v:.3f}"), source_of("whatif-h100"),
              used("whatif-h100", found))  # fmt: skip
    yield Row("NCCL over its formula, and what synchronising before each reduction brings", "34 %, 22.8 %",
              "no: no cluster is here", "no: a factor (DDP's interference), not a prediction", "-")  # fmt: skip


def errors_of_what_ifs() -> dict[str, float]:
    """Return the mean errors, in percent, of the table in ``whatif_cpu.md``."""
    text = (RESULTS / "whatif_cpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) % \| [0-9.]+ % \|$", text, re.MULTILINE)
    return {name: float(error) for name, error in rows}
