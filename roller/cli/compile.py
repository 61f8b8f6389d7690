"""``roller compile``: construct, build, check and time candidates, and keep the best one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import roller
from roller.backends.parse_device_names import is_reachable_device_name
from roller.cli.cache import local_time_text
from roller.cli.shared_options_and_tables import (
    DeterministicOption,
    DeviceOption,
    ExprArgument,
    JsonOption,
    SetOption,
    ThreadsOption,
    TopKOption,
    accuracy_notes,
    candidate_json,
    candidate_status_legend,
    candidates_table,
    check_writable,
    console,
    load_device_spec,
    prediction_text,
    print_json,
    seconds,
)
from roller.compiler.compiled_kernel import CompiledKernel
from roller.targets import is_simulated_device, target_for

#: Message on how a doubtful time is treated.
DOUBTFUL_RULE = "It is not kept as final: the next compile measures again, better on a quieter machine"

OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="Write the artifact of the best kernel here.")]
CacheOption = Annotated[bool, typer.Option("--cache/--no-cache", help="Take the kernel from the cache, and keep it.")]
RefineOption = Annotated[
    float,
    typer.Option("--refine", metavar="SECONDS", min=0, help="Then search around the fastest candidate for this time."),
]
ProveOption = Annotated[
    bool, typer.Option("--prove", help="Run it on the emulator, for a device that is not here (needs g++).")
]
ProveSecondsOption = Annotated[
    float | None, typer.Option("--prove-s", metavar="SECONDS", min=0.01, help="Seconds a proof may run; 20 by default.")
]
RemeasureOption = Annotated[
    bool, typer.Option("--remeasure", help="Choose and time again even if the kernel is cached.")
]
SourceOption = Annotated[bool, typer.Option("--source", help="Print the best kernel's source as well.")]


def compile_command(
    expression: ExprArgument,
    device: DeviceOption = "cpu",
    top_k: TopKOption = 10,
    out: OutOption = None,
    source: SourceOption = False,
    cache: CacheOption = True,
    deterministic: DeterministicOption = False,
    refine: RefineOption = 0.0,
    prove: ProveOption = False,
    prove_s: ProveSecondsOption = None,
    remeasure: RemeasureOption = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Compile an operator and print its candidates with predicted and measured times side by side.

    On a GPU of this machine (--device cuda:0), all candidates are checked and timed; --set then changes the device
    numbers used for construction. For a device that is not here, the best candidate is lowered to source and nothing is
    measured.
    """
    if out is not None:
        check_writable(out)
    expr = roller.ops.parse(expression)
    spec = load_device_spec(device, settings)
    kernel = roller.compile(
        expr,
        device=device if is_reachable_device_name(device) else spec,
        spec=spec if is_reachable_device_name(device) else None,
        top_k=top_k,
        cache=cache,
        deterministic=deterministic,
        refine_s=refine,
        prove=prove or prove_s is not None,
        prove_s=prove_s,
        remeasure=remeasure,
        threads=threads,
    )
    if out is not None:
        kernel.artifact.save(out)
    best = next((c for c in kernel.candidates if c.program == kernel.program), None)
    if as_json:
        print_json(
            {
                "expression": str(expr),
                "device": spec.name,
                "best": best.id if best is not None else None,
                "candidates": [candidate_json(c) for c in kernel.candidates],
                "artifact": str(out) if out is not None else None,
                "cached_at": kernel.cached_at,
                "doubt": kernel.doubt or None,
                "ranking_refused": kernel.ranking_refused or None,
                **({"source": kernel.source} if source else {}),
            }
        )
        return
    screen = console()
    screen.print(candidates_table(kernel.candidates, f"{expr} on {spec.title}", best.id if best else None))
    for line in candidate_status_legend(kernel.candidates):
        screen.print(line)
    if best is not None and best.status == "checked":
        screen.print(f"{prediction_text(kernel.estimate)}; built and checked, not timed: it was not in question")
    elif best is None or best.measured_s is None:
        screen.print(f"predicted {seconds(kernel.estimate.seconds)}; not measured: this device was not run")
    else:
        how = "pretended" if is_simulated_device(device) else "measured"
        screen.print(f"{how} {seconds(best.measured_s)}, predicted {seconds(kernel.estimate.seconds)}")
    for note in _timing_notes(kernel):
        screen.print(note, soft_wrap=True)
    if best is not None and best.proved:
        screen.print(f"proof: {best.proved}", soft_wrap=True)
    if source_only := target_for(spec).source_only:
        screen.print(f"{source_only}.", soft_wrap=True)
    screen.print(f"program: {kernel.program}", soft_wrap=True)
    for note in accuracy_notes([kernel.program]):
        screen.print(note, soft_wrap=True)
    if out is not None:
        screen.print(f"artifact: {out}", soft_wrap=True)
    if source:
        typer.echo(kernel.source)


def _timing_notes(kernel: CompiledKernel) -> list[str]:
    """Return notes on the origin and reliability of the times."""
    notes = []
    if kernel.cached_at is not None:
        ran = any(c.status in ("measured", "checked") for c in kernel.candidates)
        notes.append(f"from the cache, {'measured' if ran else 'stored'} on {local_time_text(kernel.cached_at)}"
                     f"{' (--remeasure measures again)' if ran else ''}")  # fmt: skip
    if kernel.doubt:
        notes += [f"doubtful: {kernel.doubt}.", f"{DOUBTFUL_RULE}."]
    elif any(c.status == "doubtful" for c in kernel.candidates):
        notes.append(f"doubtful: timed while other programs disturbed it. {DOUBTFUL_RULE}.")
    elif kernel.ranking_refused:
        notes.append(f"not ranked: {kernel.ranking_refused}. The times themselves are of undisturbed windows.")
    return notes
