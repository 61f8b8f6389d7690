"""Checks that the 32-bit index arithmetic of CPU kernels does not wrap around."""

from __future__ import annotations

from collections.abc import Iterator

from roller.errors import BuildError
from roller.expr import OFFSET_ELEMENTS, Index, IndexValue, Stage, TensorExpr, walk_scalar_tree

#: Number of positions by which the last tile of an axis, or one that starts at a cache line, may exceed the axis before
#: it is shifted back.
_BEYOND = 1 << 20
_MOST = OFFSET_ELEMENTS - _BEYOND


def check_index_overflow(expr: TensorExpr) -> None:
    """Raise an error if a tensor, an axis or an index exceeds 32 bits."""
    for t in expr.tensors.values():
        _check_32_bit_limit(f"tensor '{t.name}' {t.shape}", "elements", t.elements)
    for s in expr.stages:
        for a in s.axes:
            _check_32_bit_limit(f"axis '{a.name}' of '{s.name}'", "positions", a.extent)
        for what, index in _indices_by_tensor(s):
            low, high = index.range(s.extents)
            _check_32_bit_limit(f"{what} in '{s.name}'", "as an index", max(abs(low), abs(high)))


def _indices_by_tensor(stage: Stage) -> Iterator[tuple[str, Index]]:
    for ld in stage.loads:
        for index in (*ld.index, *(b.index for b in ld.guard)):
            yield f"an access of '{ld.tensor}'", index
    for n in walk_scalar_tree(stage.body):
        if isinstance(n, IndexValue):
            yield "a position used as a value", n.index


def _check_32_bit_limit(what: str, unit: str, got: int) -> None:
    if got > _MOST:
        raise BuildError(
            f"{what}: expected at most 2^31 - 2^20 {unit}, got {got}: positions in the kernel are 32 bits wide. "
            "Split the operator."
        )
