"""Rows of Daydream (Zhu et al., USENIX ATC 2020): changes of a training step, and their errors."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

from benchmarks.reproduced.rows import NO_GPU, RESULTS, Row, cell, cells, percent, source_of, value_of
from benchmarks.suites import whatif

RUN = f"whatif-{whatif.PUBLISHED_DEVICE}"
P3_RUN = f"whatif-{whatif.P3_DEVICE}"


def what_ifs() -> Iterator[Row]:
    """Yield errors of predicted changes, measured on a processor, and gains, predicted for the published device."""
    errors = errors_of_what_ifs()
    other = "our errors are on processors, where changes can be made"
    published = {
        "fused Adam": "below 13 %", "bf16": "AMP: below 13 %", "freeze half": "no figure", "batch x2": "no figure",
        "recompute": "no figure",
    }  # fmt: skip
    mean = statistics.fmean(errors.values())
    yield Row(
        "mean error of predicted steps", "about 8 %", f"{mean:.1f} % of {len(errors)} changes; {other}",
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
        ours = [
            f"{cell(found, percent)} ({series})"
            for series in (whatif.MODEL, whatif.FACTORS)
            if not (found := value_of(RUN, case, "gain", series)).note.startswith("not in")
        ]
        yield Row(f"share of the step that is saved, {case}, RTX 2080 Ti", theirs, NO_GPU, ", ".join(ours),
                  source_of(RUN))  # fmt: skip
    for model, (share, kernels) in whatif.UPDATES.items():
        found = value_of(RUN, model, "share of the update", "Roller")
        yield Row(f"share of the update in a step, {model}", f"about {percent(share, 0)}", NO_GPU, cell(found, percent),
                  source_of(RUN))  # fmt: skip
        counted = value_of(RUN, model, "kernels of the update", "Roller", "counted")
        yield Row(f"kernels of the update, {model}", f"{kernels}", NO_GPU, cell(counted, lambda v: f"{v:.0f}"),
                  source_of(RUN))  # fmt: skip


def _several_devices() -> Iterator[Row]:
    for model in ("resnet50", "gnmt", "bert_base"):
        steps = [
            value_of(RUN, f"{model}, DDP on {whatif.DEVICES}, {gbits} Gb/s", "step, times one device", whatif.MODEL)
            for gbits in whatif.NETWORKS_GBITS
        ]
        speeds = ", ".join(map(str, whatif.NETWORKS_GBITS))
        yield Row(f"DDP on {whatif.DEVICES} devices, {model}: step over one device's at {speeds} Gb/s",
                  "error mostly at most 10 %", "no: no cluster is here", cells(steps, "{:.2f}".format),
                  source_of(RUN))  # fmt: skip
    for model in whatif.P3_MODELS:
        gains = [
            value_of(P3_RUN, f"{model}, P3 on {whatif.P3_SERVERS}, {gbits} Gb/s", "gain", "P3")
            for gbits in whatif.P3_GBITS
        ]
        speeds = ", ".join(map(str, whatif.P3_GBITS))
        yield Row(f"P3 on {whatif.P3_SERVERS} P4000, {model}: share saved at {speeds} Gb/s",
                  "error at most 16.2 %, gains shrink with bandwidth", "no: no cluster is here", cells(gains, percent),
                  source_of(P3_RUN))  # fmt: skip
    name, _, devices = whatif.GPT2
    found = value_of("whatif-h100", f"{name}, DDP on {devices} by the device's own link", "step, times one device",
                     whatif.MODEL)  # fmt: skip
    yield Row("GPT-2 large on four H100, step over one device's (NeuSight)", f"{whatif.published_ddp(devices):.3f}",
              "no: no cluster is here", cell(found, lambda v: f"{v:.3f}"), source_of("whatif-h100"))  # fmt: skip
    yield Row("NCCL over its formula, and what synchronising before each reduction brings", "34 %, 22.8 %",
              "no: no cluster is here", "no: a factor (DDP's interference), not a prediction", "-")  # fmt: skip


def errors_of_what_ifs() -> dict[str, float]:
    """Return the mean errors, in percent, of the table in ``whatif_cpu.md``."""
    text = (RESULTS / "whatif_cpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) % \| [0-9.]+ % \|$", text, re.MULTILINE)
    return {name: float(error) for name, error in rows}
