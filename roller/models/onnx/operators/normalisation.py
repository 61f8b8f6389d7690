"""Lowerings of normalizations by given statistics or those of a row, a channel, a group or nearby channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from roller.expr import REDUCTION, Axis, Call, Cast, Index, Load, Scalar, Stage, Term, axis_index
from roller.models.graph.steps import Value
from roller.models.onnx.building import elementwise, ended, floats_of, normal_axes, require_elements, rows_over, tensor
from roller.models.onnx.lowering import Compute, Lowered, Site, Unsupported, lowers
from roller.models.onnx.rewriting import Steps
from roller.ops.build import Types, indices
from roller.ops.norms import moments, over_root_mean_square, standardised
from roller.ops.reduce import p_norm
from roller.ops.rows import axes_over, broadcast
from roller.ops.windows import place

#: Applies scale and shift to a normalized value at a point.
Finish = Callable[[Scalar, tuple[Index, ...]], Scalar]


def operand(t: Types, value: Value, at: tuple[Index, ...]) -> Scalar:
    """Return an element of a parameter in the accumulation dtype."""
    load = Load(value.name, at)
    return load if value.dtype == t.acc else Cast(t.acc, load)


@lowers("BatchNormalization")
def batch(site: Site) -> Lowered:
    """Lower the normalization by given statistics to a product and a sum per channel."""
    if site.attribute("training_mode", 0) or any(o is not None for o in site.outputs[1:]):
        raise Unsupported("it computes statistics, which is training; export the model for inference")
    require_elements(site)
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    epsilon = float(site.attribute("epsilon", 1e-5))
    given = [site.required(i) for i in range(1, 5)]
    if not site.attribute("spatial", 1):
        raise Unsupported("spatial=0 of old versions is not known here")
    if any(len(v.shape) != 1 for v in given):
        raise Unsupported(f"parameters have shapes {[v.shape for v in given]}, expected one dimension each")
    known = [site.constant(i) for i in range(1, 5)]
    constants: dict[str, np.ndarray] = {}
    if all(k is not None for k in known):
        scale, shift, mean, variance = (np.asarray(k, np.float64) for k in known if k is not None)
        factor = scale / np.sqrt(variance + epsilon)
        kind = np.dtype(t.acc)
        constants = {f"{y.name}/factor": factor.astype(kind), f"{y.name}/shift": (shift - mean * factor).astype(kind)}

    def value(at: tuple[Index, ...]) -> Scalar:
        channel = (at[1] if len(at) > 1 else Index(),)
        element = t.load(x.name, at)
        if constants:
            product = Call("mul", (element, Load(f"{y.name}/factor", channel)))
            return Call("add", (product, Load(f"{y.name}/shift", channel)))
        scale, shift, mean, variance = (operand(t, v, channel) for v in given)
        factor = Call("rsqrt", (Call("add", (variance, t.const(epsilon))),))
        centred = Call("mul", (Call("sub", (element, mean)), factor))
        return Call("add", (Call("mul", (centred, scale)), shift))

    return Compute((elementwise(y, value, t.acc),), constants)


def _standardised(x: Value, y: Value, t: Types, reduced: Sequence[int], epsilon: float, finish: Finish
                  ) -> tuple[Stage, ...]:  # fmt: skip
    """Return the stages of ``finish((x - mean) / sqrt(var + epsilon))`` over rows along ``reduced`` dimensions."""
    rows = rows_over(x, y, t, reduced)
    stages, value, _, _ = standardised(rows, epsilon)
    return *stages, rows.pointwise(tensor(y), finish(value, rows.point))


def _behind(site: Site, x: Value, default: int = -1) -> tuple[int, ...]:
    """Return the dimensions starting at ``axis``."""
    (axis,) = normal_axes([site.attribute("axis", default)], len(x.shape))
    return tuple(range(axis, len(x.shape)))


@lowers("LayerNormalization")
def layer(site: Site) -> Lowered:
    """Lower the normalization over all dimensions starting at ``axis``."""
    require_elements(site)
    x, scale, shift, y = site.required(0), site.required(1), site.input(2), site.output
    t = floats_of(x, y)

    rows = rows_over(x, y, t, _behind(site, x))
    stages, value, mean, factor = standardised(rows, float(site.attribute("epsilon", 1e-5)))
    value = Call("mul", (value, operand(t, scale, broadcast(scale.shape, rows.point, x.shape))))
    if shift is not None:
        value = Call("add", (value, operand(t, shift, broadcast(shift.shape, rows.point, x.shape))))
    # Statistics that are outputs keep the reduced dimensions.
    kept = replace(rows, keepdims=True)
    wanted = zip(site.outputs[1:], (mean, factor), strict=False)
    more = (kept.per_row(tensor(out), of) for out, of in wanted if out is not None)
    return Compute((*stages, rows.pointwise(tensor(y), value), *more))


@lowers("RMSNormalization", "SimplifiedLayerNormalization")
def root_mean_square(site: Site) -> Lowered:
    """Lower to the form of :func:`roller.ops.rms_norm`, over all dimensions starting at ``axis``."""
    require_elements(site)
    x, scale, y = site.required(0), site.required(1), site.output
    t = floats_of(x, y)
    rows = rows_over(x, y, t, _behind(site, x))
    squares, value = over_root_mean_square(rows, float(site.attribute("epsilon", 1e-5)))
    value = Call("mul", (value, operand(t, scale, broadcast(scale.shape, rows.point, x.shape))))
    return Compute((squares, rows.pointwise(tensor(y), value)))


@lowers("InstanceNormalization")
def instance(site: Site) -> Lowered:
    """Lower the normalization of every channel of every image."""
    require_elements(site)
    x, scale, shift, y = site.required(0), site.required(1), site.required(2), site.output
    t = floats_of(x, y)

    def finish(value: Scalar, at: tuple[Index, ...]) -> Scalar:
        return Call("add", (Call("mul", (value, operand(t, scale, at[1:2]))), operand(t, shift, at[1:2])))

    reduced = range(2, len(x.shape))
    return Compute(_standardised(x, y, t, reduced, float(site.attribute("epsilon", 1e-5)), finish))


@lowers("GroupNormalization")
def group(site: Site) -> Lowered:
    """Lower the normalization of channel groups to that of rows ``(n, groups, channels and points of a group)``."""
    require_elements(site)
    x, scale, shift, y = site.required(0), site.required(1), site.required(2), site.output
    groups = int(site.attribute("num_groups", 0))
    if groups < 1 or x.shape[1] % groups:
        raise Unsupported(f"{groups} groups do not divide {x.shape[1]} channels")
    points = math.prod(x.shape[2:])
    rows = (x.shape[0], groups, x.shape[1] // groups * points)
    steps = Steps(site)
    parts = steps.reshape(x, rows)
    kept = {"epsilon": site.attribute("epsilon", 1e-5), "points": points}
    normal = steps.add("GroupsAsRows", (parts, scale, shift), rows, y.dtype, domain="roller", **kept)
    steps.reshape(normal, y.shape, out=y)
    return steps.done()


@lowers("GroupsAsRows", domain="roller")
def groups_as_rows(site: Site) -> Lowered:
    """Lower the normalization of rows with parameters per group or per channel of ``points`` elements."""
    x, scale, shift, y = site.required(0), site.required(1), site.required(2), site.output
    t = floats_of(x, y)
    points = int(site.attribute("points"))
    channels = x.shape[2] // points
    at_group = axis_index("d1")
    at_channel = Index((Term("d1", channels), *(() if channels == 1 else (Term("d2", 1, points),))))
    where = at_group if scale.shape[0] == x.shape[1] else at_channel

    def finish(value: Scalar, at: tuple[Index, ...]) -> Scalar:
        return Call("add", (Call("mul", (value, operand(t, scale, (where,)))), operand(t, shift, (where,))))

    return Compute(_standardised(x, y, t, (2,), float(site.attribute("epsilon")), finish))


@lowers("MeanVarianceNormalization")
def mean_variance(site: Site) -> Lowered:
    """Lower ``(x - mean) / (std + 1e-9)`` over ``axes``."""
    require_elements(site)
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    rows = rows_over(x, y, t, normal_axes(site.attribute("axes", (0, 2, 3)), len(x.shape)))
    stages, mean, variance = moments(rows)
    # ONNX's definition adds epsilon to the standard deviation, not to the variance.
    deviation = Call("add", (Call("sqrt", (variance,)), t.const(1e-9)))
    return Compute((*stages, rows.pointwise(tensor(y), Call("div", (Call("sub", (rows.here, mean)), deviation)))))


@lowers("LpNormalization")
def unit(site: Site) -> Lowered:
    """Lower the division by the p-norm along ``axis``; a row of zeros stays zero."""
    require_elements(site)
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    rows = rows_over(x, y, t, normal_axes([site.attribute("axis", -1)], len(x.shape)))
    body, ending = p_norm(t, float(site.attribute("p", 2)), rows.element)
    total = rows.reduction("sum", body)
    norm: Scalar = ending(rows.of(total)) if ending else rows.of(total)
    norm = Call("select", (Call("eq", (norm, t.const(0))), t.const(1), norm))
    return Compute((total, rows.pointwise(tensor(y), Call("div", (rows.here, norm)))))


@lowers("LRN")
def local_response(site: Site) -> Lowered:
    """Lower the division by a power of the mean square over neighbouring channels: a windowed sum and an ending."""
    require_elements(site)
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    size = int(site.attribute("size", 1))
    alpha, beta = float(site.attribute("alpha", 1e-4)), float(site.attribute("beta", 0.75))
    every, window = axes_over(x.shape), Axis("k", size, REDUCTION)
    channel, guard = place(every[1], window, x.shape[1], 1, 1, (size - 1) // 2)
    at, point = (axis_index("d0"), channel, *indices(every[2:])), indices(every)
    element = t.load(x.name, at, guard)

    def ending(total: Scalar) -> Scalar:
        scaled = Call("mul", (total, t.const(alpha / size)))
        base = Call("add", (scaled, t.const(float(site.attribute("bias", 1.0)))))
        return Call("mul", (t.load(x.name, point), _negative_power(base, beta, t)))

    return Compute(ended(y, (*every, window), point, Call("mul", (element, element)), "sum", t, ending))


def _negative_power(base: Scalar, exponent: float, t: Types) -> Scalar:
    """Return ``base ** -exponent`` for a positive base; compute 0.5 and 0.75 by roots, which are cheaper."""
    root = Call("rsqrt", (base,))
    if exponent == 0.5:
        return root
    if exponent == 0.75:
        return Call("mul", (root, Call("sqrt", (root,))))
    return Call("div", (t.const(1), base if exponent == 1 else Call("pow", (base, t.const(exponent)))))
