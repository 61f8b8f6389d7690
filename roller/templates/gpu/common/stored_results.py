"""Results that a GPU kernel stores, and the width of its vectors, for both the price and the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from roller.expr import Axis, Index, Stage, Tensor, TensorExpr, axis_index
from roller.tile.geometry import store_order as positions
from roller.tile.vector_access_widths import is_vectorizable


@dataclass(frozen=True)
class StoredResults:
    """Results in ``tensor`` at ``index`` of the anchor's axes, without the leading dimension of parts."""

    index: tuple[Index, ...]
    tensor: Tensor

    @classmethod
    def of(cls, stage: Stage) -> StoredResults:
        """Return the results of a stage."""
        return cls(stage.store, stage.output)

    @classmethod
    def of_split_part(cls, stage: Stage) -> StoredResults:
        """Return the results of one part of a split reduction: its sums, in the order of the results."""
        order = axes_in_store_order(stage)
        sums = Tensor(stage.name, tuple(a.extent for a in order), stage.acc_dtype)
        return cls(tuple(axis_index(a.name) for a in order), sums)

    @classmethod
    def of_program(cls, expr: TensorExpr, *, split: bool) -> StoredResults:
        """Return the results of a tiled expression's first kernel: its parts, or the anchor's or epilogue's results."""
        if split:
            return cls.of_split_part(expr.anchor)
        return cls.of(expr.epilogue if expr.epilogue is not None and fits_one_kernel(expr) else expr.anchor)

    def vector(self, axis: str, extent: int, chunk: int) -> int:
        """Return the number of elements stored at once along an axis: whole chunks or single elements."""
        return chunk if self._fits(axis, extent, chunk) else 1

    def widest_aligned_vector_elements(self, axis: str, extent: int, most: int) -> int:
        """Return the largest number of neighbours along an axis, up to ``most``, that form an aligned vector."""
        return next((w for w in (16, 8, 4, 2) if w <= most and self._fits(axis, extent, w)), 1)

    def _fits(self, axis: str, extent: int, width: int) -> bool:
        if width == 1 or not self.tensor.shape or self.tensor.shape[-1] % width:
            return False
        return is_vectorizable(self.index, self.tensor, axis, extent, width)


def axes_in_store_order(stage: Stage) -> tuple[Axis, ...]:
    """Return a stage's spatial axes, ending with the axis contiguous in its output (for neighbouring threads)."""
    return tuple(stage.axes[n] for n in positions(stage, tuple(a.name for a in stage.axes)))


def fits_one_kernel(expr: TensorExpr) -> bool:
    """Return whether one kernel computes an expression: one stage, or a reduction with an element-wise epilogue."""
    return len(expr.stages) == 1 or (expr.epilogue is not None and expr.outputs == (expr.epilogue.name,))
