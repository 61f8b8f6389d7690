"""Matrix products: NumPy's broadcasting, Gemm, and integers less their zero points."""

from __future__ import annotations

import numpy as np

from roller.expr import REDUCTION, Axis, Call, Cast, Index, Load, Scalar, Stage, axis_index
from roller.model.steps import Value
from roller.onnx.building import broadcast, elementwise, ended, require_elements, require_shape, tensor, types_of
from roller.onnx.lowering import Compute, Lowered, Site, Unsupported, lowers
from roller.ops.build import indices


def _axes(a: Value, b: Value, y: Value) -> tuple[tuple[Axis, ...], tuple[Index, ...], tuple[Index, ...]]:
    """Return the axes of a product, spatial ones first, and where both operands are read."""
    if not a.shape or not b.shape:
        raise Unsupported("a matrix product needs operands of at least one dimension")
    depth = a.shape[-1]
    if b.shape[max(0, len(b.shape) - 2)] != depth:
        raise Unsupported(f"shapes {a.shape} and {b.shape} do not multiply")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = (Axis("i", a.shape[-2]),) if len(a.shape) > 1 else ()
    columns = (Axis("j", b.shape[-1]),) if len(b.shape) > 1 else ()
    outer = tuple(Axis(f"b{d}", e) for d, e in enumerate(batch))
    require_shape(y, (*batch, *(x.extent for x in (*rows, *columns))))

    def operand(v: Value, inner: tuple[Index, ...]) -> tuple[Index, ...]:
        lead = Value(v.name, v.shape[: max(0, len(v.shape) - 2)], v.dtype)
        return (*broadcast(lead, indices(outer), batch), *inner)

    k = axis_index("k")
    at_a = operand(a, (*indices(rows), k))
    at_b = operand(b, (k, *indices(columns)))
    return (*outer, *rows, *columns, Axis("k", depth, REDUCTION)), at_a, at_b


@lowers("MatMul")
def product(site: Site) -> Lowered:
    """Lower a product to the form of :func:`roller.ops.matmul`; broadcast batches are read at 0."""
    a, b, y = site.required(0), site.required(1), site.output
    t = types_of(a, y)
    if a.shape and a.shape[-1] == 0:  # a sum over nothing
        return Compute((elementwise(y, lambda at: t.const(0), t.acc),))
    require_elements(site)
    axes, at_a, at_b = _axes(a, b, y)
    body = Call("mul", (t.load(a.name, at_a), t.load(b.name, at_b)))
    return Compute(ended(y, axes, indices(axes[:-1]), body, "sum", t))


@lowers("MatMulInteger")
def integers(site: Site) -> Lowered:
    """Lower a product of 8-bit integers less their zero points, in 32 bits."""
    require_elements(site)
    a, b, y = site.required(0), site.required(1), site.output
    axes, at_a, at_b = _axes(a, b, y)

    def centred(v: Value, at: tuple[Index, ...], position: int, along: Index | None) -> Scalar:
        zero, value = site.input(position), Cast("int32", Load(v.name, at))
        if zero is None:
            return value
        if zero.elements == 1:
            where: tuple[Index, ...] = (Index(),) * len(zero.shape)
        elif len(zero.shape) == 1 and along is not None:
            where = (along,)
        else:
            where = broadcast(zero, at, v.shape)
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
    left = (axis_index("k"), axis_index("i")) if site.attribute("transA", 0) else (axis_index("i"), axis_index("k"))
    right = (axis_index("j"), axis_index("k")) if site.attribute("transB", 0) else (axis_index("k"), axis_index("j"))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise Unsupported(f"expected two matrices, got shapes {a.shape} and {b.shape}")
    depth = a.shape[0 if site.attribute("transA", 0) else 1]
    if b.shape[1 if site.attribute("transB", 0) else 0] != depth:
        raise Unsupported(f"shapes {a.shape} and {b.shape} do not multiply")
    store = axis_index("i"), axis_index("j")
    body = Call("mul", (t.load(a.name, left), t.load(b.name, right)))

    def ending(total: Scalar) -> Scalar:
        if alpha != 1:
            total = Call("mul", (total, t.const(alpha)))
        if c is None or beta == 0:
            return total
        added = t.load(c.name, broadcast(c, store, y.shape))
        return Call("add", (total, added if beta == 1 else Call("mul", (added, t.const(beta)))))

    if depth == 0:  # a sum over nothing
        rows = tuple(Axis(k, n) for k, n in zip("ij", y.shape, strict=True))
        return Compute((Stage(tensor(y), rows, store, ending(t.const(0)), None, t.acc),))
    require_elements(site)
    if not t.is_float and (alpha, beta) != (int(alpha), int(beta)):
        raise Unsupported(f"alpha={alpha} and beta={beta} are no whole numbers, but the matrices are")
    plain = alpha == 1 and (c is None or beta == 0)
    axes = (Axis("i", y.shape[0]), Axis("j", y.shape[1]), Axis("k", depth, REDUCTION))
    stages: tuple[Stage, ...] = ended(y, axes, store, body, "sum", t, None if plain else ending)
    return Compute(stages)
