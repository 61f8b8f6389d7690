"""``roller compile-model``: compile an ONNX model's kernels once each; write a folder that runs without a compiler."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from roller.backends.parse_device_names import is_reachable_device_name
from roller.cli.compile import DOUBTFUL_RULE
from roller.cli.device_spec_warnings import note_unprobed_processor
from roller.cli.shared_options_and_tables import (
    DeterministicOption,
    JsonOption,
    SetOption,
    ThreadsOption,
    TopKOption,
    UsageError,
    WorkersOption,
    check_choice,
    console,
    load_device_spec,
    print_json,
    seconds,
    truncated_first_line,
)
from roller.cli.verbosity import is_quiet
from roller.compiler.autotune.prove_on_emulator import PROVE_ALL_S
from roller.errors import LaunchError, ModelError, UnsupportedError, counted
from roller.hardware import THIS_MACHINE, load_spec
from roller.models.argument_validation import FALLBACKS
from roller.models.batch.progress import GOES_ON
from roller.runtime.replace_saved_model import check_replaceable, replace_model_folder
from roller.targets import canonical_device_name
from roller_runtime.plan.program_steps import Foreign
from roller_runtime.timing.disturbance import count_alike_texts

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec
    from roller.models.compiled_model import CompiledModel
    from roller.models.graph.lowered_parts import RefusedNode
    from roller.models.graph.model_graph import Graph
    from roller.models.session.gpu_bundle import Expected
    from roller_runtime.plan.program_steps import Program

_LOG = logging.getLogger(__name__)

#: Descriptions of a kernel's possible origins.
ORIGINS = {
    "cached": "found in the cache",
    "compiled": "compiled now",
    "predicted": "the best prediction, as the budget ended before others were tried",
}
#: Runtimes that may compute nodes that cannot be compiled.
RUNTIMES = tuple(name for name in FALLBACKS if name is not None)
#: Number of kernels to print, those with the largest predicted share first.
_SHOWN = 12

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file (or TensorFlow's .pb).")]
DeviceOption = Annotated[str, typer.Option("--device", "-d", help="'cpu', 'cuda:0', or a name of `roller devices`.")]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Batch size; the model's own when absent.")]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", metavar="INPUT=1x3x224x224", help="Shape of an input; may be repeated.")
]
BudgetOption = Annotated[
    float | None,
    typer.Option("--budget", metavar="SECONDS", min=0, help="Time limit for trying more than the best prediction."),
]
FallbackOption = Annotated[
    str | None, typer.Option("--fallback", metavar="onnxruntime", help="Runtime for nodes that cannot be compiled.")
]
SchedulerOption = Annotated[
    str | None, typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Dask scheduler whose workers build.")
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write the compiled model to.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the folder of --out if roller wrote it.")]
CacheOption = Annotated[bool, typer.Option("--cache/--no-cache", help="Take kernels from the cache, and keep them.")]
ProveOption = Annotated[
    float, typer.Option("--prove-s", metavar="SECONDS", min=0, help="With --out, for a GPU elsewhere: emulate kernels.")
]
RemeasureOption = Annotated[
    bool, typer.Option("--remeasure", help="Choose and time kernels again even if they are cached.")
]
ListOption = Annotated[
    bool,
    typer.Option("--list-unsupported", help="Only list nodes that cannot be compiled; exit code 2 if there are any."),
]


def compile_model_command(
    model: ModelArgument,
    device: DeviceOption = "cpu",
    batch: BatchOption = None,
    shapes: ShapeOption = None,
    budget: BudgetOption = None,
    top_k: TopKOption = "auto",
    fallback: FallbackOption = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    threads: ThreadsOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    cache: CacheOption = True,
    deterministic: DeterministicOption = False,
    prove_s: ProveOption = PROVE_ALL_S,
    remeasure: RemeasureOption = False,
    as_json: JsonOption = False,
    list_unsupported: ListOption = False,
    settings: SetOption = None,
) -> None:
    """Compile an ONNX model: each distinct kernel is compiled once, in parallel, or taken from the cache.

    Kernels for a GPU elsewhere run on the emulator before they are written, for at most --prove-s seconds (default 120,
    0 for none); the next candidate replaces a wrong kernel, and unproved kernels are listed.

    Exits with code 2 if some nodes cannot be compiled: all of them are listed, and nothing is compiled.
    """
    if fallback is not None:
        check_choice("--fallback", fallback, RUNTIMES)
    if out is not None:
        check_replaceable(out, force)
    try:
        if list_unsupported:
            return _list_unsupported(_read_graph_or_exit(model, batch, shapes, as_json, fallback), as_json)
        made = compile_or_list_unsupported(
            model, _device_or_changed_spec(device, settings), batch, shapes, fallback, as_json, top_k=top_k,
            budget_s=budget,
            scheduler=scheduler, workers=workers, threads=threads, cache=cache, deterministic=deterministic,
            prove_s=0.0 if out is None else prove_s, remeasure=remeasure,
        )  # fmt: skip
        if out is not None:
            expected = _onnxruntime_results(made, model) if made.spec.traits.discrete else ()
            with replace_model_folder(out, force) as target:
                made.save(target, expected)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*(stop.args or (f"interrupted.{f' {GOES_ON}' if cache else ''}",))) from None
    if as_json:
        print_json(_compiled_model_json(made, out))
    else:
        _print_compiled_model(made, out)


def compile_or_list_unsupported(
    model: Path, device: str | DeviceSpec, batch: int | None, shapes: Sequence[str] | None, fallback: str | None,
    as_json: bool, **options: Any,
) -> CompiledModel:  # fmt: skip
    """Compile the model, or list its unsupported nodes and exit with code 2."""
    from roller.models import compile as stages
    from roller.models.options import ModelOptions

    how = ModelOptions(**options, progress=False if is_quiet() else None)
    if model.is_file():
        _LOG.info("reading %s", model)

    def read_and_partition() -> Program:
        return _partition_or_exit(_read_graph_or_exit(model, batch, shapes, as_json, fallback), fallback, as_json)

    # Read before the compilation starts, so that no progress bar is printed above the list of unsupported nodes.
    program = stages.load_or_partition_program(
        read_and_partition, model, batch, parse_shapes(shapes), noted=how.cache and fallback is None
    )
    return stages.compile_for_device(program, device, how)


def _device_or_changed_spec(name: str, settings: Sequence[str] | None) -> str | DeviceSpec:
    """Return the device's name, or its changed specification if ``settings`` override values."""
    if settings and is_reachable_device_name(name):
        raise UsageError(f"--set: expected the name of a specification, got --device {name}. Name one, e.g. h200.")
    if settings:
        return load_device_spec(name, settings)
    if canonical_device_name(name) == THIS_MACHINE:
        note_unprobed_processor(name, load_spec(name))
    return name


def _read_graph_or_exit(
    model: Path, batch: int | None, shapes: Sequence[str] | None, as_json: bool, fallback: str | None = None
) -> Graph:
    """Return the model's graph; if nodes are unsupported, list them all and exit with code 2."""
    from roller.models.compile import read_folded_graph

    try:
        return read_folded_graph(model, batch=batch, shapes=parse_shapes(shapes), fallback=fallback)
    except UnsupportedError as err:
        typer.echo(f"roller: error: {err}", err=True)
        if as_json:
            print_json(
                {"model": err.model, "nodes": None, "unsupported": [_parse_refused_node(node) for node in err.nodes]}
            )
        raise typer.Exit(2) from None


def _onnxruntime_results(made: CompiledModel, model: Path) -> tuple[Expected, ...]:
    """Return ONNX Runtime's results for checking a GPU bundle; if there are none, print why and return ``()``."""
    from roller.models.onnxruntime_reference import make_random_expected_outputs

    try:
        return (make_random_expected_outputs(model, made.plan.program),)
    except LaunchError as err:
        typer.echo(f"The bundle holds nothing to check results against: {err}", err=True)
        return ()


def parse_shapes(settings: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Parse ``NAME=1x3x224x224`` or ``NAME=1,3,224,224`` settings; return the shapes by input name.

    Examples
    --------
    >>> parse_shapes(["image=1x3x224x224", "scale=", "audio=1,8,500"])
    {'image': (1, 3, 224, 224), 'scale': (), 'audio': (1, 8, 500)}
    """
    shapes = {}
    for text in settings or ():
        name, equals, sizes = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"(\d+([x,]\d+)*)?", sizes):
            raise typer.BadParameter(f"--shape: expected INPUT=1x3x224x224 or INPUT=1,3,224,224, got '{text}'.")
        if name in shapes:
            raise typer.BadParameter(f"--shape: expected one shape of '{name}', got two. Leave one out.")
        shapes[name] = tuple(int(s) for s in re.split("[x,]", sizes) if s)
    return shapes


def _partition_or_exit(graph: Graph, fallback: str | None, as_json: bool) -> Program:
    """Partition the graph; if nodes cannot be compiled, list them all and exit with code 2."""
    from roller.models.compile import partition_graph
    from roller.models.onnx.lower_graph import lower_graph

    try:
        return partition_graph(graph, fallback=fallback)
    except ModelError:
        refused = lower_graph(graph).refused
        if not refused:
            raise
    _print_unsupported_nodes(graph, refused, as_json)
    raise typer.Exit(2)


def _parse_refused_node(refused: str) -> dict[str, str]:
    """Parse the node, operator and reason from a line of the ONNX reader's output.

    Examples
    --------
    >>> _parse_refused_node("NonZero 'nz': it depends on data")
    {'node': 'nz', 'operator': 'NonZero', 'reason': 'it depends on data'}
    """
    operator, _, rest = refused.partition(" '")
    node, _, reason = rest.partition("': ")
    return {"node": node, "operator": operator, "reason": reason}


def _list_unsupported(graph: Graph, as_json: bool) -> None:
    from roller.models.onnx.lower_graph import lower_graph

    refused = lower_graph(graph).refused
    _print_unsupported_nodes(graph, refused, as_json)
    if refused:
        raise typer.Exit(2)


def _print_unsupported_nodes(graph: Graph, refused: Sequence[RefusedNode], as_json: bool) -> None:
    rows = [{"node": r.node.name or r.node.outputs[0], "operator": r.node.op, "reason": r.reason} for r in refused]
    if as_json:
        print_json({"model": graph.name, "nodes": len(graph.nodes), "unsupported": rows})
        return
    screen = console()
    if not rows:
        screen.print(f"{graph.name}: {counted(len(graph.nodes), 'node')}, all can be compiled")
        return
    title = f"{graph.name}: {len(rows)} of {counted(len(graph.nodes), 'node')} cannot be compiled; nothing was"
    table = Table("node", "operator", "reason", title=title, box=box.SIMPLE, title_justify="left")
    for row in rows:
        table.add_row(row["node"], row["operator"], row["reason"])
    screen.print(table)
    screen.print("Add --fallback onnxruntime to run these nodes, and only these, with ONNX Runtime.")


def _compiled_model_json(made: CompiledModel, out: Path | None) -> dict[str, Any]:
    return {
        "model": made.plan.program.name,
        "device": made.spec.name,
        "steps": len(made.plan.program.steps),
        "kernels": len(made.artifacts),
        "outside": [n for s in made.plan.program.steps if isinstance(s, Foreign) for n in s.nodes],
        "origins": {origin: made.batch.count(origin) for origin in sorted(set(made.batch.origins.values()))},
        "arena_bytes": made.plan.arena_bytes,
        "predicted_s": sum(row["share_s"] for row in made.rows),
        "ways": [] if made.launches is None else [asdict(made.launches)],
        "seconds": dict(made.seconds),
        "layouts": made.layouts,
        "kernel_rows": list(made.rows),
        "doubtful": _count_disturbances(made),
        "out": str(out) if out is not None else None,
    }


#: Readable names of compilation stages.
_STAGES = {"coschedule": "choosing what runs side by side"}


def _print_compiled_model(made: CompiledModel, out: Path | None) -> None:
    screen, rows, program = console(), made.rows, made.plan.program
    total = sum(row["share_s"] for row in rows)
    table = Table(title=f"{program.name} on {made.spec.title}", box=box.SIMPLE, title_justify="left")
    for name in ("share", "runs", "predicted", "measured"):
        table.add_column(name, justify="right")
    for name in ("bound by", "from", "kernel"):
        table.add_column(name)
    for row in rows[:_SHOWN]:
        share = f"{100 * row['share_s'] / (total or 1.0):.1f} %"
        table.add_row(share, str(row["runs"]), seconds(row["predicted_s"]), seconds(row["measured_s"]),
                      row["bottleneck"], row["origin"], truncated_first_line(row["label"], 60))  # fmt: skip
    if rows:
        screen.print(table)
    if len(rows) > _SHOWN:
        more = counted(len(rows) - _SHOWN, "more kernel")
        screen.print(f"and {more} with {_percent_of_time_not_shown(rows, total):.1f} % of the predicted time")
    origins = ", ".join(f"{made.batch.count(o)} {o}" for o in sorted(set(made.batch.origins.values())))
    meant = "; ".join(f"{o} = {ORIGINS[o]}" for o in sorted(set(made.batch.origins.values())))
    if rows:
        screen.print(f"from: {meant}")
    took = ", ".join(f"{_STAGES.get(name, name)} {seconds(s)}" for name, s in made.seconds.items())
    kernels, steps = counted(len(rows), "kernel"), counted(len(program.steps), "step")
    screen.say(f"{kernels} in {steps}{': ' if rows else ''}{origins}. {took}.")
    screen.print(made.layouts, soft_wrap=True)
    alone = "" if made.launches is None else " with one kernel after another"
    beside = f"{made.plan.arena_bytes / 1e6:.2f} MB beside inputs and outputs"
    screen.print(f"predicted {seconds(total)} a call{alone}, {beside}")
    if made.launches is not None:
        forecast = made.launches
        predicted = seconds(forecast.predicted_s)
        screen.print(f"{forecast.name}: {forecast.launches} launches a call, predicted {predicted}")
    for why, count in _count_disturbances(made).items():
        screen.print(f"doubtful: {counted(count, 'kernel')}: {why}", soft_wrap=True)
    if _count_disturbances(made):
        screen.print(f"{DOUBTFUL_RULE}.", soft_wrap=True)
    for known, count in sorted(Counter(str(row["proved"]) for row in rows if row["proved"]).items()):
        screen.print(f"{known}: {counted(count, 'kernel')}", soft_wrap=True)
    if out is not None:
        elsewhere = made.spec.traits.discrete and not made.runs_here
        run = (
            f"python -m roller.models.session.bundle run {out} --json r.json"
            if elsewhere
            else f"roller run-model {out}"
        )
        where = f" on a machine with device {made.spec.name}" if elsewhere else ""
        screen.print(f"{out}: written. Run it{where}: {run}", soft_wrap=True)


def _count_disturbances(made: CompiledModel) -> dict[str, int]:
    """Count kernels by the disturbance of their timing; descriptions that differ only in numbers count as one."""
    return dict(count_alike_texts([a.doubt.rpartition(": ")[0] or a.doubt for a in made.artifacts.values() if a.doubt]))


def _percent_of_time_not_shown(rows: Sequence[Mapping[str, Any]], total: float) -> float:
    return float(100 * sum(row["share_s"] for row in rows[_SHOWN:]) / total)
