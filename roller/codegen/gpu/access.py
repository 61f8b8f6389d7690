"""Properties of memory accesses that decide vector width, layout and masking; pure arithmetic, no TVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from roller.expr import Axis, Call, Cast, Index, Load, Scalar, Stage, Tensor, loads
from roller.tile.access import VECTOR_BYTES
from roller.tile.steps import pitches


def _flat(index: Sequence[Index], shape: Sequence[int], axis: str, values: np.ndarray) -> np.ndarray:
    """Flat offsets along one axis, the other axes and constants at zero."""
    total = np.zeros(len(values), np.int64)
    for i, pitch in zip(index, pitches(shape), strict=True):
        mine = Index(tuple(t for t in i.terms if t.axis == axis))
        total = total + pitch * np.asarray(mine({axis: values}))
    return total


def vectorizable(index: Sequence[Index], tensor: Tensor, axis: str, extent: int, width: int) -> bool:
    """Whether every aligned chunk of ``width`` along ``axis`` is one aligned vector in memory.

    True only where it holds for all values of all other axes; the array itself is taken to start at a
    multiple of the vector, which the launcher checks.
    """
    if width == 1 or extent % width or width * tensor.itemsize_bytes > VECTOR_BYTES:
        return False
    for i, pitch in zip(index, pitches(tensor.shape), strict=True):
        if any(t.axis != axis and t.coef * pitch % width for t in i.terms):
            return False
    if sum(i.const * p for i, p in zip(index, pitches(tensor.shape), strict=True)) % width:
        return False
    # Chunks repeat with the largest period of a quotient or remainder: two periods prove the rest.
    period = max([1, *(t.div * max(t.mod, 1) for i in index for t in i.terms if t.axis == axis)])
    n = min(extent, -(-2 * max(period, width) // width) * width)
    flat = _flat(index, tensor.shape, axis, np.arange(n)).reshape(-1, width)
    return bool((flat[:, 0] % width == 0).all() and (flat == flat[:, :1] + np.arange(width)).all())


def store_order(stage: Stage) -> tuple[Axis, ...]:
    """Spatial axes of a stage, the one contiguous in its output last (it maps to neighbouring threads)."""
    pitch = pitches(stage.output.shape)

    def step(a: Axis) -> int:
        mine = [p * abs(t.coef) for i, p in zip(stage.store, pitch, strict=True) for t in i.terms if t.axis == a.name]
        return min(mine, default=0)

    return tuple(sorted(stage.spatial_axes, key=step, reverse=True))


def factors(body: Scalar) -> list[Scalar]:
    """Return the factors of a product, conversions removed."""
    if isinstance(body, Cast):
        return factors(body.arg)
    if isinstance(body, Call) and body.fn == "mul":
        return [f for a in body.args for f in factors(a)]
    return [body]


def depends(load: Load, axis: str) -> bool:
    """Whether a load's address or guard moves with ``axis``."""
    return any(axis in i.axes for i in load.index) or any(axis in b.index.axes for b in load.guard)


def padding_is_neutral(stage: Stage, axis: str, padded: Mapping[Load, float], neutral: float) -> bool:
    """Whether padding a reduction axis adds nothing without masking the body.

    Parameters
    ----------
    stage
        The reduction stage.
    axis
        The padded reduction axis.
    padded
        Value of every load that is certain to take a fixed value beyond the end of ``axis``.
    neutral
        Neutral value of the combiner.

    Notes
    -----
    A product is annihilated where *every* factor that moves with the axis is zero there: one zero alone
    would turn an infinity in the other operand into a NaN.
    """
    parts = factors(stage.body)
    moving = [p for p in parts if any(depends(ld, axis) for ld in loads(p))]
    if not moving or not all(isinstance(p, Load) and p in padded for p in moving):
        return False
    values = [padded[p] for p in moving if isinstance(p, Load)]
    if len(parts) == 1:
        return values[0] == neutral
    return stage.combiner == "sum" and all(v == 0.0 for v in values)
