"""Loop nests as plain TIR: the constructors that the CPU templates use.

Templates build their loops directly instead of scheduling a default nest: tile starts, panels and tails are explicit,
lowering takes milliseconds, and buffers can have the alignment of one element, so that any NumPy array runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from roller.errors import BuildError
from roller.expr import OFFSET_ELEMENTS, Cast, Const, Index, IndexValue, Scalar, TensorExpr, Term, transform_scalar
from roller.te.compat import structural_map, structural_walk, tirx, tvm
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.bfloat16 import BITS, emit_bfloat16_bits
from roller_runtime.core.dtypes import DTYPE_BYTES, DTYPES, round_to_dtype

Stmt: TypeAlias = Any
Buffer: TypeAlias = Any
Body: TypeAlias = Callable[[Expr], Stmt]

_KIND = {
    "serial": tirx.ForKind.SERIAL,
    "parallel": tirx.ForKind.PARALLEL,
    "vector": tirx.ForKind.VECTORIZED,
    "unroll": tirx.ForKind.UNROLLED,
}

#: Alignment of private panels and accumulators (bytes; one cache line).
LINE_BYTES = 64
_HINT = "roller_prefetch"
#: LLVM's own declaration lets a hint access the memory at its address, so results would be stored before each hint.
_HINT_IR = f"""declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @{_HINT}(ptr %p) alwaysinline {{
  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 3, i32 1) nounwind willreturn memory(inaccessiblemem: readwrite)
  ret void
}}
"""


def int32_index(value: int | Expr) -> Expr:
    """Return ``value`` as a 32-bit index expression."""
    return tirx.const(int(value), "int32") if isinstance(value, (int, np.integer)) else value


@dataclass(frozen=True)
class EmittedNests:
    """The loop nests that a template emits for a program.

    Parameters
    ----------
    main
        The loop nest of a call.
    panels
        Buffers that ``main`` reads and ``pack`` fills once, from constants.
    pack
        The loop nest that fills ``panels``, or ``None`` if there are no panels.
    unread
        Constants that ``main`` reads only from their panels.
    """

    main: Stmt
    panels: tuple[Buffer, ...] = ()
    pack: Stmt | None = None
    unread: frozenset[str] = frozenset()


@dataclass
class LoopBuilder:
    """Builds loops with unique variable names."""

    _count: Iterator[int] = field(default_factory=itertools.count)

    def loop(self, extent: int | Expr, body: Body, kind: str = "serial", name: str = "i") -> Stmt:
        """Return ``for name in range(extent): body(name)``, or just the body for a single iteration."""
        if isinstance(extent, int) and extent >= OFFSET_ELEMENTS:
            raise BuildError(f"loop '{name}': expected fewer than 2^31 iterations, got {extent}. Split the operator.")
        if isinstance(extent, int) and extent == 1:  # parallel loops too: one task wakes no worker
            return body(int32_index(0))
        var = tirx.Var(f"{name}_{next(self._count)}", "int32")
        return tirx.For(var, int32_index(0), int32_index(extent), _KIND[kind], body(var))

    def variable(self, name: str, value: Expr) -> Expr:
        """Return a new variable of the type of ``value``, to be bound to it."""
        return tirx.Var(f"{name}_{next(self._count)}", value.ty)

    def grid(
        self, extents: Sequence[int | Expr], body: Callable[[tuple[Expr, ...]], Stmt], kind: str = "serial"
    ) -> Stmt:
        """Return a perfect nest over ``extents``, first outermost."""
        if not extents:
            return body(())
        return self.loop(extents[0], lambda v: self.grid(extents[1:], lambda rest: body((v, *rest)), kind), kind)


def serialize_loops(body: Stmt) -> Stmt:
    """Return ``body`` with its parallel loops made serial."""

    def alone(loop: Stmt) -> Stmt:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return structural_map(body, (tirx.For, alone))


def is_parallel(body: Stmt) -> bool:
    """Return whether ``body`` has a parallel loop."""
    found: list[bool] = []
    structural_walk(body, (tirx.For, lambda n: found.append(n.kind == tirx.ForKind.PARALLEL)))
    return any(found)


def parallel_task_counts(body: Stmt) -> tuple[int, ...]:
    """Return each parallel loop's task count in order; ``()`` if one is nested or its extent is unknown at build time.

    Examples
    --------
    >>> nest, nothing = LoopBuilder(), tirx.Evaluate(int32_index(0))
    >>> loop = nest.loop(6, lambda i: nothing, "parallel")
    >>> (parallel_task_counts(sequence_of_statements(loop, nothing, loop)),
    ...  parallel_task_counts(nest.loop(2, lambda i: loop)))
    ((6, 6), ())
    """
    found: list[Any] = []
    return tuple(map(int, found)) if _collect_task_counts(body, found) else ()


def _collect_task_counts(body: Stmt, found: list[Any]) -> bool:
    if isinstance(body, tirx.SeqStmt):
        return all(_collect_task_counts(s, found) for s in body.seq)
    if isinstance(body, tirx.For) and body.kind == tirx.ForKind.PARALLEL:
        found.append(body.extent)
        return isinstance(constant_extent(body.extent), int)
    if isinstance(body, (tirx.For, tirx.IfThenElse, tirx.While)) or getattr(body, "body", None) is None:
        return not is_parallel(body)
    return _collect_task_counts(body.body, found)


def sequence_of_statements(*statements: Stmt | None) -> Stmt:
    """Return a sequence of statements, leaving out ``None``."""
    kept = [s for s in statements if s is not None]
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def bind_value(value: Expr, name: str, body: Callable[[Expr], Stmt]) -> Stmt:
    """Return ``body(name)`` after ``name = value``, so that a repeated value is computed and optimized once."""
    var = tirx.Var(name, "int32")
    return sequence_of_statements(tirx.Bind(var, value), body(var))


def copy_elements(to: Buffer, to_index: Sequence[Expr], source: Buffer, index: Sequence[Expr], count: Expr) -> Stmt:
    """Return a call that copies ``count`` adjacent elements of one dtype, and that needs no optimization."""
    size = tirx.const(DTYPE_BYTES[str(to.ty.dtype)], "int64")
    places = (tirx.address_of(tirx.BufferLoad(b, list(i))) for b, i in ((to, to_index), (source, index)))
    return tirx.Evaluate(tirx.call_extern("handle", "memcpy", *places, count.astype("int64") * size))


def if_then(condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """Return an ``if`` statement."""
    return tirx.IfThenElse(condition, then, otherwise)


def declare_buffer(
    name: str, shape: Sequence[int | Expr], dtype: str, *, scope: str = "global", private: bool = True,
    computed: bool = True,
) -> Buffer:  # fmt: skip
    """Declare a buffer: private buffers are aligned to a cache line, arguments to one element."""
    # Private buffers hold values in the dtype of computation; with ``computed`` off, 16-bit floats stay as stored.
    elements = math.prod(int(n) for n in shape if isinstance(constant_extent(n), int))
    if elements >= OFFSET_ELEMENTS:
        raise BuildError(
            f"buffer '{name}': expected fewer than 2^31 elements, got {elements} {tuple(shape)}. Split the tensor."
        )
    align = LINE_BYTES if private else DTYPE_BYTES[dtype]
    if private and computed:
        dtype = computed_dtype(dtype)
    elif dtype == "bfloat16":  # stored as bits, because NumPy cannot pass it by DLPack
        dtype = BITS
    return tirx.decl_buffer(tuple(map(constant_extent, shape)) or (1,), dtype, name, data_alignment=align, scope=scope)


def computed_dtype(dtype: str) -> str:
    """Return the dtype in which values of ``dtype`` are computed: float32 for narrow floats."""
    row = DTYPES.get(dtype)
    return "float32" if row is not None and row.is_narrow else dtype


def _accumulator_dtype(dtype: str) -> str:
    return "uint8" if dtype == "bool" else computed_dtype(dtype)


def computed(expr: TensorExpr) -> TensorExpr:
    """Return ``expr`` with narrow floats only in tensors and casts, and with bools reduced as bytes."""

    # Literals and sums are float32, and a cast to a narrow float and back is a rounding. Processors have instructions
    # for float16; :func:`roller.templates.cpu.emit.bfloat16.round_bfloat16_casts` and
    # :mod:`roller.templates.emit.byte_floats`
    # work on the bits of the others. Bytes have an order and vectors; bools have neither.
    def scalar(n: Scalar) -> Scalar:
        if not isinstance(n, (Cast, Const, IndexValue)) or n.dtype == computed_dtype(n.dtype):
            return n
        if isinstance(n, Const):
            return Const(float(round_to_dtype(n.value, n.dtype)), "float32")
        return Cast("float32", n) if isinstance(n, Cast) else replace(n, dtype="float32")

    stages = tuple(
        replace(s, body=transform_scalar(s.body, scalar), acc_dtype=_accumulator_dtype(s.acc_dtype))
        for s in expr.stages
    )
    return replace(expr, stages=stages)


def element_dtype(buffer: Buffer) -> str:
    """Return the dtype that :func:`read_element` returns for a buffer's elements."""
    kept = str(buffer.ty.dtype)
    return "float32" if kept == BITS else computed_dtype(kept)


def allocate_buffer(buffer: Buffer) -> Stmt:
    """Allocate ``buffer`` for the statements that follow in the same sequence."""
    return tirx.AllocBuffer(buffer)


def read_element(buffer: Buffer, *index: Expr) -> Expr:
    """Return an element in the dtype of computation; a tensor of rank 0 has one element."""
    value = tirx.BufferLoad(buffer, list(index) or [int32_index(0)])
    if str(buffer.ty.dtype) != BITS:
        return value.astype(element_dtype(buffer))
    return tirx.reinterpret("float32", value.astype("uint32") << tirx.const(16, "uint32"))


def read_vector(buffer: Buffer, index: Sequence[Expr], lanes: int) -> Expr:
    """Return ``lanes`` adjacent elements from ``index`` along the last dimension, converted like one element."""
    value = tirx.BufferLoad(buffer, [*index[:-1], tirx.Ramp(index[-1], int32_index(1), lanes)])
    if str(buffer.ty.dtype) != BITS:
        return value.astype(f"{element_dtype(buffer)}x{lanes}")
    places = tirx.Broadcast(tirx.const(16, "uint32"), lanes)
    return tirx.reinterpret(f"float32x{lanes}", value.astype(f"uint32x{lanes}") << places)


def addressed_extents(buffer: Buffer, index: Sequence[Any]) -> tuple[int, ...]:
    """Return the extents that ``index`` addresses: none for a tensor of rank 0, which is stored as one element."""
    return tuple(map(constant_extent, buffer.ty.shape)) if index else ()


def constant_extent(extent: int | Expr) -> int | Expr:
    """Return an extent as a number, or unchanged if it is known only at run time."""
    return int(extent) if isinstance(extent, (int, tirx.IntImm)) else extent


def write_element(buffer: Buffer, value: Expr, *index: Expr) -> Stmt:
    """Store an element, converted to the buffer's dtype."""
    kept = str(buffer.ty.dtype)
    value = value.astype(element_dtype(buffer))
    value = emit_bfloat16_bits(value) if kept == BITS else value.astype(kept)
    return tirx.BufferStore(buffer, value, list(index) or [int32_index(0)])


def prefetch_element(buffer: Buffer, *index: Expr) -> Stmt:
    """Return a hint to load the cache line of an element; the index must be inside the buffer."""
    # The enclosing function needs :func:`add_prefetch_function`.
    return tirx.Evaluate(tirx.call_extern("void", _HINT, tirx.address_of(tirx.BufferLoad(buffer, list(index)))))


def add_prefetch_function(body: Stmt) -> Stmt:
    """Return a function's body with the inlined function that its hints (:func:`prefetch_element`) call."""
    found: list[bool] = []
    structural_walk(body, (tvm.ir.StringImm, lambda n: found.append(n.value == _HINT)))
    return tirx.AttrStmt(int32_index(0), "pragma_import_llvm", tvm.ir.StringImm(_HINT_IR), body) if any(found) else body


def element_reader(buffer: Buffer) -> Callable[..., Expr]:
    """Return the function from indices to an element that :func:`roller.te.emit_tvm_expressions.emit_scalar` takes."""
    return lambda *index: read_element(buffer, *index)


def smaller_extent(a: int | Expr, b: int | Expr) -> int | Expr:
    """Return the smaller of two extents, at build time if both are known."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return tirx.min(int32_index(a), int32_index(b))


def divide_extent(value: int | Expr, by: int) -> tuple[Any, Any]:
    """Return the quotient and remainder of a non-negative extent, at build time if it is known."""
    if isinstance(value, int):
        return value // by, value % by
    return tirx.floordiv(value, by), tirx.floormod(value, by)


def clamp_expression(value: Expr, low: int | Expr, high: int | Expr) -> Expr:
    """Return ``min(max(value, low), high)``."""
    return tirx.min(tirx.max(value, int32_index(low)), int32_index(high))


def unravel_counter(flat: Expr, extents: Sequence[int]) -> tuple[Expr, ...]:
    """Split a flat counter into one counter per extent, last fastest."""
    out: list[Expr] = []
    rest = flat
    for n in reversed(extents[1:]):
        out.append(int32_index(0) if n == 1 else tirx.floormod(rest, n))
        rest = rest if n == 1 else tirx.floordiv(rest, n)
    return (rest, *reversed(out)) if extents else ()


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides in elements."""
    out = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        out[d] = out[d + 1] * shape[d + 1]
    return tuple(out)


def rename_index_axes(index: Index, names: Mapping[str, str]) -> Index:
    """Return ``index`` with axes renamed."""
    return Index(tuple(Term(names.get(t.axis, t.axis), t.coef, t.div, t.mod) for t in index.terms), index.const)
