"""Gathers as numbers for gather_rows.h, which copies rows at positions that are known only at run time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: Dtypes of positions that the runner reads.
_POSITIONS = ("int32", "int64")


class GatherNumbers(NamedTuple):
    """The structure ``GatherNumbers`` of gather_rows.h, and the sizes and strides that follow it."""

    blocks: int
    tuples: int
    inner: int
    depth: int
    position_bytes: int
    shares_positions: int
    block_bytes: int
    row_bytes: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the result in bytes."""
        return self.blocks * self.tuples * self.inner * self.row_bytes

    def flat(self) -> list[int]:
        """Return all numbers in the order of the structure."""
        *plain, sizes, strides = self
        return [*plain, *sizes, *strides]


def numbers_of_gather(
    function: str, attributes: Mapping[str, Any], data: Sequence[int], positions: Sequence[int], dtype: str,
    element_bytes: int,
) -> GatherNumbers | None:  # fmt: skip
    """Return the numbers of a library function with data and positions of these shapes, or ``None`` for another one.

    Parameters
    ----------
    function, attributes
        Name in :mod:`roller_runtime.session.array_functions`, and the step's attributes.
    data, positions
        Shapes of the two inputs.
    dtype
        Dtype of the positions.
    element_bytes
        Size of an element of the data.

    Examples
    --------
    >>> numbers_of_gather("gather", {"axis": 0}, (30522, 768), (2, 128), "int64", 4)[:8]
    (1, 256, 1, 1, 8, 1, 93763584, 3072)
    """
    found = _numbers(function, attributes, data, positions, element_bytes) if dtype in _POSITIONS else None
    # Python refuses wrong positions of results without elements, too.
    return None if found is None or not found.nbytes else found._replace(position_bytes=8 if dtype == "int64" else 4)


def _numbers(
    function: str, attributes: Mapping[str, Any], data: Sequence[int], positions: Sequence[int], element_bytes: int
) -> GatherNumbers | None:
    """Return the numbers for positions of any dtype."""
    if function == "gather":
        axis = attributes["axis"]
        row = math.prod(data[axis + 1 :]) * element_bytes
        return GatherNumbers(
            math.prod(data[:axis]), math.prod(positions), 1, 1, 0, 1, data[axis] * row, row, (data[axis],), (row,)
        )
    if function == "gather_elements" and len(data) == len(positions) > 0:
        axis = attributes["axis"]
        if tuple(data[axis + 1 :]) != tuple(positions[axis + 1 :]) or tuple(data[1:axis]) != tuple(positions[1:axis]):
            return None  # rows of the positions are parts of the data's
        inner = math.prod(data[axis + 1 :])
        row = inner * element_bytes
        return GatherNumbers(
            math.prod(positions[:axis]), positions[axis], inner, 1, 0, 0, data[axis] * row, element_bytes,
            (data[axis],), (row,),
        )  # fmt: skip
    if function == "gather_nd" and positions[-1] > 0:
        batch, depth = attributes["batch_dims"], positions[-1]
        sizes = tuple(data[batch : batch + depth])
        row = math.prod(data[batch + depth :]) * element_bytes
        strides = tuple(math.prod(sizes[d + 1 :]) * row for d in range(depth))
        return GatherNumbers(
            math.prod(data[:batch]), math.prod(positions[batch:-1]), 1, depth, 0, 0, math.prod(sizes) * row, row,
            sizes, strides,
        )  # fmt: skip
    return None
