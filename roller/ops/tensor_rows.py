"""Rows of a tensor of any rank, and stages over them for softmax, norms and reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from roller.expr import REDUCTION, Axis, Index, Load, Scalar, Stage, Tensor
from roller.ops.operator_argument_checks import OperatorDtypes, ensure_spatial_axis, identity_indices


def axes_of_dimensions(shape: Sequence[int], reduced: Sequence[int] = (), name: str = "k{}") -> tuple[Axis, ...]:
    """Return one axis per dimension: spatial axes ``d0 d1 ...``, and reduction axes named by the pattern ``name``."""
    return tuple(Axis(name.format(d), e, REDUCTION) if d in reduced else Axis(f"d{d}", e) for d, e in enumerate(shape))


def broadcast_index(shape: Sequence[int], at: Sequence[Index], result: Sequence[int]) -> tuple[Index, ...]:
    """Return the index into an operand of ``shape`` at point ``at`` of a result, with NumPy's broadcasting."""
    mine, sizes = at[len(at) - len(shape) :], result[len(result) - len(shape) :]
    return tuple(i if e == n else Index() for i, e, n in zip(mine, shape, sizes, strict=True))


@dataclass(frozen=True)
class TensorRows:
    """The rows of a tensor: sets of elements that differ only in the reduced dimensions."""

    x: Tensor
    walked: tuple[
        Axis, ...
    ]  #: One axis per dimension of ``x`` (:func:`axes_of_dimensions`), with reduction axes along a row
    t: OperatorDtypes
    prefix: str  #: Prefix for names of intermediate tensors
    keepdims: bool = False  #: Whether a per-row result keeps the reduced dimensions with extent 1

    @cached_property
    def points(self) -> tuple[Axis, ...]:
        """Axes of a result with one element per row."""
        if self.keepdims:
            return tuple(Axis(f"one{d}", 1) if a.kind == REDUCTION else a for d, a in enumerate(self.walked))
        return tuple(a for a in self.walked if a.kind != REDUCTION)

    @property
    def reduced(self) -> tuple[Axis, ...]:
        """Axes along a row."""
        return tuple(a for a in self.walked if a.kind == REDUCTION)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes of a stage that reduces rows, spatial ones first."""
        return (*ensure_spatial_axis(self.points), *self.reduced)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a result with one element per row."""
        return tuple(a.extent for a in self.points)

    @property
    def at(self) -> tuple[Index, ...]:
        """Index of a row in a per-row result."""
        return identity_indices(self.points)

    @property
    def count(self) -> int:
        """Number of elements in a row."""
        return math.prod(a.extent for a in self.reduced)

    @property
    def element(self) -> Scalar:
        """The load of a row's element in a stage that reduces rows."""
        return self.t.load(self.x.name, identity_indices(self.walked))

    @property
    def point(self) -> tuple[Index, ...]:
        """Index of a point in a result of the tensor's shape."""
        return identity_indices(axes_of_dimensions(self.x.shape))

    @property
    def here(self) -> Scalar:
        """The load of the tensor's element at ``point``."""
        return self.t.load(self.x.name, self.point)

    def reduction(self, part: str, body: Scalar, combiner: str = "sum") -> Stage:
        """Return the stage that reduces ``body`` over rows to an intermediate tensor, in accumulator precision."""
        return Stage(Tensor(f"{self.prefix}{part}", self.shape, self.t.acc), self.axes, self.at, body, combiner,
                     self.t.acc)  # fmt: skip

    def of(self, stage: Stage) -> Load:
        """Return a load of the stage's per-row result."""
        return Load(stage.name, self.at)

    def pointwise(self, y: Tensor, value: Scalar) -> Stage:
        """Return the stage that writes ``value`` to every point of ``y``, which has the tensor's shape."""
        return Stage(y, axes_of_dimensions(self.x.shape), self.point, value, None, self.t.acc)

    def per_row_stage(self, y: Tensor, value: Scalar) -> Stage:
        """Return the stage that writes ``value`` to ``y``, which has one element per row."""
        return Stage(y, ensure_spatial_axis(self.points), self.at, value, None, self.t.acc)
