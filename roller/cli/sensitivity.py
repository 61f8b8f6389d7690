"""``roller sensitivity``: show how each value of a device's specification affects predicted times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

import roller
from roller.cli.compile_model import ShapeOption, parse_shapes
from roller.cli.forecast import PolicyOption
from roller.cli.shared_options_and_tables import (
    DeviceOption,
    JsonOption,
    SetOption,
    console,
    load_device_spec,
    print_json,
    read_operator_rows,
    seconds,
)
from roller.cli.terminal_escaping import redirect_stdout_to_stderr
from roller.cli.training_options import AmpOption, parse_amps, trace_step_of_file
from roller.cli.usage_error import UsageError
from roller.errors import counted
from roller.explanation.sensitivity import Sensitivity
from roller.explanation.spec_change_effects import FieldChange, FieldEffect, shortest_number_text
from roller.hardware.sections import DTYPES
from roller.perf.matrix_unit_notes import notes_on_matrix_unit

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

OperatorsArgument = Annotated[
    str, typer.Argument(metavar="OP|FILE", help="An operator, or a YAML of them, e.g. benchmarks/operators.yaml.")
]
WorkArgument = Annotated[
    str,
    typer.Argument(
        metavar="OP|FILE",
        help="An operator, a YAML of them, an ONNX model, or an entry file in Python (as `forecast` takes it).",
    ),
]
ReconstructOption = Annotated[
    bool | None,
    typer.Option(
        "--reconstruct/--same-program",
        help="Construct anew for every changed device (one operator: default), or price the same programs (a file).",
    ),
]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Batch size of a file's operators.")]
FilterOption = Annotated[str, typer.Option("--filter", help="Ids of a file's operators, e.g. 'M*,C1?'.")]

#: Number of table rows, and of fields listed as reducible.
_ROWS, _NAMED = 20, 8


def sensitivity_command(
    operators: WorkArgument,
    device: DeviceOption = "cpu",
    reconstruct: ReconstructOption = None,
    batch: BatchOption = None,
    pattern: FilterOption = "*",
    policy: PolicyOption = None,
    amp: AmpOption = "fp32",
    shapes: ShapeOption = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Print how the predicted time changes with each number of a device, strongest effect first.

    Each number is set to a few other values, and the operator is priced again; `construct --set FIELD=VALUE` shows the
    same time. A file of operators is judged by the geometric mean of their times, a model or a step by its total time.
    Nothing is built or run.
    """
    spec = load_device_spec(device, settings)
    if operators.endswith((".onnx", ".py")):
        if reconstruct:
            raise UsageError("--reconstruct: expected operators, got a model: its programs stay as they are. Drop it.")
        _print_model_sensitivity(Path(operators), spec, ModelOrStepOptions(policy, batch, amp, shapes), as_json=as_json)
        return
    if policy is not None or amp != "fp32" or shapes:
        raise UsageError(
            "--policy, --amp, --shape: expected beside a model or an entry file, got operators. Drop them."
        )
    if operators.endswith((".yaml", ".yml")):
        rows = read_operator_rows(Path(operators), pattern)
        expressions = [roller.ops.from_spec(row, batch=batch) for row in rows]
        what = f"{counted(len(rows), 'operator')} of {operators}"
    else:
        expressions = [roller.ops.parse(operators)]
        what = str(expressions[0])
    found = roller.sensitivity(expressions, spec, reconstruct=reconstruct)
    if as_json:
        print_json({**found.to_dict(), "notes": list(notes_on_matrix_unit(expressions, spec, ours=True))})
        return
    shown = "construct" if found.reconstructed else "predict --program NAME"
    _print_effects(found, what, spec, notes_on_matrix_unit(expressions, spec, ours=True), shown)


@dataclass(frozen=True)
class ModelOrStepOptions:
    """Parsed options of ``roller sensitivity`` for a model or a step."""

    policy: str | None
    batch: int | None
    amp: str
    shapes: list[str] | None


def _print_model_sensitivity(path: Path, spec: DeviceSpec, asked: ModelOrStepOptions, *, as_json: bool) -> None:
    """Print how a device's values affect the time of a model or a training step."""
    from roller.insight import sensitivity as whole

    if path.suffix == ".onnx":
        if asked.amp != "fp32":
            raise UsageError(f"{path.name}: expected no --amp for a model, got one. Leave it out.")
        shapes = parse_shapes(asked.shapes)
        work = whole.sensitivity_of_model(path, spec, batch=asked.batch, shapes=shapes, policy=asked.policy or "roller")
    else:
        if asked.shapes:
            raise UsageError(f"{path.name}: expected no --shape beside an entry file, which makes its inputs. Drop it.")
        (amp,) = parse_amps(asked.amp)[:1]
        with redirect_stdout_to_stderr():
            work = whole.sensitivity_of_step(
                trace_step_of_file(path), spec, batch=asked.batch, amp=amp, policy=asked.policy or "library"
            )
    if as_json:
        print_json({**work.sensitivity.to_dict(), "notes": list(work.notes)})
        return
    _print_effects(work.sensitivity, f"{path.name} (device time)", spec, work.notes, f"forecast {path}")


def _print_effects(found: Sensitivity, what: str, spec: DeviceSpec, notes: Sequence[str], shown: str) -> None:
    """Print the table of effects and the value to change first, with a command that shows its effect."""
    screen = console()
    how = "constructed anew for every value" if found.reconstructed else "of the same programs"
    screen.say(f"{what} on {spec.title}: predicted times {how}")
    screen.print(_effects_table(found))
    for note in notes:
        screen.say(note)
    if found.enlarge is not None:
        for line in _advice_lines(found.enlarge, shown):
            screen.say(line)
    else:
        screen.print("no single number of the device, changed by a quarter (or doubled), makes it faster")
    plain = [x for x in found.reducible if x.field.rpartition(".")[2] not in DTYPES]
    if plain:
        named = ", ".join(
            f"{x.field}={shortest_number_text(x.change.value)} ({x.change.percent:+.2f} %)" for x in plain[:_NAMED]
        )
        more = f" and {len(found.reducible) - _NAMED} more (--json)" if len(plain) > _NAMED else ""
        screen.say(f"could be smaller, each alone: {named}{more}")


def _advice_lines(effect: FieldEffect, shown: str) -> tuple[str, ...]:
    """Return lines with the value to change first, the time that this change saves, and a command that shows it."""
    best = effect.best
    assert best is not None  # it would not be recommended
    verb = "shorten" if effect.unit == "s" else "enlarge"
    times = f"{seconds(effect.seconds[0])} -> {seconds(best.seconds[0])}, " if len(best.seconds) == 1 else ""
    setting = f"--set {effect.field}={shortest_number_text(best.value)}"
    guess = f"; that it is {shortest_number_text(effect.value)} now is assumed, not measured" if effect.assumed else ""
    time = f"{times}{best.percent:+.2f} % of the time"
    first = f"{verb} first: {effect.field} to {shortest_number_text(best.value)} ({time}){guess}"
    return first, f"roller {shown} {setting} shows it"


def _effects_table(found: Sensitivity) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("field", overflow="fold")
    table.add_column("value", justify="right")
    for side in ("smaller", "larger"):
        table.add_column(side, justify="right")
    shown = found.effects[:_ROWS]
    if found.enlarge is not None and found.enlarge not in shown:
        shown = (*shown[:-1], found.enlarge)
    for e in shown:
        mark = " *" if e.assumed else ""
        table.add_row(
            e.field,
            shortest_number_text(e.value) + mark,
            *(_value_change_text(e.beside(larger)) for larger in (False, True)),
        )
    left = len(found.effects) - _ROWS
    said = [f"{left} weaker ones in --json"] if left > 0 else []
    if len(found.operators) == 1:
        said.insert(0, f"predicted {seconds(found.seconds[0])}")
    if any(e.assumed for e in shown):
        said.append("* assumed, not measured")
    table.caption = "; ".join(said) or None
    return table


def _value_change_text(change: FieldChange | None) -> str:
    """Format a value and the resulting change in time as one table cell."""
    if change is None:
        return "-"
    effect = "does not fit" if math.isinf(change.percent) else f"{change.percent:+.1f} %"
    return f"{shortest_number_text(change.value)}: {effect}"
