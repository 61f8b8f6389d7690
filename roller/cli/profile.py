"""``roller profile``: where the time and memory of a training step go, by module and line."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roller.cli.common import JsonOption, SetOption, console, print_json
from roller.cli.outputs import check_outputs
from roller.cli.profile_checks import check_budget_file, difference_to, print_difference, print_hints
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
        help="An entry file, a training script, an ONNX model, a recording of PyTorch, or a profile of --out.",
    ),
]
DevicesOption = Annotated[
    str,
    typer.Option("--device", "-d", metavar="NAMES", help="E.g. h100,a100; 2xa100 for two. By default a100."),
]
GivenArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS...", help="Of a training script; behind -- if dashed.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Run a training script without asking.")]
PatienceOption = Annotated[
    float,
    typer.Option("--patience", metavar="SECONDS", help="Without a sign that a script will train: then it is given up."),
]
AmpOption = Annotated[
    str,
    typer.Option("--amp", metavar="NAME", help="Automatic mixed precision around the step: fp32 (none), fp16, bf16."),
]
DepthOption = Annotated[int, typer.Option("--depth", min=1, metavar="N", help="Levels of the tree to print.")]
TopOption = Annotated[int, typer.Option("--top", min=1, metavar="N", help="Children of a node, and lines, to print.")]
SortOption = Annotated[str, typer.Option("--sort", metavar="NAME", help="Order by time or memory.")]
CurveOption = Annotated[
    bool, typer.Option("--curve", help="Throughput and memory over the batch, too; three batches are traced.")
]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Run the step on this machine's processor, and measure it: no --device.")
]
MeasureSecondsOption = Annotated[
    float,
    typer.Option("--measure-s", min=1.0, metavar="S", help="Seconds of timing."),
]
AgainstOption = Annotated[
    str,
    typer.Option("--against", metavar="WHAT", help="Print the difference to it: a file, git:REV or device:NAME."),
]
BudgetOption = Annotated[
    Path | None,
    typer.Option("--budget", metavar="FILE", help="Exit with 1 if the profile exceeds these limits."),
]
SarifOption = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Write what exceeds the budget, for code scanning.")
]
WriteBudgetOption = Annotated[
    Path | None, typer.Option("--write-budget", metavar="FILE", help="Write a budget that this profile keeps.")
]
HintsOption = Annotated[bool, typer.Option("--hints", help="What changes would bring, each at its line.")]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the profile as JSON.")]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write the timeline as trace events, for Perfetto.")
]
SnapshotOption = Annotated[
    Path | None,
    typer.Option("--snapshot", metavar="FILE", help="Write PyTorch's memory snapshot (a pickle), for memory_viz."),
]


@dataclass(frozen=True)
class ScriptRun:
    """How a training script runs."""

    arguments: list[str]
    yes: bool
    patience_s: float


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
    script: ScriptRun


def profile_command(
    file: FileArgument,
    given: GivenArgument = None,
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
    against: AgainstOption = "",
    budget: BudgetOption = None,
    sarif: SarifOption = None,
    write_budget: WriteBudgetOption = None,
    hints: HintsOption = False,
    yes: YesOption = False,
    patience: PatienceOption = 5.0,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Show what costs what in a training step: time and memory by module and line, on a device that is not here.

    FILE is an entry file with `model_provider()`, `input_provider(batch_size=16)` and `iteration_provider(model)`
    (needs PyTorch), an ONNX model, a file of PyTorch's profiler, or a profile that `--out` wrote.

    A training script without these functions runs as it is, behind `--` its own arguments, in a process that can write
    and reach nothing, until its steps repeat: on shapes, so that nothing is trained.
    """
    order = words_of("--sort", sort, ("time", "memory"))[0]
    precisions, again = words_of("--amp", amp, ("fp32", "fp16", "bf16")), checkpoints_of(checkpoint)
    sizes = [None if n is None else int(n) for n in batches_of(batches)]
    asked = Asked(
        devices_of(devices or _DEVICE, settings), sizes, precisions[0], again[0], calls, curve, measure, measure_s,
        trace, snapshot, ScriptRun(given or [], yes, patience),
    )  # fmt: skip
    if len(precisions) > 1 or len(again) > 1:
        raise UsageError("--amp, --checkpoint: expected one way of training, got several. Name one of each.")
    outputs = {
        "--out": out, "--trace": trace, "--snapshot": snapshot, "--sarif": sarif, "--write-budget": write_budget
    }  # fmt: skip
    if (any(outputs.values()) or budget or against) and len(asked.specs) * len(sizes) != 1:
        raise UsageError(
            f"{', '.join(outputs)}, --budget, --against: expected one device and batch, got several. Name one of each."
        )
    if sarif is not None and budget is None:
        raise UsageError("--sarif: expected a --budget, got none. Name one.")
    check_outputs([file, *([budget] if budget else [])], outputs)
    with prints_aside():
        found = _profiles(file, asked, devices)
    if out is not None:
        from roller.insight.step_profile.profile_json import save_profile

        save_profile(found[0], out)
    if write_budget is not None:
        from roller.insight.step_profile.budget import write_budget as write

        write(found[0], write_budget)
    if as_json:
        from roller.insight.step_profile.profile_json import to_data

        print_json([to_data(x) for x in found])
    else:
        _print(file, found, asked, against, hints, depth, top, order)
    if budget is not None:
        check_budget_file(found[0], budget, sarif)


def _print(
    file: Path, found: list[StepProfile], asked: Asked, against: str, hints: bool, depth: int, top: int, order: str
) -> None:
    from roller.insight.trace.options import TraceOptions

    screen = console()
    if against:
        options = TraceOptions(asked.sizes[0], asked.specs[0][0], asked.amp, asked.checkpoint)
        with prints_aside():
            changed = difference_to(found[0], against, file, options, asked.specs[0][0])
        print_difference(screen, changed, top)
    for profile in found if not against else ():
        print_profile(screen, profile, depth, top, order, file)
    for profile in found if hints else ():
        print_hints(screen, profile)


def _profiles(file: Path, asked: Asked, devices: str) -> list[StepProfile]:
    from roller.insight.step_profile.profiling import kind_of_file

    kind = kind_of_file(file)
    is_traced = kind in ("entry", "script") and not asked.measure
    if asked.script.arguments and kind != "script":
        raise UsageError(f"{file.name}: expected no arguments for a file of this kind, got some. Leave them out.")
    several = any(count > 1 for _, count in asked.specs)
    if not is_traced and (asked.trace or asked.snapshot or asked.calls is not None or several):
        raise UsageError(
            f"{file.name}: expected an entry file that is traced for --trace, --snapshot, --calls and several devices, "
            f"got {'one that is measured' if asked.measure else f'a {kind}'}. Leave them out."
        )
    if devices and (asked.measure or kind not in ("entry", "script", "model")):
        where = "--measure, which runs on this processor" if asked.measure else f"a {kind}, which has its own"
        raise UsageError(f"--device: expected none beside {where}. Leave it out.")
    if kind == "script" and is_traced:
        confirm_run(file, asked.script.yes)
    return _of_step(file, kind, asked) if is_traced else _of_file(file, kind, asked, devices)


def confirm_run(script: Path, yes: bool) -> None:
    """Ask whether somebody's program may run, unless it is said already.

    Raises
    ------
    UsageError
        There is nobody to ask, or the answer is no.
    """
    if yes:
        return
    what = f"{script.name} has no providers, so the script itself runs, up to its first steps"
    if not sys.stdin.isatty():
        raise UsageError(f"{what}: expected an answer whether it may, got no terminal to ask on. Pass --yes.")
    if not typer.confirm(f"{what}; it trains, writes and reaches nothing. Run it?", err=True):
        raise UsageError(f"{script.name}: expected yes, got no. Nothing ran.")


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


def _of_step(file: Path, kind: str, asked: Asked) -> list[StepProfile]:
    from roller.insight.step_profile.profiling import profile
    from roller.insight.trace.progress import listening
    from roller.insight.tracing import require_torch

    require_torch()
    found = []
    with counted_steps("profile", len(asked.specs) * len(asked.sizes)) as done, listening(done.within):
        step = _traced(file, kind, asked)
        for spec, count in asked.specs:
            for size in asked.sizes:
                found.append(profile(step, spec, batch=size, devices=count, curve=asked.curve))
                done(f"{spec.name}, batch {found[-1].batch}")
    if asked.trace is not None:
        _write_trace(step, *asked.specs[0], asked.trace)
    if asked.snapshot is not None:
        _write_snapshot(step, asked.specs[0][0], asked.snapshot)
    return found


def _traced(file: Path, kind: str, asked: Asked) -> TracedStep:
    from roller.insight.capture.script_tracer import trace_script
    from roller.insight.tracing import trace_entry

    batch, device, script = asked.sizes[0], asked.specs[0][0], asked.script
    if kind == "script":
        step = trace_script(
            file, script.arguments, batch=batch, device=device, calls=asked.calls, patience_s=script.patience_s
        )
        return step.at(amp=asked.amp, checkpoint=asked.checkpoint)
    return trace_entry(file, batch=batch, device=device, amp=asked.amp, checkpoint=asked.checkpoint, calls=asked.calls)


def _write_trace(step: TracedStep, spec: DeviceSpec, count: int, path: Path) -> None:
    from roller.insight.step.trace_events import write_trace_events

    found = step.forecast(spec, devices=count)
    write_trace_events(path, [(f"predicted on {spec.name}", found.graph, found.timeline)])


def _write_snapshot(step: TracedStep, spec: DeviceSpec, path: Path) -> None:
    from roller.insight.memory.simulate import Library
    from roller.insight.memory.snapshot import make_snapshot, write_snapshot

    write_snapshot(path, make_snapshot(step, library=Library.of(spec)))
