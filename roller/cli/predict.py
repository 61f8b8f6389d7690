"""``roller predict``: the model's time of tiles the user chooses."""

from __future__ import annotations

from typing import Annotated

import typer

import roller
from roller.cli.common import (
    DeviceOption,
    ExprArgument,
    JsonOption,
    SetOption,
    console,
    device_of,
    prediction_json,
    prediction_text,
    print_json,
    terms_table,
    tiles_of,
)

TileOption = Annotated[
    list[str],
    typer.Option("--tile", "-t", metavar="LAYER=TILE", help="E.g. shared=i:64,j:64,k:8 or register=4,4,1; repeat."),
]
FragmentOption = Annotated[
    str | None, typer.Option("--fragment", metavar="NAME", help="Matrix instruction, e.g. mma.m16n8k16.f16.f32.")
]


def predict_command(
    expression: ExprArgument,
    tiles: TileOption,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
    settings: SetOption = None,
    fragment: FragmentOption = None,
) -> None:
    """Predict the time of chosen tiles and print every term of the estimate."""
    spec = device_of(device, settings)
    expr = roller.ops.parse(expression)
    estimate = roller.predict(expr, device=spec, tiles=tiles_of(tiles), fragment=fragment)
    if as_json:
        print_json({"expression": str(expr), "device": spec.name, **prediction_json(estimate)})
        return
    screen = console()
    screen.print(f"{expr} on {spec.description}: terms of the prediction", soft_wrap=True)
    screen.print(terms_table(estimate))
    screen.print(prediction_text(estimate))
