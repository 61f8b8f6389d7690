"""Matrix products: NumPy's broadcasting, Gemm, and integers less their zero points."""

from __future__ import annotations

import numpy as np

from roller.expr import Axis, Call, Cast, Index, Load, Scalar, Stage
from roller.graph.steps import Value
from roller.onnx.building import elementwise, ended, require_elements, require_shape, tensor, types_of
from roller.onnx.lowering import Compute, Lowered, Site, Unsupported, lowers
from roller.ops.build import indices
from roller.ops.matmul import matrix_product
from roller.ops.rows import broadcast


def _form(a: Value, b: Value, y: Value) -> tuple[tuple[Axis, ...], tuple[Index, ...], tuple[Index, ...]]:
    """Return the axes of a product that makes ``y``, and where both operands are read."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    axes, at_a, at_b = matrix_product(a.shape, b.shape, tuple(Axis(f"b{d}", e) for d, e in enumerate(batch)))
    require_shape(y, [x.extent for x in axes[:-1]])
    return axes, at_a, at_b


@lowers("MatMul")
def product(site: Site) -> Lowered:
    """Lower a product to the form of :func:`roller.ops.matmul`; broadcast batches are read at 0."""
    a, b, y = site.required(0), site.required(1), site.output
    t = types_of(a, y)
    if a.shape and a.shape[-1] == 0:  # a sum over nothing
        return Compute((elementwise(y, lambda at: t.const(0), t.acc),))
    require_elements(site)
    axes, at_a, at_b = _form(a, b, y)
    body = Call("mul", (t.load(a.name, at_a), t.load(b.name, at_b)))
    return Compute(ended(y, axes, indices(axes[:-1]), body, "sum", t))


@lowers("MatMulInteger")
def integers(site: Site) -> Lowered:
    """Lower a product of 8-bit integers less their zero points, in 32 bits."""
    require_elements(site)
    a, b, y = site.required(0), site.required(1), site.output
    axes, at_a, at_b = _form(a, b, y)

    def centred(v: Value, at: tuple[Index, ...], position: int, along: Index | None) -> Scalar:
        zero, value = site.input(position), Cast("int32", Load(v.name, at))
        if zero is None:
            return value
        if zero.elements == 1:
            where: tuple[Index, ...] = (Index(),) * len(zero.shape)
        elif len(zero.shape) == 1 and along is not None:
            where = (along,)
        else:
            where = broadcast(zero.shape, at, v.shape)
        return Call("sub", (value, Cast("int32", Load(zero.name, where))))

    rows = at_a[-2] if len(a.shape) > 1 else None
    columns = at_b[-1] if len(b.shape) > 1 else None
    body = Call("mul", (centred(a, at_a, 2, rows), centred(b, at_b, 3, columns)))
    return Compute(ended(y, axes, indices(axes[:-1]), body, "sum", types_of(a, y)))


@lowers("Gemm")
def gemm(site: Site) -> Lowered:
    """Lower ``alpha * A @ B + beta * C``: scaling and addition end the product."""
    a, b, c, y = site.required(0), site.required(1), site.input(2), site.output
    t = types_of(a, y)
    alpha, beta = float(site.attribute("alpha", 1.0)), float(site.attribute("beta", 1.0))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise Unsupported(f"expected two matrices, got shapes {a.shape} and {b.shape}")
    transposed = bool(site.attribute("transA", 0)), bool(site.attribute("transB", 0))
    nothing = 0 in a.shape and 0 in b.shape and 0 not in y.shape  # a sum over nothing
    if not nothing:
        require_elements(site)
    shape_a, shape_b = (tuple(e or 1 for e in v.shape) for v in (a, b))
    axes, at_a, at_b = matrix_product(shape_a, shape_b, (), *transposed)
    store = indices(axes[:-1])

    def ending(total: Scalar) -> Scalar:
        if alpha != 1:
            total = Call("mul", (total, t.const(alpha)))
        if c is None or beta == 0:
            return total
        added = t.load(c.name, broadcast(c.shape, store, y.shape))
        return Call("add", (total, added if beta == 1 else Call("mul", (added, t.const(beta)))))

    if nothing:
        return Compute((Stage(tensor(y), axes[:-1], store, ending(t.const(0)), None, t.acc),))
    if not t.is_float and (alpha, beta) != (int(alpha), int(beta)):
        raise Unsupported(f"alpha={alpha} and beta={beta} are no whole numbers, but the matrices are")
    plain = alpha == 1 and (c is None or beta == 0)
    body = Call("mul", (t.load(a.name, at_a), t.load(b.name, at_b)))
    return Compute(ended(y, axes, store, body, "sum", t, None if plain else ending))
