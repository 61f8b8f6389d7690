"""Geometry: the axes and accesses of an expression from which data tiles are computed (:mod:`roller.tile.access`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from roller.expr import SPATIAL, Bound, Index, Load, Stage, Tensor, TensorExpr
from roller.tile.access import Access, Floats, Ints, product_of_columns

__all__ = ["Access", "Floats", "Geometry", "Ints", "access_of", "product_of_columns", "store_order"]


@dataclass(frozen=True)
class Geometry:
    """Axes and accesses of an expression, prepared once for tile inference.

    Parameters
    ----------
    loads
        The anchor's distinct loads.
    store
        The anchor's output.
    extras
        Loads of tensors that only an epilogue reads, indexed by spatial axes and streamed once per output tile.
    """

    expr: TensorExpr
    names: tuple[str, ...]
    extents: Ints
    spatial: NDArray[np.bool_]
    loads: tuple[Access, ...]
    store: Access
    extras: tuple[Access, ...]

    @classmethod
    def of(cls, expr: TensorExpr) -> Geometry:
        """Return the geometry of ``expr`` (memoized on the expression)."""
        found = expr._memo.get("geometry")
        if found is None:
            found = expr._memo["geometry"] = _build_geometry(expr)
        geometry: Geometry = found
        return geometry

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Spatial axes in the order of threads and blocks, ending with the axis that is contiguous in the output."""
        return tuple(a for a in store_order(self.expr.anchor, self.names) if self.spatial[a])

    @cached_property
    def written(self) -> Access:
        """The store to memory, with the dtype of the output rather than of the anchor."""
        if len(self.expr.output_tensors) != 1:
            return self.store
        (out,), own = self.expr.output_tensors, self.store.tensor
        if out.dtype == own.dtype or out.elements != own.elements:
            return self.store
        return replace(self.store, tensor=replace(own, dtype=out.dtype), _memo={})

    @cached_property
    def spatial_axes(self) -> tuple[int, ...]:
        """Positions of the spatial axes."""
        return tuple(int(a) for a in np.flatnonzero(self.spatial))

    @cached_property
    def reduced_axes(self) -> tuple[int, ...]:
        """Positions of the reduction axes."""
        return tuple(int(a) for a in np.flatnonzero(~self.spatial))

    @cached_property
    def load_names(self) -> tuple[str, ...]:
        """Names of the tensors that the anchor loads."""
        return tuple(dict.fromkeys(a.tensor.name for a in self.loads))

    @cached_property
    def window_axes(self) -> NDArray[np.bool_]:
        """Mask of the reduction axes that are windows of some load."""
        return np.asarray(np.any([a.window_axes for a in self.loads], axis=0) & ~self.spatial)

    @cached_property
    def reduction_order(self) -> tuple[int, ...]:
        """Reduction axes in the loop order of CPU kernels: windows outermost."""
        # LLVM would fully unroll an innermost window and keep the values that neighbouring steps share in registers,
        # which the accumulators need.
        return tuple(sorted(self.reduced_axes, key=lambda a: not any(x.shared_axis_mask[a] for x in self.loads)))

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """All loads and extras."""
        return (*self.loads, *self.extras)

    def counts(self, tiles: Ints) -> Ints:
        """Return the number of tiles per axis, shape ``(N, axes)``."""
        return -(-self.extents // tiles)

    def blocks(self, tiles: Ints) -> Ints:
        """Return the number of output tiles in the launch, shape ``(N,)``."""
        outputs = np.ones(len(tiles), np.int64)
        for a in self.spatial_axes:
            outputs = outputs * -(-self.extents[a] // tiles[:, a])
        return outputs

    def footprint_bytes(self, tiles: Ints) -> Ints:
        """Return F(T), the bytes in all data tiles and the output tile without storage padding, shape ``(N,)``."""
        reads = sum((a.elements(tiles) * a.tensor.itemsize_bytes for a in self.loads), np.zeros(len(tiles), np.int64))
        return reads + self.store.elements(tiles) * self.store.tensor.itemsize_bytes


def store_order(stage: Stage, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions in ``names`` of the stage's spatial axes, ending with the axis contiguous in its output."""
    pitch: list[int] = []
    step = 1
    for n in reversed(stage.output.shape):
        pitch.insert(0, step)
        step *= n

    def distance(name: str) -> int:
        return min(
            (p * abs(t.coef) for i, p in zip(stage.store, pitch, strict=True) for t in i.terms if t.axis == name),
            default=0,
        )

    ordered = sorted((a.name for a in stage.spatial_axes), key=distance, reverse=True)
    return tuple(names.index(n) for n in ordered)


def access_of(
    expr: TensorExpr, tensor: Tensor, index: tuple[Index, ...], guard: tuple[Bound, ...], *, every_step: bool
) -> Access:
    """Return the access to a tensor with ``index`` and ``guard``; if ``every_step``, each reduction step reloads it."""
    names = tuple(a.name for a in expr.axes)
    coefficients = np.zeros((len(index), len(names)), np.int64)
    gather = False
    uses = np.zeros(len(names), bool)
    for d, i in enumerate(index):
        for t in i.terms:
            a = names.index(t.axis)
            uses[a] = True
            coefficients[d, a] += t.coef
            gather |= not t.is_affine
    return Access(
        tensor,
        coefficients,
        np.array([i.const for i in index], np.int64).reshape(-1),
        uses,
        gather,
        index,
        guard,
        names,
        np.array([a.extent for a in expr.axes], np.int64),
        np.array([every_step or a.kind == SPATIAL for a in expr.axes], bool),
        np.array([a.kind == SPATIAL for a in expr.axes], bool),
    )


def access_of_load(expr: TensorExpr, load: Load) -> Access:
    """Return the access that a load of the anchor makes."""
    return access_of(expr, expr.tensors[load.tensor], load.index, load.guard, every_step=True)


def _build_geometry(expr: TensorExpr) -> Geometry:
    anchor = expr.anchor
    own = {a.name for a in expr.axes}
    # A load of the same elements under a different guard is separate and has its own tile.
    loads = [access_of_load(expr, ld) for ld in anchor.loads]
    extras = []
    for s in expr.stages:
        if s is anchor:
            continue
        for ld in s.loads:
            # A tensor that the anchor also reads is streamed with the anchor; intermediates never leave the chip.
            new = ld.tensor in {t.name for t in expr.inputs} and ld.tensor not in {a.tensor.name for a in loads}
            if new and all(set(i.axes) <= own for i in ld.index):
                extras.append(access_of(expr, expr.tensors[ld.tensor], ld.index, ld.guard, every_step=False))
    return Geometry(
        expr,
        tuple(a.name for a in expr.axes),
        np.array([a.extent for a in expr.axes], np.int64),
        np.array([a.kind == SPATIAL for a in expr.axes], bool),
        tuple(loads),
        access_of(expr, anchor.output, anchor.store, (), every_step=True),
        tuple(extras),
    )
