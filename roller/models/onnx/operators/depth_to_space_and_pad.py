"""Lowerings of block rearrangements between depth and space, of padding and of triangular matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roller.expr import Axis, Bound, Index, IndexValue, Load, Scalar, Term, axis_index
from roller.models.onnx.build_elementwise_stages import (
    computation_dtype,
    kernel_tensor_of_value,
    literal,
    movement_stage,
    operand_scalar,
    pointwise_stage,
    result_axes,
    scalar_call,
    scalar_constant,
)
from roller.models.onnx.lowering_registry import InputView, Lowered, SimplerNodes, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.models.onnx.operators.movement import normalise_axis


def _channel_order(site: Site, name: str, default: str) -> str:
    """Return the channel order that an attribute gives; refuse any other than DCR and CRD."""
    value = str(site.attribute(name, default))
    if value not in ("DCR", "CRD"):
        raise Unsupported(f"{site.node.op} {name}='{value}' is neither DCR nor CRD")
    return value


@lowers("DepthToSpace")
def lower_depth_to_space(site: Site) -> Lowered:
    """Lower ``DepthToSpace``, which turns blocks of channels into blocks of pixels, in either channel order."""
    b, c = int(site.attribute("blocksize")), site.output.shape[1]
    mode = _channel_order(site, "mode", "DCR")

    def index(axes: Sequence[Axis]) -> list[Index]:
        n, ch, h, w = (a.name for a in axes)
        row, column, depth = (b * c, c, 1) if mode == "DCR" else (b, 1, b * b)
        channel = Index((Term(ch, depth), Term(h, row, 1, b), Term(w, column, 1, b)))
        return [axis_index(n), channel, Index((Term(h, 1, b),)), Index((Term(w, 1, b),))]

    return InputView() if b == 1 else movement_stage(site, index)


@lowers("SpaceToDepth")
def lower_space_to_depth(site: Site) -> Lowered:
    """Lower ``SpaceToDepth``, which turns blocks of pixels into blocks of channels, in either channel order."""
    b, c = int(site.attribute("blocksize")), site.required(0).shape[1]
    mode = _channel_order(site, "mode", "DCR")

    def index(axes: Sequence[Axis]) -> list[Index]:
        n, ch, h, w = (a.name for a in axes)
        if mode == "DCR":
            depth, row, column = Term(ch, 1, 1, c), Term(ch, 1, c * b), Term(ch, 1, c, b)
        else:
            depth, row, column = Term(ch, 1, b * b), Term(ch, 1, b, b), Term(ch, 1, 1, b)
        return [axis_index(n), Index((depth,)), Index((Term(h, b), row)), Index((Term(w, b), column))]

    return InputView() if b == 1 else movement_stage(site, index)


@lowers("Pad")
def lower_pad(site: Site) -> Lowered:
    """Lower ``Pad`` with a constant or with the tensor's own elements; negative widths crop."""
    x, rank = site.required(0), len(site.required(0).shape)
    mode = site.attribute("mode", "constant")
    if isinstance(mode, bytes):
        mode = mode.decode()
    before, after = _pad_widths(site, rank)
    shape = tuple(n + lo + hi for n, lo, hi in zip(x.shape, before, after, strict=True))
    if shape != site.output.shape:
        raise Unsupported(f"Pad makes {list(shape)}, and its shape says {list(site.output.shape)}")
    if not any(before) and not any(after):
        return InputView()
    if mode == "constant":
        return _make_constant_pad_stage(site, before)
    if mode not in ("edge", "reflect", "wrap"):
        raise Unsupported(f"Pad mode='{mode}' is none of constant, edge, reflect, wrap")
    indices = {
        d: _border_positions(mode, x.shape[d], before[d], after[d]) for d in range(rank) if before[d] or after[d]
    }
    return gather_along_dimensions(site, indices)


def _pad_widths(site: Site, rank: int) -> tuple[list[int], list[int]]:
    """Return the number of elements added before, and the number added after, each dimension."""
    given = site.attribute("pads", site.attribute("paddings"))
    pads = site.known(1, "Pad's widths") if given is None else np.asarray(given)
    chosen = site.known(3, "Pad's axes")
    if pads is None:
        raise Unsupported("Pad without widths")
    axes = range(rank) if chosen is None else [normalise_axis(int(a), rank) for a in np.ravel(chosen)]
    flat = [int(p) for p in np.ravel(pads)]
    if len(flat) != 2 * len(list(axes)):
        raise Unsupported(f"Pad of {len(list(axes))} axes by {len(flat)} widths")
    before, after = [0] * rank, [0] * rank
    for i, d in enumerate(axes):
        before[d], after[d] = flat[i], flat[len(flat) // 2 + i]
    return before, after


def _make_constant_pad_stage(site: Site, before: Sequence[int]) -> Lowered:
    """Return a stage with one guarded load; it selects a border value known only at run time by position."""
    x = site.required(0)
    axes = result_axes(site.output.shape)
    index = tuple(axis_index(a.name, 1, -lo) for a, lo in zip(axes, before, strict=True))
    guard = tuple(
        Bound(i, 0, n) for i, n, a, lo in zip(index, x.shape, axes, before, strict=True) if lo > 0 or a.extent - lo > n
    )
    value: Any = site.attribute("value", 0.0)
    if site.input(2) is not None:
        value = scalar_constant(site, 2)
    if value is not None:
        return pointwise_stage(site, axes, Load(kernel_tensor_of_value(x).name, index, guard, value), dtype=x.dtype)
    body: Scalar = Load(kernel_tensor_of_value(x).name, index, guard)
    border = operand_scalar(site, 2, axes)
    for bound in guard:
        at = IndexValue(bound.index)
        body = scalar_call("select", scalar_call("lt", at, literal(0, "int32")), border, body)
        body = scalar_call("select", scalar_call("le", literal(bound.high, "int32"), at), border, body)
    return pointwise_stage(site, axes, body, dtype=x.dtype)


def _border_positions(mode: str, size: int, before: int, after: int) -> np.ndarray:
    """Return the source position of every position along a padded axis of ``size`` elements."""
    at = np.arange(-before, size + after)
    if mode == "edge":
        return np.clip(at, 0, size - 1)
    if mode == "wrap":
        return at % size
    if size == 1:
        return np.zeros_like(at)
    folded = np.abs(at) % (2 * size - 2)
    return np.where(folded < size, folded, 2 * size - 2 - folded)


def gather_along_dimensions(site: Site, indices: dict[int, np.ndarray]) -> SimplerNodes:
    """Return nodes that gather ``indices`` from the first input, one dimension after the other."""
    steps = NodeRewriter(site)
    value = site.required(0)
    shape = list(value.shape)
    for number, (d, chosen) in enumerate(indices.items()):
        shape[d] = len(chosen)
        last = number == len(indices) - 1
        at = steps.constant(np.asarray(chosen, np.int64))
        value = steps.add("Gather", (value, at), tuple(shape), value.dtype, out=site.output if last else None, axis=d)
    return steps.finish()


@lowers("Trilu")
def lower_trilu(site: Site) -> Lowered:
    """Lower ``Trilu``, which keeps one triangle of each matrix and sets the other elements to zero."""
    x = site.required(0)
    axes = result_axes(site.output.shape)
    row, column = axes[-2].name, axes[-1].name
    offset = site.known(1, "Trilu's diagonal")
    k = 0 if offset is None else int(np.clip(int(np.ravel(offset)[0]), -(2**30), 2**30))
    distance = IndexValue(Index((Term(column), Term(row, -1))))
    inside = (
        scalar_call("le", literal(k, "int32"), distance)
        if site.attribute("upper", 1)
        else scalar_call("le", distance, literal(k, "int32"))
    )
    read = operand_scalar(site, 0, axes)
    return pointwise_stage(site, axes, scalar_call("select", inside, read, literal(0, computation_dtype(x.dtype))))
