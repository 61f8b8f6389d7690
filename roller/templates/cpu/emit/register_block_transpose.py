"""Transposition of square blocks of a packed operand in vector registers.

A panel whose lanes are columns of the tensor is a transposed copy. A single element takes a load and a store; a block
of as many vectors as lanes takes ``log2(lanes)`` rounds of two shuffles per pair of vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    LoopBuilder,
    Stmt,
    element_dtype,
    int32_index,
    read_vector,
    sequence_of_statements,
)
from roller_runtime.core.dtypes import BYTE_FLOATS

#: Minimum number of lanes for which shuffles pay off.
_LANES = 4


def can_transpose_in_registers(source: Buffer, panel: Buffer, lanes: int) -> bool:
    """Return whether blocks of ``lanes`` vectors of ``source`` may be transposed into ``panel``, by dtype and lanes."""
    stored = str(source.ty.dtype)
    if stored in BYTE_FLOATS:  # the arithmetic that converts them is for single elements
        return False
    return lanes >= _LANES and str(panel.ty.dtype) in (element_dtype(source), stored)


def emit_vector_transpose(nest: LoopBuilder, rows: Sequence[Expr]) -> tuple[list[Stmt], list[Expr]]:
    """Return the statements that transpose as many vectors as each of them has lanes, and the transposed vectors."""
    # For each bit of the row index, from the highest down, the rows without and with the bit exchange the lanes with
    # and without it.
    lanes = len(rows)
    steps: list[Stmt] = []

    def bind(value: Expr) -> Expr:
        var = nest.variable("row", value)
        steps.append(tirx.Bind(var, value))
        return var

    vectors = [bind(r) for r in rows]
    bit = lanes // 2
    while bit:
        low = [x if not x & bit else lanes + (x ^ bit) for x in range(lanes)]
        high = [x | bit if not x & bit else lanes + x for x in range(lanes)]
        for r in (r for r in range(lanes) if not r & bit):
            pair = [vectors[r], vectors[r | bit]]
            vectors[r], vectors[r | bit] = (
                bind(tirx.Shuffle(pair, [tirx.const(x, "int32") for x in mask])) for mask in (low, high)
            )
        bit //= 2
    return steps, vectors


def emit_block_transpose(
    nest: LoopBuilder, lanes: int, source: Buffer, place: Callable[[int], tuple[Expr, ...]],
    panel: Buffer, target: Callable[[int], tuple[Expr, ...]],
) -> Stmt:  # fmt: skip
    """Return the statement that copies one block and transposes it."""

    def vector(index: tuple[Expr, ...]) -> list[Expr]:
        return [*index[:-1], tirx.Ramp(index[-1], int32_index(1), lanes)]

    if panel.ty.dtype == source.ty.dtype:
        rows = [tirx.BufferLoad(source, vector(place(r))) for r in range(lanes)]
    else:
        rows = [read_vector(source, place(r), lanes) for r in range(lanes)]
    steps, columns = emit_vector_transpose(nest, rows)
    return sequence_of_statements(
        *steps, *(tirx.BufferStore(panel, v, vector(target(c))) for c, v in enumerate(columns))
    )
