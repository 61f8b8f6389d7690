"""Boxes: the positions of a tensor that a tile reads or writes, and that a unit holds in its scratchpad.

Pricing and code generation share this definition: one lattice interval per dimension, which is exact for affine indices
and may be too large for quotients and remainders of axes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from roller.expr import Index, Stage, Tensor, TensorExpr
from roller.expr.scalar import Term
from roller.tile.geometry import Ints

#: Number of bytes that a worker writes with one store; storing a narrower element also rewrites its neighbours.
WORD_BYTES = 4


@dataclass(frozen=True)
class Box:
    """A tensor and all accesses to it by the stages of an expression.

    Parameters
    ----------
    accesses
        All index tuples with which the tensor is accessed.
    extents
        Extent of each axis of the stages.
    """

    tensor: Tensor
    accesses: tuple[tuple[Index, ...], ...]
    extents: tuple[tuple[str, int], ...]

    @cached_property
    def lattice(self) -> tuple[int, ...]:
        """Spacing of the touched positions per dimension; 1 if accesses are offset from each other."""
        found = []
        for d in range(len(self.tensor.shape)):
            indices = {a[d] for a in self.accesses}
            steps = [abs(t.coef) for i in indices for t in i.terms]
            found.append(max(1, math.gcd(*steps)) if steps and len(indices) == 1 else 1)
        return tuple(found)

    def counts(self, tile: Mapping[str, Ints | int]) -> list[Ints]:
        """Return the maximum number of lattice positions that a tile touches per dimension; missing axes are whole."""
        whole, out = dict(self.extents), []
        for d, (step, size) in enumerate(zip(self.lattice, self.tensor.shape, strict=True)):
            spans = [_largest_index_span(a[d], tile, whole) for a in self.accesses]
            apart = max(a[d].const for a in self.accesses) - min(a[d].const for a in self.accesses)
            span = functools.reduce(np.maximum, spans) + apart
            out.append(np.minimum(span // step + 1, (size - 1) // step + 1))
        return out

    def pitches(self, tile: Mapping[str, Ints | int]) -> list[Ints]:
        """Return the extents of a unit's copy; rows are whole words, so that no two workers write to the same word."""
        out = self.counts(tile)
        several = max(1, WORD_BYTES // self.tensor.itemsize_bytes)
        if out:
            out[-1] = -(-out[-1] // several) * several
        return out

    def elements(self, tile: Mapping[str, Ints | int]) -> Ints:
        """Return the number of elements in a unit's copy."""
        total: Ints = np.asarray(max(1, WORD_BYTES // self.tensor.itemsize_bytes) if not self.tensor.shape else 1)
        for n in self.pitches(tile):
            total = total * n
        return total

    def start(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, ...]:
        """Return the first in-bounds position per dimension that points of ``ranges`` (first, last by axis) touch."""
        whole, found = dict(self.extents), []
        for d, step in enumerate(self.lattice):
            low = min(smallest_index_value(a[d], ranges, whole) for a in self.accesses)
            found.append(low if low >= 0 else low + -(low // step) * step)
        return tuple(found)


def _largest_index_span(index: Index, tile: Mapping[str, Ints | int], whole: Mapping[str, int]) -> Ints | int:
    """Return an upper bound on the distance between the first and the last position of an index over a tile."""
    total: Ints | int = 0
    for t in index.terms:
        extent = np.minimum(np.asarray(tile.get(t.axis, whole[t.axis]), np.int64), whole[t.axis])
        total = total + abs(t.coef) * _largest_quotient_change(t, extent, whole[t.axis])
    return total


def _largest_quotient_change(t: Term, extent: Ints, whole: int) -> Ints:
    """Return the largest change in ``axis // div % mod`` over ``extent`` points after a multiple of ``extent``."""
    if t.is_affine:
        return extent - 1
    aligned = (extent % t.div == 0) | (t.div % extent == 0)
    moved = np.where(aligned, np.maximum(extent // t.div, 1) - 1, (extent - 1) // t.div + 1)
    moved = np.minimum(moved, (whole - 1) // t.div)
    if not t.mod:
        return np.asarray(moved)
    wraps = np.where(aligned, t.mod % (moved + 1) != 0, moved > 0)
    return np.where(wraps, np.minimum(t.mod, (whole - 1) // t.div + 1) - 1, moved)


def smallest_index_value(index: Index, ranges: Mapping[str, tuple[int, int]], whole: Mapping[str, int]) -> int:
    """Return the smallest position of an index over inclusive ranges of its axes."""
    total = index.const
    for t in index.terms:
        first, last = ranges.get(t.axis, (0, whole[t.axis] - 1))
        low, high = first // t.div, last // t.div
        if t.mod:
            low, high = (0, t.mod - 1) if low // t.mod != high // t.mod else (low % t.mod, high % t.mod)
        total += t.coef * (low if t.coef > 0 else high)
    return total


def boxes_of(expr: TensorExpr) -> dict[str, Box]:
    """Return the boxes of all tensors of an expression, keyed by tensor name (memoized on the expression)."""
    found: dict[str, Box] | None = expr._memo.get("bsp/boxes")
    if found is None:
        touched: dict[str, dict[tuple[Index, ...], None]] = {}
        for s in expr.stages:
            for load in s.loads:
                touched.setdefault(load.tensor, {})[load.index] = None
            touched.setdefault(s.name, {})[s.store] = None
        extents = {a.name: a.extent for s in expr.stages for a in s.axes}
        sizes = tuple(extents.items())
        found = {n: Box(expr.tensors[n], tuple(a), sizes) for n, a in touched.items()}
        expr._memo["bsp/boxes"] = found
    return found


def axes_tiles_must_span(expr: TensorExpr) -> frozenset[str]:
    """Return the axes that a tile must span, because a unit would otherwise read another unit's results."""
    # A stage reads an earlier result at the position its own tile wrote, or over whole axes. If several stages reduce,
    # their axes are whole too; only an anchor that comes first may reduce in steps.
    stages = {s.name: s for s in expr.stages}
    found = {a.name for s in expr.stages for a in s.reduction_axes if s is not expr.anchor}
    if expr.stages[0] is not expr.anchor:
        found |= {a.name for a in expr.anchor.reduction_axes}
    for s in expr.stages:
        for load in s.loads:
            if load.tensor in stages:
                found |= _axes_read_elsewhere(stages[load.tensor], load.index)
    return frozenset(found)


def _axes_read_elsewhere(writer: Stage, index: tuple[Index, ...]) -> set[str]:
    """Return the axes of dimensions that a load reads at positions that the load's own tile did not write."""
    pairs = zip(writer.store, index, strict=True)
    return {a for store, load in pairs if store != load for a in (*store.axes, *load.axes)}
