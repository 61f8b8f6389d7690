"""Cuts kernels that wait for the last step of a sequence into chunks, so that recurrent layers overlap as a pipeline.

A candidate is identified by what it reads and writes: it computes row by row from joined rows, and its rows are read
separately. An example is the input projection, which reads all outputs of the previous recurrent layer.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from roller.expr import TensorExpr
from roller.expr.sizes_growable_by_padding import expression_with_size, growing_sizes, is_leading_dimension
from roller_runtime.plan.program_steps import Join, KernelSource, Program, Run, Step, Value, View, values_read

#: Approximate numbers of chunks: few enough for efficient kernels, and enough for layers to overlap.
_PARTS = (4, 10)


def chunked_variants(program: Program) -> list[Program]:
    """Return variants of the program whose row-wise kernels over joined rows are cut; an empty list if none are."""
    found = _find_chunkable_runs(program)
    lengths = {len(cut.join.sources) for cut in found}
    ways = {tuple(sorted((n, _nearest_divisor(n, count)) for n in lengths)) for count in _PARTS}
    return [_cut_runs_into_chunks(program, found, dict(way)) for way in sorted(ways) if found]


@dataclass(frozen=True)
class _ChunkableRun:
    """A run, the join that it reads, the position of that input, and the views of its result."""

    run: Run
    join: Join
    position: int
    views: tuple[View, ...]


def _find_chunkable_runs(program: Program) -> list[_ChunkableRun]:
    """Return the runs that can be cut at every source of the join that they read."""
    joins = {s.target: s for s in program.steps if isinstance(s, Join)}
    readers: dict[str, list[Step]] = defaultdict(list)
    for step in program.steps:
        for name in values_read(step):
            readers[name].append(step)
    found, outputs = [], set(program.outputs)
    for run in program.steps:
        if not isinstance(run, Run) or len(run.outputs) != 1 or run.outputs[0] in outputs:
            continue
        joined = [n for n, name in enumerate(run.inputs) if name in joins]
        varying = [n for n in run.inputs if n not in program.constants]
        views = [s for s in readers[run.outputs[0]] if isinstance(s, View)]
        if len(joined) != 1 or len(varying) != 1 or not views or len(views) < len(readers[run.outputs[0]]):
            continue
        cut = _ChunkableRun(run, joins[run.inputs[joined[0]]], joined[0], tuple(views))
        if _is_chunkable(program, cut):
            found.append(cut)
    return found


def _is_chunkable(program: Program, cut: _ChunkableRun) -> bool:
    """Return whether the sources have equal sizes, the kernel computes row by row, and no view spans two sources."""
    values, expression = program.values, program.kernels[cut.run.kernel].expression
    count, target, out = len(cut.join.sources), values[cut.join.target], values[cut.run.outputs[0]]
    rows = expression.inputs[cut.position].shape[0] if expression.inputs[cut.position].shape else 0
    if len({values[n].nbytes for n in cut.join.sources}) > 1 or math.prod(target.shape[: cut.join.axis]) != 1:
        return False
    if count < 2 or rows % count or not out.shape or out.shape[0] % count:
        return False
    if restrict_rows(expression, cut.position, rows // count) is None:
        return False
    size = out.nbytes // count
    return all(v.offset_bytes % size + values[v.target].nbytes <= size for v in cut.views)


def _nearest_divisor(count: int, parts: int) -> int:
    """Return the divisor of ``count`` above 1 that is nearest to ``parts``, so that chunks are equal.

    Examples
    --------
    >>> [_nearest_divisor(100, 4), _nearest_divisor(100, 9), _nearest_divisor(7, 4)]
    [4, 10, 7]
    """
    return min((d for d in range(2, count + 1) if count % d == 0), key=lambda d: (abs(math.log(d / parts)), d))


def _cut_runs_into_chunks(program: Program, cuts: Sequence[_ChunkableRun], parts_of: Mapping[int, int]) -> Program:
    """Return the program with its runs cut; ``parts_of`` maps the number of sources to the number of parts."""
    values, kernels = dict(program.values), dict(program.kernels)
    by_run = {cut.run: cut for cut in cuts}
    of_view = {view.target: cut for cut in cuts for view in cut.views}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Run) and step in by_run:
            steps += _make_chunk_steps(program, by_run[step], parts_of, values, kernels)
        elif isinstance(step, View) and step.target in of_view:
            cut = of_view[step.target]
            size = values[step.source].nbytes // parts_of[len(cut.join.sources)]
            number, offset = divmod(step.offset_bytes, size)
            steps.append(View(_chunk_name(step.source, number), step.target, offset))
        else:
            steps.append(step)
    read = Counter(n for s in steps for n in values_read(s)) + Counter(program.outputs)
    kept = tuple(s for s in steps if not (isinstance(s, Join) and not read[s.target]))
    used = {s.kernel for s in kept if isinstance(s, Run)}
    return replace(program, steps=kept, values=values, kernels={k: kernels[k] for k in kernels if k in used})


def _make_chunk_steps(
    program: Program,
    cut: _ChunkableRun,
    parts_of: Mapping[int, int],
    values: dict[str, Value],
    kernels: dict[str, KernelSource],
) -> list[Step]:
    """Return the joins and runs that replace a run; add their values and kernels to ``values`` and ``kernels``."""
    run, join, count = cut.run, cut.join, len(cut.join.sources)
    parts = parts_of[count]
    source = program.kernels[run.kernel]
    rows = source.expression.inputs[cut.position].shape[0] // parts
    smaller = restrict_rows(source.expression, cut.position, rows)
    assert smaller is not None
    key = f"{run.kernel}/{rows}"
    kernels[key] = replace(source, expression=smaller)
    steps: list[Step] = []
    for number in range(parts):
        few = join.sources[number * count // parts : (number + 1) * count // parts]
        taken, made = _chunk_name(f"{join.target}/{run.outputs[0]}", number), _chunk_name(run.outputs[0], number)
        shape = values[join.target].shape
        shape = (*shape[: join.axis], shape[join.axis] // parts, *shape[join.axis + 1 :])
        values[taken] = replace(values[join.target], name=taken, shape=shape)
        whole = values[run.outputs[0]]
        values[made] = replace(whole, name=made, shape=(whole.shape[0] // parts, *whole.shape[1:]))
        inputs = tuple(taken if n == cut.position else name for n, name in enumerate(run.inputs))
        steps += [Join(few, taken, join.axis), replace(run, kernel=key, inputs=inputs, outputs=(made,))]
    return steps


def _chunk_name(name: str, number: int) -> str:
    return f"{name}/part{number}"


def restrict_rows(expression: TensorExpr, position: int, rows: int) -> TensorExpr | None:
    """Return the expression over only the first ``rows`` rows of an input; ``None`` if rows are not independent."""
    # Rows are independent if they are a dynamic size that every stage has.
    name, every = expression.inputs[position].name, {s.name for s in expression.stages}
    for size in growing_sizes(expression):
        if (
            (name, 0) in size.dims
            and is_leading_dimension(expression, size)
            and {stage for stage, _ in size.axes} == every
        ):
            return expression_with_size(expression, size, rows)
    return None
