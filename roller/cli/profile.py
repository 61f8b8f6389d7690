"""``roller profile``: where the time and memory of a training step go, by module and line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roller.cli.common import JsonOption, SetOption, console, print_json
from roller.cli.outputs import check_outputs
from roller.cli.profile_tables import print_profile
from roller.cli.progress import counted_steps
from roller.cli.terminal import prints_aside
from roller.cli.training import (
    BatchesOption,
    CallsOption,
    CheckpointOption,
    batches_of,
    checkpoints_of,
    devices_of,
    words_of,
)
from roller.cli.usage import UsageError

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec
    from roller.insight.step_profile.step_profile import StepProfile
    from roller.insight.traced_step import TracedStep

#: Device of a profile where none is named.
_DEVICE = "a100"

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="An entry file, an ONNX model, a recording of PyTorch, or a profile of --out.",
    ),
]
DevicesOption = Annotated[
    str,
    typer.Option("--device", "-d", metavar="NAMES", help="E.g. h100,a100; 2xa100 for two. By default a100."),
]
AmpOption = Annotated[
    str,
    typer.Option("--amp", metavar="NAME", help="Automatic mixed precision around the step: fp32 (none), fp16, bf16."),
]
DepthOption = Annotated[int, typer.Option("--depth", min=1, metavar="N", help="Levels of the tree to print.")]
TopOption = Annotated[int, typer.Option("--top", min=1, metavar="N", help="Children of a node, and lines, to print.")]
SortOption = Annotated[str, typer.Option("--sort", metavar="NAME", help="Order by time or memory.")]
CurveOption = Annotated[
    bool, typer.Option("--curve", help="Throughput and memory over the batch, too; each batch is traced.")
]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Run the step on this machine's processor, and measure it: no --device.")
]
MeasureSecondsOption = Annotated[
    float,
    typer.Option("--measure-s", min=1.0, metavar="S", help="Seconds of timing."),
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the profile as JSON.")]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write the timeline as trace events, for Perfetto.")
]
SnapshotOption = Annotated[
    Path | None,
    typer.Option("--snapshot", metavar="FILE", help="Write PyTorch's memory snapshot (a pickle), for memory_viz."),
]


@dataclass(frozen=True)
class Asked:
    """What the options ask for."""

    specs: list[tuple[DeviceSpec, int]]
    sizes: list[int | None]
    amp: str
    checkpoint: bool
    calls: int | None
    curve: bool
    measure: bool
    budget_s: float
    trace: Path | None
    snapshot: Path | None


def profile_command(
    file: FileArgument,
    devices: DevicesOption = "",
    batches: BatchesOption = "",
    amp: AmpOption = "fp32",
    checkpoint: CheckpointOption = "no",
    calls: CallsOption = None,
    depth: DepthOption = 5,
    top: TopOption = 5,
    sort: SortOption = "time",
    curve: CurveOption = False,
    measure: MeasureOption = False,
    measure_s: MeasureSecondsOption = 60.0,
    out: OutOption = None,
    trace: TraceOption = None,
    snapshot: SnapshotOption = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Show what costs what in a training step: time and memory by module and line, on a device that is not here.

    FILE is an entry file with `model_provider()`, `input_provider(batch_size=16)` and `iteration_provider(model)`
    (needs PyTorch), an ONNX model, a file of PyTorch's profiler, or a profile that `--out` wrote.
    """
    order = words_of("--sort", sort, ("time", "memory"))[0]
    precisions, again = words_of("--amp", amp, ("fp32", "fp16", "bf16")), checkpoints_of(checkpoint)
    sizes = [None if n is None else int(n) for n in batches_of(batches)]
    asked = Asked(
        devices_of(devices or _DEVICE, settings),
        sizes,
        precisions[0],
        again[0],
        calls,
        curve,
        measure,
        measure_s,
        trace,
        snapshot,
    )
    if len(precisions) > 1 or len(again) > 1:
        raise UsageError("--amp, --checkpoint: expected one way of training, got several. Name one of each.")
    if (out or trace or snapshot) and len(asked.specs) * len(sizes) != 1:
        raise UsageError("--out, --trace, --snapshot: expected one device and batch, got several. Name one of each.")
    check_outputs([file], {"--out": out, "--trace": trace, "--snapshot": snapshot})
    with prints_aside():
        found = _profiles(file, asked, devices)
    if out is not None:
        from roller.insight.step_profile.profile_json import save_profile

        save_profile(found[0], out)
    if as_json:
        from roller.insight.step_profile.profile_json import to_data

        print_json([to_data(x) for x in found])
        return
    screen = console()
    for profile in found:
        print_profile(screen, profile, depth, top, order, file)


def _profiles(file: Path, asked: Asked, devices: str) -> list[StepProfile]:
    from roller.insight.step_profile.profiling import kind_of_file

    kind = kind_of_file(file)
    is_traced = kind == "entry" and not asked.measure
    several = any(count > 1 for _, count in asked.specs)
    if not is_traced and (asked.trace or asked.snapshot or asked.calls is not None or several):
        raise UsageError(
            f"{file.name}: expected an entry file that is traced for --trace, --snapshot, --calls and several devices, "
            f"got {'one that is measured' if asked.measure else f'a {kind}'}. Leave them out."
        )
    if devices and (asked.measure or kind not in ("entry", "model")):
        where = "--measure, which runs on this processor" if asked.measure else f"a {kind}, which has its own"
        raise UsageError(f"--device: expected none beside {where}. Leave it out.")
    return _of_entry(file, asked) if is_traced else _of_file(file, kind, asked, devices)


def _of_file(file: Path, kind: str, asked: Asked, devices: str) -> list[StepProfile]:
    """Return the profiles of a file that is not traced; recordings, saved profiles and runs have their device."""
    from roller.insight.step_profile.profiling import profile
    from roller.insight.trace.progress import listening

    specs: list[DeviceSpec | None] = [spec for spec, _ in asked.specs] if devices or kind == "model" else [None]
    found = []
    with counted_steps("profile", len(specs) * len(asked.sizes)) as done, listening(done.within):
        for spec in specs:
            for size in asked.sizes:
                found.append(
                    profile(
                        file, spec, batch=size, amp=asked.amp, checkpoint=asked.checkpoint, curve=asked.curve,
                        measure=asked.measure, budget_s=asked.budget_s,
                    )
                )  # fmt: skip
                done(found[-1].name)
    return found


def _of_entry(file: Path, asked: Asked) -> list[StepProfile]:
    from roller.insight.step_profile.profiling import profile
    from roller.insight.trace.progress import listening
    from roller.insight.tracing import require_torch, trace_entry

    require_torch()
    found = []
    with counted_steps("profile", len(asked.specs) * len(asked.sizes)) as done, listening(done.within):
        step = trace_entry(
            file, batch=asked.sizes[0], device=asked.specs[0][0], amp=asked.amp, checkpoint=asked.checkpoint,
            calls=asked.calls,
        )  # fmt: skip
        for spec, count in asked.specs:
            for size in asked.sizes:
                found.append(profile(step, spec, batch=size, devices=count, curve=asked.curve))
                done(f"{spec.name}, batch {found[-1].batch}")
    if asked.trace is not None:
        _write_trace(step, *asked.specs[0], asked.trace)
    if asked.snapshot is not None:
        _write_snapshot(step, asked.specs[0][0], asked.snapshot)
    return found


def _write_trace(step: TracedStep, spec: DeviceSpec, count: int, path: Path) -> None:
    from roller.insight.step.trace_events import write_trace_events

    found = step.forecast(spec, devices=count)
    write_trace_events(path, [(f"predicted on {spec.name}", found.graph, found.timeline)])


def _write_snapshot(step: TracedStep, spec: DeviceSpec, path: Path) -> None:
    from roller.insight.memory.simulate import Library
    from roller.insight.memory.snapshot import make_snapshot, write_snapshot

    write_snapshot(path, make_snapshot(step, library=Library.of(spec)))
