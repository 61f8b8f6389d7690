"""``roller predict``: predict the time for tiles that the user chooses."""

from __future__ import annotations

from typing import Annotated

import typer

import roller
from roller.cli.shared_options_and_tables import (
    DeviceOption,
    ExprArgument,
    JsonOption,
    SetOption,
    console,
    load_device_spec,
    parse_tiles,
    prediction_json,
    prediction_text,
    print_json,
    time_terms_table,
)
from roller.perf.matrix_unit_notes import notes_on_matrix_unit

TileOption = Annotated[
    list[str] | None,
    typer.Option("--tile", "-t", metavar="LAYER=TILE", help="E.g. shared=i:64,j:64,k:8 or register=4,4,1; repeat."),
]
ProgramOption = Annotated[
    str | None, typer.Option("--program", "-p", metavar="NAME", help="Name of a program, as `roller construct` prints.")
]
FragmentOption = Annotated[
    str | None, typer.Option("--fragment", metavar="NAME", help="Matrix instruction, e.g. mma.m16n8k16.f16.f32.")
]
StagesOption = Annotated[int, typer.Option("--stages", min=1, help="Copies of each staged tile: a pipeline.")]
SplitOption = Annotated[int, typer.Option("--split-k", min=1, help="Parts the reduction is split into.")]
WarmOption = Annotated[
    list[str] | None, typer.Option("--warm", metavar="INPUT", help="Input in the GPU's shared cache; may be repeated.")
]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", metavar="NAME", help="Price what a library runs: library or library-graph.")
]
RasterOption = Annotated[int, typer.Option("--raster", min=1, help="Block tiles of the slower axis that run first.")]


def predict_command(
    expression: ExprArgument,
    tiles: TileOption = None,
    program: ProgramOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
    settings: SetOption = None,
    fragment: FragmentOption = None,
    stages: StagesOption = 1,
    split_k: SplitOption = 1,
    raster: RasterOption = 1,
    warm: WarmOption = None,
    policy: PolicyOption = None,
) -> None:
    """Predict the time for chosen tiles (--tile), a named program (--program) or a library (--policy), term by term."""
    if (program is not None) == (bool(tiles) or policy is not None):
        expected = "the name of a program (--program), or tiles (--tile) or a policy (--policy) or both, one of the two"
        raise typer.BadParameter(f"expected {expected}.")
    spec = load_device_spec(device, settings)
    expr = roller.ops.parse(expression)
    estimate = roller.predict(
        expr,
        spec,
        program or (parse_tiles(tiles) if tiles else None),
        fragment=fragment,
        stages=stages,
        split_k=split_k,
        raster=raster,
        warm=warm or (),
        policy=policy,
    )
    notes = list(notes_on_matrix_unit([expr], spec, ours=policy is None and (fragment is not None or bool(program))))
    if as_json:
        print_json({"expression": str(expr), "device": spec.name, **prediction_json(estimate), "notes": notes})
        return
    screen = console()
    screen.say(f"{expr} on {spec.title}: terms of the prediction")
    screen.print(time_terms_table(estimate))
    screen.say(prediction_text(estimate))
    for note in notes:
        screen.say(note)
