"""Operands of a matrix instruction: which load is A and which is B, and both scratchpad layouts and bank conflicts.

The load that the m axis indexes is A, and the load that the n axis indexes is B; the k axis indexes both. A matrix unit
reads rows of 16 bytes; a tile whose rows would not be aligned to 16 bytes (windows, strides) is staged by axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import TileError
from roller.expr import Call, Cast, Index, Load, Scalar, Stage, Tensor, Term
from roller.tile.memory_strides import mean_stride_elements, nonadjacent_share
from roller.tile.program import RProgram
from roller.tile.staged_tile_layout import TileLayout, tile_layout
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Size (bytes) of one matrix row that ``ldmatrix`` reads, and the number of rows that it reads at once.
ROW_BYTES = 16
PHASE_ROWS = 8


@dataclass(frozen=True)
class Operand:
    """Operand A or B of a matrix program, and the layout of its staged tile.

    Parameters
    ----------
    axis, k_axis
        The spatial axis that indexes the operand (m for A, n for B), and the reduction axis along k.
    layout
        Layout of the block's tile; rows run along ``row_axis``.
    row_axis
        Axis along which scratchpad rows are contiguous: ``k_axis`` or ``axis``.
    """

    load: Load
    tensor: Tensor
    axis: str
    k_axis: str
    layout: TileLayout
    row_axis: str

    @property
    def transposed(self) -> bool:
        """Whether rows run along m or n instead of k, so that loading transposes the fragments."""
        return self.row_axis != self.k_axis

    @property
    def chunk(self) -> int:
        """Number of elements in a 16-byte matrix row."""
        return ROW_BYTES // self.tensor.itemsize_bytes

    @property
    def across(self) -> str:
        """The axis along which the tile steps from row to row."""
        return self.axis if self.row_axis == self.k_axis else self.k_axis

    def pitch(self, padding: int) -> int:
        """Return the distance (elements) between neighbours along :attr:`across`."""
        return self.offset({self.across: 1}, padding) - self.offset({}, padding)

    def elements(self, padding: int) -> int:
        """Return the size (elements) of the staged tile with ``padding`` elements appended to each row."""
        return math.prod(self.layout.extents[:-1]) * (self.layout.extents[-1] + padding)

    def offset(self, local: Mapping[str, int], padding: int) -> int:
        """Return the offset (elements) of a point of the tile; axes that ``local`` omits are 0."""
        point = {**dict.fromkeys((t.axis for i in self.layout.dims for t in i.terms), 0), **local}
        return sum(int(i(point)) * p for i, p in zip(self.layout.dims, self.layout.pitches(padding), strict=True))


def operand_loads(stage: Stage, matrix_axes: tuple[str, ...]) -> tuple[Load, Load]:
    """Return the loads that serve as A and B; raise an error if the stage does not sum a product of such loads."""
    m, n, k = matrix_axes
    found = _factors_of_product(stage.body)
    loads = [f for f in found if isinstance(f, Load)]
    if stage.combiner == "sum" and len(found) == len(loads) == 2:
        for a, b in (loads, loads[::-1]):
            in_a, in_b = _axes_of_load(a), _axes_of_load(b)
            if m in in_a and m not in in_b and n in in_b and n not in in_a and k in in_a and k in in_b:
                return a, b
    raise TileError(
        f"{stage.name}: expected a sum of products of a load that moves with {m}, {k} and one that moves with {n}, "
        f"{k}, got {stage.combiner} of {[ld.tensor for ld in stage.loads]}. Use another structure."
    )


def make_operands(
    stage: Stage, tensors: Mapping[str, Tensor], matrix_axes: tuple[str, ...], tile: Mapping[str, int]
) -> tuple[Operand, Operand]:
    """Return A and B, each with the layout of its tile, for a block with extents ``tile``."""
    m, n, k = matrix_axes
    a, b = operand_loads(stage, matrix_axes)
    return (
        _make_operand(stage, a, tensors[a.tensor], m, k, tile),
        _make_operand(stage, b, tensors[b.tensor], n, k, tile),
    )


def program_operands(program: RProgram) -> tuple[Operand, Operand]:
    """Return the operands of a ``"matrix"`` program."""
    expr = program.expr
    return make_operands(expr.anchor, expr.tensors, program.matrix_axes, program.block_tile)


def _make_operand(stage: Stage, load: Load, tensor: Tensor, axis: str, k: str, tile: Mapping[str, int]) -> Operand:
    layout = tile_layout(stage, load, tensor, tile)
    rows = _row_axis(layout, tensor, tile)
    # One-byte elements cannot be transposed while they are loaded: the instruction moves pairs of bytes.
    allowed = (k,) if tensor.itemsize_bytes == 1 else (axis, k)
    best = min(allowed, key=lambda a: _contiguity_key(load, tensor, a, stage.extents[a]))
    if rows == best or (rows in allowed and not layout.axes):
        return Operand(load, tensor, axis, k, layout, rows)
    rows = best
    axes = (*(a.name for a in reversed(stage.axes) if a.name in _axes_of_load(load) and a.name != rows), rows)
    by_axes = TileLayout(tuple(Index((Term(a),)) for a in axes), tuple(tile[a] for a in axes), axes)
    return Operand(load, tensor, axis, k, by_axes, rows)


@lru_cache(maxsize=4096)
def _contiguity_key(load: Load, tensor: Tensor, axis: str, extent: int) -> tuple[bool, float]:
    """Return the key that sorts axes by contiguity: whether most neighbours are apart, and their mean distance."""
    # A few long jumps (from image to image) cost less than a stride between all neighbours.
    return nonadjacent_share(load.index, tensor.shape, axis, extent) > 0.5, mean_stride_elements(
        load.index, tensor.shape, axis, extent
    )


def _row_axis(layout: TileLayout, tensor: Tensor, tile: Mapping[str, int]) -> str:
    """Return the axis of a tile's rows, or ``""`` if the tile does not consist of whole 16-byte rows."""
    chunk = ROW_BYTES // tensor.itemsize_bytes
    last = layout.dims[-1] if layout.dims else Index()
    moving = [t for t in last.terms if tile[t.axis] > 1]
    along = [t for t in moving if t.coef == 1 and t.is_affine]
    if len(along) != 1 or last.const % chunk or layout.extents[-1] % chunk:
        return ""
    if any(t.coef % chunk for t in moving if t is not along[0]):
        return ""
    return along[0].axis


def _factors_of_product(body: Scalar) -> list[Scalar]:
    if isinstance(body, Cast):
        return _factors_of_product(body.arg)
    if isinstance(body, Call) and body.fn == "mul":
        return [f for a in body.args for f in _factors_of_product(a)]
    return [body]


def _axes_of_load(load: Load) -> frozenset[str]:
    return frozenset(a for i in (*load.index, *(b.index for b in load.guard)) for a in i.axes)


# ---- scratchpad


def accumulator_row_pitch(columns: int) -> int:
    """Return the pitch (elements) of accumulator rows in the scratchpad: an odd multiple of 8, so that banks differ."""
    return columns + (8 if columns // 8 % 2 == 0 else 16)


def accumulator_row_bytes(fragment: Fragment, columns: int) -> int:
    """Return the number of scratchpad bytes that a thread group needs to write a row of fragments before storing it."""
    return fragment.m * accumulator_row_pitch(columns) * DTYPE_BYTES[fragment.accumulator]


def matrix_block_scratchpad_bytes(program: RProgram, staged: tuple[Operand, Operand]) -> int:
    """Return the number of scratchpad bytes of a block: the tiles of all stages, whose space the results reuse."""
    # Warp groups store directly from their accumulators, and their tiles have no padding
    # (:mod:`roller.tile.warp_group_tiles`).
    assert program.fragment is not None
    if program.fragment.reads_scratchpad:
        rows, columns, depth = (program.block_tile[a] for a in program.matrix_axes)
        return (rows + columns) * depth * staged[0].tensor.itemsize_bytes * program.stages
    padding, n = dict(program.storage_padding), program.matrix_axes[1]
    ring = sum(o.elements(padding.get(o.tensor.name, 0)) * o.tensor.itemsize_bytes for o in staged) * program.stages
    groups = program.threads_per_block // program.fragment.threads
    spread = groups * accumulator_row_bytes(program.fragment, program.tile("register")[n])
    return max(ring, spread)


# ---- bank conflicts


@dataclass(frozen=True)
class Swizzle:
    """Permutation of 16-byte chunks that moves neighbouring rows of a tile to different banks.

    Parameters
    ----------
    chunk, row
        Number of elements per chunk and per row; the number of chunks per row is a power of two.
    """

    chunk: int
    row: int

    @property
    def period(self) -> int:
        """Number of elements after which the key of a chunk changes: a row, or the rows that fill all banks once."""
        return max(self.row, PHASE_ROWS * self.chunk)

    @property
    def keys(self) -> int:
        """Number of distinct keys: the number of chunks per row, but at most the number that fills all banks once."""
        return min(self.row // self.chunk, PHASE_ROWS)

    def __call__(self, offset: int) -> int:
        """Return the swizzled offset of the element at ``offset`` in a tile."""
        # The chunk's index is XORed with the row's. Whole chunks move, so vectors stay contiguous; the pattern repeats
        # every eight rows.
        return offset ^ offset // self.period % self.keys * self.chunk


def swizzle_of_operand(operand: Operand, fragment: Fragment, padding: int) -> Swizzle | None:
    """Return the swizzle of a staged tile, or ``None`` if its rows are padded or cannot be permuted."""
    # Instructions that address each row (``ldmatrix``) allow any permutation; others need a fixed pitch. Tiles gathered
    # by axes are not permuted, so that a thread's elements stay a constant distance apart.
    row, chunk = operand.layout.extents[-1], operand.chunk
    if padding or operand.layout.axes or not fragment.has_defined_lanes or row <= chunk or row & (row - 1):
        return None
    return Swizzle(chunk, row)


def phase_row_addresses(operand: Operand, fragment: Fragment, padding: int) -> list[list[int]]:
    """Return the byte addresses of the rows that a TEU reads, one list per phase (eight rows served together)."""
    # There is one list per matrix of eight rows in the fragment; an operand's other fragments lie at multiples of these
    # addresses.
    chunk, size = operand.chunk, operand.tensor.itemsize_bytes
    extent = {operand.k_axis: fragment.k, operand.axis: max(fragment.m, fragment.n)}
    moved = swizzle_of_operand(operand, fragment, padding) or (lambda offset: offset)
    across = operand.across
    starts = itertools.product(range(0, extent[across], PHASE_ROWS), range(0, extent[operand.row_axis], chunk))
    return [
        [moved(operand.offset({across: a + r, operand.row_axis: c}, padding)) * size for r in range(PHASE_ROWS)]
        for a, c in starts
    ]


@lru_cache(maxsize=4096)
def bank_conflict_degree(operand: Operand, fragment: Fragment, padding: int, banks: int, bank_width_bytes: int) -> int:
    """Return the maximum number of words that one bank serves in one phase (1: no conflict)."""
    worst = 1
    for rows in phase_row_addresses(operand, fragment, padding):
        words = {(start + x) // bank_width_bytes for start in rows for x in range(0, ROW_BYTES, bank_width_bytes)}
        per_bank = [0] * banks
        for w in words:
            per_bank[w % banks] += 1
        worst = max(worst, *per_bank)
    return worst


def least_conflict_padding(operand: Operand, fragment: Fragment, banks: int, bank_width_bytes: int) -> tuple[int, int]:
    """Return the smallest storage padding (elements) with the fewest conflicts, and the remaining conflict degree."""
    # No padding is needed if a swizzle separates the banks. Row lengths stay multiples of the fragment's row.
    step = fragment.row_bytes // operand.tensor.itemsize_bytes
    least = -operand.layout.extents[-1] % step
    best = (bank_conflict_degree(operand, fragment, least, banks, bank_width_bytes), least)
    for pad in range(least + step, PHASE_ROWS * operand.chunk + 1, step):
        if best[0] == 1:
            break
        best = min(best, (bank_conflict_degree(operand, fragment, pad, banks, bank_width_bytes), pad))
    return best[1], best[0]
