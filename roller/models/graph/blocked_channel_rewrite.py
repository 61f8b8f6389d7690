"""Rewrites kernels to tensors with blocked channels: their indices change, and loops are split to match.

A *blocked* value of shape ``(n, c, ...)`` is stored as ``(n, c / block, ..., block)``. The channel index becomes a
two-digit number, and loops are split into digits (:mod:`roller.expr.index_arithmetic`) independently of operators.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from roller.errors import ExprError
from roller.expr import Axis, Index, Load, Scalar, Stage, Tensor, axis_index, transform_scalar
from roller.models.graph import fusion_rewrites
from roller.models.graph.lowered_parts import ComputedPart
from roller.models.graph.model_independent_kernels import make_kernel_source, number_tensor_and_axis_names
from roller_runtime.plan.program_steps import KernelSource


@dataclass(frozen=True)
class BlockedLayout:
    """Memory layout of a value of shape ``(outer, channels, *inner)`` with channels in blocks.

    Parameters
    ----------
    channels
        Number of channels, a multiple of ``block``.
    inner
        Dimensions after the channels, with more than one element in total.
    block
        Number of neighbouring channels that are contiguous in memory.
    """

    outer: int
    channels: int
    inner: tuple[int, ...]
    block: int

    @classmethod
    def of(cls, shape: tuple[int, ...], block: int) -> BlockedLayout | None:
        """Return the layout of a shape; ``None`` if it is too small or ``block`` does not divide the channels.

        Examples
        --------
        >>> BlockedLayout.of((8, 64, 7, 7), 16).shape
        (8, 4, 7, 7, 16)
        >>> BlockedLayout.of((8, 60, 7, 7), 16) is None
        True
        """
        if len(shape) < 3 or block < 2 or shape[1] % block or not shape[1] or math.prod(shape[2:]) < 2:
            return None
        return cls(shape[0], shape[1], shape[2:], block)

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions in memory order."""
        return (self.outer, self.channels // self.block, *self.inner, self.block)

    @property
    def positions(self) -> int:
        """Number of elements in one channel."""
        return math.prod(self.inner)

    def split(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
        """Return ``shape`` split at the channel's digits, and the low digit's dimension; ``None`` if that fails."""
        edges = (self.positions, self.positions * self.block, self.positions * self.channels)
        out: list[int] = []
        pitch, place = 1, None
        for n in reversed(shape):
            left = n
            for edge in edges:
                if pitch < edge < pitch * left:
                    if edge % pitch or left % (edge // pitch):
                        return None
                    out.append(edge // pitch)
                    left //= edge // pitch
                    pitch = edge
                if edge == edges[1] and pitch == edge and place is None and out:
                    place = len(out) - 1
            out.append(left)
            pitch *= left
            if pitch == edges[1] and place is None:
                place = len(out) - 1
        if place is None or out[place] != self.block or math.prod(out[:place]) != self.positions:
            return None
        return tuple(out[::-1]), len(out) - 1 - place


@dataclass(frozen=True)
class BlockedKernel:
    """A kernel on blocked tensors: its key and source."""

    key: str
    source: KernelSource


def rewrite_to_blocked(source: KernelSource, layouts: Mapping[str, BlockedLayout]) -> BlockedKernel | None:
    """Return the equivalent kernel with tensors blocked by ``layouts``; ``None`` if indices cannot express it."""
    expr = source.expression
    part: ComputedPart | None = ComputedPart(expr.inputs, expr.stages, expr.outputs, (expr.name,))
    try:
        for name in _tensors_to_permute(ComputedPart(expr.inputs, expr.stages, expr.outputs), layouts):
            part = None if part is None else _permute_tensor(part, *name)
        part = None if part is None else fusion_rewrites.split_axes_to_affine(part)
        if part is None:
            return None
        part = _order_loops_by_store(fusion_rewrites.simplify_accesses(part))
        if part.structure is None or part.structure != ComputedPart(expr.inputs, expr.stages, expr.outputs).structure:
            return None
        form, names = number_tensor_and_axis_names(part)
        fixed = tuple(k for k, n in enumerate(names[: len(form.reads)]) if n in source.constants)
        order = {t.name: k for k, t in enumerate(part.reads)}
        if [order.get(t.name) for t in expr.inputs] != list(range(len(expr.inputs))):
            return None  # callers pass inputs in the original kernel's order
        return BlockedKernel(*make_kernel_source(form, fixed, expr.name))
    except ExprError:
        return None


def reduces_channels(source: KernelSource, blocked: Collection[int]) -> bool:
    """Return whether a kernel reduces over the channels of one of its inputs at the positions ``blocked``."""
    expr = source.expression
    names, reduced = {expr.inputs[k].name for k in blocked}, {a.name for a in expr.anchor.reduction_axes}
    return any(ld.tensor in names and reduced & {*ld.index[-1].axes} for ld in expr.anchor.loads)


def _tensors_to_permute(part: ComputedPart, layouts: Mapping[str, BlockedLayout]) -> list[tuple[str, BlockedLayout]]:
    """Return the tensors to permute: the named ones, and intermediates that an output's epilogue reads in place."""
    found = dict(layouts)
    for last in part.stages:
        if last.name not in layouts:
            continue
        for s in part.stages:
            inner = s.name not in found and s.name not in part.outputs
            if inner and s.store == last.store and s.output.shape == last.output.shape:
                found[s.name] = layouts[last.name]
    return list(found.items())


def _permute_tensor(part: ComputedPart, name: str, layout: BlockedLayout) -> ComputedPart | None:
    """Return a part with one tensor blocked (channel digits split, the low one last); ``None`` if that fails."""
    if math.prod(part.shapes[name]) != math.prod(layout.shape):
        return None
    found = layout.split(part.shapes[name])
    if found is None:
        return None
    shape, place = found
    seen = fusion_rewrites.reshape_tensor(part, name, shape)
    if seen is None:
        return None
    order = [*(d for d in range(len(shape)) if d != place), place]

    def permute_index(index: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(index[d] for d in order)

    def leaf(n: Scalar) -> Scalar:
        return replace(n, index=permute_index(n.index)) if isinstance(n, Load) and n.tensor == name else n

    def tensor(t: Tensor) -> Tensor:
        return replace(t, shape=tuple(t.shape[d] for d in order)) if t.name == name else t

    def stage(s: Stage) -> Stage:
        store = permute_index(s.store) if s.name == name else s.store
        return replace(s, output=tensor(s.output), store=store, body=transform_scalar(s.body, leaf))

    return replace(seen, reads=tuple(tensor(t) for t in seen.reads), stages=tuple(stage(s) for s in seen.stages))


def _order_loops_by_store(part: ComputedPart) -> ComputedPart:
    """Return a part whose stages loop over their results in memory order."""

    def stage(s: Stage) -> Stage:
        places: dict[str, int] = {}
        for i in s.store:
            for t in sorted(i.terms, key=lambda t: -t.coef):
                places.setdefault(t.axis, len(places))
        if any(a.name not in places for a in s.spatial_axes):
            return s
        spatial = sorted(s.spatial_axes, key=lambda a: places[a.name])
        return replace(s, axes=(*spatial, *s.reduction_axes))

    return replace(part, stages=tuple(stage(s) for s in part.stages))


def make_layout_conversion_kernel(layout: BlockedLayout, dtype: str, *, to_blocked: bool) -> BlockedKernel:
    """Return the kernel that copies a plain value to a blocked one or, if not ``to_blocked``, the other way."""
    sizes = (("n", layout.outer), ("c", layout.channels // layout.block), ("p", layout.positions), ("b", layout.block))
    extents = dict(sizes)
    plain, blocked = ("n", "c", "b", "p"), ("n", "c", "p", "b")
    source, target = (plain, blocked) if to_blocked else (blocked, plain)
    axes = tuple(Axis(a, extents[a]) for a in target)
    read = Tensor("x", tuple(extents[a] for a in source), dtype)
    out = Tensor("y", tuple(extents[a] for a in target), dtype)
    body = Load("x", tuple(axis_index(a) for a in source))
    stage = Stage(out, axes, tuple(axis_index(a) for a in target), body, None, dtype)
    part = fusion_rewrites.simplify_accesses(ComputedPart((read,), (stage,), ("y",)))
    return BlockedKernel(
        *make_kernel_source(
            number_tensor_and_axis_names(part)[0], (), "to blocked channels" if to_blocked else "to plain channels"
        )
    )
