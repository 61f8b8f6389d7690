"""Square blocks of a packed operand transposed in vector registers.

A panel whose lanes are columns of the tensor, its rows contiguous in memory, is a transposed copy. Element by
element it costs a load and a store each; as many vectors as lanes are transposed by ``log2(lanes)`` rounds of two
shuffles per pair instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roller.te.compat import tirx
from roller.te.emit import Expr
from roller.templates.cpu.emit.nest import Buffer, Nest, Stmt, element_dtype, integer, read_vector, seq

#: Fewest lanes worth shuffling.
_LANES = 4


def transposable(source: Buffer, panel: Buffer, lanes: int) -> bool:
    """Whether blocks of ``lanes`` vectors of ``source``, as they are or as they are read, may go into ``panel``."""
    return lanes >= _LANES and str(panel.ty.dtype) in (element_dtype(source), str(source.ty.dtype))


def transposed(nest: Nest, rows: Sequence[Expr]) -> tuple[list[Stmt], list[Expr]]:
    """Return statements that bind the transpose of as many vectors as they have lanes, and its vectors.

    Round by round, from half the lanes down to one, every row whose number lacks the bit and the one that has it
    exchange the lanes of the other bit.
    """
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


def transpose_block(
    nest: Nest, lanes: int, source: Buffer, place: Callable[[int], tuple[Expr, ...]],
    panel: Buffer, target: Callable[[int], tuple[Expr, ...]],
) -> Stmt:  # fmt: skip
    """Return the copy of one block."""

    def vector(index: tuple[Expr, ...]) -> list[Expr]:
        return [*index[:-1], tirx.Ramp(index[-1], integer(1), lanes)]

    if panel.ty.dtype == source.ty.dtype:
        rows = [tirx.BufferLoad(source, vector(place(r))) for r in range(lanes)]
    else:
        rows = [read_vector(source, place(r), lanes) for r in range(lanes)]
    steps, columns = transposed(nest, rows)
    return seq(*steps, *(tirx.BufferStore(panel, v, vector(target(c))) for c, v in enumerate(columns)))
