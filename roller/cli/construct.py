"""``roller construct``: ranked programs without TVM and without a device."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import roller
from roller.cli.common import (
    DeviceOption,
    ExprArgument,
    JsonOption,
    SetOption,
    TopKOption,
    accuracy_notes,
    candidate_json,
    candidates_table,
    console,
    device_of,
    legend,
    one_of,
    print_json,
    size_notes,
)
from roller.construction.options import POLICIES

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.construction.sokoban import SokobanReport
    from roller.hardware import DeviceSpec

PolicyOption = Annotated[
    str, typer.Option("--policy", help="'roller' constructs in milliseconds, 'sokoban' enumerates all tilings.")
]
StatsOption = Annotated[bool, typer.Option("--stats", help="Also print what the search did, and its time.")]


def construct_command(
    expression: ExprArgument,
    device: DeviceOption = "cpu",
    top_k: TopKOption = 10,
    as_json: JsonOption = False,
    settings: SetOption = None,
    policy: PolicyOption = "roller",
    stats: StatsOption = False,
) -> None:
    """Construct aligned programs for a device and print them by predicted time; nothing is built or run."""
    one_of("--policy", policy, POLICIES)
    spec = device_of(device, settings)
    expr = roller.ops.parse(expression)
    start = time.process_time()
    candidates, searched = _candidates(expr, spec, roller.ConstructOptions(top_k=top_k, policy=policy))
    seconds = time.process_time() - start
    did = {} if searched is None else asdict(searched)
    notes = [*accuracy_notes(c.program for c in candidates), *size_notes(expr, spec)]
    if as_json:
        rows = [candidate_json(c) for c in candidates]
        search = {"stats": {"policy": policy, "processor_s": seconds, **did}} if stats else {}
        print_json({"expression": str(expr), "device": spec.name, "candidates": rows, "notes": notes, **search})
        return
    screen = console()
    screen.print(candidates_table(candidates, f"{expr} on {spec.description}: predicted, not measured"))
    for line in legend(candidates):
        screen.print(line)
    screen.print("names, for `roller predict --program` and `roller explain --why-not`, in single quotes:")
    for rank, c in enumerate(candidates, 1):
        screen.print(f"{rank:>3} {c.program}", soft_wrap=True)
    for note in notes:
        screen.print(note, soft_wrap=True)
    if top_k != "auto" and len(candidates) < top_k:
        screen.print(f"{len(candidates)} distinct programs exist; {top_k} were asked for")
    if stats:
        counts = "".join(f", {name.replace('_', ' ')} {count:,}" for name, count in did.items())
        screen.print(f"{policy}: {seconds:.3f} s of one processor{counts}")


def _candidates(
    expr: roller.TensorExpr, spec: DeviceSpec, options: roller.ConstructOptions
) -> tuple[list[Candidate], SokobanReport | None]:
    """Return the candidates, and what the search did where it was one."""
    if options.policy != "sokoban":
        return roller.construct(expr, device=spec, options=options), None
    from roller.construction.sokoban import sokoban_candidates

    found, report = sokoban_candidates(expr, spec, options)
    return list(found), report
