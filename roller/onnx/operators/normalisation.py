"""Normalisations: by given statistics, or by those of a row, a channel, a group or a window of channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from roller.expr import REDUCTION, Axis, Bound, Call, Cast, Index, Load, Scalar, Stage, Term, axis_index
from roller.model.steps import Value
from roller.onnx.building import (
    broadcast,
    elementwise,
    ended,
    floats_of,
    normal_axes,
    point_axes,
    require_elements,
    tensor,
    walk_axes,
)
from roller.onnx.lowering import Compute, Lowered, Site, Unsupported, lowers
from roller.onnx.operators.pooling import p_norm
from roller.onnx.rewriting import Steps
from roller.ops.build import Types, indices, rows_of

#: What turns a normalised value at a point into the result: scale and shift.
Finish = Callable[[Scalar, tuple[Index, ...]], Scalar]


def operand(t: Types, value: Value, at: tuple[Index, ...]) -> Scalar:
    """Return an element of a parameter in the arithmetic dtype, whatever dtype it has itself."""
    load = Load(value.name, at)
    return load if value.dtype == t.acc else Cast(t.acc, load)


@lowers("BatchNormalization")
def batch(site: Site) -> Lowered:
    """Lower the normalisation by given statistics to a product and a sum per channel."""
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


def standardised(
    x: Value, y: Value, t: Types, reduced: Sequence[int], epsilon: float, finish: Finish,
    mean_out: Value | None = None, scale_out: Value | None = None,
) -> tuple[Stage, ...]:  # fmt: skip
    """Return ``finish((x - mean) / sqrt(var + epsilon))`` in the form of :func:`roller.ops.layer_norm`.

    Parameters
    ----------
    reduced
        Dimensions whose elements share mean and variance.
    finish
        Scale and shift of a normalised element at a point.
    mean_out, scale_out
        Where the statistics are wanted too: tensors with extent 1 in the reduced dimensions.
    """
    walked, every = walk_axes(x.shape, reduced), point_axes(x.shape)
    rows = tuple(a for d, a in enumerate(every) if d not in reduced)
    axes, at = (*rows_of(rows), *(walked[d] for d in reduced)), indices(rows)
    row = Value(y.name, tuple(a.extent for a in rows))
    share = t.const(1 / math.prod(x.shape[d] for d in reduced))
    total, spread = tensor(row, t.acc, "sum"), tensor(row, t.acc, "var")
    mean = Call("mul", (Load(total.name, at), share))
    inside = t.load(x.name, indices(walked))
    centred = Call("sub", (inside, mean))
    variance = Call("mul", (Load(spread.name, at), share))
    factor = Call("rsqrt", (Call("add", (variance, t.const(epsilon))),))
    value = Call("mul", (Call("sub", (t.load(x.name, indices(every)), mean)), factor))
    stages = [
        Stage(total, axes, at, inside, "sum", t.acc),
        Stage(spread, axes, at, Call("mul", (centred, centred)), "sum", t.acc),
        Stage(tensor(y), every, indices(every), finish(value, indices(every)), None, t.acc),
    ]
    for out, wanted in ((mean_out, mean), (scale_out, factor)):
        if out is not None:
            points = tuple(Axis(f"one{d}", 1) if d in reduced else a for d, a in enumerate(every))
            stages.append(Stage(tensor(out), points, indices(points), wanted, None, t.acc))
    return tuple(stages)


def _behind(site: Site, x: Value, default: int = -1) -> tuple[int, ...]:
    """Return the dimensions from ``axis`` on."""
    (axis,) = normal_axes([site.attribute("axis", default)], len(x.shape))
    return tuple(range(axis, len(x.shape)))


@lowers("LayerNormalization")
def layer(site: Site) -> Lowered:
    """Lower the normalisation of all dimensions from ``axis`` on."""
    require_elements(site)
    x, scale, shift, y = site.required(0), site.required(1), site.input(2), site.output
    t = floats_of(x, y)

    def finish(value: Scalar, at: tuple[Index, ...]) -> Scalar:
        value = Call("mul", (value, operand(t, scale, broadcast(scale, at, x.shape))))
        if shift is not None:
            value = Call("add", (value, operand(t, shift, broadcast(shift, at, x.shape))))
        return value

    more = (*site.outputs[1:], None, None)
    epsilon = float(site.attribute("epsilon", 1e-5))
    return Compute(standardised(x, y, t, _behind(site, x), epsilon, finish, more[0], more[1]))


@lowers("RMSNormalization", "SimplifiedLayerNormalization")
def root_mean_square(site: Site) -> Lowered:
    """Lower to the form of :func:`roller.ops.rms_norm`, over all dimensions from ``axis`` on."""
    require_elements(site)
    x, scale, y = site.required(0), site.required(1), site.output
    t = floats_of(x, y)
    reduced = _behind(site, x)
    walked, every = walk_axes(x.shape, reduced), point_axes(x.shape)
    rows = tuple(a for d, a in enumerate(every) if d not in reduced)
    at = indices(rows)
    squares = tensor(Value(y.name, tuple(a.extent for a in rows)), t.acc, "square")
    inside = t.load(x.name, indices(walked))
    mean = Call("mul", (Load(squares.name, at), t.const(1 / math.prod(x.shape[d] for d in reduced))))
    factor = Call("rsqrt", (Call("add", (mean, t.const(float(site.attribute("epsilon", 1e-5))))),))
    point = indices(every)
    value = Call("mul", (t.load(x.name, point), factor))
    value = Call("mul", (value, operand(t, scale, broadcast(scale, point, x.shape))))
    axes = (*rows_of(rows), *(walked[d] for d in reduced))
    first = Stage(squares, axes, at, Call("mul", (inside, inside)), "sum", t.acc)
    return Compute((first, Stage(tensor(y), every, point, value, None, t.acc)))


@lowers("InstanceNormalization")
def instance(site: Site) -> Lowered:
    """Lower the normalisation of every channel of every image."""
    require_elements(site)
    x, scale, shift, y = site.required(0), site.required(1), site.required(2), site.output
    t = floats_of(x, y)

    def finish(value: Scalar, at: tuple[Index, ...]) -> Scalar:
        return Call("add", (Call("mul", (value, operand(t, scale, at[1:2]))), operand(t, shift, at[1:2])))

    reduced = range(2, len(x.shape))
    return Compute(standardised(x, y, t, reduced, float(site.attribute("epsilon", 1e-5)), finish))


@lowers("GroupNormalization")
def group(site: Site) -> Lowered:
    """Lower the normalisation of groups of channels to one of rows ``(n, groups, channels and points of a group)``."""
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
    """Lower the normalisation of rows whose parameters belong to groups, or to channels of ``points`` elements."""
    x, scale, shift, y = site.required(0), site.required(1), site.required(2), site.output
    t = floats_of(x, y)
    points = int(site.attribute("points"))
    channels = x.shape[2] // points
    at_group = axis_index("d1")
    at_channel = Index((Term("d1", channels), *(() if channels == 1 else (Term("d2", 1, points),))))
    where = at_group if scale.shape[0] == x.shape[1] else at_channel

    def finish(value: Scalar, at: tuple[Index, ...]) -> Scalar:
        return Call("add", (Call("mul", (value, operand(t, scale, (where,)))), operand(t, shift, (where,))))

    return Compute(standardised(x, y, t, (2,), float(site.attribute("epsilon")), finish))


@lowers("MeanVarianceNormalization")
def mean_variance(site: Site) -> Lowered:
    """Lower ``(x - mean) / (std + 1e-9)`` over ``axes``."""
    require_elements(site)
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    reduced = normal_axes(site.attribute("axes", (0, 2, 3)), len(x.shape))
    stages = standardised(x, y, t, reduced, 0.0, lambda value, at: value)
    # The definition adds its epsilon to the deviation, not to the variance.
    total, spread, _ = stages
    every = point_axes(x.shape)
    rows = indices(tuple(a for d, a in enumerate(every) if d not in reduced))
    share = t.const(1 / math.prod(x.shape[d] for d in reduced))
    mean, variance = (Call("mul", (Load(s.name, rows), share)) for s in (total, spread))
    deviation = Call("add", (Call("sqrt", (variance,)), t.const(1e-9)))
    value = Call("div", (Call("sub", (t.load(x.name, indices(every)), mean)), deviation))
    return Compute((total, spread, Stage(tensor(y), every, indices(every), value, None, t.acc)))


@lowers("LpNormalization")
def unit(site: Site) -> Lowered:
    """Lower the division by the p-norm along ``axis``; a row of zeros stays one."""
    require_elements(site)
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    (along,) = normal_axes([site.attribute("axis", -1)], len(x.shape))
    walked, every = walk_axes(x.shape, (along,)), point_axes(x.shape)
    rows = tuple(a for d, a in enumerate(every) if d != along)
    at, point = indices(rows), indices(every)
    total = tensor(Value(y.name, tuple(a.extent for a in rows)), t.acc, "sum")
    body, ending = p_norm(t, float(site.attribute("p", 2)), t.load(x.name, indices(walked)))
    norm: Scalar = Load(total.name, at)
    norm = ending(norm) if ending else norm
    norm = Call("select", (Call("eq", (norm, t.const(0))), t.const(1), norm))
    value = Call("div", (t.load(x.name, point), norm))
    first = Stage(total, (*rows_of(rows), walked[along]), at, body, "sum", t.acc)
    return Compute((first, Stage(tensor(y), every, point, value, None, t.acc)))


@lowers("LRN")
def local_response(site: Site) -> Lowered:
    """Lower the division by a power of the mean square over neighbouring channels: a windowed sum and its ending."""
    require_elements(site)
    x, y = site.required(0), site.output
    t = floats_of(x, y)
    size = int(site.attribute("size", 1))
    alpha, beta = float(site.attribute("alpha", 1e-4)), float(site.attribute("beta", 0.75))
    every = point_axes(x.shape)
    channel = Index((Term("d1"), Term("k")), -((size - 1) // 2))
    at, point = (axis_index("d0"), channel, *indices(every[2:])), indices(every)
    low, high = channel.range({"d1": x.shape[1], "k": size})
    guard = (Bound(channel, 0, x.shape[1]),) if low < 0 or high >= x.shape[1] else ()
    element = t.load(x.name, at, guard)

    def ending(total: Scalar) -> Scalar:
        scaled = Call("mul", (total, t.const(alpha / size)))
        base = Call("add", (scaled, t.const(float(site.attribute("bias", 1.0)))))
        return Call("mul", (t.load(x.name, point), _negative_power(base, beta, t)))

    window = Axis("k", size, REDUCTION)
    return Compute(ended(y, (*every, window), point, Call("mul", (element, element)), "sum", t, ending))


def _negative_power(base: Scalar, exponent: float, t: Types) -> Scalar:
    """Return ``base ** -exponent`` of a positive base; quarters by roots, which cost a fraction of a power."""
    root = Call("rsqrt", (base,))
    if exponent == 0.5:
        return root
    if exponent == 0.75:
        return Call("mul", (root, Call("sqrt", (root,))))
    return Call("div", (t.const(1), base if exponent == 1 else Call("pow", (base, t.const(exponent)))))
