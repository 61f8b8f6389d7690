"""Lowerings of normalizations by given statistics or by those of a row, channel, group or nearby channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from roller.expr import REDUCTION, Axis, Call, Cast, Index, Load, Scalar, Stage, Term, axis_index
from roller.models.onnx.lowering_helpers import (
    elementwise_stage,
    float_accumulation_types,
    make_reduction_rows,
    normalise_axes,
    output_or_intermediate_tensor,
    reduction_with_ending,
    refuse_empty_tensors,
)
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.norms import mean_and_variance_stages, root_mean_square_normalise, standardise_rows
from roller.ops.operator_argument_checks import OperatorDtypes, identity_indices
from roller.ops.reduce import p_norm_summand_and_ending
from roller.ops.sliding_windows_and_convolutions import guarded_window_index
from roller.ops.tensor_rows import axes_of_dimensions, broadcast_index
from roller_runtime.plan.program_steps import Value

#: Applies scale and shift to a normalized value at a point.
Finish = Callable[[Scalar, tuple[Index, ...]], Scalar]


def parameter_element(t: OperatorDtypes, value: Value, at: tuple[Index, ...]) -> Scalar:
    """Return an element of a parameter in the accumulation dtype."""
    load = Load(value.name, at)
    return load if value.dtype == t.acc else Cast(t.acc, load)


@lowers("BatchNormalization")
def lower_batch_normalisation(site: Site) -> Lowered:
    """Lower ``BatchNormalization`` by given statistics: a product and a sum per channel."""
    if site.attribute("training_mode", 0) or any(o is not None for o in site.outputs[1:]):
        raise Unsupported("it computes statistics, which is training; export the model for inference")
    refuse_empty_tensors(site)
    x, y = site.required(0), site.output
    t = float_accumulation_types(x, y)
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
        scale, shift, mean, variance = (parameter_element(t, v, channel) for v in given)
        factor = Call("rsqrt", (Call("add", (variance, t.const(epsilon))),))
        centred = Call("mul", (Call("sub", (element, mean)), factor))
        return Call("add", (Call("mul", (centred, scale)), shift))

    return Compute((elementwise_stage(y, value, t.acc),), constants)


def _make_standardise_stages(x: Value, y: Value, t: OperatorDtypes, reduced: Sequence[int], epsilon: float,
                             finish: Finish
                  ) -> tuple[Stage, ...]:  # fmt: skip
    """Return the stages that compute ``finish((x - mean) / sqrt(var + epsilon))`` over the ``reduced`` dimensions."""
    rows = make_reduction_rows(x, y, t, reduced)
    stages, value, _, _ = standardise_rows(rows, epsilon)
    return *stages, rows.pointwise(output_or_intermediate_tensor(y), finish(value, rows.point))


def _dimensions_from_axis(site: Site, x: Value, default: int = -1) -> tuple[int, ...]:
    """Return the dimensions starting at ``axis``."""
    (axis,) = normalise_axes([site.attribute("axis", default)], len(x.shape))
    return tuple(range(axis, len(x.shape)))


@lowers("LayerNormalization")
def lower_layer_normalisation(site: Site) -> Lowered:
    """Lower ``LayerNormalization`` over all dimensions starting at ``axis``."""
    refuse_empty_tensors(site)
    x, scale, shift, y = site.required(0), site.required(1), site.input(2), site.output
    t = float_accumulation_types(x, y)

    rows = make_reduction_rows(x, y, t, _dimensions_from_axis(site, x))
    stages, value, mean, factor = standardise_rows(rows, float(site.attribute("epsilon", 1e-5)))
    value = Call("mul", (value, parameter_element(t, scale, broadcast_index(scale.shape, rows.point, x.shape))))
    if shift is not None:
        value = Call("add", (value, parameter_element(t, shift, broadcast_index(shift.shape, rows.point, x.shape))))
    # Statistics that are outputs keep the reduced dimensions.
    kept = replace(rows, keepdims=True)
    wanted = zip(site.outputs[1:], (mean, factor), strict=False)
    more = (kept.per_row_stage(output_or_intermediate_tensor(out), of) for out, of in wanted if out is not None)
    return Compute((*stages, rows.pointwise(output_or_intermediate_tensor(y), value), *more))


@lowers("RMSNormalization", "SimplifiedLayerNormalization")
def lower_rms_normalisation(site: Site) -> Lowered:
    """Lower ``RMSNormalization`` over the dimensions from ``axis`` on to the form of :func:`roller.ops.rms_norm`."""
    refuse_empty_tensors(site)
    x, scale, y = site.required(0), site.required(1), site.output
    t = float_accumulation_types(x, y)
    rows = make_reduction_rows(x, y, t, _dimensions_from_axis(site, x))
    squares, value = root_mean_square_normalise(rows, float(site.attribute("epsilon", 1e-5)))
    value = Call("mul", (value, parameter_element(t, scale, broadcast_index(scale.shape, rows.point, x.shape))))
    return Compute((squares, rows.pointwise(output_or_intermediate_tensor(y), value)))


@lowers("InstanceNormalization")
def lower_instance_normalisation(site: Site) -> Lowered:
    """Lower ``InstanceNormalization``: each channel of each image is normalized separately."""
    refuse_empty_tensors(site)
    x, scale, shift, y = site.required(0), site.required(1), site.required(2), site.output
    t = float_accumulation_types(x, y)

    def finish(value: Scalar, at: tuple[Index, ...]) -> Scalar:
        return Call(
            "add", (Call("mul", (value, parameter_element(t, scale, at[1:2]))), parameter_element(t, shift, at[1:2]))
        )

    reduced = range(2, len(x.shape))
    return Compute(_make_standardise_stages(x, y, t, reduced, float(site.attribute("epsilon", 1e-5)), finish))


@lowers("GroupNormalization")
def lower_group_normalisation(site: Site) -> Lowered:
    """Lower ``GroupNormalization`` as rows, shape ``(n, groups, channels per group * points)``."""
    refuse_empty_tensors(site)
    x, scale, shift, y = site.required(0), site.required(1), site.required(2), site.output
    groups = int(site.attribute("num_groups", 0))
    if groups < 1 or x.shape[1] % groups:
        raise Unsupported(f"{groups} groups do not divide {x.shape[1]} channels")
    points = math.prod(x.shape[2:])
    rows = (x.shape[0], groups, x.shape[1] // groups * points)
    steps = NodeRewriter(site)
    parts = steps.reshape(x, rows)
    kept = {"epsilon": site.attribute("epsilon", 1e-5), "points": points}
    normal = steps.add("GroupsAsRows", (parts, scale, shift), rows, y.dtype, domain="roller", **kept)
    steps.reshape(normal, y.shape, out=y)
    return steps.finish()


@lowers("GroupsAsRows", domain="roller")
def lower_group_norm_rows(site: Site) -> Lowered:
    """Lower ``GroupsAsRows``: normalized rows, scaled and shifted per group or per channel of ``points`` elements."""
    x, scale, shift, y = site.required(0), site.required(1), site.required(2), site.output
    t = float_accumulation_types(x, y)
    points = int(site.attribute("points"))
    channels = x.shape[2] // points
    at_group = axis_index("d1")
    at_channel = Index((Term("d1", channels), *(() if channels == 1 else (Term("d2", 1, points),))))
    where = at_group if scale.shape[0] == x.shape[1] else at_channel

    def finish(value: Scalar, at: tuple[Index, ...]) -> Scalar:
        return Call(
            "add", (Call("mul", (value, parameter_element(t, scale, (where,)))), parameter_element(t, shift, (where,)))
        )

    return Compute(_make_standardise_stages(x, y, t, (2,), float(site.attribute("epsilon")), finish))


@lowers("MeanVarianceNormalization")
def lower_mean_variance_normalisation(site: Site) -> Lowered:
    """Lower ``MeanVarianceNormalization``: ``(x - mean) / (std + 1e-9)`` over ``axes``."""
    refuse_empty_tensors(site)
    x, y = site.required(0), site.output
    t = float_accumulation_types(x, y)
    rows = make_reduction_rows(x, y, t, normalise_axes(site.attribute("axes", (0, 2, 3)), len(x.shape)))
    stages, mean, variance = mean_and_variance_stages(rows)
    # ONNX's definition adds epsilon to the standard deviation, not to the variance.
    deviation = Call("add", (Call("sqrt", (variance,)), t.const(1e-9)))
    return Compute(
        (
            *stages,
            rows.pointwise(output_or_intermediate_tensor(y), Call("div", (Call("sub", (rows.here, mean)), deviation))),
        )
    )


@lowers("LpNormalization")
def lower_lp_normalisation(site: Site) -> Lowered:
    """Lower ``LpNormalization``: the division by the p-norm along ``axis``; a row of zeros stays zero."""
    refuse_empty_tensors(site)
    x, y = site.required(0), site.output
    t = float_accumulation_types(x, y)
    rows = make_reduction_rows(x, y, t, normalise_axes([site.attribute("axis", -1)], len(x.shape)))
    body, ending = p_norm_summand_and_ending(t, float(site.attribute("p", 2)), rows.element)
    total = rows.reduction("sum", body)
    norm: Scalar = ending(rows.of(total)) if ending else rows.of(total)
    norm = Call("select", (Call("eq", (norm, t.const(0))), t.const(1), norm))
    return Compute((total, rows.pointwise(output_or_intermediate_tensor(y), Call("div", (rows.here, norm)))))


@lowers("LRN")
def lower_lrn(site: Site) -> Lowered:
    """Lower ``LRN``, local response normalization: a sum of squares over neighbouring channels, and an ending."""
    refuse_empty_tensors(site)
    x, y = site.required(0), site.output
    t = float_accumulation_types(x, y)
    size = int(site.attribute("size", 1))
    alpha, beta = float(site.attribute("alpha", 1e-4)), float(site.attribute("beta", 0.75))
    every, window = axes_of_dimensions(x.shape), Axis("k", size, REDUCTION)
    channel, guard = guarded_window_index(every[1], window, x.shape[1], 1, 1, (size - 1) // 2)
    at, point = (axis_index("d0"), channel, *identity_indices(every[2:])), identity_indices(every)
    element = t.load(x.name, at, guard)

    def ending(total: Scalar) -> Scalar:
        scaled = Call("mul", (total, t.const(alpha / size)))
        base = Call("add", (scaled, t.const(float(site.attribute("bias", 1.0)))))
        return Call("mul", (t.load(x.name, point), _negative_power(base, beta, t)))

    return Compute(reduction_with_ending(y, (*every, window), point, Call("mul", (element, element)), "sum", t, ending))


def _negative_power(base: Scalar, exponent: float, t: OperatorDtypes) -> Scalar:
    """Return ``base ** -exponent`` for a positive base; exponents 0.5 and 0.75 use roots, which are cheaper."""
    root = Call("rsqrt", (base,))
    if exponent == 0.5:
        return root
    if exponent == 0.75:
        return Call("mul", (root, Call("sqrt", (root,))))
    return Call("div", (t.const(1), base if exponent == 1 else Call("pow", (base, t.const(exponent)))))
