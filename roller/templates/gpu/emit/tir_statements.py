"""Loop nests in TensorIR: the statements of which GPU templates are made.

Templates write the final nest themselves (an rProgram already fixes every split, binding and buffer); TVM still
simplifies, vectorizes, inserts barriers and prints CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from roller.te.compat import dtype_of, tirx, tvm

Stmt: TypeAlias = Any
Expr: TypeAlias = Any
Buffer: TypeAlias = Any

#: Maximum number of body instances in one unrolled nest; with more (512, 1024), nvcc prefetches until it spills.
UNROLL_BUDGET = 256
#: Number of threads that shuffle with each other, also on devices with wider TEUs; see
#: :mod:`roller.templates.gpu.emit.hip`.
WARP = 32


class VaryingCount(int):
    """A count that differs from call to call; code treats it as more than one even if it is one in this call."""

    @classmethod
    def of(cls, value: int, differs: bool) -> int:
        """Return a count, marked if it differs between calls."""
        return cls(value) if differs else value


def is_always_one(count: int) -> bool:
    """Return whether a count is one in all calls."""
    return count == 1 and not isinstance(count, VaryingCount)


def is_fixed_count(count: Any) -> bool:
    """Return whether a count is a number that is the same in all calls."""
    return isinstance(count, int) and not isinstance(count, VaryingCount)


def int32_literal(value: int) -> Expr:
    """Return an int32 literal."""
    return tirx.const(value, "int32")


def loop(name: str, extent: Any, body: Callable[[Expr], Stmt], *, unroll: bool = False, vector: bool = False) -> Stmt:
    """Return ``for name in range(extent): body(name)``; an extent of 1 makes no loop."""
    # ``unroll`` leaves a ``#pragma unroll`` in the source, ``vector`` turns the body into vector accesses; any other
    # loop stays rolled, because nvcc would otherwise unroll it and keep loads ahead in registers that were not counted.
    if isinstance(extent, int):
        if is_always_one(extent):
            return body(int32_literal(0))
        extent = int32_literal(extent)
    kinds = tvm.tirx.stmt.ForKind
    kind = kinds.VECTORIZED if vector else kinds.UNROLLED if unroll else kinds.SERIAL
    var = tirx.Var(re.sub(r"\W", "_", name, flags=re.ASCII), "int32")
    annotations = None if unroll or vector else {"disable_unroll": True}
    each = body(var)
    if vector and isinstance(each, tirx.BufferStore) and dtype_name(each.buffer) == "bool":
        kind = kinds.UNROLLED  # TVM prints vectors of bool as vectors of two bytes each, unlike memory
    return tirx.For(var, int32_literal(0), extent, kind, each, annotations=annotations)


def nested_loops(
    names: Sequence[tuple[str, int]], body: Callable[[dict[str, Expr]], Stmt], *, unroll: bool = False
) -> Stmt:
    """Return nested loops over ``(name, extent)``, outermost first; ``body`` gets the variables keyed by name."""

    def at(depth: int, env: dict[str, Expr]) -> Stmt:
        if depth == len(names):
            return body(env)
        name, extent = names[depth]
        return loop(name, extent, lambda v: at(depth + 1, {**env, name: v}), unroll=unroll)

    return at(0, {})


def sequence_of(statements: Sequence[Stmt]) -> Stmt:
    """Return a sequence of statements."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def if_all(conditions: list[Expr], then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """Return ``if (all conditions) then else otherwise``; without conditions, ``then``."""
    if not conditions:
        return then
    return tirx.IfThenElse(conditions[0] if len(conditions) == 1 else tirx.all(*conditions), then, otherwise)


def guarded_value(conditions: list[Expr], value: Expr, otherwise: Expr) -> Expr:
    """Return ``value`` where all conditions hold, without evaluating it elsewhere."""
    if not conditions:
        return value
    return tirx.if_then_else(conditions[0] if len(conditions) == 1 else tirx.all(*conditions), value, otherwise)


def declare_buffer(name: str, shape: Sequence[int], dtype: str, scope: str = "global") -> Buffer:
    """Declare a buffer; ``local`` (per thread) and ``shared`` (per block) ones need :func:`allocate_buffers_around`."""
    return tirx.decl_buffer(tuple(shape) or (1,), dtype, name=name, scope=scope)


def dtype_name(b: Buffer) -> str:
    """Return the element type of a buffer."""
    return str(b.dtype)


def store(target: Buffer, value: Expr, *index: Expr) -> Stmt:
    """Return ``target[index] = value``."""
    return tirx.BufferStore(target, value, list(index) or [int32_literal(0)])


def load(source: Buffer, *index: Expr) -> Expr:
    """Return ``source[index]``."""
    return tirx.BufferLoad(source, list(index) or [int32_literal(0)])


def allocate_buffers_around(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    """Return ``body`` with the buffers allocated around it."""
    return sequence_of([*(tirx.AllocBuffer(b) for b in buffers), body])


def unravel_index(flat: Expr, extents: Sequence[int]) -> list[Expr]:
    """Return the coordinates of a flat index, the last dimension fastest."""
    out: list[Expr] = []
    stride = 1
    total = 1
    for e in extents:
        total *= e
    for i, e in reversed(list(enumerate(extents))):
        if is_always_one(e):
            out.append(int32_literal(0))
            continue
        part = flat if stride == 1 else tirx.floordiv(flat, stride)
        outermost = stride * e == total and all(map(is_always_one, extents[:i]))
        out.append(part if outermost else tirx.floormod(part, e))
        stride *= e
    return out[::-1]


def thread_axis(tag: str, extent: int) -> Any:
    """Return the iteration variable of ``blockIdx.*`` or ``threadIdx.*``."""
    var = tirx.Var(tag.replace(".", "_"), "int32")
    return tirx.IterVar(tvm.ir.Range(0, extent), var, tirx.IterVar.ThreadIndex, tag)


def kernel_under_thread_axes(axes: Sequence[Any], body: Stmt) -> Stmt:
    """Return one kernel: ``body`` under its thread axes; the device compiler unrolls small loops."""
    # explicit = 0 keeps the loop with a pragma instead of unrolling the text, which lowers ten times faster.
    body = tirx.AttrStmt(int32_literal(0), "pragma_unroll_explicit", int32_literal(0), body)
    for iv in reversed(axes):
        body = tirx.AttrStmt(iv, "thread_extent", iv.dom.extent, body)
    return body


def shuffle_xor(value: Expr, distance: int) -> Expr:
    """Return ``value`` from the lane whose index differs in the bit ``distance``; all lanes must take part."""
    mask = tirx.const(0xFFFFFFFF, "uint32")
    return tirx.call_intrin(
        dtype_of(value),
        "tirx.tvm_warp_shuffle_xor",
        mask,
        value,
        int32_literal(distance),
        int32_literal(WARP),
        int32_literal(WARP),
    )


def block_barrier() -> Stmt:
    """Return a barrier for the block."""
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared"))
