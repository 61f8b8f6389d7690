"""Operand tiles of warp-group matrix instructions (wgmma): their scratchpad layout and descriptors.

The canonical layouts follow the PTX manual ("Shared Memory Matrix Layout" of wgmma): slabs of lines of up to 128 bytes,
whose 16-byte chunks are permuted by an exclusive or with the line's index, so that no access has bank conflicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roller.errors import TileError
from roller.expr import Load, Tensor

#: Size (bytes) of one chunk of a line: the unit of the swizzle and of one asynchronous copy.
CHUNK_BYTES = 16
#: Number of lines that the matrix unit reads at a time, and size (bytes) of the longest line.
_LINES, _LINE_BYTES = 8, 128
#: Swizzle code in a descriptor, by the number of bytes per line.
_SWIZZLES = {128: 1, 64: 2, 32: 3}
#: Alignment of tiles (bytes): the period of the longest pattern of swizzled lines.
ALIGNMENT_BYTES = _LINES * _LINE_BYTES


@dataclass(frozen=True)
class GroupTile:
    """The tile of operand A or B in one pipeline stage of the scratchpad.

    Parameters
    ----------
    axis, k_axis
        Axis of the operand's rows (m for A, n for B), and the reduction axis.
    rows, depth
        Extents (elements) along these two axes.
    k_major
        Whether lines run along k.
    """

    load: Load
    tensor: Tensor
    axis: str
    k_axis: str
    rows: int
    depth: int
    k_major: bool
    line_bytes: int

    @property
    def chunk(self) -> int:
        """Number of elements per chunk."""
        return CHUNK_BYTES // self.tensor.itemsize_bytes

    @property
    def along(self) -> str:
        """Axis along which lines run."""
        return self.k_axis if self.k_major else self.axis

    @property
    def lines(self) -> int:
        """Number of lines per slab."""
        return self.rows if self.k_major else self.depth

    @property
    def length(self) -> int:
        """Extent (elements) of the tile along its lines, over all slabs."""
        return self.depth if self.k_major else self.rows

    @property
    def bytes(self) -> int:
        """Size of the tile in bytes, rounded up to the alignment of the next tile."""
        used = self.rows * self.depth * self.tensor.itemsize_bytes
        return -(-used // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def swizzle(self) -> int:
        """Swizzle code in a descriptor."""
        return _SWIZZLES[self.line_bytes]

    @property
    def leading_bytes(self) -> int:
        """Leading offset of a descriptor, from slab to slab; ignored if lines run along k."""
        return CHUNK_BYTES if self.k_major else self.lines * self.line_bytes

    @property
    def stride_bytes(self) -> int:
        """Stride offset of a descriptor: from eight lines to the next eight."""
        return _LINES * self.line_bytes

    def position(self, line: Any, chunk: Any) -> Any:
        """Return the offset (elements) of a 16-byte chunk; ``chunk`` counts along the lines of all slabs."""
        per, line_elements = self.line_bytes // CHUNK_BYTES, self.line_bytes // self.tensor.itemsize_bytes
        repeat = _LINE_BYTES // self.line_bytes  # lines with the same permutation
        moved = (chunk % per) ^ (line // repeat % per)
        return chunk // per * (self.lines * line_elements) + line * line_elements + moved * self.chunk

    def start(self, row: Any, k: int) -> Any:
        """Return the offset (elements) of a product's operand: ``row`` is a multiple of its rows, ``k`` of 16."""
        line_elements = self.line_bytes // self.tensor.itemsize_bytes
        line, along = (row, k) if self.k_major else (k, row)
        return along // line_elements * (self.lines * line_elements) + line * line_elements + along % line_elements


def group_tile(
    load: Load, tensor: Tensor, axes: tuple[str, str], tile: Mapping[str, int], step: int, k_major: bool
) -> GroupTile:
    """Lay out the tile of one operand."""
    rows, depth = tile[axes[0]], tile[axes[1]]
    bound = (depth,) if k_major else (rows, step)
    for line in _SWIZZLES:
        elements = line // tensor.itemsize_bytes
        if all(b % elements == 0 for b in bound):
            return GroupTile(load, tensor, *axes, rows, depth, k_major, line)
    raise TileError(
        f"{tensor.name}: expected a tile in lines of at least {min(_SWIZZLES)} bytes, "
        f"got {rows} x {depth}. Choose another tile."
    )
