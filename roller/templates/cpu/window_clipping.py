"""Clipping of windows: the taps that are in the padding for a whole register tile, which the micro-kernel skips.

A tap ``d`` elements away from its output lies outside an image of ``n`` elements at ``d`` of the ``n`` positions. The
micro-kernel of a tile loops only over taps that are inside the image for at least one output of the tile.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.expr import Bound
from roller.expr.reduction_trimming import adds_nothing_outside
from roller.tile.geometry import Floats, Geometry, Ints

#: Maximum average share of taps inside the image for which clipping pays off: individual loop ends per tile prevent the
#: window's unrolling and the reuse between its steps.
_MOST_LIVE = 0.8
#: Minimum number of outputs in a segment: tiles that end where taps leave the image are no longer than the shortest
#: segment.
_SHORTEST_SEGMENT = 2


@dataclass(frozen=True)
class WindowSlide:
    """A window axis ``tap`` that slides along ``output``: inside if ``low <= step * output + gap * tap < high``."""

    output: int
    tap: int
    step: int
    gap: int
    low: int
    high: int
    bound: Bound

    def first(self, last_output: Any) -> Any:
        """Return the first tap that is inside for at least one output up to ``last_output``; below 0 if all are."""
        return -((self.step * last_output - self.low) // self.gap)

    def end(self, first_output: Any) -> Any:
        """Return the end of the taps that are inside for at least one of the outputs that start at ``first_output``."""
        return (self.high - 1 - self.step * first_output) // self.gap + 1


def slides_over_padding(geometry: Geometry) -> tuple[WindowSlide, ...]:
    """Return the reduction axes whose points outside an index bound add nothing, as slides."""
    # Each slide has one bound, on an index of one spatial and one reduction axis with positive coefficients.
    expr = geometry.expr
    if "slides" not in expr._memo:
        expr._memo["slides"] = _find_slides_over_padding(geometry)
    found: tuple[WindowSlide, ...] = expr._memo["slides"]
    return found


def _find_slides_over_padding(geometry: Geometry) -> tuple[WindowSlide, ...]:
    s, at = geometry.expr.anchor, {n: a for a, n in enumerate(geometry.names)}
    if s.combiner is None:
        return ()
    found: dict[int, list[WindowSlide | None]] = {}
    for load in s.loads:
        for b in load.guard if adds_nothing_outside(s, load) else ():
            taps = [t for t in b.index.terms if not geometry.spatial[at[t.axis]]]
            rest = [t for t in b.index.terms if geometry.spatial[at[t.axis]]]
            forward = all(t.is_affine and t.coef > 0 for t in b.index.terms)
            simple = forward and len(taps) == len(rest) == 1
            for t in taps:
                slide = WindowSlide(
                    at[rest[0].axis], at[t.axis], rest[0].coef, t.coef, b.low - b.index.const, b.high - b.index.const, b
                ) if simple else None  # fmt: skip
                found.setdefault(at[t.axis], []).append(slide)
    return tuple(f[0] for f in found.values() if len(set(f)) == 1 and f[0] is not None)


def segments_of_equal_clipping(geometry: Geometry, staged: Sequence[str]) -> Mapping[int, tuple[int, ...]]:
    """Return ends of register tiles such that each tap is inside for all outputs of a tile or for none."""
    # Guarded operands that are not ``staged`` can then be read in place without a guard. The result maps an axis to
    # the first output of each segment and the number of outputs; it is empty if any guard is of a different kind or
    # segments are single outputs.
    found: dict[int, set[int]] = {}
    known = {s.bound: s for s in slides_over_padding(geometry)}
    for load in geometry.expr.anchor.loads:
        for b in load.guard if load.tensor not in staged else ():
            if b not in known or b.index not in load.index:
                return {}
            s = known[b]
            outputs, taps = int(geometry.extents[s.output]), np.arange(int(geometry.extents[s.tap]))
            first = -((s.gap * taps - s.low) // s.step)
            end = (s.high - 1 - s.gap * taps) // s.step + 1
            ends = np.clip(np.concatenate([first, end]), 0, outputs)
            found.setdefault(s.output, {0, outputs}).update(int(x) for x in ends)
    sides = {a: tuple(sorted(ends)) for a, ends in found.items()}
    return sides if all(shortest_segment(x) >= _SHORTEST_SEGMENT for x in sides.values()) else {}


def shortest_segment(segments: Sequence[int]) -> int:
    """Return the number of outputs in the shortest segment."""
    return min(b - a for a, b in itertools.pairwise(segments))


def register_tiles_per_segment(segments: Sequence[int], tile: int) -> tuple[int, ...]:
    """Return the number of register tiles in each segment."""
    return tuple(-(-(b - a) // tile) for a, b in itertools.pairwise(segments))


def tile_starts(segments: Sequence[int], tile: int) -> Ints:
    """Return the first output of each register tile; the last tile of a segment ends with the segment."""
    parts = [
        np.minimum(a + np.arange(n) * tile, max(a, b - tile))
        for (a, b), n in zip(itertools.pairwise(segments), register_tiles_per_segment(segments, tile), strict=True)
    ]
    return np.concatenate(parts)


def end_tiles_at_segments(
    segments: Mapping[int, tuple[int, ...]], geometry: Geometry, tile: Ints, tiles: Ints, chunk: Ints, unit: Ints
) -> Ints:
    """Make tiles end with the segments of their axis, in place; return ``chunk`` with whole windows."""
    # Tiles stay multiples of ``unit``; windows are whole so that taps can be skipped.
    for a, ends in segments.items():
        tile[:, a] = np.minimum(tile[:, a], shortest_segment(ends)) // unit[:, a] * unit[:, a]
        tiles[:, a] = sum(-(-(end - first) // tile[:, a]) for first, end in itertools.pairwise(ends))
    taps = [s.tap for s in slides_over_padding(geometry)]
    chunk = chunk.copy()
    chunk[:, taps] = geometry.extents[taps]
    return chunk


def computed_point_shares(
    geometry: Geometry, tile: Ints, chunk: Ints, segments: Mapping[int, tuple[int, ...]]
) -> Floats:
    """Return the average share of each axis's points that micro-kernels compute, shape ``(N, axes)``."""
    shares = np.ones(tile.shape)
    for s in slides_over_padding(geometry):
        taps = int(geometry.extents[s.tap])
        sizes, which = np.unique(tile[:, s.output], return_inverse=True)
        ends = segments.get(s.output, (0, int(geometry.extents[s.output])))
        each = np.array([_mean_computed_taps(s, tile_starts(ends, int(n)), int(n), taps) / taps for n in sizes])
        found = np.where(chunk[:, s.tap] == taps, each[which], 1.0)
        shares[:, s.tap] = np.where((found <= _MOST_LIVE) | (s.output in segments), found, 1.0)
    return shares


def _mean_computed_taps(slide: WindowSlide, begin: Ints, tile: int, taps: int) -> float:
    """Return the mean number of taps that register tiles compute."""
    first = np.clip(slide.first(begin + (tile - 1)), 0, taps)
    return float(np.mean(np.clip(slide.end(begin), first, taps) - first))


def partly_computed_axes(shares: Floats) -> Sequence[int]:
    """Return the axes along which micro-kernels skip points, given a row of :func:`computed_point_shares`."""
    return tuple(int(a) for a in np.flatnonzero(shares < 1.0))
