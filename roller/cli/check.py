"""``roller check``: compare a model with ONNX Runtime on random inputs, or verify a saved model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from roller.cli.compile_model import (
    RUNTIMES,
    BatchOption,
    CacheOption,
    DeviceOption,
    FallbackOption,
    ShapeOption,
    compile_or_list_unsupported,
)
from roller.cli.shared_options_and_tables import JsonOption, ThreadsOption, check_choice, console, print_json
from roller.compile_arguments import spec_and_local_device
from roller.errors import ArtifactError, LaunchError
from roller.hardware.detect_cpu_spec import is_this_machine
from roller.targets import THIS_MACHINE

if TYPE_CHECKING:
    from roller.models.compare_onnxruntime import Comparison

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file (or TensorFlow's .pb), or the folder of a saved model.")
]
SetsOption = Annotated[int, typer.Option("--sets", min=1, help="Sets of random inputs.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random inputs.")]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        min=0,
        help="Allowed error of an output relative to its largest magnitude; by default by its dtype.",
    ),
]


def check_command(
    model: ModelArgument,
    device: DeviceOption = "cpu",
    batch: BatchOption = None,
    shapes: ShapeOption = None,
    fallback: FallbackOption = None,
    threads: ThreadsOption = None,
    sets: SetsOption = 1,
    seed: SeedOption = 0,
    tolerance: ToleranceOption = None,
    cache: CacheOption = True,
    as_json: JsonOption = False,
) -> None:
    """Compare an ONNX model's results with ONNX Runtime's, or verify all files of a saved model.

    ONNX file: compile the model, and run it and ONNX Runtime (package onnxruntime) on the same random inputs. If
    outputs differ, onnx's reference evaluator and ONNX Runtime without optimisations decide which is right. Exits with
    code 1 if an output is too far off.

    Folder of a saved model: all files are verified, including the weights. No code is loaded, and --json is the only
    option. Exits with code 1 if a file was altered or damaged.
    """
    if model.is_dir():
        from roller.cli.check_saved import check_saved

        given = [batch, shapes, fallback, threads, tolerance, *(n for n in (seed, sets - 1) if n)]
        if device != THIS_MACHINE or not cache or any(value is not None for value in given):
            raise ArtifactError(f"check {model}: expected no option but --json beside a folder. Leave the others out.")
        check_saved(model, as_json)
        return
    if fallback is not None:
        check_choice("--fallback", fallback, RUNTIMES)
    _require_onnxruntime(model)
    spec, handle = spec_and_local_device(device)
    if handle is None and not is_this_machine(spec):
        raise LaunchError(f"--device: expected one of this machine to run on, got '{device}'. Write cpu or cuda:0.")
    from roller.models.compare_onnxruntime import compare_with_onnxruntime

    made = compile_or_list_unsupported(model, device, batch, shapes, fallback, as_json, threads=threads, cache=cache)
    found = compare_with_onnxruntime(made, model, sets=sets, seed=seed, tolerance=tolerance)
    if as_json:
        print_json(_comparison_json(found))
    else:
        _print_comparison(found)
    if not found.ok:
        raise typer.Exit(1)


def _require_onnxruntime(model: Path) -> None:
    """Raise an error if ONNX Runtime is not installed; called before anything is compiled."""
    import importlib.util

    if importlib.util.find_spec("onnxruntime") is None:
        raise LaunchError(
            f"check {model}: expected the package onnxruntime to compare with, found none. Install it: "
            "pip install 'roller[fallback]'."
        )


def _comparison_json(found: Comparison) -> dict[str, Any]:
    rows = [{**asdict(d), "ok": d.ok} for d in found.differences]
    return {"model": found.name, "with": found.source, "sets": found.sets, "ok": found.ok, "outputs": rows}


def _print_comparison(found: Comparison) -> None:
    screen = console()
    table = Table(title=f"{found.name} beside {found.source}", box=box.SIMPLE, title_justify="left")
    table.add_column("output")
    table.add_column("dtype")
    table.add_column("largest error", justify="right")
    table.add_column("allowed", justify="right")
    table.add_column("result")
    for d in found.differences:
        table.add_row(d.output, d.dtype, f"{d.error:.2g}", f"{d.tolerance:.2g}", "agrees" if d.ok else "DIFFERS")
    screen.print(table)
    for said in dict.fromkeys(f"{d.output}: {d.why}" for d in found.differences if d.why):
        screen.print(said, soft_wrap=True)
    screen.print("errors are relative to the largest magnitude of the output", soft_wrap=True)
    screen.print(f"{found.name}: {'agrees' if found.ok else 'DIFFERS'}", soft_wrap=True)
