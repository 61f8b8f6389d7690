"""Layout of a staged data tile in the scratchpad, and the bank conflicts when one TEU reads it.

An affine load is staged as the box it touches, in the tensor's own layout; a quasi-affine load, or a strided load
without windows, is staged by the axes on which it depends (the im2col tile).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from roller.expr import SPATIAL, Index, Load, Stage, Tensor, TensorExpr, Term
from roller.tile.access import VECTOR_BYTES
from roller.tile.geometry import Geometry, Ints, product_of_columns
from roller.tile.memory_strides import mean_stride_elements, row_major_strides
from roller.tile.program import RProgram
from roller.tile.sliding_windows import Halo, halo_layout, slide_of


@dataclass(frozen=True)
class TileLayout:
    """Row-major dimensions of a staged tile: ``dims`` index local axes; ``axes`` is empty for a box of the tensor."""

    dims: tuple[Index, ...]
    extents: tuple[int, ...]
    axes: tuple[str, ...] = ()

    def pitches(self, padding: int = 0) -> tuple[int, ...]:
        """Return the distance (elements) between neighbours per dimension, with ``padding`` appended to each row."""
        return row_major_strides((*self.extents[:-1], self.extents[-1] + padding))


def tile_layout(stage: Stage, load: Load, tensor: Tensor, tile: Mapping[str, int]) -> TileLayout:
    """Return the layout of one load's staged tile for axis extents ``tile``."""
    windows = any(len(i.terms) > 1 for i in load.index)
    strided = any(abs(t.coef) > 1 for i in load.index for t in i.terms)
    boxed = all(i.is_affine for i in load.index) and all(b.index in load.index for b in load.guard)
    if boxed and (windows or not strided):
        dims = tuple(Index(i.terms, -Index(i.terms).range(tile)[0]) for i in load.index)
        return TileLayout(dims, tuple(i.range(tile)[1] + 1 for i in dims))
    axes = _load_axes_by_contiguity(stage, load, tensor)
    return TileLayout(tuple(Index((Term(a),)) for a in axes), tuple(tile[a] for a in axes), axes)


def window_halo(program: RProgram) -> Halo:
    """Return the row layout of a ``window`` program's staged tile."""
    slide = slide_of(program.expr.anchor)
    assert slide is not None
    tensor = program.expr.tensors[slide.source.tensor]
    return halo_layout(slide, tensor.shape, tensor.itemsize_bytes, program.tile("register"), program.block_tile)


def program_layout(program: RProgram, load: Load) -> TileLayout:
    """Return the layout of the staged tile for one load of a program."""
    layout = tile_layout(program.expr.anchor, load, program.expr.tensors[load.tensor], program.block_tile)
    if not program.traits.slides_windows:
        return layout
    rows, last = window_halo(program), layout.dims[-1]
    dims = (*layout.dims[:-1], Index(last.terms, last.const + rows.shift))
    return TileLayout(dims, (*layout.extents[:-1], rows.extent))


def is_read_from_scratchpad(tensor: str, index: Sequence[Index], staged: Collection[str]) -> bool:
    """Return whether a load reads the scratchpad: its tensor is ``staged`` and the load is not a single element."""
    return tensor in staged and any(i.terms for i in index)


def staged_axes(stage: Stage, load: Load, tensor: Tensor) -> tuple[str, ...]:
    """Return the axes that index a staged tile, or ``()`` if it is a box of the tensor."""
    return tile_layout(stage, load, tensor, stage.extents).axes


#: Largest ratio of a copy's rounds to the rounds without idle threads at which saved address arithmetic pays off.
IDLE_ROUNDS = 1.5


def copy_leading_dims(counts: Ints, threads: Ints) -> Ints:
    """Return the number of leading dimensions over which copies of staged tiles step in rounds, shape ``(N,)``."""
    # All threads of a round share the trailing dimensions, so that the addresses of successive rounds differ by
    # constants and need neither arithmetic nor registers. Threads without a row are idle; if too many are, the tile is
    # copied as one run. ``counts`` holds the number of vectors per dimension, shape ``(N, dimensions)``, and
    # ``threads`` the number of threads per block, shape ``(N,)``.
    rank = counts.shape[1]
    behind = [np.ones(len(counts), np.int64)]  # elements of the last dimensions
    for d in range(rank - 1, -1, -1):
        behind.append(behind[-1] * counts[:, d])
    best = -(-behind[-1] // threads)
    found = np.full(len(counts), rank, np.int64)
    for lead in range(rank - 1, -1, -1):
        columns = np.maximum(1, behind[rank - lead])
        rows = behind[-1] // columns
        rounds = -(-rows // np.maximum(1, threads // columns))
        found = np.where((columns <= threads) & (rounds <= IDLE_ROUNDS * best), lead, found)
    return found


def copy_rounds(counts: Ints, threads: Ints) -> tuple[Ints, Ints]:
    """Return the :func:`copy_leading_dims` of staged tiles and the number of copy rounds, each of shape ``(N,)``."""
    lead, rank = copy_leading_dims(counts, threads), counts.shape[1]
    ahead = np.arange(rank)[None, :] < lead[:, None]  # dimensions that differ from round to round
    rows, columns = (product_of_columns(np.where(x, counts, 1), range(rank)) for x in (ahead, ~ahead))
    return lead, -(-rows // np.maximum(1, threads // np.maximum(1, columns)))


def axis_of_staged_rows(stage: Stage, load: Load, tensor: Tensor) -> str | None:
    """Return the axis of a staged tile's rows, or ``None`` for windows and constants."""
    layout = tile_layout(stage, load, tensor, stage.extents)
    last = layout.dims[-1].terms if layout.dims else ()
    return last[0].axis if len(last) == 1 and last[0].coef == 1 else None


#: Cache of axis orders, which depend only on the stage and the load.
_ORDERS: dict[tuple[Stage, Load], tuple[str, ...]] = {}


def _load_axes_by_contiguity(stage: Stage, load: Load, tensor: Tensor) -> tuple[str, ...]:
    """Return the axes that a load depends on, ending with the most contiguous axis."""
    order: tuple[str, ...] | None = _ORDERS.get((stage, load))
    if order is not None:
        return order
    used = [a for a in stage.axes if any(a.name in i.axes for i in (*load.index, *(b.index for b in load.guard)))]
    step = {a.name: mean_stride_elements(load.index, tensor.shape, a.name, a.extent) for a in used}
    last = min(used, key=lambda a: (step[a.name], a.kind != SPATIAL))
    # Reduction axes come first, so that a step of the reduction reads one run of the tile.
    rest = sorted((a for a in used if a is not last), key=lambda a: a.kind == SPATIAL)
    order = (*(a.name for a in rest), last.name)
    if len(_ORDERS) > 4096:
        _ORDERS.clear()
    _ORDERS[stage, load] = order
    return order


@dataclass(frozen=True)
class LaneReads:
    """First read of each lane of one TEU from a staged tile, at element ``column + (row_elements + padding) * row``.

    Parameters
    ----------
    width
        Number of elements per vector read; the hardware serves ``min(lanes, banks) / width`` lanes together.
    """

    columns: tuple[int, ...]
    rows: tuple[int, ...]
    row_elements: int
    width: int
    itemsize_bytes: int
    _memo: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    def worst_conflict_degree(self, padding: int, banks: int, bank_width_bytes: int) -> int:
        """Return the maximum number of distinct words that one bank serves for one read (1: no conflict)."""
        return max(self.conflict_degrees(padding, banks, bank_width_bytes))

    def conflict_degrees(self, padding: int, banks: int, bank_width_bytes: int) -> tuple[int, ...]:
        """Return the maximum number of distinct words that one bank serves, per group of lanes served together."""
        key = (padding, banks, bank_width_bytes)
        if key not in self._memo:
            self._memo[key] = self._count(*key)
        return self._memo[key]

    def _count(self, padding: int, banks: int, bank_width_bytes: int) -> tuple[int, ...]:
        pitch, found = self.row_elements + padding, []
        for starts in self._read_starts_by_lane_group(banks):
            words = {
                (c + pitch * r + x) * self.itemsize_bytes // bank_width_bytes
                for c, r in starts
                for x in range(self.width)
            }
            per_bank: dict[int, int] = {}
            for w in words:
                per_bank[w % banks] = per_bank.get(w % banks, 0) + 1
            found.append(max(per_bank.values()))
        return tuple(found)

    def _read_starts_by_lane_group(self, banks: int) -> list[set[tuple[int, int]]]:
        """Return the columns and rows at which reads start, per group of lanes that are served together."""
        # A wavefront wider than the number of banks is served in groups of one lane per bank.
        group = max(1, min(len(self.columns), banks) // self.width)
        starts = list(zip(self.columns, self.rows, strict=True))
        return [set(starts[n : n + group]) for n in range(0, len(starts), group)]


def thread_chunks(program: RProgram) -> dict[str, int]:
    """Return the number of contiguous elements in a thread's tile per axis: all, or one chunk if interleaved."""
    register, threads = program.tile("register"), program.threads
    chunks = {}
    for a in program.axes:
        vector = a.name == program.vector_axis and register[a.name] % program.vector_elements == 0
        apart = program.interleaved and a.kind == SPATIAL and threads[a.name] > 1
        chunks[a.name] = (program.vector_elements if vector else 1) if apart else register[a.name]
    return chunks


def thread_read_ratio(program: RProgram) -> dict[str, float]:
    """Return, per staged tensor, the ratio of elements that a thread reads to those it would read contiguously."""
    # Windows of neighbouring outputs share elements; windows of interleaved chunks do not.
    register, chunks = tuple(program.tile("register").values()), tuple(thread_chunks(program).values())
    found: dict[str, float] = {}
    for access in Geometry.of(program.expr).loads:
        if access.tensor.name in program.staged and access.tensor.name not in found:
            key = ("spread", register, chunks)
            if key not in access._memo:
                pieces = math.prod(r // c for r, c, used in zip(register, chunks, access.uses, strict=True) if used)
                whole, chunk = access.elements(np.array([register, chunks], np.int64)).tolist()
                access._memo[key] = pieces * chunk / whole
            found[access.tensor.name] = access._memo[key]
    return found


def lane_reads(program: RProgram, lanes: int) -> dict[str, LaneReads]:
    """Return one TEU's reads from the tile of each staged tensor (for the first load of that tensor)."""
    if "lane_reads" in program._memo:
        found: dict[str, LaneReads] = program._memo["lane_reads"]
        return found
    key: tuple[object, ...] | None = None
    if not program.traits.slides_windows:  # rows of windows depend on the extents of their tensor
        vectors = program.vector_axis, program.vector_elements
        key = (
            _expression_kind_number(program.expr),
            program.tiles,
            *vectors,
            program.interleaved,
            program.staged,
            lanes,
        )
    out = _READS.get(key)
    if out is None:
        out = _compute_lane_reads(program, lanes)
        if key is not None:
            if len(_READS) >= _MOST_READS:
                _READS.clear()
            _READS[key] = out
    program._memo["lane_reads"] = out
    return out


#: Cache of reads, by the kind of the expression (independent of its extents) and the program's tiles.
_READS: dict[tuple[object, ...] | None, dict[str, LaneReads]] = {}
_MOST_READS = 1 << 14
#: Numbers that identify kinds of expressions, by the properties that :func:`lane_reads` depends on.
_KINDS: dict[tuple[object, ...], int] = {}


def _expression_kind_number(expr: TensorExpr) -> int:
    """Return a number that all expressions share whose tiles of equal extents are read in the same way."""
    found: int | None = expr._memo.get("kind_of_reads")
    if found is None:
        loads = tuple((ld.tensor, ld.index, ld.guard) for ld in expr.anchor.loads)
        tensors = [expr.tensors[ld.tensor] for ld in expr.anchor.loads]
        axes = (staged_axes(expr.anchor, ld, t) for ld, t in zip(expr.anchor.loads, tensors, strict=True))
        kinds = tuple((a.name, a.kind) for a in expr.axes)
        sizes = tuple(t.itemsize_bytes for t in tensors)
        key = (kinds, Geometry.of(expr).order, loads, tuple(axes), sizes)
        found = expr._memo["kind_of_reads"] = _KINDS.setdefault(key, len(_KINDS))
    return found


def _compute_lane_reads(program: RProgram, lanes: int) -> dict[str, LaneReads]:
    expr = program.expr
    names = tuple(a.name for a in expr.axes)
    register, threads = program.tile("register"), program.threads
    left = np.arange(lanes)
    local: dict[str, np.ndarray] = {n: np.zeros(lanes, np.int64) for n in names}
    chunks = dict.fromkeys(names, 1)
    for a in reversed(Geometry.of(expr).order):
        name = names[a]
        lane, left = left % threads[name], left // threads[name]
        if name == program.vector_axis and register[name] % program.vector_elements == 0:
            chunks[name] = program.vector_elements
        local[name] = lane * (chunks[name] if program.interleaved else register[name])
    out: dict[str, LaneReads] = {}
    for ld in expr.anchor.loads:
        if ld.tensor not in program.staged or ld.tensor in out:
            continue
        tensor = expr.tensors[ld.tensor]
        layout = program_layout(program, ld)
        if not layout.dims:
            continue
        column = np.asarray(layout.dims[-1](local)) + np.zeros(lanes, np.int64)
        row = np.zeros(lanes, np.int64)
        for i, pitch in zip(layout.dims[:-1], row_major_strides(layout.extents[:-1]), strict=True):
            row = row + pitch * np.asarray(i(local))
        last = layout.dims[-1].terms
        width = chunks[last[0].axis] if len(last) == 1 and last[0].coef == 1 else 1
        if program.traits.slides_windows:
            rows = window_halo(program)
            width, column = rows.width, column - rows.lead
        out[ld.tensor] = LaneReads(
            tuple(column.tolist()), tuple(row.tolist()), layout.extents[-1], width, tensor.itemsize_bytes
        )
    return out


#: Maximum storage padding to try, in vectors of the copy.
PADDING_STEPS = 8


@lru_cache(maxsize=4096)
def least_conflict_storage_padding(
    reads: LaneReads, banks: int, bank_width_bytes: int, vectors: bool = True
) -> tuple[int, int]:
    """Return the smallest storage padding (elements) with the fewest conflicts, and the remaining conflict degree."""
    # The paper's published pad is only a first guess; here every multiple of the copy vector up to eight is enumerated
    # over one TEU (rule 3 of alignment). Without ``vectors``, copies move single elements, and any padding is valid.
    vector = max(1, VECTOR_BYTES // reads.itemsize_bytes) if vectors else 1
    step = vector if reads.row_elements % vector == 0 else 1
    best = (reads.worst_conflict_degree(0, banks, bank_width_bytes), 0)
    if not any(reads.rows):  # padding only moves rows
        return 0, best[0]
    for pad in range(step, PADDING_STEPS * step + 1, step):
        if best[0] == 1:
            break
        best = min(best, (reads.worst_conflict_degree(pad, banks, bank_width_bytes), pad))
    return best[1], best[0]
