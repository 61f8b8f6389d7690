"""Profiles of the example steps: sums, lines through three batches, memory at one moment, CPU seconds.

    python -m benchmarks.insight profiles [--write] [--models N]

Everything is predicted. A line through three batches is held to forecasts at six others, as the published system held
its own to measurements: throughput within 5 % on average and 10 % at worst, allocated memory within 0.2 % and 1.1 %.
So is the curve of a profile: what follows of other batches from the traces of three.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import typer

from benchmarks.insight.models import SUITE, loss
from roller.insight.forecast import forecast
from roller.insight.memory.largest_batch import memory_on_device
from roller.insight.step_profile.profiling import profile
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.trace.traces_by_affine_batch import TracesByBatch
from roller.insight.traced_step import TracedStep
from roller.insight.tracing import trace, trace_entry

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = (*(f"training/{name}.py" for name in ("resnet50", "transformer", "gnmt", "vit", "gan")), "train.py")
#: Starts of the published study, and the batches that each line is held to, as multiples of its start.
STARTS = {
    "training/resnet50.py": (8, 16, 32),
    "training/transformer.py": (32, 64, 80),
    "training/gnmt.py": (32, 64, 80),
}
TIMES = (0.5, 0.75, 1.5, 2.5, 3.0, 4.0)
DEVICES = ("a100", "rtx3090", "t4")
#: Of the sums: a capacity that does not hold a step ends it before the peak of others.
MEMORY_DEVICES = ("a100-80", "h100", "rtx3090")
RESULT = Path(__file__).parents[1] / "results" / "insight_profiles.md"


def main(
    write: Annotated[bool, typer.Option(help="Write the page.")] = False,
    models: Annotated[int, typer.Option(help="Models of the suite whose memory at one moment is summed.")] = 20,
) -> None:
    """Profile the examples; exit with 1 where parts do not sum to the whole."""
    lines = [
        "# Profiles of training steps", "",
        "All figures are predicted, by `python -m benchmarks.insight profiles --write`. CPU seconds are those of one",
        "process on two cores of an AMD EPYC (Zen 3).", "",
    ]  # fmt: skip
    lines += ["## Sums and seconds", "", *_sums(), "", "## The line through three batches", "", *_fits(), ""]
    lines += ["## Memory at the total's peak", "", *_memory(models), ""]
    text = "\n".join(lines)
    typer.echo(text)
    if write:
        RESULT.write_text(text)


def _sums() -> Iterator[str]:
    yield "| step | CPU s, first device | CPU s, second device | nodes | lines | children apart, s | bytes apart |"
    yield "|---|---|---|---|---|---|---|"
    for name in STEPS:
        begin = time.process_time()
        step = trace_entry(EXAMPLES / name, device="a100")
        found = profile(step, "a100")
        between = time.process_time()
        profile(step, "rtx3090")
        end = time.process_time()
        apart_s, apart_bytes = _apart(found)
        nodes = sum(1 for _ in found.root.walk())
        yield (
            f"| {name} | {between - begin:.1f} | {end - between:.1f} | {nodes} | {len(found.lines)} | {apart_s:.1e} | "
            f"{apart_bytes} |"
        )
        if apart_s > 1e-9 or apart_bytes:
            raise typer.Exit(1)


def _apart(found: StepProfile) -> tuple[float, int]:
    """Return the largest distance between a node and the sum of its children, in seconds and bytes."""
    seconds, size = 0.0, 0
    for node in found.root.walk():
        if node.children:
            seconds = max(seconds, abs(node.wall_s - math.fsum(child.wall_s for child in node.children)))
            size = max(size, abs(node.total_held_bytes - sum(child.total_held_bytes for child in node.children)))
    return seconds, size


def _fits() -> Iterator[str]:
    yield (
        "| step | device | start | batches traced | line, throughput: mean, worst | line, allocated: mean, worst | "
        "curve, throughput: worst | curve, allocated: worst |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    off = _Errors([], [], [], [])
    for name, starts in STARTS.items():
        step = trace_entry(EXAMPLES / name)
        for device in DEVICES:
            for start in starts:
                yield _fit_row(step, name, device, start, off)
    yield f"| all | | | | {off.text()} |"


class _Errors(NamedTuple):
    """Relative errors of the line and of the curve, of throughput and of allocated bytes."""

    line_times: list[float]
    line_sizes: list[float]
    curve_times: list[float]
    curve_sizes: list[float]

    def text(self) -> str:
        both = " | ".join(f"{_percent(fmean(x))} {_percent(max(x))}" for x in self[:2])
        return f"{both} | {_percent(max(self.curve_times))} | {_percent(max(self.curve_sizes))}"


def _fit_row(step: TracedStep, name: str, device: str, start: int, off: _Errors) -> str:
    curve = profile(step, device, batch=start).batch_curve()
    if curve.line is None:
        return f"| {name} | {device} | {start} | none: {' '.join(curve.notes)} | | | | |"
    line, traces = curve.line, TracesByBatch(lambda batch: step.at(batch=batch, device=device))
    for batch in line.batches:
        traces.at(batch)
    own = _Errors([], [], [], [])
    for batch in (round(start * factor) for factor in TIMES):
        real, follows = step.forecast(device, batch=batch), forecast(traces.at(batch), device)
        if batch in line.batches or not real.memory.fits:
            continue
        own.line_times.append(abs(line.throughput(batch) / real.throughput - 1))
        own.curve_times.append(abs(follows.throughput / real.throughput - 1))
        held = real.memory.peak.allocated_bytes
        own.line_sizes.append(abs(line.allocated_bytes(batch) / held - 1))
        own.curve_sizes.append(abs(follows.memory.peak.allocated_bytes / held - 1))
    for mine, all_of_them in zip(own, off, strict=True):
        all_of_them += mine
    return f"| {name} | {device} | {start} | {', '.join(map(str, line.batches))} | {own.text()} |"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _steps() -> Iterator[tuple[str, Callable[[], TracedStep]]]:
    """Yield names of twenty steps and functions that trace them."""
    for name in SUITE:
        model = SUITE[name]
        given = {"loss": loss, "targets": [model.targets(4)], "optimizer": "adamw", "amp": "fp16"}
        yield f"{name}, fp16", partial(trace, model.build, model.inputs(4), **given)
    for name in STEPS:
        yield name, partial(trace_entry, EXAMPLES / name)
    for name in STEPS[:3]:
        yield f"{name}, bf16", partial(trace_entry, EXAMPLES / name, amp="bf16")


def _memory(count: int) -> Iterator[str]:
    yield "| step | device | total, MiB | requested | rounding | cached | context | page rounding | apart, bytes |"
    yield "|---|---|---|---|---|---|---|---|---|"
    wrong = 0
    for name, traced in islice(_steps(), count):
        step = traced()
        for device in MEMORY_DEVICES:
            memory = memory_on_device(step.at(device=device), device)
            parts = memory.parts_at_peak()
            rest = (parts.rounding_bytes, parts.cached_bytes, parts.context_bytes, parts.page_rounding_bytes)
            apart = parts.total_bytes - memory.total_bytes
            wrong += apart != 0 or min(rest) < 0
            sizes = (memory.total_bytes, sum(parts.requested_bytes.values()), *rest)
            yield f"| {name} | {device} | {' | '.join(f'{n / (1 << 20):.1f}' for n in sizes)} | {apart} |"
    if wrong:
        raise typer.Exit(1)
