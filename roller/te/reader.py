"""Conversion of TVM tensor expressions and unscheduled PrimFuncs to TensorExpr, and back.

The reader analyses the arithmetic of the PrimFunc's blocks and ignores operator names, tags and annotations.
Element-wise producers (padding included) are inlined, which leaves reductions and one element-wise stage per output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roller.errors import ExprError, bounded
from roller.expr import (
    COMBINERS,
    REDUCTION,
    SPATIAL,
    Axis,
    Cast,
    Index,
    Load,
    Stage,
    Tensor,
    TensorExpr,
    Term,
    map_indices,
)
from roller.expr.compose_stages import common_dtype_of_scalar as computed_dtype
from roller.te.affine import AxisSpace
from roller.te.compat import dtype_of, te, tirx, tvm
from roller.te.convert_tvm_scalars import StageConverter
from roller.te.emit_tvm_expressions import emit_scalar, tvm_reducer
from roller.te.opaque_floats import create_exact_prim_func
from roller.te.read_primfunc_blocks import (
    LoopNestBlock,
    check_reduction,
    constant_extent,
    read_blocks,
    tensor_from_buffer,
)

__all__ = ["read", "to_te"]

#: Name of the axis of extent 1 for a scalar result; all stages share it.
_ONE = "one"


def read(source: Any, name: str = "") -> TensorExpr:
    """Return the TensorExpr that TVM tensors or a PrimFunc compute.

    Examples
    --------
    >>> x = te.placeholder((4, 8), name="X")
    >>> y = te.compute((4, 8), lambda i, j: x[i, j] * 2.0, name="Y")
    >>> str(read([x, y], name="double"))
    'double[i=4 j=8] float32'
    """
    try:
        return _read_tensors_or_function(source, name)
    except RecursionError:
        raise ExprError(
            "te reader: expected operations nested in one another less deeply: element-wise ones are inlined into "
            "their readers, hundreds in a row are too many. Split the computation into several expressions."
        ) from None


def _read_tensors_or_function(source: Any, name: str) -> TensorExpr:
    if isinstance(source, tirx.PrimFunc):
        return _read_function(source, name)
    tensors = list(source) if isinstance(source, (list, tuple)) else [source]
    wrong = [t for t in tensors if not isinstance(t, te.Tensor)]
    if wrong or not tensors:
        got = type(wrong[0]).__name__ if wrong else "nothing"
        raise ExprError(
            f"te reader: expected te tensors or a PrimFunc, got {got}. Pass inputs and outputs in call order."
        )
    return _read_function(_create_prim_func(_tensors_in_call_order(tensors)), name)


def _create_prim_func(tensors: list[Any]) -> Any:
    """Return TVM's function for tensors; TVM simplifies indices and rejects some literals while building it."""
    try:
        return create_exact_prim_func(tensors)
    except (ValueError, tvm.error.InternalError) as err:
        reason = str(err).strip().rpartition("is false: ")[2].splitlines() or [type(err).__name__]
        raise ExprError(
            f"te: TVM makes no function of '{tensors[-1].op.name}': {bounded(reason[0]).rstrip('.')}. "
            "Where a literal leaves the range of the dtype it is converted to, write the converted literal."
        ) from err


def _tensors_in_call_order(tensors: list[Any]) -> list[Any]:
    """Return ``tensors`` with missing placeholders prepended, after checking that every operation can be read."""
    found: list[Any] = []
    seen: set[Any] = set()

    def visit(t: Any) -> None:
        if t.op in seen:
            return
        seen.add(t.op)
        for d in t.shape:
            constant_extent(d, f"tensor '{t.op.name}'")
        if isinstance(t.op, te.PlaceholderOp):
            found.append(t)
            return
        if not isinstance(t.op, te.ComputeOp):
            raise ExprError(
                f"tensor '{t.op.name}': expected te.compute, got {type(t.op).__name__}. External and scan "
                "operations cannot be tiled; pass their results as inputs."
            )
        for body in t.op.body:
            check_reduction(body, f"tensor '{t.op.name}'")
        for x in t.op.input_tensors:
            visit(x)

    for t in tensors:
        visit(t)
    listed = [t for t in tensors if isinstance(t.op, te.PlaceholderOp)]
    missing = [t for t in found if not any(t.op.same_as(x.op) for x in listed)]
    if listed and missing:
        names = [t.op.name for t in missing]
        raise ExprError(f"te reader: inputs {names} are not in the list. List every placeholder, or only the outputs.")
    if len(listed) == len(tensors):
        raise ExprError("te reader: expected at least one computed tensor, got placeholders. Add the outputs.")
    return [*missing, *tensors]


def _read_function(func: Any, name: str) -> TensorExpr:
    blocks = read_blocks(func)
    by_buffer = {b.buffer: b for b in blocks}
    parameters = list(func.params)
    inputs = [p for p in parameters if p not in by_buffer]
    kept = [b for b in blocks if b.combiner is not None or b.buffer in parameters]
    labels = _name_buffers([*inputs, *(b.buffer for b in kept)])
    tensors = {p: tensor_from_buffer(p, labels[p]) for p in (*inputs, *(b.buffer for b in kept))}
    if not any(b.combiner is not None or b.store for b in kept):
        raise ExprError(f"tensor '{labels[kept[-1].buffer]}': a scalar of scalars has no axis to tile. "
                        "Compute it on the host.")  # fmt: skip
    stages = [_convert_block(b, tensors, by_buffer, n) for n, b in enumerate(kept)]
    outputs = tuple(labels[p] for p in parameters if p in by_buffer)
    stages = _name_axes(_fold_result_conversions(_drop_unused_stages(stages, outputs), outputs))
    return TensorExpr(name or outputs[-1], tuple(tensors[p] for p in inputs), tuple(stages), outputs)


def _name_buffers(buffers: list[Any]) -> dict[Any, str]:
    """Return a unique name for each buffer; repeated names get a number."""
    out: dict[Any, str] = {}
    for b in buffers:
        label, n = b.name, 1
        while label in out.values():
            n += 1
            label = f"{b.name}_{n}"
        out[b] = label
    return out


def _convert_block(
    block: LoopNestBlock, tensors: dict[Any, Tensor], blocks: dict[Any, LoopNestBlock], number: int
) -> Stage:
    """Convert one block; its axes are named ``number:variable`` until :func:`_name_axes` renames them."""
    out = tensors[block.buffer]
    local = {v: f"{number}:{v.name.removeprefix('v_')}:{n}" for n, (v, _, _) in enumerate(block.variables)}
    axes = [Axis(local[v], extent, REDUCTION if reduces else SPATIAL) for v, extent, reduces in block.variables]
    space = AxisSpace([(v, local[v], extent) for v, extent, _ in block.variables])
    spatial = {v: extent for v, extent, reduces in block.variables if not reduces}
    store = []
    for d, at in enumerate(block.store):
        if at in spatial and spatial[at] == out.shape[d]:
            store.append(Index((Term(local[at]),)))
        elif out.shape[d] == 1 and isinstance(at, tirx.IntImm) and int(at.value) == 0:
            store.append(Index())
        else:
            raise ExprError(
                f"tensor '{out.name}': dimension {d} is stored at '{at}', not at an axis of its whole extent. "
                "Write every element once; scatter and partial updates cannot be tiled."
            )
    extremum = block.combiner if block.combiner and COMBINERS[block.combiner].selects else None
    body = StageConverter(out.name, space, tensors, blocks, extremum).body(block.value)
    acc = dtype_of(block.value)
    if isinstance(body, Cast) and block.combiner is None and body.dtype == out.dtype:
        # The dtype of the converted body, because the block's value may be a load of an inlined tensor.
        before = computed_dtype(body.arg, {t.name: t.dtype for t in tensors.values()})
        alike = before is not None and ("float" in before) == ("float" in out.dtype)
        if alike and before is not None and (before == "bool") == (out.dtype == "bool"):
            body, acc = body.arg, before  # the conversion of the result is implied by its dtype
    ordered = [a for a in axes if a.kind == SPATIAL and store] + [a for a in axes if a.kind == REDUCTION]
    if not store:
        ordered.insert(0, Axis(f"{number}:{_ONE}:0", 1, SPATIAL))
    return Stage(out, tuple(ordered), tuple(store), body, block.combiner, acc)


def _drop_unused_stages(stages: list[Stage], outputs: tuple[str, ...]) -> list[Stage]:
    needed = set(outputs)
    for s in reversed(stages):
        if s.name in needed:
            needed |= {ld.tensor for ld in s.loads}
    return [s for s in stages if s.name in needed]


def _fold_result_conversions(stages: list[Stage], outputs: tuple[str, ...]) -> list[Stage]:
    """Merge a stage that only converts a reduction's result into that reduction."""
    out = list(stages)
    for tail in stages:
        body = tail.body
        if tail.combiner is not None or not isinstance(body, Load) or body.guard:
            continue
        head = next((s for s in out if s.name == body.tensor), None)
        readers = [s for s in stages if any(ld.tensor == body.tensor for ld in s.loads)]
        if head is None or head.combiner is None or head.name in outputs or len(readers) != 1:
            continue
        in_place = body.index == tail.store and head.output.shape == tail.output.shape
        if in_place and all(len(i.terms) == 1 for i in tail.store):
            out[out.index(head)] = replace(head, output=tail.output)
            out.remove(tail)
    return out


def _name_axes(stages: list[Stage]) -> list[Stage]:
    """Give axes their final names, one name per coordinate over all stages."""
    # Two axes of one kind and extent are the same coordinate if they index the same dimension of the same tensor;
    # intermediate tensors take precedence over inputs.
    coordinate: dict[tuple[str, int], list[Axis]] = {}
    taken: dict[str, Axis] = {}
    made: set[str] = set()
    out = []
    for s in stages:
        names: dict[str, str] = {}
        for ld in sorted(s.loads, key=lambda ld: ld.tensor not in made):
            for d, i in enumerate(ld.index):
                axis = _axis_of_index(s, i)
                if axis is None or axis.name in names:
                    continue
                for known in coordinate.get((ld.tensor, d), ()):
                    if (known.extent, known.kind) == (axis.extent, axis.kind) and known.name not in names.values():
                        names[axis.name] = known.name
                        break
        for a in s.axes:
            if a.name not in names:
                base = a.name.split(":")[1]
                names[a.name] = base if base == _ONE else _unused_name(base, taken)
            taken.setdefault(names[a.name], replace(a, name=names[a.name]))
        renamed = _rename_axes(s, names)
        for tensor, index in ((s.name, renamed.store), *((ld.tensor, ld.index) for ld in renamed.loads)):
            for d, i in enumerate(index):
                axis = _axis_of_index(renamed, i)
                if axis is not None and axis not in coordinate.setdefault((tensor, d), []):
                    coordinate[tensor, d].append(axis)
        made.add(s.name)
        out.append(renamed)
    return out


def _axis_of_index(s: Stage, i: Index) -> Axis | None:
    return next((a for a in s.axes if i.is_axis(a.name)), None)


def _unused_name(base: str, taken: dict[str, Axis]) -> str:
    label, n = base, 1
    while label in taken:
        n += 1
        label = f"{base}_{n}"
    return label


def _rename_axes(s: Stage, names: dict[str, str]) -> Stage:
    def index(i: Index) -> Index:
        return Index(tuple(replace(t, axis=names[t.axis]) for t in i.terms), i.const)

    axes = tuple(replace(a, name=names[a.name]) for a in s.axes)
    return replace(s, axes=axes, store=tuple(index(i) for i in s.store), body=map_indices(s.body, index))


def to_te(expr: TensorExpr) -> list[Any]:
    """Return the expression as te tensors in call order: placeholders, then outputs.

    Examples
    --------
    >>> import roller
    >>> expr = roller.ops.matmul(8, 8, 4)
    >>> read(to_te(expr)).key == expr.key
    True
    """
    tensors = {t.name: te.placeholder(t.shape, name=t.name, dtype=t.dtype) for t in expr.inputs}
    for s in expr.stages:
        tensors[s.name] = _stage_to_te_compute(s, tensors)
    return [tensors[n] for n in (*(t.name for t in expr.inputs), *expr.outputs)]


def _stage_to_te_compute(s: Stage, tensors: dict[str, Any]) -> Any:
    reduced = {a.name: te.reduce_axis((0, a.extent), name=a.name.replace("*", "_")) for a in s.reduction_axes}

    def body(*at: Any) -> Any:
        env: dict[str, Any] = {a.name: tirx.const(0, "int32") for a in s.spatial_axes}
        for i, index in zip(at, s.store, strict=True):
            for t in index.terms:
                part = i if t.div == 1 else i * t.div  # a grouped axis is the sum of its parts
                env[t.axis] = part if isinstance(env[t.axis], tirx.IntImm) else env[t.axis] + part
        env.update({n: a.var for n, a in reduced.items()})
        value = emit_scalar(s.body, env, tensors, as_written=True)
        if s.combiner is None:
            return value.astype(s.output.dtype)
        return tvm_reducer(s.combiner)(value.astype(s.acc_dtype), axis=list(reduced.values()))

    converts = s.combiner is not None and s.acc_dtype != s.output.dtype
    out = te.compute(s.output.shape, body, name=f"{s.name}_acc" if converts else s.name)
    if not converts:
        return out
    return te.compute(s.output.shape, lambda *at: out(*at).astype(s.output.dtype), name=s.name)
