"""Lowerings of movement: every output element is one input element, or a padding value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roller.expr import Axis, Index, Load, Stage, Term, axis_index
from roller.models.onnx.elementwise import axes_of, broadcast, moved, pointwise, tensor
from roller.models.onnx.lowering import Compute, Joined, Lowered, Reshaped, Rewritten, Site, Unsupported, lowers
from roller.models.onnx.rewriting import Steps
from roller.ops.build import indices


@lowers("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
def reshape(site: Site) -> Lowered:
    """Lower a change of shape; the output's shape is static."""
    if site.required(0).elements != site.output.elements:
        raise Unsupported(f"shape {list(site.required(0).shape)} cannot become {list(site.output.shape)}")
    return Reshaped()


@lowers("Transpose")
def transpose(site: Site) -> Lowered:
    """Lower a permutation of dimensions."""
    rank = len(site.required(0).shape)
    perm = tuple(site.attribute("perm", tuple(reversed(range(rank)))))
    shape = site.required(0).shape
    kept = [p for p in perm if shape[p] != 1]
    if kept == sorted(kept):
        return Reshaped()  # only dimensions of one element are moved
    return moved(site, lambda axes: [axis_index(axes[perm.index(d)].name) for d in range(rank)])


@lowers("Expand")
def expand(site: Site) -> Lowered:
    """Lower a broadcast."""
    if site.required(0).elements == site.output.elements:
        return Reshaped()
    axes = axes_of(site.output.shape)
    return pointwise(site, axes, broadcast(site.required(0), site.output.shape, axes), dtype=site.output.dtype)


@lowers("Tile")
def tile(site: Site) -> Lowered:
    """Lower repetitions along every dimension."""
    shape = site.required(0).shape
    if site.required(0).elements == site.output.elements:
        return Reshaped()

    def index(axes: Sequence[Axis]) -> list[Index]:
        return [_repeated(a, n) for a, n in zip(axes, shape, strict=True)]

    return moved(site, index)


def _repeated(axis: Axis, period: int) -> Index:
    """Return the index ``axis % period``, without the remainder if it is not needed."""
    if period == 1:
        return Index()
    return axis_index(axis.name) if axis.extent == period else Index((Term(axis.name, 1, 1, period),))


def axis_of(axis: int, rank: int) -> int:
    """Return an axis as a non-negative number."""
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} is none of a tensor with {rank} dimensions")
    return axis % rank if rank else 0


@lowers("Concat")
def concat(site: Site) -> Lowered:
    """Lower a concatenation of tensors."""
    axis = axis_of(int(site.attribute("axis", 1)), len(site.output.shape))
    if len(site.inputs) == 1:
        return Reshaped()
    return Joined(axis)


@lowers("Split")
def split(site: Site) -> Lowered:
    """Lower parts along an axis: one load for each, offset by the start of the part."""
    x = site.required(0)
    axis = axis_of(int(site.attribute("axis", 0)), len(x.shape))
    if any(v is not None and not v.elements for v in site.outputs) and x.elements:
        return _slices(site, axis)
    read = tensor(x)
    stages, start = [], 0
    for value in site.outputs:
        if value is None:
            raise Unsupported("Split leaves out one of its outputs, whose length is then unknown")
        axes = tuple(Axis(f"{value.name}/{d}", e) for d, e in enumerate(tensor(value).shape))
        index = list(indices(axes))
        index[axis] = axis_index(axes[axis].name, 1, start)
        stages.append(Stage(tensor(value), axes, indices(axes), Load(read.name, tuple(index)), None, x.dtype))
        start += value.shape[axis]
    if start > x.shape[axis]:
        raise Unsupported(f"Split into {start} elements of an axis of {x.shape[axis]}")
    return Compute(tuple(stages))


def _slices(site: Site, axis: int) -> Rewritten:
    """Return one Slice per part, so that empty parts need no kernel."""
    steps, start = Steps(site), 0
    for value in site.outputs:
        if value is None:
            raise Unsupported("Split leaves out one of its outputs, whose length is then unknown")
        end = start + value.shape[axis]
        bounds = [steps.constant(np.array([n], np.int64)) for n in (start, end, axis)]
        steps.add("Slice", (site.required(0), *bounds), value.shape, out=value)
        start = end
    return steps.done()


@lowers("Slice")
def slice_(site: Site) -> Lowered:
    """Lower a slice with a step per axis; negative steps read backwards."""
    x, y = site.required(0), site.output
    rank = len(x.shape)
    starts = _numbers(site, 1, "starts")
    ends = _numbers(site, 2, "ends")
    if starts is None or ends is None:
        raise Unsupported("Slice without starts or ends")
    axes = _numbers(site, 3, "axes")
    steps = _numbers(site, 4, "steps")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise Unsupported(f"Slice with {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps")
    where = dict.fromkeys(range(rank), (0, 1))
    for start, end, a, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise Unsupported("Slice with a step of 0")
        d = axis_of(a, rank)
        found = range(x.shape[d])[slice(start, end, step)] if step > 0 else _backwards(start, end, step, x.shape[d])
        if len(found) != y.shape[d]:
            raise Unsupported(f"Slice takes {len(found)} elements along axis {d}, and its shape says {y.shape[d]}")
        where[d] = (found.start, step)
    if x.elements == y.elements and all(step > 0 for _, step in where.values()):
        return Reshaped()

    def index(of: Sequence[Axis]) -> list[Index]:
        return [
            Index((), where[d][0]) if a.extent == 1 else axis_index(a.name, where[d][1], where[d][0])
            for d, a in enumerate(of)
        ]

    return moved(site, index)


def _backwards(start: int, end: int, step: int, size: int) -> range:
    """Return the positions of a slice with a negative step, with bounds clamped as in ONNX."""
    start = min(max(start + size if start < 0 else start, 0), size - 1)
    end = min(max(end + size if end < 0 else end, -1), size - 1)
    return range(start, end, step)


def _numbers(site: Site, position: int, name: str) -> tuple[int, ...] | None:
    """Return integers from an attribute (old versions) or a constant input."""
    given = site.attribute(name)
    if given is not None:
        return tuple(int(v) for v in np.ravel(given))
    value = site.known(position, f"{site.node.op}'s {name}")
    return None if value is None else tuple(int(v) for v in np.ravel(value))
