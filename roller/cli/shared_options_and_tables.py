"""Options, tables, number formats and JSON output that several commands share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from roller.backends.parse_device_names import is_reachable_device_name
from roller.cli.device_spec_warnings import note_unprobed_processor, warn_of_suspicious_spec
from roller.cli.screen import console as console
from roller.cli.usage_error import UsageError as UsageError
from roller.errors import ArtifactError, ExprError, did_you_mean, shown
from roller.expr import OFFSET_ELEMENTS, TensorExpr
from roller.hardware import DeviceSpec, load_spec
from roller.hardware.driver_reported_memory import device_memory_capacity
from roller.runtime.candidate_records import STATUSES
from roller.runtime.filter_operator_ids import filter_ids
from roller.tile.winograd import ACCURACY
from roller_runtime.core.display import seconds_text
from roller_runtime.core.files import check_folder_writable, read_text

if TYPE_CHECKING:
    from roller.perf import Estimate
    from roller.tile import RProgram


def parse_top_k(text: str | int) -> int | str:
    """Parse ``--top-k``: a number of candidates, or ``"auto"``."""
    if text == "auto":
        return "auto"
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise typer.BadParameter(f"expected a whole number of at least 1 or 'auto', got {shown(text)}.")
    return count


#: Format seconds with a suitable unit.
seconds = seconds_text


def check_choice(option: str, value: str, known: Iterable[str]) -> str:
    """Return an option's ``value`` if it is one of ``known``; otherwise raise an error.

    Examples
    --------
    >>> check_choice("--kind", "gpuu", ("cpu", "gpu"))
    Traceback (most recent call last):
    roller.cli.usage_error.UsageError: --kind: expected 'cpu' or 'gpu', got 'gpuu'; did you mean 'gpu'?
    """
    names = tuple(known)
    if value not in names:
        expected = " or ".join(f"'{n}'" for n in names)
        hint = did_you_mean(value, names) or f". Write {names[0]}."
        raise UsageError(f"{option}: expected {expected}, got {shown(value)}{hint}")
    return value


ExprArgument = Annotated[
    str,
    typer.Argument(
        metavar="OP",
        help="An operator with its arguments: \"matmul(m=512, n=768, k=1024, dtype='float16', epilogue=('bias', "
        "'relu'))\". `roller --list-operators` lists operators, arguments and steps of epilogues.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", "-d", help="Name of `roller devices`, 'cpu', or a YAML file.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads a call may use; all cores of the processor by default.")
]
TopKOption = Annotated[
    Any,
    typer.Option(
        "--top-k",
        "-k",
        metavar="K|auto",
        parser=parse_top_k,
        help="Best candidates to keep; auto: those worth timing.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes that build at a time.")]
DeterministicOption = Annotated[
    bool, typer.Option("--deterministic", help="Time nothing: the best prediction that builds and is correct.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a number of the device; may be repeated."),
]


def parse_overrides(settings: Sequence[str] | None) -> dict[str, float]:
    """Parse ``FIELD=VALUE`` settings; return the values by dotted path."""
    overrides: dict[str, float] = {}
    for text in settings or ():
        field, equals, value = text.partition("=")
        try:
            overrides[field.strip()] = float(value)
        except ValueError:
            problem = f"got '{text}'" if equals else f"got '{text}' without '='"
            raise UsageError(f"--set: expected FIELD=NUMBER, {problem}. Write for example --set units=40.") from None
    return overrides


def load_device_spec(name: str, settings: Sequence[str] | None, *, tells: bool = True) -> DeviceSpec:
    """Load a device spec with overrides; if ``tells``, warn about suspicious values in a YAML file of the user's."""
    overrides = parse_overrides(settings)
    if is_reachable_device_name(name):
        from roller.compile_arguments import spec_and_local_device  # reaches drivers

        return spec_and_local_device(name)[0].with_overrides(overrides)
    spec = load_spec(name, overrides)
    note_unprobed_processor(name, spec)
    if tells:
        warn_of_suspicious_spec(name)
    return spec


def parse_tiles(settings: Sequence[str] | None, option: str = "--tile") -> dict[str, dict[str, int] | tuple[int, ...]]:
    """Parse ``LAYER=AXIS:EXTENT,...`` or ``LAYER=EXTENT,...`` settings; return the tiles by layer.

    Examples
    --------
    >>> parse_tiles(["shared=i:64,j:64,k:8", "register=4,4,1"])
    {'shared': {'i': 64, 'j': 64, 'k': 8}, 'register': (4, 4, 1)}
    """
    tiles: dict[str, dict[str, int] | tuple[int, ...]] = {}
    for text in settings or ():
        layer, _, body = text.partition("=")
        parts = [p.strip() for p in body.split(",")]
        try:
            if all(":" in p for p in parts):
                pairs = [p.rpartition(":") for p in parts]
                tiles[layer.strip()] = {axis.strip(): int(extent) for axis, _, extent in pairs}
            else:
                tiles[layer.strip()] = tuple(int(p) for p in parts)
        except ValueError:
            raise UsageError(
                f"{option}: expected LAYER=AXIS:EXTENT,... or LAYER=EXTENT,..., got '{text}'. "
                f"Write for example {option} shared=i:64,j:64,k:8."
            ) from None
    return tiles


#: Example of a file of operators, for error messages.
OPERATORS_EXAMPLE = "operators:\n  - {id: projection, op: matmul, M: 4096, N: 4096, K: 1024, dtype: float16}"


def read_operator_rows(path: Path, pattern: str) -> list[Mapping[str, Any]]:
    """Return the rows of a YAML file of operators whose id matches ``pattern``."""
    import yaml

    try:
        data = yaml.safe_load(read_text(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as err:
        raise ExprError(f"{path}: cannot read the operators ({err}). Check the path.") from err
    rows = data.get("operators") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(r, dict) and "id" in r for r in rows):
        raise ExprError(
            f"{path}: expected 'operators:' with a list of rows that have an id, such as\n{OPERATORS_EXAMPLE}\n"
            "docs/command-line.md describes the columns."
        )
    if not rows:
        raise ExprError(f"{path}: expected at least one operator, got none. Add rows such as\n{OPERATORS_EXAMPLE}")
    wanted = set(filter_ids([str(r["id"]) for r in rows], pattern, str(path), ExprError))
    return [r for r in rows if str(r["id"]) in wanted]


def check_writable(path: Path) -> None:
    """Raise an error if an output file cannot be written; called before any work is done."""
    if path.is_dir():
        raise ArtifactError(f"{path}: expected a file, got a folder. Name a file in it.")
    if path.exists() and not path.is_file():
        raise ArtifactError(f"{path}: expected a file, got a pipe or a device. Name a file.")
    if not path.absolute().parent.is_dir():
        raise ArtifactError(f"{path}: the folder {path.absolute().parent} does not exist. Create it first.")
    if not path.exists():
        try:
            check_folder_writable(path.absolute().parent)
        except OSError as err:
            raise ArtifactError(f"{path}: cannot write ({err.strerror}). Choose a writable folder.") from err


def prediction_text(estimate: Estimate) -> str:
    """Format the predicted time, its expected error and its bottleneck."""
    low, high = estimate.interval_s
    spread = "" if estimate.expected_error is None else f"{estimate.spread} ({seconds(low)} to {seconds(high)})"
    return f"predicted {seconds(estimate.seconds)}{spread}, bound by {estimate.bottleneck}"


def tile_text(extents: dict[str, int]) -> str:
    """Format the extents above 1 as ``"axis=extent ..."``; return ``"1"`` if there are none."""
    return " ".join(f"{axis}={extent}" for axis, extent in extents.items() if extent > 1) or "1"


def candidate_json(candidate: Any) -> dict[str, Any]:
    """Return one candidate as JSON-ready data."""
    return {
        "id": candidate.id,
        "status": candidate.status,
        "reason": candidate.reason,
        "proved": candidate.proved or None,
        **prediction_json(candidate.estimate),
        "measured_s": candidate.measured_s,
        **program_json(candidate.program),
    }


def prediction_json(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON-ready data: seconds, expected error, interval, bottleneck and terms."""
    return {
        "predicted_s": estimate.seconds,
        "expected_error": estimate.expected_error,
        "interval_s": list(estimate.interval_s),
        "bottleneck": estimate.bottleneck,
        "terms": dict(estimate.terms),
    }


def program_json(program: RProgram) -> dict[str, Any]:
    """Return a program's text, tiles and properties as JSON-ready data."""
    return {
        "program": str(program),
        "tiles": {layer: program.tile(layer) for layer in program.layers},
        "mechanisms": list(program.mechanisms),
        "emitted": program.emitted,
        "relaxed": list(program.relaxed),
        **({"accuracy": ACCURACY} if program.traits.output_side else {}),
    }


def candidates_table(candidates: Iterable[Any], title: str, best_id: str | None = None) -> Table:
    """Return a table of candidates with their predicted times and, if any were measured, measured times."""
    rows = list(candidates)
    layers = rows[0].program.layers if rows else ()
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("predicted", justify="right")
    timed = any(x.measured_s is not None for x in rows) or best_id is not None
    if timed:
        table.add_column("measured", justify="right")
    table.add_column("structure")
    table.add_column("bound by")
    for layer in layers:
        table.add_column(f"{layer} tile")
    shows_how = any(x.program.mechanisms for x in rows)
    if shows_how:
        table.add_column("with")
    table.add_column("status")
    for rank, x in enumerate(rows, 1):
        tiles = [tile_text(x.program.tile(n)) if n in x.program.layers else "-" for n in layers]
        status = x.status + (" (best)" if x.id == best_id else "")
        status += "" if x.program.emitted else ", not emitted"
        if x.program.relaxed:
            status += f", relaxed {','.join(x.program.relaxed)}"
        if x.reason and x.status != "doubtful":  # the reason for doubt is printed once, below the table
            status += f": {truncated_first_line(x.reason)}"
        if x.proved:
            status += f", {truncated_first_line(x.proved)}"
        predicted = seconds(x.estimate.seconds) + x.estimate.spread
        measured = [seconds(x.measured_s)] if timed else []
        how = [" ".join(x.program.mechanisms)] if shows_how else []
        table.add_row(str(rank), predicted, *measured, x.program.structure, x.estimate.bottleneck, *tiles, *how, status)
    return table


def candidate_status_legend(candidates: Sequence[Any]) -> list[str]:
    """Return a list with one line that explains the candidates' statuses; an empty list if none needs explaining."""
    meanings = {"constructed": "not built", **STATUSES}
    found = {c.status for c in candidates}
    said = [f"{name} = {text}" for name, text in meanings.items() if name in found]
    if not all(c.program.emitted for c in candidates):
        said.append(
            "not emitted = priced alone: no template has code for its matrix instruction, which compile leaves out"
        )
    if any(c.program.relaxed for c in candidates):
        said.append("relaxed RULE = does not meet this rule of alignment, and is priced for it")
    return [f"status: {'; '.join(said)}"] if said else []


def size_limit_notes(expr: TensorExpr, spec: DeviceSpec) -> list[str]:
    """Return notes on limits that prevent an expression's programs from running, although these can be priced."""
    notes = [
        f"'{t.name}' has {t.elements:,} elements: offsets in kernels are 32 bits wide, so compile refuses "
        f"{OFFSET_ELEMENTS:,} and more. Split the operator."
        for t in expr.tensors.values()
        if t.elements >= OFFSET_ELEMENTS
    ]
    size = device_memory_capacity(spec).bytes
    if expr.compulsory_bytes > size:
        notes.append(
            f"inputs and outputs take {expr.compulsory_bytes:,} bytes, {spec.memory_layers[-1].name} memory of "
            f"{spec.name} has {size:,}: they do not fit."
        )
    return notes


def accuracy_notes(programs: Iterable[RProgram]) -> list[str]:
    """Return a note on structures whose results differ from a direct sum's (Winograd); otherwise an empty list."""
    found = sorted({p.structure for p in programs if p.traits.output_side})
    return [f"{', '.join(found)}: {ACCURACY}"] if found else []


def time_terms_table(estimate: Estimate) -> Table:
    """Return a table of an estimate's terms."""
    table = Table(box=box.SIMPLE)
    table.add_column("term")
    table.add_column("value", justify="right")
    for name, value in estimate.terms.items():
        table.add_row(name, seconds(value) if name.endswith("_s") and not name.endswith("per_s") else f"{value:,.6g}")
    return table


def truncated_first_line(text: str, width: int = 100) -> str:
    """Return the first line of a text, truncated to ``width``."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= width else line[: width - 1] + "…"


def print_json(data: Any) -> None:
    """Print data as indented JSON, with non-finite numbers replaced by null."""
    typer.echo(json.dumps(_replace_nonfinite(data), indent=2, allow_nan=False))


def _replace_nonfinite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {k: _replace_nonfinite(v) for k, v in data.items()}
    return [_replace_nonfinite(v) for v in data] if isinstance(data, (list, tuple)) else data
