"""Array functions (:mod:`roller_runtime.session.array_functions`) that sample, scatter and pool at given positions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np


def grid_sample(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sample ``inputs[0]``, shape ``(n, c, *spatial)``, at ``inputs[1]``, shape ``(n, *out, rank)``, in [-1, 1].

    Attributes: ``mode`` (linear, nearest, cubic), ``padding`` (zeros, border, reflection), ``align_corners``.
    """
    # NaN and infinite positions give the results of PyTorch's CPU kernels. In images, the result is NaN where a weight
    # depends on the position (linear with zeros, cubic), otherwise the first element, or, with border, the last one for
    # an infinity. In volumes, such positions add nothing with zeros; otherwise, NaN gives the last element.
    data, grid = inputs
    with np.errstate(invalid="ignore", over="ignore"):
        return _sample_grid(xp, data, grid, attributes)


def _sample_grid(xp: Any, data: Any, grid: Any, attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    align, padding = attributes["align_corners"], attributes["padding"]
    spatial = data.shape[2:]
    volume = len(spatial) == 3
    taps = []
    for d, size in enumerate(spatial):
        place = grid[..., len(spatial) - 1 - d]  # the last axis of the grid starts with x
        place = place.astype("float32") if place.dtype.itemsize < 4 else place
        # In the grid's precision, because the last bit decides which neighbour is nearest.
        place = ((place + 1) / 2 * (size - 1) if align else ((place + 1) * size - 1) / 2).astype("float64")
        if attributes["mode"] == "nearest":
            place = xp.rint(place)
        bounds = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        outside = (place < bounds[0]) | (place > bounds[1])
        if attributes["mode"] == "cubic":
            pass  # each neighbour is brought within bounds separately
        elif padding == "border":
            place = xp.where(outside, xp.clip(place, 0, size - 1), place)
        elif padding == "reflection":
            place = xp.where(outside, _reflect_positions(xp, place, *bounds), place)
        if attributes["mode"] != "cubic" and padding != "zeros":
            place = xp.where(xp.isnan(place), size - 1.0 if volume else 0.0, place)
        taps.append(_neighbours_and_weights(xp, place, attributes["mode"], size, padding, bounds))
        if volume:
            taps[-1] = [(at, xp.where(xp.isnan(amount), 0.0, amount)) for at, amount in taps[-1]]
    batch = xp.arange(data.shape[0]).reshape((-1,) + (1,) * len(spatial))
    channels_last = xp.moveaxis(data, 1, -1)
    total: Any = 0
    for chosen in itertools.product(*taps):
        weight: Any = 1.0
        for _, amount in chosen:
            weight = weight * amount
        total = total + channels_last[(batch, *(at for at, _ in chosen))] * weight[..., None]
    return (xp.moveaxis(total, -1, 1).astype(data.dtype),)


def _reflect_positions(xp: Any, place: Any, low: float, high: float) -> Any:
    """Return positions reflected at both bounds until they are within."""
    extent = high - low
    if extent <= 0:
        return xp.full_like(place, low)
    folded = xp.mod(xp.abs(place - low), 2 * extent)
    return low + xp.where(folded > extent, 2 * extent - folded, folded)


def _neighbours_and_weights(
    xp: Any, place: Any, mode: str, size: int, padding: str, bounds: tuple[float, float]
) -> list[tuple[Any, Any]]:
    """Return pairs of neighbour indices and weights for positions along one axis, with padding applied."""
    first = xp.floor(place)
    rest = place - first
    if mode == "nearest":
        offsets, amounts = [0], [xp.ones_like(place)]
    elif mode == "linear":
        offsets, amounts = [0, 1], [1 - rest, rest]
    else:
        offsets, amounts = [-1, 0, 1, 2], [_cubic_kernel(xp, xp.abs(rest - o)) for o in (-1, 0, 1, 2)]
    found = []
    for offset, amount in zip(offsets, amounts, strict=True):
        at = first + offset
        inside = (at >= 0) & (at <= size - 1)
        if padding == "zeros":
            amount = amount * inside  # keeps NaN
        elif padding == "reflection":
            at = xp.where(inside, at, _reflect_positions(xp, at, *bounds))
        found.append((xp.where(xp.isnan(at), 0.0, xp.clip(at, 0, size - 1)).astype("int64"), amount))
    return found


def _cubic_kernel(xp: Any, distance: Any, a: float = -0.75) -> Any:
    """Return the weights of Keys' cubic convolution kernel at ``distance``."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return xp.where(distance <= 1, near, far)


def col2im(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sum columns, shape ``(n, c * kernel, blocks)``, into the windows of an image.

    Attributes: ``image``, ``block`` (shapes), ``strides``, ``dilations``, ``begins`` and ``ends`` (paddings).
    """
    (columns,) = inputs
    image, block = attributes["image"], attributes["block"]
    strides, dilations, begins = attributes["strides"], attributes["dilations"], attributes["begins"]
    padded = [n + b + e for n, b, e in zip(image, begins, attributes["ends"], strict=True)]
    counts = [(p - d * (k - 1) - 1) // s + 1 for p, k, s, d in zip(padded, block, strides, dilations, strict=True)]
    n = columns.shape[0]
    kernel = 1
    for k in block:
        kernel *= k
    parts = columns.reshape((n, columns.shape[1] // kernel, *block, *counts))
    out = xp.zeros((n, parts.shape[1], *padded), columns.dtype)
    for at in itertools.product(*(range(k) for k in block)):
        where = tuple(
            slice(i * d, i * d + (c - 1) * s + 1, s) for i, d, c, s in zip(at, dilations, counts, strides, strict=True)
        )
        out[(slice(None), slice(None), *where)] += parts[(slice(None), slice(None), *at)]
    inner = tuple(slice(b, b + size) for b, size in zip(begins, image, strict=True))
    return (out[(slice(None), slice(None), *inner)],)


def max_unpool(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Write ``inputs[0]`` at flat positions ``inputs[1]`` into zeros of shape ``natural``; zero-pad to ``shape``."""
    data, positions = inputs[:2]
    natural, shape = attributes["natural"], attributes["shape"]
    size = 1
    for n in natural:
        size *= n
    flat = xp.zeros(size, data.dtype)
    flat[positions.reshape(-1)] = data.reshape(-1)
    out = xp.zeros(tuple(shape), data.dtype)
    out[tuple(slice(0, n) for n in natural)] = flat.reshape(tuple(natural))
    return (out,)


def tensor_scatter(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return ``inputs[0]`` with ``inputs[1]`` written along ``axis`` from ``inputs[2][b]`` on in each batch ``b``."""
    past, update = inputs[:2]
    starts = inputs[2] if len(inputs) > 2 and inputs[2] is not None else xp.zeros(past.shape[0], "int64")
    axis, out = attributes["axis"] - 1, past.copy()
    size = past.shape[axis + 1]
    for b in range(past.shape[0]):
        at = int(starts[b]) + xp.arange(update.shape[axis + 1])
        if attributes["circular"]:
            at = at % size
        elif at.size and (int(at[0]) < 0 or int(at[-1]) >= size):
            raise IndexError(f"write_indices: expected places within {size}, got {int(at[0])} to {int(at[-1])}")
        out[b][(slice(None),) * axis + (at,)] = update[b]
    return (out,)


def roi_align(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Pool regions ``inputs[1]``, shape ``(regions, 4)``; ``inputs[2]`` gives each region's image in ``inputs[0]``.

    Attributes: ``mode`` (avg, max), ``size`` (rows and columns of a result), ``samples`` (number per bin and side; 0
    for the bin's size, rounded up), ``scale``, ``shift`` (0.5 for half pixels). A bin without points is zero.
    """
    data, regions, pictures = inputs
    rows, columns = attributes["size"]
    scale, shift = _fraction_of_float32(attributes["scale"]), Fraction(attributes["shift"])
    out = xp.zeros((len(regions), data.shape[1], rows, columns), data.dtype)
    for n, corners in enumerate(regions.astype("float64").tolist()):
        if not all(map(math.isfinite, corners)):
            out[n] = math.nan
            continue
        # Exact arithmetic: the last bit decides the number of points (a ceiling) and whether a point is inside.
        left, top, right, bottom = (Fraction(v) * scale - shift for v in corners)
        width, height = right - left, bottom - top
        if not shift:
            width, height = max(width, Fraction(1)), max(height, Fraction(1))
        y = _sample_neighbours_and_weights(xp, top, height / rows, rows, attributes["samples"], data.shape[2])
        x = _sample_neighbours_and_weights(xp, left, width / columns, columns, attributes["samples"], data.shape[3])
        if y and x:  # a region without points is zero
            out[n] = _reduce_bins(xp, data[int(pictures[n])].astype("float64"), y, x, attributes["mode"]).astype(
                data.dtype
            )
    return (out,)


def _reduce_bins(xp: Any, picture: Any, y: list[tuple[Any, Any]], x: list[tuple[Any, Any]], mode: str) -> Any:
    """Return the average or maximum of each bin, shape ``(channels, rows, columns)``."""
    corners = []
    for (at_y, share_y), (at_x, share_x) in itertools.product(y, x):
        corners.append(picture[:, at_y[:, :, None, None], at_x[None, None]] * share_y[:, :, None, None] * share_x)
    if mode == "avg":
        return sum(corners).mean(axis=(2, 4))
    # The maximum is over products, not over interpolated samples, as in ONNX's node tests and reference.
    return xp.stack(corners).max(axis=(0, 3, 5))


#: Maximum number of samples along one side of a region; only a region far larger than any image has more.
_MOST_SAMPLES = 1 << 20


def _fraction_of_float32(value: float) -> Fraction:
    """Return the exact fraction that a float32 factor approximates."""
    return Fraction(value).limit_denominator(1 << 24) or Fraction(value)


def _sample_neighbours_and_weights(
    xp: Any, start: Fraction, bin_size: Fraction, bins: int, samples: int, size: int
) -> list[tuple[Any, Any]]:
    """Return the lower and upper neighbours of samples along one side, and their weights, shape ``(bins, samples)``."""
    count = samples or math.ceil(bin_size)
    if count <= 0:
        return []
    if bins * count > _MOST_SAMPLES:
        raise ValueError(f"expected regions of at most {_MOST_SAMPLES} samples along a side, got {bins * count:g}")
    step = bin_size / count
    first = start + step / 2
    unit = math.lcm(step.denominator, first.denominator)
    at, pitch = int(first * unit), int(step * unit)
    exact = [at + pitch * k for k in range(bins * count)]
    inside = xp.asarray([-unit <= p <= size * unit for p in exact]).reshape((bins, count))
    places = xp.asarray([min(max(p, 0), (size - 1) * unit) / unit for p in exact]).reshape((bins, count))
    low = xp.floor(places).astype("int64")
    share = places - low
    return [(low, (1 - share) * inside), (xp.minimum(low + 1, size - 1), share * inside)]
