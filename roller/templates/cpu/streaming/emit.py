"""Template for expressions without a reduction: one parallel, vectorized pass, over all outputs if possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roller.errors import BuildError
from roller.expr import Index, Load, Scalar, Stage, TensorExpr, map_indices, stride_between_neighbours, transform_scalar
from roller.expr.index_arithmetic import compose_index
from roller.te.emit_tvm_expressions import Expr, emit_index, emit_scalar
from roller.templates.cpu.decisions import stores_start_at_lines
from roller.templates.cpu.emit.axis_tiling_plans import SpatialPlan, spatial_plans
from roller.templates.cpu.emit.elementwise_loop_nests import default_spatial_plans, emit_elementwise_nest
from roller.templates.cpu.emit.nontemporal import emit_elements_to_line
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    EmittedNests,
    LoopBuilder,
    Stmt,
    allocate_buffer,
    declare_buffer,
    element_reader,
    int32_index,
    sequence_of_statements,
    write_element,
)  # fmt: skip
from roller.tile import RProgram


def stages_after_inlining(expr: TensorExpr) -> tuple[Stage, ...]:
    """Return the stages that remain after inlining intermediates into their consumers."""
    # An intermediate stays if a consumer guards it, or reads it through an index that its body cannot be composed with.
    stages = list(expr.stages)
    for s in expr.stages:
        if s.name in expr.outputs or s.combiner is not None:
            continue
        users = [t for t in stages if any(ld.tensor == s.name for ld in t.loads)]
        if all(_can_inline(s, ld) for t in users for ld in t.loads if ld.tensor == s.name):
            current = next(t for t in stages if t.name == s.name)
            stages = [_inline_stage(t, current) if t in users else t for t in stages if t is not current]
    return tuple(stages)


def _can_inline(s: Stage, load: Load) -> bool:
    plain = all(len(i.terms) == 1 and i.is_axis(i.terms[0].axis) for i in s.store)
    affine = all(i.is_affine for ld in s.loads for i in (*ld.index, *(b.index for b in ld.guard)))
    return plain and not load.guard and (affine or all(i.is_affine and len(i.terms) == 1 for i in load.index))


def _inline_stage(user: Stage, s: Stage) -> Stage:
    """Replace the loads of ``s`` in ``user`` by its body at the loaded coordinates."""

    def inline(n: Scalar) -> Scalar:
        if not isinstance(n, Load) or n.tensor != s.name:
            return n
        at = {i.terms[0].axis: index for i, index in zip(s.store, n.index, strict=True)}
        return map_indices(s.body, lambda i: _compose_affine_index(i, at))

    return replace(user, body=transform_scalar(user.body, inline))


def _compose_affine_index(index: Index, at: Mapping[str, Index]) -> Index:
    """Return ``index`` with each axis replaced by that axis's index in ``at``; raise an error if that is impossible."""
    found = compose_index(index, at)
    if found is None:
        raise BuildError(f"streaming: cannot compose {index} with {at}. Use structure 'rows'.")
    return found


def emit_streaming_body(program: RProgram, buffers: dict[str, Buffer]) -> Stmt:
    """Return the loop nest of a ``streaming`` program."""
    expr = program.expr
    if any(s.combiner is not None for s in expr.stages):
        raise BuildError(f"{expr.name}: structure 'streaming' expected no reduction, got one. Use structure 'rows'.")
    nest = LoopBuilder()
    stages = stages_after_inlining(expr)
    kept = {
        s.name: declare_buffer(s.name, s.output.shape, s.output.dtype) for s in stages if s.name not in expr.outputs
    }
    everything = {**buffers, **kept}
    tensors = {n: element_reader(b) for n, b in everything.items()}
    together = _can_stages_share_loop(program, stages)
    if together:
        return sequence_of_statements(
            *(allocate_buffer(b) for b in kept.values()),
            _emit_stages_in_one_loop(nest, program, stages, everything, tensors),
        )
    nests = [_emit_one_stage(nest, program, s, everything[s.name], tensors) for s in stages]
    return sequence_of_statements(*(allocate_buffer(b) for b in kept.values()), *nests)


def _can_stages_share_loop(program: RProgram, stages: Sequence[Stage]) -> bool:
    """Return whether several stages have the same points and read each other's results where they were just written."""
    if len(stages) == 1 or program.nontemporal:
        return False
    stores = {s.name: s.store for s in stages}
    in_place = (ld.index == stores[ld.tensor] and not ld.guard for s in stages for ld in s.loads if ld.tensor in stores)
    return all(s.axes == program.axes for s in stages) and all(in_place)


def _emit_stages_in_one_loop(
    nest: LoopBuilder, program: RProgram, stages: Sequence[Stage], buffers: Mapping[str, Buffer],
    tensors: Mapping[str, Callable[..., Expr]],
) -> Stmt:  # fmt: skip
    """Emit stages in one loop, so that a value that several stages read stays in a register."""

    def store(env: dict[str, Any]) -> Stmt:
        return sequence_of_statements(
            *(write_element(buffers[s.name], emit_scalar(s.body, env, tensors), *(emit_index(i, env) for i in s.store))
              for s in stages)
        )  # fmt: skip

    return emit_elementwise_nest(nest, spatial_plans(program), store, True)


def _emit_one_stage(
    nest: LoopBuilder, program: RProgram, s: Stage, out: Buffer, tensors: Mapping[str, Callable[..., Expr]]
) -> Stmt:
    """Emit one stage, tiled by the program if its axes are the program's."""
    names = [a.name for a in s.spatial_axes]
    if s.axes == program.axes:
        plans = spatial_plans(program)
    else:
        plans = default_spatial_plans(s, program.expr, program.vector_elements, names, program.open_axes)

    def store(env: dict[str, Any]) -> Stmt:
        return write_element(out, emit_scalar(s.body, env, tensors), *(emit_index(i, env) for i in s.store))

    return emit_elementwise_nest(
        nest, plans, store, True, _elements_to_line_of_row(plans, s, out) if program.nontemporal else None
    )


def _elements_to_line_of_row(
    plans: Sequence[SpatialPlan], s: Stage, out: Buffer
) -> Callable[[Mapping[str, Any]], Expr] | None:
    """Return a function that counts elements from a row's start to the next cache line, or ``None`` for short rows."""
    vector = next((p for p in plans if p.lanes > 1), None)
    shape = s.output.shape
    if vector is None or not stores_start_at_lines(
        vector.lanes, vector.tiles, stride_between_neighbours(s.store, shape, vector.name)
    ):
        return None
    return lambda start: emit_elements_to_line(
        out, tuple(emit_index(i, {**start, vector.name: int32_index(0)}) for i in s.store) or (int32_index(0),)
    )


def emit_streaming_nests(program: RProgram, buffers: dict[str, Buffer], cores: int) -> EmittedNests:
    """Return the loop nest of a stream; for the arguments, see :func:`emit_streaming_body`."""
    del cores
    return EmittedNests(emit_streaming_body(program, buffers))
