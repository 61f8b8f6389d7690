"""Sliding-window reductions: the input rows of a strip of outputs, and the outputs to which each row contributes.

A thread of structure ``window`` computes a strip of outputs along one spatial axis (the slide). It loads every input
row once and adds it to all outputs whose window contains it, so only these outputs need accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from roller.expr import SPATIAL, Index, Load, Stage, Term
from roller.tile.access import VECTOR_BYTES

#: One input row: its offset from the first row, and the outputs and taps ``(i, k)`` that read it.
Row = tuple[int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Slide:
    """A window of ``taps`` elements that slides along ``axis`` of the load ``source``.

    Parameters
    ----------
    source
        The load whose dimension ``dim`` is ``stride * axis + dilation * window + const``.
    others
        Loads that ``axis`` does not index: weights, which a thread keeps.
    axis, window
        The spatial axis of the slide, and the reduction axis of the window.
    windows
        All reduction axes that index ``source``; the tiles of threads and blocks span them.
    """

    source: Load
    others: tuple[Load, ...]
    dim: int
    axis: str
    window: str
    stride: int
    dilation: int
    taps: int
    windows: tuple[str, ...]

    def row_count(self, outputs: int) -> int:
        """Return the number of input rows that a strip of ``outputs`` needs."""
        return len({i * self.stride + k * self.dilation for i in range(outputs) for k in range(self.taps)})

    def rows(self, outputs: int) -> tuple[Row, ...]:
        """Return the input rows that a strip of ``outputs`` needs, in order.

        Examples
        --------
        >>> from roller.ops import pool2d
        >>> [r for r, _ in slide_of(pool2d("max", 1, 1, 9, 9, 3, 3, stride=2).anchor).rows(2)]
        [0, 1, 2, 3, 4]
        """
        found: dict[int, list[tuple[int, int]]] = {}
        for i in range(outputs):
            for k in range(self.taps):
                found.setdefault(i * self.stride + k * self.dilation, []).append((i, k))
        return tuple((r, tuple(found[r])) for r in sorted(found))

    def live(self, outputs: int) -> int:
        """Return the number of outputs of the strip that are accumulated at once."""
        return min(outputs, -(-((self.taps - 1) * self.dilation + 1) // self.stride))


@lru_cache(maxsize=1024)
def slide_of(stage: Stage) -> Slide | None:
    """Return the slide of a stage whose reduction axes are all windows of one load, else ``None``."""
    # The slide runs along the window of the slowest dimension, which must not index loads other than the windowed one.
    windowed = [ld for ld in stage.loads if any(len(i.terms) > 1 for i in ld.index)]
    if stage.combiner is None or len(windowed) != 1 or not all(i.is_affine for ld in stage.loads for i in ld.index):
        return None
    source = windowed[0]
    if any(b.index not in source.index for b in source.guard) or any(t.coef < 1 for i in source.index for t in i.terms):
        return None
    found: list[tuple[int, Term, Term]] = []
    for d, index in enumerate(source.index):
        moving = [t for t in index.terms if stage.extents[t.axis] > 1]
        over = [t for t in moving if _axis_kind(stage, t.axis) == SPATIAL]
        taps = [t for t in moving if _axis_kind(stage, t.axis) != SPATIAL]
        if not taps:
            continue
        if len(over) != 1 or len(taps) != 1:
            return None
        found.append((d, over[0], taps[0]))
    windows = dict.fromkeys(taps.axis for _, _, taps in found)
    if not found or any(a.extent > 1 and a.name not in windows for a in stage.reduction_axes):
        return None
    d, over_, taps_ = found[0]
    others = tuple(ld for ld in stage.loads if ld != source)
    if any(over_.axis in i.axes for ld in others for i in ld.index):
        return None
    return Slide(
        source, others, d, over_.axis, taps_.axis, over_.coef, taps_.coef, stage.extents[taps_.axis], tuple(windows)
    )


def _axis_kind(stage: Stage, axis: str) -> str:
    return next(a.kind for a in stage.axes if a.name == axis)


@dataclass(frozen=True)
class RowBox:
    """Registers of one thread for one row of the windowed load: a box over every dimension except the slide's.

    Parameters
    ----------
    dims
        Positions as functions of local coordinates (outputs and taps of the thread).
    steps
        Distance (elements of the tensor) between adjacent positions: more than 1 for a stride without a window.
    """

    dims: tuple[Index, ...]
    extents: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements of one row that a thread keeps in registers."""
        return math.prod(self.extents)


def row_box(slide: Slide, tile: Mapping[str, int]) -> RowBox:
    """Return the box of one row for register extents ``tile``, with full reduction extents."""
    dims, extents, steps = [], [], []
    for d, index in enumerate(slide.source.index):
        terms = [t for t in index.terms if tile[t.axis] > 1] if d != slide.dim else []
        step = math.gcd(*(t.coef for t in terms)) if terms else 1
        dims.append(Index(tuple(Term(t.axis, t.coef // step) for t in terms)))
        extents.append(dims[-1].range(tile)[1] + 1)
        steps.append(step)
    return RowBox(tuple(dims), tuple(extents), tuple(steps))


@dataclass(frozen=True)
class Halo:
    """Layout of a staged tile's rows in the scratchpad, and a thread's reads of its part of a row.

    Parameters
    ----------
    copy
        Number of elements per vector when rows are copied.
    shift
        Number of elements prepended to each row to align it to the tensor's vectors.
    extent
        Number of elements per row.
    lead
        Number of elements by which a thread's first vector starts before its part.
    width, chunks
        Number of elements per vector, and number of vectors that a thread reads.
    """

    copy: int
    shift: int
    extent: int
    lead: int
    width: int
    chunks: int


def halo_layout(
    slide: Slide,
    shape: tuple[int, ...],
    itemsize_bytes: int,
    register: Mapping[str, int],
    block: Mapping[str, int],
    fragment: RowBox | None = None,
) -> Halo:
    """Return the halo of a block tile, with vectors as wide as sizes and strides allow."""
    index = slide.source.index[-1]
    terms = [t for t in index.terms if block[t.axis] > 1]
    extent = Index(tuple(terms)).range(block)[1] + 1
    widest = max(1, VECTOR_BYTES // itemsize_bytes)
    starts = [t.coef * block[t.axis] for t in index.terms if t.axis not in slide.windows]
    copy = _vector_width(widest, [shape[-1], *starts])
    guards = [x for b in slide.source.guard if b.index == index for x in (b.low, b.high)]
    copy = _vector_width(copy, guards)
    shift = index.const % copy
    fragment = fragment or row_box(slide, register)
    apart = [t.coef * register[t.axis] for t in terms if block[t.axis] > register[t.axis]]
    width = _vector_width(widest, apart) if fragment.steps[-1] == 1 and len(slide.source.index) - 1 != slide.dim else 1
    width = min(width, _next_power_of_two(fragment.extents[-1]))
    lead = shift % width
    unit = widest if max(copy, width) > 1 else 1  # storage padding then keeps rows aligned
    rows = -(-(shift + extent) // unit) * unit
    return Halo(copy, shift, rows, lead, width, -(-(lead + fragment.extents[-1]) // width))


def _vector_width(widest: int, multiples: list[int]) -> int:
    """Return the largest power of two, at most ``widest``, that divides all of ``multiples``."""
    while any(m % widest for m in multiples):
        widest //= 2
    return widest


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
