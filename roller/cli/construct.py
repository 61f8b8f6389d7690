"""``roller construct``: ranked programs without TVM and without a device."""

from __future__ import annotations

import roller
from roller.cli.common import (
    DeviceOption,
    ExprArgument,
    JsonOption,
    SetOption,
    TopKOption,
    candidate_json,
    candidates_table,
    console,
    device_of,
    print_json,
)


def construct_command(
    expression: ExprArgument,
    device: DeviceOption = "cpu",
    top_k: TopKOption = 10,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Construct aligned programs for a device and print them by predicted time; nothing is built or run."""
    spec = device_of(device, settings)
    expr = roller.ops.parse(expression)
    candidates = roller.construct(expr, device=spec, top_k=top_k)
    if as_json:
        rows = [candidate_json(c) for c in candidates]
        print_json({"expression": str(expr), "device": spec.name, "candidates": rows})
        return
    screen = console()
    screen.print(candidates_table(candidates, f"{expr} on {spec.description}: predicted, not measured"))
    if top_k != "auto" and len(candidates) < top_k:
        screen.print(f"{len(candidates)} distinct programs exist; {top_k} were asked for")
