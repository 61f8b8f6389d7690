"""Places buffers in one arena; buffers that are never live at the same time may share bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from roller.models.graph.lifetimes import Lifetime, peak_bytes

#: Alignment of buffers in the arena, in bytes: a cache line.
ALIGN_BYTES = 64
#: Maximum number of buffers for which several placement orders are tried.
_FEW = 4000


def pack_buffers(
    lives: Sequence[Lifetime], sizes: Sequence[int], align_bytes: int = ALIGN_BYTES
) -> tuple[list[int], int]:
    """Return each buffer's offset and the arena's size, both in bytes, for the best of several greedy orders."""
    # Greedy by size (Pisarchyk and Lee, 2020): in falling order of size, each buffer goes into the smallest gap that
    # holds it among the buffers live at the same time. Finding the smallest arena is NP-hard.
    rounded = [-(-size // align_bytes) * align_bytes for size in sizes]
    least = peak_bytes(zip(lives, rounded, strict=True))
    best: tuple[list[int], int] | None = None
    for order in (
        _placement_sort_keys(lives, rounded) if len(lives) <= _FEW else _placement_sort_keys(lives, rounded)[:1]
    ):
        found = _place_greedily(lives, rounded, sorted(range(len(lives)), key=order))
        if best is None or found[1] < best[1]:
            best = found
        if best[1] == least:
            break
    assert best is not None
    return best


def _placement_sort_keys(lives: Sequence[Lifetime], sizes: Sequence[int]) -> list[Callable[[int], tuple[int, ...]]]:
    return [
        lambda n: (-sizes[n], lives[n].first, n),
        lambda n: (-sizes[n], lives[n].first - lives[n].last, n),
        lambda n: (-sizes[n] * (1 + lives[n].last - lives[n].first), n),
        lambda n: (lives[n].first - lives[n].last, -sizes[n], n),
        lambda n: (lives[n].first, -sizes[n], n),
    ]


def _place_greedily(lives: Sequence[Lifetime], sizes: Sequence[int], order: Sequence[int]) -> tuple[list[int], int]:
    offsets, top, done = [0] * len(lives), 0, 0
    # Columns are in order of placement; rows: first, last, group, lane, offset, end.
    placed = np.zeros((6, len(lives)), np.int64)
    for n in order:
        if not sizes[n]:
            continue
        life = lives[n]
        first, last, group, lane, offset, end = placed[:, :done]
        meets = (first <= life.last) & (last >= life.first)
        if life.group >= 0:
            meets |= (group == life.group) & (lane != life.lane)
        offsets[n] = start = _best_fit_offset(offset[meets], end[meets], sizes[n])
        placed[:, done] = (life.first, life.last, life.group, life.lane, start, start + sizes[n])
        done, top = done + 1, max(top, start + sizes[n])
    return offsets, top


def _best_fit_offset(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """Return the start of the smallest gap of at least ``size`` bytes; without such a gap, the end of all buffers."""
    if not len(starts):
        return 0
    order = np.argsort(starts)
    covered = np.maximum.accumulate(ends[order])
    opens = np.concatenate(([0], covered))
    room = np.concatenate((starts[order], [np.iinfo(np.int64).max])) - opens
    fitting = np.flatnonzero(room >= size)
    return int(opens[fitting[np.argmin(room[fitting])]])
