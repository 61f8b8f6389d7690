"""``roller profile``: where the time and memory of a training step go, by module and line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roller.cli.common import JsonOption, SetOption, check_writable, console, print_json
from roller.cli.profile_tables import print_profile
from roller.cli.progress import counted_steps
from roller.cli.training import (
    BatchesOption,
    CallsOption,
    CheckpointOption,
    DevicesOption,
    batches_of,
    checkpoints_of,
    devices_of,
    step_of,
    words_of,
)
from roller.cli.usage import UsageError

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec
    from roller.insight.step_profile.step_profile import StepProfile
    from roller.insight.traced_step import TracedStep

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="An entry file, an ONNX model, a recording of PyTorch, or a profile of --out.",
    ),
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
OutOption = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the profile as JSON.")]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write the timeline as trace events, for Perfetto.")
]
SnapshotOption = Annotated[
    Path | None,
    typer.Option("--snapshot", metavar="FILE", help="Write PyTorch's memory snapshot (a pickle), for memory_viz."),
]


def profile_command(
    file: FileArgument,
    devices: DevicesOption = "a100",
    batches: BatchesOption = "",
    amp: AmpOption = "fp32",
    checkpoint: CheckpointOption = "no",
    calls: CallsOption = None,
    depth: DepthOption = 7,
    top: TopOption = 6,
    sort: SortOption = "time",
    curve: CurveOption = False,
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
    for path in (out, trace, snapshot):
        if path is not None:
            check_writable(path)
    found = _profiles(file, devices, batches, amp, checkpoint, calls, curve, settings, out, trace, snapshot)
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


def _profiles(
    file: Path, devices: str, batches: str, amp: str, checkpoint: str, calls: int | None, curve: bool,
    settings: list[str] | None, *outputs: Path | None,
) -> list[StepProfile]:  # fmt: skip
    from roller.insight.step_profile.profiling import kind_of_file, profile
    from roller.insight.trace.progress import listening
    from roller.insight.tracing import require_torch

    specs, sizes = devices_of(devices, settings), [None if n is None else int(n) for n in batches_of(batches)]
    precision, again = words_of("--amp", amp, ("fp32", "fp16", "bf16")), checkpoints_of(checkpoint)
    if len(precision) > 1 or len(again) > 1:
        raise UsageError(
            "--amp, --checkpoint: expected one way of training, got several. Name one, or ask for a sweep."
        )
    if any(outputs) and len(specs) * len(sizes) != 1:
        raise UsageError("--out, --trace, --snapshot: expected one device and batch, got several. Name one of each.")
    _, trace, snapshot = outputs
    if (kind := kind_of_file(file)) != "entry":
        if trace is not None or snapshot is not None or calls is not None or any(count > 1 for _, count in specs):
            raise UsageError(
                f"{file.name}: expected an entry file for --trace, --snapshot, --calls and several devices, got a "
                f"{kind}. Leave them out."
            )
        alone = specs if kind == "model" else specs[:1]  # others have their device
        return [
            profile(file, spec, batch=size, amp=precision[0], checkpoint=again[0], curve=curve)
            for spec, _ in alone for size in sizes
        ]  # fmt: skip
    require_torch()
    step, found = step_of(file, calls), []
    with counted_steps("profile", len(specs) * len(sizes)) as done, listening(done.within):
        for spec, count in specs:
            for size in sizes:
                found.append(
                    profile(step, spec, batch=size, amp=precision[0], checkpoint=again[0], devices=count, curve=curve)
                )
                done(f"{spec.name}, batch {found[-1].batch}")
    chosen = step.at(batch=sizes[0], device=specs[0][0], amp=precision[0], checkpoint=again[0])
    if trace is not None:
        _write_trace(chosen, *specs[0], trace)
    if snapshot is not None:
        _write_snapshot(chosen, specs[0][0], snapshot)
    return found


def _write_trace(step: TracedStep, spec: DeviceSpec, count: int, path: Path) -> None:
    from roller.insight.step.trace_events import write_trace_events

    found = step.forecast(spec, devices=count)
    write_trace_events(path, [(f"predicted on {spec.name}", found.graph, found.timeline)])


def _write_snapshot(step: TracedStep, spec: DeviceSpec, path: Path) -> None:
    from roller.insight.memory.simulate import Library
    from roller.insight.memory.snapshot import make_snapshot, write_snapshot

    write_snapshot(path, make_snapshot(step, library=Library.of(spec)))
