"""Lowers a transposed convolution to one convolution of stride 1 per phase of the stride and interleaves the results.

With stride ``s`` and dilation ``d``, the output at ``o`` uses the taps ``k`` for which ``o + pad - d * k`` is a
multiple of ``s``. These taps are the same for all ``o`` in a phase ``(o + pad) % s``. All phases together are therefore
one convolution with ``s`` times as many filters per dimension (sub-pixel convolution), which multiplies nothing by an
inserted zero. This requires constant weights; otherwise, zeros are inserted between the image's points before it is
convolved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from roller.expr import REDUCTION, Axis, Bound, Call, Index, Load, Stage, Term, axis_index
from roller.models.onnx.lowering_helpers import (
    accumulation_types,
    bias_ending,
    output_or_intermediate_tensor,
    reduction_with_ending,
    refuse_empty_tensors,
    require_shape,
)
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.operator_argument_checks import identity_indices
from roller.ops.sliding_windows_and_convolutions import guarded_window_index, spatial_dimension_names
from roller.ops.tensor_rows import axes_of_dimensions
from roller_runtime.plan.program_steps import Value

#: First version in which, without ``auto_pad``, the odd element of padding is removed at the beginning.
_BEGINNING_FIRST = 11


@dataclass(frozen=True)
class _ConvTransposeSizes:
    """Sizes of a transposed convolution; tuples have one entry per spatial dimension."""

    groups: int
    channels: int
    filters: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.size)


@lowers("ConvTranspose")
def lower_conv_transpose(site: Site) -> Lowered:
    """Rewrite a transposed convolution into a convolution of stride 1 and data movement."""
    x, w, bias, y = site.required(0), site.required(1), site.input(2), site.output
    refuse_empty_tensors(site)
    shape, weights, steps = _checked_sizes(site, x, w, y), site.constant(1), NodeRewriter(site)
    about: dict[str, Any] = {"sizes": astuple(shape)}
    if set(shape.strides) == {1}:
        steps.append("ReversedConv", (x, w, bias), (y,), "roller", **about)
        return steps.finish()
    if weights is None:
        lower_spread = tuple(s * (n - 1) + 1 for s, n in zip(shape.strides, shape.size, strict=True))
        wide = steps.add("Spread", (x,), (*x.shape[:2], *lower_spread), domain="roller", strides=shape.strides)
        steps.append("ReversedConv", (wide, w, bias), (y,), "roller", sizes=astuple(replace(shape, size=lower_spread)))
        return steps.finish()
    # A phase begins at a multiple of the stride, counted in the output and the padding before it.
    shift = [b % s for b, s in zip(shape.before, shape.strides, strict=True)]
    sizes = tuple((b + o - 1) // s + 1 for b, o, s in zip(shift, shape.out, shape.strides, strict=True))
    count, table = math.prod(shape.strides), steps.constant(_taps_by_phase(shape, weights))
    lower_conv_phases = steps.add(
        "ConvPhases", (x, table), (x.shape[0], count * shape.filters, *sizes), domain="roller", **about
    )
    whole = tuple(b + o for b, o in zip(shift, shape.out, strict=True))
    plain = bias is None and not any(shift)
    found = steps.add("Interleave", (lower_conv_phases,), (*y.shape[:2], *whole), domain="roller",
                      strides=shape.strides,
                      out=y if plain else None)  # fmt: skip
    if any(shift):
        bounds = [np.asarray(v, np.int64) for v in (shift, whole, range(2, 2 + shape.rank))]
        cut = (found, *(steps.constant(b) for b in bounds))
        found = steps.add("Slice", cut, y.shape, out=y if bias is None else None)
    if bias is not None:
        steps.add("Add", (found, steps.reshape(bias, (shape.filters, *(1,) * shape.rank))), y.shape, out=y)
    return steps.finish()


def _checked_sizes(site: Site, x: Value, w: Value, y: Value) -> _ConvTransposeSizes:
    groups, strides, dilations, made, before = _sizes_from_attributes(site, x, w)
    require_shape(y, made)
    return _ConvTransposeSizes(groups, x.shape[1] // groups, y.shape[1], x.shape[2:], w.shape[2:], y.shape[2:],
                               strides, dilations,
                  before)  # fmt: skip


def conv_transpose_result_shape(site: Site) -> tuple[int, ...]:
    """Return the result shape of a transposed convolution, derived from its attributes."""
    return _sizes_from_attributes(site, site.required(0), site.required(1))[3]


def _sizes_from_attributes(site: Site, x: Value, w: Value) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int,
                                                                                                                 ...],
                                                    tuple[int, ...]]:  # fmt: skip
    """Return groups, strides, dilations, the result's shape, and the numbers of elements removed before the result."""
    rank = len(x.shape) - 2
    groups = int(site.attribute("group", 1))
    if rank < 1 or len(w.shape) != rank + 2 or w.shape[0] != x.shape[1] or groups < 1 or x.shape[1] % groups:
        raise Unsupported(f"{groups} groups of weights {w.shape} do not fit an image {x.shape}")

    def numbers(name: str, default: int) -> tuple[int, ...]:
        return tuple(int(v) for v in site.attribute(name, ()) or (default,) * rank)

    strides, dilations, extra = numbers("strides", 1), numbers("dilations", 1), numbers("output_padding", 0)
    size, kernel = x.shape[2:], w.shape[2:]
    full = [s * (n - 1) + e + d * (k - 1) + 1
            for s, n, e, d, k in zip(strides, size, extra, dilations, kernel, strict=True)]  # fmt: skip
    made, before = _result_size_and_offset(site, full, [n * s for n, s in zip(size, strides, strict=True)], strides)
    return groups, strides, dilations, (x.shape[0], w.shape[1] * groups, *made), before


def _result_size_and_offset(
    site: Site, full: Sequence[int], same: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the result's size, and how many of the ``full`` elements that taps produce are removed before it."""
    # An odd element is removed at the end for SAME_UPPER, otherwise at the beginning; without ``auto_pad``, versions
    # before 11, which reversed the equation, remove it at the end. Elements beyond ``full`` are added at the end, like
    # ``output_padding``.
    rank, mode = len(full), str(site.attribute("auto_pad", "NOTSET") or "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"auto_pad='{mode}' is none that ONNX defines")
    given = tuple(int(v) for v in site.attribute("output_shape", ()))
    if not given and mode not in ("SAME_UPPER", "SAME_LOWER"):
        pads = tuple(int(p) for p in site.attribute("pads", ()) if mode == "NOTSET") or (0,) * (2 * rank)
        if len(pads) != 2 * rank:
            raise Unsupported(f"padding: expected {2 * rank} pads, got {list(pads)}")
        return tuple(f - p - q for f, p, q in zip(full, pads[:rank], pads[rank:], strict=True)), pads[:rank]
    wanted = given[-rank:] if given else tuple(same)
    if len(wanted) != rank or any(n - f >= s for n, f, s in zip(wanted, full, strides, strict=True)):
        raise Unsupported(f"a result of {list(wanted)} elements of {list(full)} that its taps make, by {list(strides)}")
    totals = [max(0, f - n) for f, n in zip(full, wanted, strict=True)]
    at_end = mode == "SAME_UPPER" or (mode == "NOTSET" and site.node.version < _BEGINNING_FIRST)
    return wanted, tuple(p // 2 if at_end else p - p // 2 for p in totals)


def _source_channel_index(shape: _ConvTransposeSizes, filters: int) -> Index:
    """Return the index of the image channel that axis ``c`` denotes for filter ``f`` (one of ``phases * filters``)."""
    if shape.groups == 1:
        return axis_index("c")
    per_group = shape.filters // shape.groups
    mod = shape.groups if filters > shape.filters else 0
    return Index((Term("f", shape.channels, per_group, mod), Term("c")))


def _filter_index_in_group(shape: _ConvTransposeSizes) -> Index:
    """Return the index of filter ``f`` within its group."""
    per_group = shape.filters // shape.groups
    if per_group == 1:
        return Index()
    return Index((Term("f", 1, 1, per_group if shape.groups > 1 else 0),))


def _window_indices(outs: tuple[Axis, ...], taps: tuple[Axis, ...], size: tuple[int, ...], before: tuple[int, ...],
            dilations: tuple[int, ...]) -> tuple[tuple[Index, ...], tuple[Bound, ...]]:  # fmt: skip
    """Return the positions of windows of stride 1 in an image padded by ``before`` elements, and the guards."""
    found = [
        guarded_window_index(o, k, n, 1, d, pad)
        for o, k, n, d, pad in zip(outs, taps, size, dilations, before, strict=True)
    ]
    return tuple(at for at, _ in found), tuple(b for _, guard in found for b in guard)


@lowers("Spread", domain="roller")
def lower_spread(site: Site) -> Lowered:
    """Lower ``Spread``: an image with zeros inserted between its points."""
    x, y, strides = site.required(0), site.output, site.attribute("strides")
    axes = axes_of_dimensions(y.shape)
    steps = list(zip(axes[2:], strides, strict=True))
    at = (*identity_indices(axes[:2]), *(Index((Term(a.name, 1, s),)) for a, s in steps))
    guard = tuple(Bound(Index((Term(a.name, 1, 1, s),)), 0, 1) for a, s in steps if s > 1)
    return Compute(
        (Stage(output_or_intermediate_tensor(y), axes, identity_indices(axes), Load(x.name, at, guard), None, x.dtype),)
    )


@lowers("ReversedConv", domain="roller")
def lower_reversed_conv(site: Site) -> Lowered:
    """Lower ``ReversedConv``, a transposed convolution of stride 1: a convolution with reversed taps, plus a bias."""
    x, w, bias, y = site.required(0), site.required(1), site.input(2), site.output
    shape, t, names = (
        _ConvTransposeSizes(*site.attribute("sizes")),
        accumulation_types(x, y),
        spatial_dimension_names(len(x.shape) - 2),
    )
    outs = tuple(Axis(f"{n}o", e) for n, e in zip(names, shape.out, strict=True))
    taps = tuple(Axis(f"k{n}", k, REDUCTION) for n, k in zip(names, shape.kernel, strict=True))
    pads = tuple(d * (k - 1) - b for d, k, b in zip(shape.dilations, shape.kernel, shape.before, strict=True))
    at, guards = _window_indices(outs, taps, x.shape[2:], pads, shape.dilations)
    source = _source_channel_index(shape, shape.filters)
    backwards = tuple(axis_index(a.name, -1, a.extent - 1) for a in taps)
    image, weight = (axis_index("n"), source, *at), (source, _filter_index_in_group(shape), *backwards)
    body = Call("mul", (t.load(x.name, image, guards), t.load(w.name, weight)))
    spatial = (Axis("n", y.shape[0]), Axis("f", shape.filters), *outs)
    axes = (*spatial, Axis("c", shape.channels, REDUCTION), *taps)
    return Compute(reduction_with_ending(y, axes, identity_indices(spatial), body, "sum", t, bias_ending(bias, t)))


@lowers("ConvPhases", domain="roller")
def lower_conv_phases(site: Site) -> Lowered:
    """Lower ``ConvPhases``: the convolution with the taps of all phases, that is, ``phases * filters`` filters."""
    x, table, y = site.required(0), site.required(1), site.output
    shape, t, names = (
        _ConvTransposeSizes(*site.attribute("sizes")),
        accumulation_types(x, y),
        spatial_dimension_names(len(x.shape) - 2),
    )
    outs = tuple(Axis(f"{n}o", e) for n, e in zip(names, y.shape[2:], strict=True))
    taps = tuple(Axis(f"k{n}", k, REDUCTION) for n, k in zip(names, table.shape[2:], strict=True))
    first = (b // s for b, s in zip(shape.before, shape.strides, strict=True))
    pads = tuple(a.extent - 1 - q for a, q in zip(taps, first, strict=True))
    at, guards = _window_indices(outs, taps, x.shape[2:], pads, (1,) * shape.rank)
    image = t.load(x.name, (axis_index("n"), _source_channel_index(shape, y.shape[1]), *at), guards)
    weight = t.load(table.name, (axis_index("f"), axis_index("c"), *identity_indices(taps)))
    spatial = (Axis("n", y.shape[0]), Axis("f", y.shape[1]), *outs)
    axes = (*spatial, Axis("c", shape.channels, REDUCTION), *taps)
    return Compute(reduction_with_ending(y, axes, identity_indices(spatial), Call("mul", (image, weight)), "sum", t))


@lowers("Interleave", domain="roller")
def lower_interleave(site: Site) -> Lowered:
    """Lower ``Interleave``: phases (channels ``phase * filters + f``) interleaved along the image dimensions."""
    x, y, strides = site.required(0), site.output, site.attribute("strides")
    axes = axes_of_dimensions(y.shape)
    channel, pitch = [Term("d1")], y.shape[1]
    at: list[Index] = []
    for axis, s in reversed(list(zip(axes[2:], strides, strict=True))):
        channel += [Term(axis.name, pitch, 1, s)] if s > 1 else []
        pitch *= s
        at.append(Index((Term(axis.name, 1, s),)))
    where = (axis_index("d0"), Index(tuple(channel)), *reversed(at))
    return Compute(
        (Stage(output_or_intermediate_tensor(y), axes, identity_indices(axes), Load(x.name, where), None, x.dtype),)
    )


def _taps_by_phase(shape: _ConvTransposeSizes, weights: np.ndarray) -> np.ndarray:
    """Return each phase's taps, last tap first, shape ``(phases * filters, channels per group, ...)``."""
    # Phase ``r`` has tap ``k`` at position ``j`` where ``d * k == r + s * j``; other positions are zero.
    reach = [d * (k - 1) // s + 1 for d, k, s in zip(shape.dilations, shape.kernel, shape.strides, strict=True)]
    count, per_group = math.prod(shape.strides), shape.filters // shape.groups
    out = np.zeros((*shape.strides, shape.filters, shape.channels, *reach), weights.dtype)
    by_group = weights.reshape(shape.groups, shape.channels, per_group, *shape.kernel).swapaxes(1, 2)
    filters = by_group.reshape(shape.filters, shape.channels, *shape.kernel)
    for tap in itertools.product(*(range(k) for k in shape.kernel)):
        places = [divmod(d * k, s) for d, k, s in zip(shape.dilations, tap, shape.strides, strict=True)]
        at = tuple(n - 1 - j for n, (j, _) in zip(reach, places, strict=True))
        guarded_window_index: Any = (*(r for _, r in places), ..., *at)
        source: Any = (..., *tap)
        out[guarded_window_index] = filters[source]
    return out.reshape(count * shape.filters, shape.channels, *reach)
