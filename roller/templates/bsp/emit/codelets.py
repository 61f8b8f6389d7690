"""Codelets: one C++ class per stage, whose workers compute a unit's tile from the unit's own copies of tensors.

The field ``place`` describes the tile to a codelet: the first point, the number of points and the maximum number of
points along every axis, the first position in every copy, and, if accumulators outlive a superstep, whether the step is
the first and whether it is the last.
"""

from __future__ import annotations

import re

from roller.expr import COMBINERS, Index, Stage, TensorExpr
from roller.templates.bsp.common.tile_and_superstep_counts import axes_contiguous_last
from roller.templates.bsp.emit.cpp_scalars import (
    PRELUDE,
    ScalarPrinter,
    axis_identifier,
    cpp_index,
    cpp_literal,
    cpp_type,
)
from roller.tile.superstep_schedule import Schedule, StagePlan, TensorPlan, codelet_name

_COMBINE = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": "largest<{2}>({0}, {1})", "min": "smallest<{2}>({0}, {1})"}


def write_codelets(expr: TensorExpr, schedule: Schedule) -> str:
    """Return the codelets of all stages, and the codelets that combine and convert the parts of a split reduction."""
    classes = [_stage_codelet_code(expr, s, p, schedule) for s, p in zip(expr.stages, schedule.stages, strict=True)]
    if schedule.combine and schedule.finish:
        classes += [
            _combine_parts_codelet_code(expr, schedule.combine, schedule),
            _convert_sums_codelet_code(expr, schedule.finish, schedule),
        ]
    return PRELUDE + "\n" + "\n".join(classes)


def _stage_codelet_code(expr: TensorExpr, stage: Stage, plan: StagePlan, schedule: Schedule) -> str:
    printer = ScalarPrinter(expr, lambda tensor, at: _offset_in_copy_code(schedule.tensor(tensor), at))
    body, _ = printer.scalar(stage.body)
    return _codelet_class_code(
        plan,
        _codelet_field_lines(expr, plan, schedule),
        stage,
        _point_statement_lines(expr, stage, plan, schedule, body),
    )


def _codelet_class_code(plan: StagePlan, fields: list[str], stage: Stage, point: list[str]) -> str:
    """Return a class whose workers share the results of a tile; ``point`` holds the statements for one result."""
    lines = _worker_loop_lines(stage, plan.piece, point)
    used = set(re.findall(r"\w+", "\n".join(lines)))
    named = [(i, _place_variable_code(n)) for i, n in enumerate(plan.place)]
    places = [f"    const int {name} = place[{i}];" for i, name in named if name in used]
    body = ["  bool compute(unsigned worker) {", *places, *lines, "    return true;", "  }"]
    text = "\n".join([*fields, *body])
    return f"class {plan.entry} : public poplar::MultiVertex {{\n public:\n{text}\n}};\n"


def _place_variable_code(number: str) -> str:
    """Return the C++ variable for an entry of ``place``."""
    kind, _, name = number.partition("_")
    if kind == "b":
        tensor, _, dimension = name.rpartition("_")
        return f"b_{codelet_name(tensor)}_{dimension}"
    return f"{kind}_{codelet_name(name)}" if name else number


def _worker_loop_lines(stage: Stage, piece: int, point: list[str]) -> list[str]:
    """Return one worker's loops over its even share of the pieces, row by row."""
    order = axes_contiguous_last(stage)
    if not order:  # one result
        return ["    if (worker == 0) {", *(f"      {line}" for line in point), "    }"]
    rows, inner = order[:-1], order[-1]  # rows are the points of all axes but the contiguous one
    a, x, left, row_of = codelet_name(inner), axis_identifier(inner), "row", list[str]()
    for r in reversed(rows):
        row_of.append(f"      const int {axis_identifier(r)} = f_{codelet_name(r)} + {left} % n_{codelet_name(r)};")
        left = f"{left} / n_{codelet_name(r)}"
    return [
        f"    const int pieces = (n_{a} + {piece - 1}) / {piece};",
        f"    const int total = pieces * {' * '.join(f'n_{codelet_name(r)}' for r in rows) or '1'};",
        "    const int share = (total + int(numWorkers()) - 1) / int(numWorkers());",
        "    const int end = least(total, int(worker + 1) * share);",
        "    for (int at = int(worker) * share; at < end;) {",
        "      const int row = at / pieces, first_piece = at - row * pieces;",
        "      const int last_piece = least(pieces, first_piece + end - at);",
        "      at += last_piece - first_piece;",
        *row_of,
        f"      const int stop = f_{a} + least(n_{a}, last_piece * {piece});",
        f"      for (int {x} = f_{a} + first_piece * {piece}; {x} < stop; ++{x}) {{",
        *(f"        {line}" for line in point),
        "      }",
        "    }",
    ]


def _point_statement_lines(expr: TensorExpr, stage: Stage, plan: StagePlan, schedule: Schedule, body: str) -> list[str]:
    """Return the statements that compute one result."""
    out = schedule.tensor(stage.name)
    kept, target = (
        cpp_type(out.dtype, expr.name),
        f"t_{codelet_name(out.name)}[{_offset_in_copy_code(out, stage.store)}]",
    )
    if stage.combiner is None:
        return [f"{target} = {_cast_code(body, kept)};"]
    acc, sums = cpp_type(stage.acc_dtype, expr.name), f"sums[{_accumulator_offset_code(stage)}]"
    neutral = cpp_literal(COMBINERS[stage.combiner].neutral, stage.acc_dtype)
    lines = [f"{acc} sum = {f'first ? {neutral} : {acc}({sums})' if plan.keeps_sums else neutral};"]
    depth = 0
    for a in stage.reduction_axes:
        lines += _reduction_loop_header_lines(a.name, depth)
        depth += 2
    joined = _COMBINE[stage.combiner].format("sum", _cast_code(body, acc), acc)
    lines.append(f"{' ' * depth}sum = {joined};")
    lines += [f"{' ' * at}}}" for at in range(depth - 2, -1, -2)]
    result = f"{target} = {_cast_code('sum', kept)};"
    if not plan.keeps_sums:
        return [*lines, result]
    return [*lines, f"if (last) {result} else {sums} = sum;" if plan.writes else f"{sums} = sum;"]


def _cast_code(code: str, kind: str) -> str:
    return f"({code}) != 0" if kind == "bool" else f"({kind})({code})"


def _reduction_loop_header_lines(axis: str, at: int) -> list[str]:
    x, a = axis_identifier(axis), codelet_name(axis)
    return [f"{' ' * at}for (int {x} = f_{a}; {x} < f_{a} + n_{a}; ++{x}) {{"]


def _offset_in_copy_code(plan: TensorPlan, at: tuple[Index, ...]) -> str:
    """Return the offset of a position in a unit's copy of a tensor."""
    words, pitch = list[str](), 1
    for d in range(len(at) - 1, -1, -1):
        word = f"({cpp_index(at[d])} - b_{codelet_name(plan.name)}_{d})"
        word += f" / {plan.lattice[d]}" if plan.lattice[d] > 1 else ""
        words.insert(0, word if pitch == 1 else f"{word} * {pitch}")
        pitch *= plan.pitches[d]
    return " + ".join(words) or "0"


def _accumulator_offset_code(stage: Stage) -> str:
    """Return the offset of a point's accumulator; accumulators lie row by row over the tile's spatial axes."""
    words = []
    for a in stage.spatial_axes:
        words.append(f"({axis_identifier(a.name)} - f_{codelet_name(a.name)})")
    place = words[0] if words else "0"
    for a, word in zip(stage.spatial_axes[1:], words[1:], strict=True):
        place = f"({place}) * m_{codelet_name(a.name)} + {word}"
    return place


def _codelet_field_lines(expr: TensorExpr, plan: StagePlan, schedule: Schedule) -> list[str]:
    """Return the fields of a codelet: copies to read, accumulators, the result, and ``place``."""
    lines = []
    for name in plan.reads:
        lines.append(f"  poplar::Input<poplar::Vector<{cpp_type(schedule.tensor(name).dtype, expr.name)}>> "
                     f"t_{codelet_name(name)};")  # fmt: skip
    if plan.keeps_sums:
        lines.append(f"  poplar::InOut<poplar::Vector<{cpp_type(schedule.sums_dtype, expr.name)}>> sums;")
    if plan.writes:
        kind = cpp_type(schedule.tensor(plan.writes).dtype, expr.name)
        lines.append(f"  poplar::Output<poplar::Vector<{kind}>> t_{codelet_name(plan.writes)};")
    return [*lines, "  poplar::Input<poplar::Vector<int>> place;", ""]


def _combine_parts_codelet_code(expr: TensorExpr, plan: StagePlan, schedule: Schedule) -> str:
    """Return the class that adds another unit's accumulators to a unit's own."""
    stage, acc = expr.anchor, cpp_type(schedule.sums_dtype, expr.name)
    assert stage.combiner is not None  # only reductions are split
    at = _accumulator_offset_code(stage)
    joined = _COMBINE[stage.combiner].format(f"{acc}(sums[{at}])", f"{acc}(part[{at}])", acc)
    part = f"  poplar::Input<poplar::Vector<{acc}>> part;"
    return _codelet_class_code(
        plan, [part, *_codelet_field_lines(expr, plan, schedule)], stage, [f"sums[{at}] = {joined};"]
    )


def _convert_sums_codelet_code(expr: TensorExpr, plan: StagePlan, schedule: Schedule) -> str:
    """Return the class that converts combined accumulators into the anchor's result."""
    stage, out = expr.anchor, schedule.tensor(expr.anchor.name)
    value = _cast_code(f"sums[{_accumulator_offset_code(stage)}]", cpp_type(out.dtype, expr.name))
    point = [f"t_{codelet_name(out.name)}[{_offset_in_copy_code(out, stage.store)}] = {value};"]
    return _codelet_class_code(plan, _codelet_field_lines(expr, plan, schedule), stage, point)
