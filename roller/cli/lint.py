"""``roller lint``: find sizes in a model that are not aligned to a device, and the nearest aligned sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from roller.cli.compile_model import ShapeOption, parse_shapes
from roller.cli.shared_options_and_tables import (
    DeviceOption,
    JsonOption,
    SetOption,
    console,
    load_device_spec,
    print_json,
)
from roller.errors import counted
from roller.insight.cost.worthwhile_size_padding import LEAST_GAIN, LEAST_SHARE
from roller.insight.lint import Lint, lint

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")]
BatchOption = Annotated[
    int | None, typer.Option("--batch", "-b", min=1, help="Batch size; the model's own when absent.")
]
PolicyOption = Annotated[
    str, typer.Option("--policy", help="Whose kernels: roller's, or library (what cuBLAS and cuDNN run; GPUs).")
]
GainOption = Annotated[
    float,
    typer.Option(
        "--least-gain", metavar="FACTOR", help="Report only padding that makes a kernel faster by this factor."
    ),
]


def lint_command(
    model: ModelArgument,
    device: DeviceOption = "cpu",
    batch: BatchOption = None,
    shapes: ShapeOption = None,
    policy: PolicyOption = "roller",
    least_gain: GainOption = LEAST_GAIN,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Find sizes that leave part of a device idle, and the smallest padding that helps, by prediction only."""
    found = lint(
        model,
        load_device_spec(device, settings),
        batch=batch,
        shapes=parse_shapes(shapes),
        policy=policy,
        least_gain=least_gain,
    )
    if as_json:
        print_json(found.to_dict())
        return
    screen = console()
    screen.say(
        f"{model.name} on {found.device}: {found.seconds * 1e3:.3f} ms predicted, {counted(found.kernels, 'kernel')}; "
        f"{found.examined} of them with at least {LEAST_SHARE:.0%} of the time and a size that could grow"
    )
    if found.advice:
        screen.print(_advice_table(found))
        screen.say("predicted for each kernel alone; zeros change no result; * is no weight: whoever calls pads it")
    else:
        screen.say(f"nothing to gain: no padding makes one of them {least_gain:g} times as fast")


def _advice_table(found: Lint) -> Table:
    table = Table("kernel", "runs", "share", "pad", "faster", "operations", "model", "bound", box=None)
    for a in found.advice:
        bound = a.resource if a.resource == a.padded_resource else f"{a.resource}, then {a.padded_resource}"
        table.add_row(
            a.kernel, str(a.runs), f"{a.share:.1%}", "\n".join(f"{p}{'' if p.weight else ' *'}" for p in a.pads),
            f"{a.gain:.2f}x", f"{a.more_flops:+.1%}", f"{a.model_gain:.3f}x", bound,
        )  # fmt: skip
    return table
