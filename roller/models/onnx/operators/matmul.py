"""Lowerings of matrix products: broadcast products, Gemm, and products of integers minus zero points."""

from __future__ import annotations

import numpy as np

from roller.expr import Axis, Call, Cast, Index, Load, Scalar, Stage
from roller.models.onnx.integer_products import (
    integer_sum_ending,
    integer_sum_stages,
    minus_zero_point,
    weights_minus_zero_points,
)
from roller.models.onnx.lowering_helpers import (
    accumulation_types,
    elementwise_stage,
    output_or_intermediate_tensor,
    refuse_empty_tensors,
    require_shape,
)
from roller.models.onnx.lowering_helpers import reduction_with_ending as ended_sum
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.ops.matmul import matrix_product
from roller.ops.operator_argument_checks import identity_indices
from roller.ops.tensor_rows import broadcast_index
from roller_runtime.plan.program_steps import Value


def _product_axes_and_indices(
    a: Value, b: Value, y: Value
) -> tuple[tuple[Axis, ...], tuple[Index, ...], tuple[Index, ...]]:
    """Return the axes of a product that writes ``y``, and the indices of both operands."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    axes, at_a, at_b = matrix_product(a.shape, b.shape, tuple(Axis(f"b{d}", e) for d, e in enumerate(batch)))
    require_shape(y, [x.extent for x in axes[:-1]])
    return axes, at_a, at_b


@lowers("MatMul")
def lower_matmul(site: Site) -> Lowered:
    """Lower ``MatMul`` to the form of :func:`roller.ops.matmul`; broadcast batch dimensions are indexed by 0."""
    a, b, y = site.required(0), site.required(1), site.output
    t = accumulation_types(a, y)
    if a.shape and a.shape[-1] == 0:  # an empty sum
        return Compute((elementwise_stage(y, lambda at: t.const(0), t.acc),))
    refuse_empty_tensors(site)
    axes, at_a, at_b = _product_axes_and_indices(a, b, y)
    body = Call("mul", (t.load(a.name, at_a), t.load(b.name, at_b)))
    return Compute(ended_sum(y, axes, identity_indices(axes[:-1]), body, "sum", t))


@lowers("MatMulInteger")
@lowers("MatMulInteger", domain="roller")
def lower_matmul_integer(site: Site) -> Lowered:
    """Lower ``MatMulInteger``: a product of 8-bit integers minus zero points, in 32 bits."""
    refuse_empty_tensors(site)
    a, b, y = site.required(0), site.required(1), site.output
    axes, at_a, at_b = _product_axes_and_indices(a, b, y)
    rows, columns = at_a[-2:-1], at_b[-1:] if len(b.shape) > 1 else ()
    held, zero = site.constant(1), site.input(2)
    fixed = site.input(3) is None or site.constant(3) is not None
    if held is not None and held.ndim == 2 and fixed and (zero is None or zero.elements == 1):
        weights = weights_minus_zero_points(held, site.constant(3), 1)
        if weights is not None:
            end = integer_sum_ending(site, columns[0], weights.astype(np.int64).sum(0))
            name = b.name if weights is held else f"{y.name}/weights"
            if weights is not held:
                end.constants[name] = weights
            body = Call("mul", (Cast("int32", Load(a.name, at_a)), Cast("int32", Load(name, at_b))))
            return integer_sum_stages(y, axes, identity_indices(axes[:-1]), body, end)

    def off(v: Value, at: tuple[Index, ...], position: int, along: tuple[Index, ...]) -> Scalar:
        zeros = site.input(position)
        one = zeros is None or (len(zeros.shape) == 1 and along)
        where = along if one else broadcast_index(zeros.shape, at, v.shape) if zeros is not None else ()
        return minus_zero_point(site, Load(v.name, at), position, where)

    body = Call("mul", (off(a, at_a, 2, rows), off(b, at_b, 3, columns)))
    return Compute(ended_sum(y, axes, identity_indices(axes[:-1]), body, "sum", accumulation_types(a, y)))


@lowers("Gemm")
def lower_gemm(site: Site) -> Lowered:
    """Lower ``Gemm``: ``alpha * A @ B + beta * C``, a product followed by scaling and addition."""
    a, b, c, y = site.required(0), site.required(1), site.input(2), site.output
    t = accumulation_types(a, y)
    alpha, beta = float(site.attribute("alpha", 1.0)), float(site.attribute("beta", 1.0))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise Unsupported(f"expected two matrices, got shapes {a.shape} and {b.shape}")
    transposed = bool(site.attribute("transA", 0)), bool(site.attribute("transB", 0))
    nothing = 0 in a.shape and 0 in b.shape and 0 not in y.shape  # an empty sum
    if not nothing:
        refuse_empty_tensors(site)
    shape_a, shape_b = (tuple(e or 1 for e in v.shape) for v in (a, b))
    axes, at_a, at_b = matrix_product(shape_a, shape_b, (), *transposed)
    store = identity_indices(axes[:-1])

    def ending(total: Scalar) -> Scalar:
        if alpha != 1:
            total = Call("mul", (total, t.const(alpha)))
        if c is None or beta == 0:
            return total
        added = t.load(c.name, broadcast_index(c.shape, store, y.shape))
        return Call("add", (total, added if beta == 1 else Call("mul", (added, t.const(beta)))))

    if nothing:
        return Compute((Stage(output_or_intermediate_tensor(y), axes[:-1], store, ending(t.const(0)), None, t.acc),))
    if not t.is_float and (alpha, beta) != (int(alpha), int(beta)):
        raise Unsupported(f"alpha={alpha} and beta={beta} are no whole numbers, but the matrices are")
    plain = alpha == 1 and (c is None or beta == 0)
    body = Call("mul", (t.load(a.name, at_a), t.load(b.name, at_b)))
    return Compute(ended_sum(y, axes, store, body, "sum", t, None if plain else ending))
