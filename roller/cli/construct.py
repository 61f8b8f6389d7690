"""``roller construct``: construct and rank programs without TVM and without a device."""

from __future__ import annotations

import time
from typing import Annotated

import typer

import roller
from roller.cli.shared_options_and_tables import (
    DeviceOption,
    ExprArgument,
    JsonOption,
    SetOption,
    TopKOption,
    accuracy_notes,
    candidate_json,
    candidate_status_legend,
    candidates_table,
    console,
    load_device_spec,
    print_json,
    size_limit_notes,
)
from roller.perf.matrix_unit_notes import notes_on_matrix_unit

StatsOption = Annotated[bool, typer.Option("--stats", help="Also print the time that construction took.")]


def construct_command(
    expression: ExprArgument,
    device: DeviceOption = "cpu",
    top_k: TopKOption = 10,
    as_json: JsonOption = False,
    settings: SetOption = None,
    stats: StatsOption = False,
) -> None:
    """Construct aligned programs for a device and print them by predicted time; nothing is built or run."""
    spec = load_device_spec(device, settings)
    expr = roller.ops.parse(expression)
    start = time.process_time()
    candidates = roller.construct(expr, device=spec, options=roller.ConstructOptions(top_k=top_k))
    seconds = time.process_time() - start
    notes = [
        *accuracy_notes(c.program for c in candidates),
        *size_limit_notes(expr, spec),
        *notes_on_matrix_unit([expr], spec),
    ]
    if as_json:
        rows = [candidate_json(c) for c in candidates]
        search = {"stats": {"processor_s": seconds}} if stats else {}
        print_json({"expression": str(expr), "device": spec.name, "candidates": rows, "notes": notes, **search})
        return
    screen = console()
    screen.print(candidates_table(candidates, f"{expr} on {spec.title}: predicted, not measured"))
    for line in candidate_status_legend(candidates):
        screen.print(line)
    screen.print("names, for `roller predict --program` and `roller explain --why-not`, in single quotes:")
    for rank, c in enumerate(candidates, 1):
        screen.print(f"{rank:>3} {c.program}", soft_wrap=True)
    for note in notes:
        screen.print(note, soft_wrap=True)
    if top_k != "auto" and len(candidates) < top_k:
        screen.print(f"{len(candidates)} distinct programs exist; {top_k} were asked for")
    if stats:
        screen.print(f"constructed in {seconds:.3f} s of one processor")
