"""Lowerings of data movement: every output element is an input element or a padding value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roller.expr import Axis, Index, Load, Stage, Term, axis_index
from roller.models.onnx.build_elementwise_stages import (
    broadcast_load,
    kernel_tensor_of_value,
    movement_stage,
    pointwise_stage,
    result_axes,
)
from roller.models.onnx.lowering_registry import (
    AppendToInput,
    Compute,
    ConcatOfInputs,
    InputView,
    Lowered,
    SimplerNodes,
    Site,
    Unsupported,
    lowers,
)
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.operator_argument_checks import identity_indices


@lowers("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
def lower_reshape(site: Site) -> Lowered:
    """Lower ``Reshape``, ``Squeeze`` and the like: the same elements in a different, static shape."""
    if site.required(0).elements != site.output.elements:
        raise Unsupported(f"shape {list(site.required(0).shape)} cannot become {list(site.output.shape)}")
    return InputView()


@lowers("Transpose")
def lower_transpose(site: Site) -> Lowered:
    """Lower ``Transpose``: a permutation of dimensions."""
    rank = len(site.required(0).shape)
    perm = tuple(site.attribute("perm", tuple(reversed(range(rank)))))
    shape = site.required(0).shape
    kept = [p for p in perm if shape[p] != 1]
    if kept == sorted(kept):
        return InputView()  # only dimensions of one element are moved
    return movement_stage(site, lambda axes: [axis_index(axes[perm.index(d)].name) for d in range(rank)])


@lowers("Expand")
def lower_expand(site: Site) -> Lowered:
    """Lower ``Expand``: a broadcast."""
    if site.required(0).elements == site.output.elements:
        return InputView()
    axes = result_axes(site.output.shape)
    return pointwise_stage(
        site, axes, broadcast_load(site.required(0), site.output.shape, axes), dtype=site.output.dtype
    )


@lowers("Tile")
def lower_tile(site: Site) -> Lowered:
    """Lower ``Tile``: repetitions along each dimension."""
    shape = site.required(0).shape
    if site.required(0).elements == site.output.elements:
        return InputView()

    def index(axes: Sequence[Axis]) -> list[Index]:
        return [_periodic_index(a, n) for a, n in zip(axes, shape, strict=True)]

    return movement_stage(site, index)


def _periodic_index(axis: Axis, period: int) -> Index:
    """Return the index ``axis % period``, without the modulo if it is not needed."""
    if period == 1:
        return Index()
    return axis_index(axis.name) if axis.extent == period else Index((Term(axis.name, 1, 1, period),))


def normalise_axis(axis: int, rank: int) -> int:
    """Return ``axis`` counted from the front; refuse an axis out of range."""
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} is none of a tensor with {rank} dimensions")
    return axis % rank if rank else 0


@lowers("Concat")
def lower_concat(site: Site) -> Lowered:
    """Lower ``Concat``: a concatenation of tensors along an axis."""
    axis = normalise_axis(int(site.attribute("axis", 1)), len(site.output.shape))
    if len(site.inputs) == 1:
        return InputView()
    return ConcatOfInputs(axis)


@lowers("Append", domain="roller")
def lower_append(site: Site) -> Lowered:
    """Lower an append to a cache: the new rows are written into the input's memory."""
    return AppendToInput(int(site.attribute("axis")), int(site.attribute("offset")))


@lowers("Split")
def lower_split(site: Site) -> Lowered:
    """Lower ``Split`` along an axis: one load per part, offset by the part's start."""
    x = site.required(0)
    axis = normalise_axis(int(site.attribute("axis", 0)), len(x.shape))
    if any(v is not None and not v.elements for v in site.outputs) and x.elements:
        return _split_into_slices(site, axis)
    read = kernel_tensor_of_value(x)
    stages, start = [], 0
    for value in site.outputs:
        if value is None:
            raise Unsupported("Split leaves out one of its outputs, whose length is then unknown")
        axes = tuple(Axis(f"{value.name}/{d}", e) for d, e in enumerate(kernel_tensor_of_value(value).shape))
        index = list(identity_indices(axes))
        index[axis] = axis_index(axes[axis].name, 1, start)
        stages.append(
            Stage(
                kernel_tensor_of_value(value),
                axes,
                identity_indices(axes),
                Load(read.name, tuple(index)),
                None,
                x.dtype,
            )
        )
        start += value.shape[axis]
    if start > x.shape[axis]:
        raise Unsupported(f"Split into {start} elements of an axis of {x.shape[axis]}")
    return Compute(tuple(stages))


def _split_into_slices(site: Site, axis: int) -> SimplerNodes:
    """Return one Slice per part, so that empty parts need no kernel."""
    steps, start = NodeRewriter(site), 0
    for value in site.outputs:
        if value is None:
            raise Unsupported("Split leaves out one of its outputs, whose length is then unknown")
        end = start + value.shape[axis]
        bounds = [steps.constant(np.array([n], np.int64)) for n in (start, end, axis)]
        steps.add("Slice", (site.required(0), *bounds), value.shape, out=value)
        start = end
    return steps.finish()


@lowers("Slice")
def lower_slice(site: Site) -> Lowered:
    """Lower ``Slice`` with a step per axis; negative steps read backwards."""
    x, y = site.required(0), site.output
    rank = len(x.shape)
    starts = _integers_of_attribute_or_input(site, 1, "starts")
    ends = _integers_of_attribute_or_input(site, 2, "ends")
    if starts is None or ends is None:
        raise Unsupported("Slice without starts or ends")
    axes = _integers_of_attribute_or_input(site, 3, "axes")
    steps = _integers_of_attribute_or_input(site, 4, "steps")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise Unsupported(f"Slice with {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps")
    where = dict.fromkeys(range(rank), (0, 1))
    for start, end, a, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise Unsupported("Slice with a step of 0")
        d = normalise_axis(a, rank)
        found = (
            range(x.shape[d])[slice(start, end, step)]
            if step > 0
            else _backward_positions(start, end, step, x.shape[d])
        )
        if len(found) != y.shape[d]:
            raise Unsupported(f"Slice takes {len(found)} elements along axis {d}, and its shape says {y.shape[d]}")
        where[d] = (found.start, step)
    if x.elements == y.elements and all(step > 0 for _, step in where.values()):
        return InputView()

    def index(of: Sequence[Axis]) -> list[Index]:
        return [
            Index((), where[d][0]) if a.extent == 1 else axis_index(a.name, where[d][1], where[d][0])
            for d, a in enumerate(of)
        ]

    return movement_stage(site, index)


def _backward_positions(start: int, end: int, step: int, size: int) -> range:
    """Return the positions of a slice with a negative step, with bounds clamped as in ONNX."""
    start = min(max(start + size if start < 0 else start, 0), size - 1)
    end = min(max(end + size if end < 0 else end, -1), size - 1)
    return range(start, end, step)


def _integers_of_attribute_or_input(site: Site, position: int, name: str) -> tuple[int, ...] | None:
    """Return integers from an attribute (old versions) or a constant input; ``None`` if both are absent."""
    given = site.attribute(name)
    if given is not None:
        return tuple(int(v) for v in np.ravel(given))
    value = site.known(position, f"{site.node.op}'s {name}")
    return None if value is None else tuple(int(v) for v in np.ravel(value))
