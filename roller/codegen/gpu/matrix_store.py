"""Results of a matrix kernel: bias, residual and activation on the accumulators, then the stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roller.codegen.gpu.access import vectorizable
from roller.codegen.gpu.context import as_output, promote
from roller.codegen.gpu.mapping import vector_loop
from roller.codegen.gpu.nest import (
    Buffer,
    Expr,
    Stmt,
    buffer,
    dtype_name,
    load,
    loop,
    num,
    seq,
    store,
    when,
    with_buffers,
)
from roller.expr import Stage, Tensor
from roller.te.compat import tirx
from roller.te.emit import emit_index, emit_scalar

if TYPE_CHECKING:
    from roller.codegen.gpu.matrix import Matrix


def write(t: Matrix, result: Stage, target: Buffer, prefix: tuple[Expr, ...]) -> Stmt:
    """Store every accumulator element of this lane, two neighbours along n at once where the output allows.

    Element ``e`` of a 16 x 8 accumulator lies at row ``lane / 4 + 8 (e / 2)``, column ``2 (lane % 4) + e % 2``.
    """
    rows, columns = t.register[t.m_axis] // t.fragment.m, t.register[t.n_axis] // t.fragment.n
    width = 2 if pairs(t, result, target) else 1
    out = buffer("out", (2,), dtype_name(target), "local")

    def element(i: Expr, j: Expr, half: Expr) -> Stmt:
        row = i * t.fragment.m + tirx.floordiv(t.lane, 4) + half * 8
        column = j * t.fragment.n + tirx.floormod(t.lane, 4) * 2
        first = (i * columns + j) * 4 + half * 2

        def at(e: Expr) -> dict[str, Expr]:
            env = dict(t.base)
            env[t.m_axis] = t.base[t.m_axis] + t.group[t.m_axis] + row
            env[t.n_axis] = t.base[t.n_axis] + t.group[t.n_axis] + column + e
            return env

        def value(e: Expr) -> Expr:
            return finished(t, result, load(t.unit.sums, first + e), at(e))

        if width == 1:
            return loop(
                "e",
                2,
                lambda e: when(inside(t, at(e)), store(target, value(e), *place(result, prefix, at(e)))),
                unroll=True,
            )
        index = place(result, prefix, at(num(0)))
        compute = loop("e", 2, lambda e: store(out, value(e), e), unroll=True)
        put = vector_loop(2, lambda v: store(target, load(out, v), *index[:-1], index[-1] + v))
        return when(inside(t, at(num(0))), seq([compute, put]))

    body = loop(
        "i", rows,
        lambda i: loop("j", columns, lambda j: loop("h", 2, lambda h: element(i, j, h), unroll=True), unroll=True),
        unroll=True,
    )  # fmt: skip
    return with_buffers([out], body) if width == 2 else body


def finished(t: Matrix, result: Stage, total: Expr, env: Mapping[str, Expr]) -> Expr:
    """Return what is stored for one sum: the sum itself, or the epilogue's value."""
    acc = as_output(total, t.stage)
    if result is t.stage:
        return acc
    readers = t.ctx.readers({t.stage.name: lambda *_: promote(acc)})
    return as_output(emit_scalar(result.body, env, readers), result)


def inside(t: Matrix, env: Mapping[str, Expr]) -> list[Expr]:
    """Return the conditions under which a point is no padding."""
    return [env[m.name] < m.extent for m in t.maps if m.padded]


def place(result: Stage, prefix: tuple[Expr, ...], env: Mapping[str, Expr]) -> list[Expr]:
    """Return the index of a result in the output."""
    return [*prefix, *(emit_index(i, env) for i in result.store)]


def pairs(t: Matrix, result: Stage, target: Buffer) -> bool:
    """Whether two neighbours along n are one aligned access of the output."""
    shape = tuple(int(x) for x in target.shape)
    if shape[-1] % 2:
        return False
    tensor = Tensor(target.name, shape[len(shape) - len(result.store) :], dtype_name(target))
    return vectorizable(result.store, tensor, t.n_axis, t.stage.extents[t.n_axis], 2)
