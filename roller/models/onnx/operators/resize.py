"""Lowerings of Resize and Upsample: by positions for nearest neighbours, else by weight bands or matrices."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from roller.expr import REDUCTION, Axis, Bound, Index, Load, Stage, Tensor, Term, axis_index
from roller.models.onnx.build_elementwise_stages import (
    computation_dtype,
    convert_scalar,
    kernel_tensor_of_value,
    literal,
    require_dtype,
    result_axes,
    scalar_call,
)
from roller.models.onnx.interpolation import (
    AxisSampling,
    interpolation_matrix,
    narrowest_band,
    nearest_positions,
    resize_scales_and_shape,
    simplest_fraction,
)
from roller.models.onnx.lowering_helpers import require_shape
from roller.models.onnx.lowering_registry import Compute, InputView, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.models.onnx.operators.depth_to_space_and_pad import gather_along_dimensions
from roller.models.onnx.operators.movement import normalise_axis
from roller.ops.operator_argument_checks import identity_indices
from roller_runtime.core.dtypes import FLOATS, numpy_dtype


def _text_attribute(site: Site, name: str, default: str) -> str:
    value: Any = site.attribute(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


@lowers("Upsample")
def lower_upsample(site: Site) -> Lowered:
    """Lower ``Upsample``, which takes the neighbour at ``floor(x / scale)`` or interpolates linearly."""
    given = site.attribute("scales")
    scales = site.known(1, "Upsample's scales") if given is None else np.asarray(given)
    return _lower_resampling(site, scales, None, "asymmetric", "simple")


@lowers("Resize")
def lower_resize(site: Site) -> Lowered:
    """Lower ``Resize`` with any of ONNX's coordinate transformations and kernels."""
    if len(site.inputs) == 2:  # version 10: scales come second
        return _lower_resampling(site, site.known(1, "Resize's scales"), None, "asymmetric", "simple")
    scales, sizes = site.known(2, "Resize's scales"), site.known(3, "Resize's sizes")
    mode = _text_attribute(site, "coordinate_transformation_mode", "half_pixel")
    rounding = _text_attribute(site, "nearest_mode", "round_prefer_floor")
    return _lower_resampling(site, scales, sizes, mode, rounding)


def _lower_resampling(
    site: Site, scales: np.ndarray | None, sizes: np.ndarray | None, coordinates: str, rounding: str
) -> Lowered:
    samplings = _axis_samplings(site, scales, sizes, coordinates)
    kind = _text_attribute(site, "mode", "nearest")
    if not samplings:
        return InputView()
    outside = {d: s.extrapolated_mask() for d, s in samplings.items()}
    value = float(site.attribute("extrapolation_value", 0.0))
    if kind == "nearest":
        if any(o.any() for o in outside.values()):
            raise Unsupported("Resize takes the extrapolation value outside of its region, by nearest neighbours")
        if site.attribute("antialias", 0):
            raise Unsupported("Resize by nearest neighbours with antialias")
        return gather_along_dimensions(site, {d: nearest_positions(s, rounding) for d, s in samplings.items()})
    if kind not in ("linear", "cubic"):
        raise Unsupported(f"Resize mode='{kind}' is none of nearest, linear, cubic")
    require_dtype(site.output, FLOATS, "Resize by a kernel")
    tables = {
        d: np.where(
            outside[d][:, None], 0.0,
            interpolation_matrix(s, kind, cubic_a=float(site.attribute("cubic_coeff_a", -0.75)),
                    antialias=bool(site.attribute("antialias", 0)),
                    exclude_outside=bool(site.attribute("exclude_outside", 0))),
        )
        for d, s in samplings.items()
    }  # fmt: skip
    return _rewrite_as_weighted_sums(site, tables, value if any(o.any() for o in outside.values()) else 0.0)


def _axis_samplings(
    site: Site, scales: np.ndarray | None, sizes: np.ndarray | None, coordinates: str
) -> dict[int, AxisSampling]:
    """Return the sampling of each resampled axis."""
    x, y = site.required(0), site.output
    rank = len(x.shape)
    if (scales is None or not scales.size) == (sizes is None or not sizes.size):
        raise Unsupported("Resize takes either scales or sizes")
    named = site.attribute("axes")
    axes = list(range(rank)) if named is None else [normalise_axis(int(a), rank) for a in np.ravel(named)]
    roi = site.known(1, "Resize's region") if coordinates == "tf_crop_and_resize" else None
    if coordinates == "tf_crop_and_resize" and (roi is None or roi.size != 2 * len(axes)):
        raise Unsupported("Resize by tf_crop_and_resize without a region")
    factors = _exact_scales(site, scales, sizes, axes)
    if len(factors) != len(axes) or min(factors, default=Fraction(1)) <= 0:
        raise Unsupported(f"Resize of {len(axes)} axes by {[float(f) for f in factors]}")
    out = {}
    for i, d in enumerate(axes):
        ends = (
            [Fraction(0), Fraction(1)]
            if roi is None
            else [simplest_fraction(np.ravel(roi)[i + k]) for k in (0, len(axes))]
        )
        if x.shape[d] != y.shape[d] or factors[i] != 1 or ends != [0, 1]:
            factor = _size_ratio_if_equal(factors[i], x.shape[d], y.shape[d])
            out[d] = AxisSampling(x.shape[d], y.shape[d], factor, coordinates, (ends[0], ends[1]))
    return out


def _exact_scales(site: Site, scales: np.ndarray | None, sizes: np.ndarray | None, axes: list[int]) -> list[Fraction]:
    """Return the exact scale of each axis in ``axes``."""
    x = site.required(0)
    if scales is not None and scales.size:
        return [simplest_fraction(s) for s in np.ravel(scales)]
    assert sizes is not None
    wanted = [int(s) for s in np.ravel(sizes)]
    if len(wanted) != len(axes) or not all(x.shape[d] for d in axes):
        raise Unsupported(f"Resize to sizes {wanted} of axes {axes} of {list(x.shape)}")
    factors, made = resize_scales_and_shape(
        x.shape, wanted, axes, _text_attribute(site, "keep_aspect_ratio_policy", "stretch")
    )
    require_shape(site.output, made)
    return factors


def _size_ratio_if_equal(factor: Fraction, source: int, target: int) -> Fraction:
    """Return the ratio of the sizes if it equals the factor in float32; otherwise the factor."""
    ratio = Fraction(target, source) if source else factor
    return ratio if np.float32(float(ratio)) == np.float32(float(factor)) else factor


def _rewrite_as_weighted_sums(site: Site, tables: dict[int, np.ndarray], offset: float) -> Lowered:
    """Return one product with a weight table per resampled axis, from the last axis to the first."""
    if offset:
        return _compute_with_extrapolation(site, tables, offset)
    steps = NodeRewriter(site)
    x = site.required(0)
    acc = computation_dtype(x.dtype)
    shape = list(x.shape)
    order = sorted(tables, reverse=True)
    for d in order:
        # Each product is a node: a kernel for several axes would recompute rows of the first axis for each row of the
        # next, or run as many stages one after the other.
        amounts, at = _weights_and_band_parameters(tables[d])
        shape[d] = amounts.shape[0]
        weight = steps.constant(amounts.astype(numpy_dtype(acc)))
        out = site.output if d == order[-1] else None
        x = steps.add("Weighted", (x, weight), shape, acc, out=out, domain="roller", axis=d, **at)
    return steps.finish()


def _weights_and_band_parameters(table: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
    """Return each target's weights, and the parameters of their band (empty if the whole source is used)."""
    narrow = narrowest_band(table)
    if narrow is None:
        return table, {}
    return narrow.table, {"step": narrow.step, "period": narrow.period, "offset": narrow.offset}


@lowers("Weighted", domain="roller")
def lower_weighted_neighbours(site: Site) -> Lowered:
    """Lower ``Weighted``: weighted sums of neighbours along an axis, at ``step * (y // period) + offset + k``."""
    x, weight, y = (
        kernel_tensor_of_value(site.required(0)),
        kernel_tensor_of_value(site.required(1)),
        kernel_tensor_of_value(site.output),
    )
    axes, d = result_axes(y.shape), int(site.attribute("axis"))
    k = Axis("k", weight.shape[1], REDUCTION)
    first = (int(site.attribute("step", 0)), int(site.attribute("period", 1)), int(site.attribute("offset", 0)))
    value = convert_scalar(_load_tap(x, axes, d, k, *first), x.dtype, weight.dtype)
    body = scalar_call("mul", value, Load(weight.name, (axis_index(axes[d].name), axis_index(k.name))))
    return Compute((Stage(y, (*axes, k), identity_indices(axes), body, "sum", weight.dtype),))


def _load_tap(read: Tensor, axes: tuple[Axis, ...], d: int, k: Axis, step: int, period: int, offset: int) -> Load:
    """Return a load of tap ``k`` of a target along dimension ``d``; with a step of 0, the taps are the whole source."""
    index, at = list(identity_indices(axes)), axis_index(k.name)
    if step:
        at = Index((Term(axes[d].name, step, period), Term(k.name)), offset)
    index[d] = at
    low, high = at.range({a.name: a.extent for a in (*axes, k)})
    inside = low >= 0 and high < read.shape[d]
    return Load(read.name, tuple(index), () if inside else (Bound(at, 0, read.shape[d]),))


def _compute_with_extrapolation(site: Site, tables: dict[int, np.ndarray], offset: float) -> Compute:
    """Subtract the extrapolation value, apply the tables and add it again, so that zero weights give that value."""
    x, y = kernel_tensor_of_value(site.required(0)), kernel_tensor_of_value(site.output)
    acc = computation_dtype(x.dtype)
    stages, constants, shape = [], {}, list(x.shape)
    read = x
    for number, d in enumerate(sorted(tables, reverse=True)):
        table = Tensor(f"{y.name}/weights{d}", tables[d].shape, acc)
        constants[table.name] = tables[d].astype(numpy_dtype(acc))
        shape[d] = tables[d].shape[0]
        out = Tensor(f"{y.name}/along{d}", tuple(shape), acc)
        # Axis names are unique per stage, because extents differ between stages.
        axes = tuple(Axis(f"s{number}.{a.name}", a.extent) for a in result_axes(shape))
        k = Axis(f"k{d}", tables[d].shape[1], REDUCTION)
        value = convert_scalar(_load_tap(read, axes, d, k, 0, 1, 0), read.dtype, acc)
        if read is x:
            value = scalar_call("sub", value, literal(offset, acc))
        weight = Load(table.name, (axis_index(axes[d].name), axis_index(k.name)))
        stages.append(Stage(out, (*axes, k), identity_indices(axes), scalar_call("mul", value, weight), "sum", acc))
        read = out
    axes = result_axes(shape)
    back = scalar_call(
        "add", convert_scalar(Load(read.name, identity_indices(axes)), read.dtype, acc), literal(offset, acc)
    )
    stages.append(Stage(y, axes, identity_indices(axes), back, None, acc))
    return Compute(tuple(stages), constants)
