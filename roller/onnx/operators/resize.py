"""Resize and Upsample: positions for nearest neighbours, bands or matrices of weights for linear and cubic kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.core.dtypes import FLOATS, numpy_dtype
from roller.expr import REDUCTION, Axis, Bound, Index, Load, Stage, Tensor, Term, axis_index
from roller.onnx.elementwise import axes_of, call, computed, converted, literal, require, tensor
from roller.onnx.interpolation import Band, Sampling, band, nearest, weights
from roller.onnx.lowering import Compute, Lowered, Reshaped, Site, Unsupported, lowers
from roller.onnx.operators.blocks import gathered
from roller.onnx.operators.movement import axis_of
from roller.ops.build import indices


def _text(site: Site, name: str, default: str) -> str:
    value: Any = site.attribute(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


@lowers("Upsample")
def upsample(site: Site) -> Lowered:
    """Lower the operator before Resize: floor of ``x / scale``, and linear by the same coordinates."""
    given = site.attribute("scales")
    scales = site.known(1, "Upsample's scales") if given is None else np.asarray(given)
    return _resized(site, scales, None, "asymmetric", "simple")


@lowers("Resize")
def resize(site: Site) -> Lowered:
    """Lower any of ONNX's coordinate transformations and kernels."""
    if len(site.inputs) == 2:  # version 10: scales come second
        return _resized(site, site.known(1, "Resize's scales"), None, "asymmetric", "simple")
    scales, sizes = site.known(2, "Resize's scales"), site.known(3, "Resize's sizes")
    mode = _text(site, "coordinate_transformation_mode", "half_pixel")
    rounding = _text(site, "nearest_mode", "round_prefer_floor")
    return _resized(site, scales, sizes, mode, rounding)


def _resized(
    site: Site, scales: np.ndarray | None, sizes: np.ndarray | None, coordinates: str, rounding: str
) -> Lowered:
    samplings = _samplings(site, scales, sizes, coordinates)
    kind = _text(site, "mode", "nearest")
    if not samplings:
        return Reshaped()
    outside = {d: s.outside() for d, s in samplings.items()}
    value = float(site.attribute("extrapolation_value", 0.0))
    if kind == "nearest":
        if any(o.any() for o in outside.values()):
            raise Unsupported("Resize takes the extrapolation value outside of its region, by nearest neighbours")
        if site.attribute("antialias", 0):
            raise Unsupported("Resize by nearest neighbours with antialias")
        return gathered(site, {d: nearest(s, rounding) for d, s in samplings.items()})
    if kind not in ("linear", "cubic"):
        raise Unsupported(f"Resize mode='{kind}' is none of nearest, linear, cubic")
    require(site.output, FLOATS, "Resize by a kernel")
    tables = {
        d: np.where(
            outside[d][:, None], 0.0,
            weights(s, kind, cubic_a=float(site.attribute("cubic_coeff_a", -0.75)),
                    antialias=bool(site.attribute("antialias", 0)),
                    exclude_outside=bool(site.attribute("exclude_outside", 0))),
        )
        for d, s in samplings.items()
    }  # fmt: skip
    return _weighted(site, tables, value if any(o.any() for o in outside.values()) else 0.0)


def _samplings(
    site: Site, scales: np.ndarray | None, sizes: np.ndarray | None, coordinates: str
) -> dict[int, Sampling]:
    """Return how every axis is resampled that is."""
    x, y = site.required(0), site.output
    rank = len(x.shape)
    if (scales is None or not scales.size) == (sizes is None or not sizes.size):
        raise Unsupported("Resize takes either scales or sizes")
    named = site.attribute("axes")
    axes = list(range(rank)) if named is None else [axis_of(int(a), rank) for a in np.ravel(named)]
    roi = site.known(1, "Resize's region") if coordinates == "tf_crop_and_resize" else None
    if coordinates == "tf_crop_and_resize" and (roi is None or roi.size != 2 * len(axes)):
        raise Unsupported("Resize by tf_crop_and_resize without a region")
    factors = _factors(site, scales, sizes, axes)
    out = {}
    for i, d in enumerate(axes):
        region = (0.0, 1.0) if roi is None else (float(np.ravel(roi)[i]), float(np.ravel(roi)[i + len(axes)]))
        if x.shape[d] != y.shape[d] or factors[i] != 1 or region != (0.0, 1.0):
            out[d] = Sampling(x.shape[d], y.shape[d], factors[i], coordinates, region)
    return out


def _factors(site: Site, scales: np.ndarray | None, sizes: np.ndarray | None, axes: list[int]) -> list[float]:
    """Return the scale of every axis of ``axes``."""
    x = site.required(0)
    if scales is not None and scales.size:
        return [float(s) for s in np.ravel(scales)]
    assert sizes is not None
    wanted = [float(s) for s in np.ravel(sizes)]
    factors = [w / x.shape[d] for w, d in zip(wanted, axes, strict=True)]
    policy = _text(site, "keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return factors
    if policy not in ("not_larger", "not_smaller"):
        raise Unsupported(f"Resize keep_aspect_ratio_policy='{policy}' is none that ONNX defines")
    common = min(factors) if policy == "not_larger" else max(factors)
    return [common] * len(axes)


def _source(read: Tensor, axes: tuple[Axis, ...], d: int, k: Axis, narrow: Band | None) -> Load:
    """Return the element that tap ``k`` of the weights along dimension ``d`` takes."""
    index = list(indices(axes))
    if narrow is None:
        index[d] = axis_index(k.name)
        return Load(read.name, tuple(index))
    index[d] = Index((Term(axes[d].name, narrow.step, narrow.period), Term(k.name)), narrow.offset)
    low, high = index[d].range({a.name: a.extent for a in (*axes, k)})
    inside = low >= 0 and high < read.shape[d]
    return Load(read.name, tuple(index), () if inside else (Bound(index[d], 0, read.shape[d]),))


def _weighted(site: Site, tables: dict[int, np.ndarray], offset: float) -> Compute:
    """Return one small product per resampled axis, the last of them first; weights are tables.

    Where an access map can say where the weights of a target lie, only that band is summed, else the whole source.
    Outside of its region a table is zero, so that the extrapolation value is what all is measured from.
    """
    x, y = tensor(site.required(0)), tensor(site.output)
    acc = computed(x.dtype)
    stages, constants, shape = [], {}, list(x.shape)
    read = x
    for number, d in enumerate(sorted(tables, reverse=True)):
        narrow = band(tables[d])
        amounts = tables[d] if narrow is None else narrow.table
        table = Tensor(f"{y.name}/weights{d}", amounts.shape, acc)
        constants[table.name] = amounts.astype(numpy_dtype(acc))
        shape[d] = tables[d].shape[0]
        last = number == len(tables) - 1
        out = y if last and not offset else Tensor(f"{y.name}/along{d}", tuple(shape), y.dtype if last else acc)
        # Names of each stage's own: its extents are not those of the one before.
        axes = tuple(Axis(f"s{number}.{a.name}", a.extent) for a in axes_of(shape))
        k = Axis(f"k{d}", amounts.shape[1], REDUCTION)
        load = _source(read, axes, d, k, narrow)
        value = converted(load, read.dtype, acc)
        if offset and read is x:
            value = call("sub", value, literal(offset, acc))
        weight = Load(table.name, (axis_index(axes[d].name), axis_index(k.name)))
        stages.append(Stage(out, (*axes, k), indices(axes), call("mul", value, weight), "sum", acc))
        read = out
    if offset:
        axes = axes_of(shape)
        back = call("add", converted(Load(read.name, indices(axes)), read.dtype, acc), literal(offset, acc))
        stages.append(Stage(y, axes, indices(axes), back, None, acc))
    return Compute(tuple(stages), constants)
