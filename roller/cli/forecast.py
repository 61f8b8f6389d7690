"""``roller forecast``: predict the time of a training step or a model on a device that is not here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from roller.cli.compile_model import ShapeOption, parse_shapes
from roller.cli.progress import track_progress
from roller.cli.shared_options_and_tables import JsonOption, SetOption, console, print_json
from roller.cli.terminal_escaping import redirect_stdout_to_stderr
from roller.cli.training_options import (
    MIB,
    AmpOption,
    BatchesOption,
    CallsOption,
    CheckpointOption,
    DevicesOption,
    Tf32Option,
    TorchReleaseOption,
    monitor_memory_text,
    parse_amps,
    parse_batches,
    parse_checkpoints,
    parse_devices,
    trace_step_of_file,
    training_combinations,
)
from roller.cli.training_script_options import PATIENCE_S, GivenArgument, PatienceOption, ScriptRun, YesOption
from roller.cli.usage_error import UsageError
from roller.hardware import DeviceSpec

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="An entry file, a training script, or an ONNX model.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", help="Whose kernels: library (of PyTorch; entry files), compiled, or roller (models)."),
]
TopOption = Annotated[
    int, typer.Option("--top", min=0, help="Number of most expensive operators and of modules to print.")
]


@dataclass(frozen=True)
class ForecastOptions:
    """Parsed options of ``roller forecast``."""

    devices: list[tuple[DeviceSpec, int]]
    batches: list[int | str | None]
    amps: list[str]
    checkpoints: list[bool]
    policy: str | None
    shapes: dict[str, tuple[int, ...]]
    calls: int | None
    script: ScriptRun
    tf32: bool | None = None
    torch_release: str = ""


def forecast_command(
    file: FileArgument,
    given: GivenArgument = None,
    devices: DevicesOption = "a100",
    batches: BatchesOption = "",
    policy: PolicyOption = None,
    amp: AmpOption = "fp32",
    checkpoint: CheckpointOption = "no",
    calls: CallsOption = None,
    torch_release: TorchReleaseOption = "",
    shapes: ShapeOption = None,
    tf32: Tf32Option = None,
    top: TopOption = 0,
    yes: YesOption = False,
    patience: PatienceOption = PATIENCE_S,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Predict time and memory of a training step (entry file, needs PyTorch) or a model (ONNX); no device is used.

    An entry file has `model_provider()`, `input_provider(batch_size=16)` and `iteration_provider(model)`. A training
    script without them runs until its steps repeat, as in `roller profile`; its own arguments follow `--`.
    """
    asked = ForecastOptions(
        parse_devices(devices, settings), parse_batches(batches), parse_amps(amp), parse_checkpoints(checkpoint),
        policy,
        parse_shapes(shapes), calls, ScriptRun(given or [], yes, patience), tf32, torch_release,
    )  # fmt: skip
    from roller.insight.trace.entry_file_providers import is_script
    from roller.insight.trace.progress import listening

    asked.script.check(file, file.suffix != ".onnx" and is_script(file))
    forecasts = _forecast_models if file.suffix == ".onnx" else _forecast_steps
    total = len(asked.devices) * len(asked.batches) * len(asked.amps) * len(asked.checkpoints)
    found = []
    with track_progress("forecast", total) as done, listening(done.report_step_share), redirect_stdout_to_stderr():
        for x in forecasts(file, asked):
            found.append(x)
            done(f"{x.device}, batch {x.batch}")
    if as_json:
        print_json([x.to_dict() for x in found])
        return
    screen = console()
    screen.say(f"{file.name}: {', '.join(dict.fromkeys(x.kind for x in found))}, at the clock that lasts")
    screen.print(_table(found))
    for x in found if top else ():
        screen.print(_breakdown_table(x, top))
    for note in dict.fromkeys(n for x in found for n in getattr(x, "notes", ())):
        screen.say(note)


def _forecast_steps(file: Path, asked: ForecastOptions) -> Iterator[Any]:
    if asked.shapes:
        raise UsageError(f"{file.name}: expected no --shape beside an entry file, which makes its inputs. Drop it.")
    first = trace_step_of_file(file, asked.calls, asked.script, torch_release=asked.torch_release)
    for batch in asked.batches:
        for amp, checkpoint in training_combinations(asked.amps, asked.checkpoints):
            for spec, count in asked.devices:
                size = None if batch is None else int(batch)
                yield first.forecast(
                    spec, batch=size, amp=amp, checkpoint=checkpoint, policy=asked.policy or "library", devices=count,
                    tf32=asked.tf32,
                )  # fmt: skip


def _forecast_models(file: Path, asked: ForecastOptions) -> Iterator[Any]:
    from roller.insight.onnx_models import forecast_onnx

    if asked.torch_release:
        raise UsageError(f"{file.name}: expected no --torch-release for a model, which is no step. Drop it.")
    if asked.calls is not None:
        raise UsageError(f"{file.name}: expected no --calls for a model, which is no step. Drop it.")
    if asked.tf32 is not None:
        raise UsageError(f"{file.name}: expected no --tf32 for a model, whose kernels compute as it says. Drop it.")
    if any(count > 1 for _, count in asked.devices) or asked.amps != ["fp32"] or asked.checkpoints != [False]:
        raise UsageError(
            f"{file.name}: expected single devices, and no --amp or --checkpoint, for a model, got others. "
            f"Leave them out, or pass an entry file."
        )
    for batch in asked.batches:
        for spec, _ in asked.devices:
            size = None if batch is None else int(batch)
            yield forecast_onnx(file, spec, batch=size, shapes=asked.shapes, policy=asked.policy or "roller")


def _table(found: list[Any]) -> Table:
    columns: dict[str, Callable[[Any], str]] = {
        "device": lambda x: f"{x.devices}x{x.device}" if getattr(x, "devices", 1) > 1 else x.device,
        "batch": lambda x: str(x.batch * getattr(x, "devices", 1) or "?"),
        "amp": lambda x: getattr(x, "amp", "") or "fp32",
        "checkpoint": lambda x: "yes" if getattr(x, "checkpoint", ()) else "no",
        "time": lambda x: f"{x.iteration_s * 1e3:.2f} ms",
        "between": lambda x: f"{x.lower_s * 1e3:.2f} to {x.upper_s * 1e3:.2f} ms",
        "samples/s": lambda x: f"{x.throughput:.1f}" if x.throughput else "-",
        "memory": _memory_text,
        "bound": lambda x: getattr(x, "bound", "device"),
        "by bytes alone": lambda x: f"{100 * getattr(x, 'unmapped_share', 0.0):.1f} %",
    }
    table = Table(*columns, box=None)
    for x in found:
        table.add_row(*(write(x) for write in columns.values()))
    return table


def _memory_text(x: Any) -> str:
    if hasattr(x, "memory"):
        return monitor_memory_text(x.memory)
    return f"{(x.weights_bytes + x.arena_bytes) / MIB:.0f} MiB"


def _breakdown_table(x: Any, top: int) -> Table:
    table = Table("part", "runs", "time", "share", "bound", title=f"{x.device}, batch {x.batch or '?'}", box=None)
    if hasattr(x, "kernels"):
        rows = [(k.name, k.runs, k.seconds, k.share, k.resource) for k in x.kernels[:top]]
    else:
        shares = [*x.by_phase(), *x.by_operator()[:top], *x.by_module(2)[:top]]
        rows = [(s.name, s.kernels, s.compute_us / 1e6, s.share, s.resource) for s in shares]
    for name, runs, seconds, share, resource in rows:
        table.add_row(name, str(runs), f"{seconds * 1e3:.3f} ms", f"{100 * share:.1f} %", resource)
    return table
