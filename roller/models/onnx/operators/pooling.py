"""Lowerings of pooling over windows and over whole images."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from roller.expr import Axis, Call, Index, IndexValue, Load, Scalar, Stage, Tensor, Term, axis_index
from roller.models.onnx.build_elementwise_stages import literal
from roller.models.onnx.lowering_helpers import (
    accumulation_types,
    float_accumulation_types,
    make_reduction_rows,
    output_or_intermediate_tensor,
    reduction_with_ending,
    refuse_empty_tensors,
    require_shape,
    site_windows,
)
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.ops.operator_argument_checks import OperatorDtypes, identity_indices
from roller.ops.reduce import p_norm_summand_and_ending, summand_and_ending
from roller.ops.sliding_windows_and_convolutions import Windows
from roller_runtime.plan.program_steps import Value


def _pooling_windows(site: Site) -> tuple[Value, Value, Windows, tuple[Axis, ...], tuple[Index, ...]]:
    """Return the input and output; the windows; and the result's axes and the input index of a point in a window."""
    refuse_empty_tensors(site)
    x, y = site.required(0), site.output
    kernel = tuple(int(k) for k in site.attribute("kernel_shape", ()))
    if len(x.shape) < 3 or len(kernel) != len(x.shape) - 2:
        raise Unsupported(f"expected a kernel_shape of rank {len(x.shape) - 2}, got {list(kernel)}")
    windows = site_windows(site, x.shape[2:], kernel, ceil=bool(site.attribute("ceil_mode", 0)))
    require_shape(y, (*x.shape[:2], *(a.extent for a in windows.outs)))
    axes = (Axis("n", x.shape[0]), Axis("c", x.shape[1]), *windows.outs)
    return x, y, windows, axes, (axis_index("n"), axis_index("c"), *windows.index)


@lowers("MaxPool")
def lower_max_pool(site: Site) -> Lowered:
    """Lower ``MaxPool``: maxima over windows; the second output gives the first position of each maximum."""
    x, y, windows, axes, at = _pooling_windows(site)
    t = accumulation_types(x, y)
    element = t.load(x.name, at, windows.guard, t.padding_value(-1))
    stages = reduction_with_ending(y, (*axes, *windows.kernels), identity_indices(axes), element, "max", t)
    if len(site.outputs) > 1 and site.outputs[1] is not None:
        stages += _max_position_stages(site, x, y, windows, axes, at, t)
    return Compute(stages)


def _max_position_stages(
    site: Site, x: Value, y: Value, windows: Windows, axes: tuple[Axis, ...], at: tuple[Index, ...], t: OperatorDtypes
) -> tuple[Stage, ...]:
    """Return the stages that compute ``Indices``, the flat position of each window's first maximum."""
    out = site.outputs[1]
    assert out is not None
    # The result is the smallest row-major position of the maximum. In windows with NaN, it is that of the last NaN, as
    # in PyTorch: positions of NaN are negated, which makes them smaller than all others.
    element = t.load(x.name, at, windows.guard, t.padding_value(-1))
    largest: Scalar = t.cast(Load(y.name, identity_indices(axes)))
    # A position is never in the padding, even where all elements have the lowest value.
    inside = [Call("le", (literal(0, "int64"), IndexValue(b.index, "int64"))) for b in windows.guard]
    inside += [Call("lt", (IndexValue(b.index, "int64"), literal(b.high, "int64"))) for b in windows.guard]
    none = literal(np.iinfo(np.int64).max, "int64")

    def least(value: Scalar, written: Tensor) -> Stage:
        for condition in inside:
            value = Call("select", (condition, value, none))
        return Stage(written, (*axes, *windows.kernels), identity_indices(axes), value, "min", "int64")

    def first(position: Index, hit: Scalar, target: Value, part: str = "") -> tuple[Stage, ...]:
        value: Scalar = Call("select", (hit, IndexValue(position, "int64"), none))
        written = output_or_intermediate_tensor(target, "int64", part)
        if not t.is_float:
            return (least(value, written),)
        down = Index(tuple(replace(x, coef=-x.coef) for x in position.terms), -1 - position.const)
        signed = least(
            Call("select", (Call("isnan", (element,)), IndexValue(down, "int64"), value)),
            output_or_intermediate_tensor(Value(y.name, target.shape, "int64"), "int64", "signed"),
        )
        found = Load(signed.name, identity_indices(axes))
        up = Call("sub", (literal(-1, "int64"), found))
        value = Call("select", (Call("lt", (found, literal(0, "int64"))), up, found))
        return signed, Stage(written, axes, identity_indices(axes), value, None, "int64")

    row_major = _flat_index(at, x.shape)
    equal = Call("eq", (element, largest))
    if not site.attribute("storage_order", 0):
        return first(row_major, equal, out)
    rank = len(x.shape)
    planes, size = x.shape[:2], x.shape[2:]
    column_major = _flat_index((*at[:2], *reversed(at[2:])), (*planes, *reversed(size)))
    by_row = first(row_major, equal, Value(y.name, out.shape, "int64"), "position")
    same = Call("eq", (IndexValue(row_major, "int64"), Load(by_row[-1].name, identity_indices(axes))))
    assert rank == len(column_major.axes) or column_major.terms
    hit = Call("select", (same, IndexValue(column_major, "int64"), none))
    return *by_row, least(hit, output_or_intermediate_tensor(out, "int64"))


def _flat_index(at: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """Return the flat index of an element in its tensor."""
    terms: list[Term] = []
    const, pitch = 0, 1
    for index, size in zip(reversed(at), reversed(shape), strict=True):
        terms += [Term(x.axis, x.coef * pitch, x.div, x.mod) for x in index.terms]
        const += index.const * pitch
        pitch *= size
    return Index(tuple(terms), const)


@lowers("AveragePool")
def lower_average_pool(site: Site) -> Lowered:
    """Lower ``AveragePool``: a sum over each window times the reciprocal of the number of counted elements."""
    x, y, windows, axes, at = _pooling_windows(site)
    t = float_accumulation_types(x, y)
    element = t.load(x.name, at, windows.guard)
    counted = _counted_points(windows, bool(site.attribute("count_include_pad", 0)))
    constants: dict[str, np.ndarray] = {}
    factors: list[Scalar] = []
    plain = math.prod(float(c[0]) for c in counted if (c == c[0]).all())
    if plain != 1:
        factors.append(t.const(1 / plain))
    for axis, count in zip(windows.outs, counted, strict=True):
        if (count != count[0]).any():
            name = f"{y.name}/count_{axis.name}"
            constants[name] = (1 / count).astype(np.float64 if t.acc == "float64" else np.float32)
            factors.append(Load(name, (axis_index(axis.name),)))

    def ending(total: Scalar) -> Scalar:
        for f in factors:
            total = Call("mul", (total, f))
        return total

    stages = reduction_with_ending(
        y, (*axes, *windows.kernels), identity_indices(axes), element, "sum", t, ending if factors else None
    )
    return Compute(stages, constants)


def _counted_points(windows: Windows, with_padding: bool) -> list[np.ndarray]:
    """Return, along each dimension, the number of points that count in each window; those beyond the padding do not."""
    out = []
    for n, kernel, axis, (before, after), stride, dilation in zip(
        windows.size, windows.kernels, windows.outs, windows.pads, windows.strides, windows.dilations, strict=True
    ):
        starts = np.arange(axis.extent)[:, None] * stride - before
        points = starts + np.arange(kernel.extent)[None, :] * dilation
        low, high = (-before, n + after) if with_padding else (0, n)
        out.append(np.maximum(((points >= low) & (points < high)).sum(axis=1), 1).astype(np.float64))
    return out


@lowers("LpPool")
def lower_lp_pool(site: Site) -> Lowered:
    """Lower ``LpPool``: p-norms over windows."""
    x, y, windows, axes, at = _pooling_windows(site)
    t = float_accumulation_types(x, y)
    p = float(site.attribute("p", 2))
    body, ending = p_norm_summand_and_ending(t, p, t.load(x.name, at, windows.guard))
    return Compute(reduction_with_ending(y, (*axes, *windows.kernels), identity_indices(axes), body, "sum", t, ending))


@lowers("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def lower_global_pool(site: Site) -> Lowered:
    """Lower ``GlobalAveragePool`` and the like, which pool whole images, to a reduction over the images' points."""
    refuse_empty_tensors(site)
    x, y = site.required(0), site.output
    op = site.node.op
    t = accumulation_types(x, y) if op == "GlobalMaxPool" else float_accumulation_types(x, y)
    require_shape(y, (*x.shape[:2], *(1,) * (len(x.shape) - 2)))
    rows = make_reduction_rows(x, y, t, range(2, len(x.shape)), keepdims=True)
    if op == "GlobalLpPool":
        body, ending = p_norm_summand_and_ending(t, float(site.attribute("p", 2)), rows.element)
    else:
        body, ending = summand_and_ending("max" if op == "GlobalMaxPool" else "mean", rows.element, rows.count, t)
    return Compute(
        reduction_with_ending(y, rows.axes, rows.at, body, "max" if op == "GlobalMaxPool" else "sum", t, ending)
    )
