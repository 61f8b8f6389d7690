"""Chooses the output elements to compare: all elements of a small output, those at boundaries of a large one.

Errors in a kernel come in pieces (a tile, a vector's tail, an index range), so the elements on both sides of every
boundary are taken: boundaries of quotients, remainders and guards in the expression's indices, and of tiles and tasks
in the program. Positions along the axes are combined by a covering array of strength one, with all corners and random
points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from roller.expr import Index, Stage, TensorExpr
from roller.tile.program import RProgram

#: Number of stage points (spatial x reduction) up to which every output element is compared.
_WHOLE_POINTS = 1 << 19
#: Number of stage points that the sample of one expression may evaluate, and number that the programs of one round may
#: add.
_WORK, _PROGRAM_WORK = 1 << 21, 1 << 19
#: Minimum number of elements compared in a large output, whatever they cost, and maximum number.
_FEWEST, _MOST = 320, 896
#: Minimum and maximum number of elements that a program adds.
_FEWEST_OF_PROGRAM, _MOST_OF_PROGRAM = 24, 160
#: Maximum number of boundary positions per axis; of more pieces, the first, the last and some between are taken.
_POSITIONS = 128
#: Numbers of vector lanes that devices have.
_LANES = (2, 4, 8, 16, 32, 64)

Positions = dict[str, set[int]]


def compares_whole_output(expr: TensorExpr, most_points: int | None = None) -> bool:
    """Return whether every output element is compared: up to ``most_points`` stage points, 2^19 by default."""
    return sum(s.points for s in expr.stages) <= (most_points or _WHOLE_POINTS)


def all_coordinates(shape: tuple[int, ...]) -> np.ndarray:
    """Return the coordinates of all elements of a ``shape`` array, shape ``(points, rank)``."""
    return np.indices(shape, dtype=np.int64).reshape(len(shape), -1).T if shape else np.zeros((1, 0), np.int64)


def sample_output_points(expr: TensorExpr, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return distinct coordinates per output, shape ``(P, rank)``: at boundaries of the indices, and random ones."""
    found = index_boundaries(expr, rng)
    out = {}
    for s in (s for s in expr.stages if s.name in expr.outputs):
        count = int(np.clip(_WORK // _stage_points_per_output(expr, s), _FEWEST, _MOST))
        at = {a.name: _expand_positions(found[s.name][a.name], a.extent, rng) for a in s.spatial_axes}
        out[s.name] = _points_covering_positions(s, at, count, count // 3, rng)
    return out


def sample_tile_boundaries(
    program: RProgram, expr: TensorExpr, rng: np.random.Generator, programs: int = 1
) -> dict[str, np.ndarray]:
    """Return coordinates for each output of ``expr`` at the tile boundaries of a program."""
    form, out = program.expr, {}
    found = index_boundaries(form, rng)
    tiles = {
        n: {dict(zip(program.axis_names, t, strict=True))[n] for _, t in program.tiles} for n in program.axis_names
    }
    for name, wanted in zip(form.outputs, expr.output_tensors, strict=True):
        s = next(s for s in form.stages if s.name == name)
        if s.output.elements != wanted.elements or not wanted.shape:
            continue
        count = _PROGRAM_WORK // (_stage_points_per_output(form, s) * max(1, programs))
        at = {}
        for a in s.spatial_axes:
            ends = _tile_boundaries(tiles.get(a.name, set()), a.extent, rng)
            at[a.name] = _expand_positions(found[s.name][a.name] | ends, a.extent, rng)
        points = _points_covering_positions(s, at, int(np.clip(count, _FEWEST_OF_PROGRAM, _MOST_OF_PROGRAM)), 0, rng)
        flat = np.ravel_multi_index(tuple(points.T), s.output.shape) if s.output.shape else np.zeros(1, np.int64)
        out[wanted.name] = np.stack(np.unravel_index(flat, wanted.shape), axis=1)
    return out


def index_boundaries(expr: TensorExpr, rng: np.random.Generator) -> dict[str, Positions]:
    """Return, for each stage and axis, the positions at which pieces of the stage's or its producers' indices begin."""
    found: dict[str, Positions] = {}
    for s in expr.stages:
        mine = found[s.name] = {a.name: set() for a in s.axes}
        for index in (*s.store, *(i for ld in s.loads for i in ld.index)):
            for t in index.terms:
                for period in {t.div, t.div * t.mod} - {0, 1}:
                    mine[t.axis] |= _sample_multiples(period, s.extents[t.axis], rng)
        for b in (b for ld in s.loads for b in ld.guard):
            for edge in (b.low, b.high):
                _add_crossings(b.index, edge, s.extents, mine)
        for ld in s.loads:
            producer = next((p for p in expr.stages if p.name == ld.tensor), None)
            if producer is not None:
                _add_producer_boundaries(producer, found[producer.name], ld.index, s.extents, mine)
    return found


def _add_producer_boundaries(
    producer: Stage, theirs: Positions, index: Sequence[Index], extents: Mapping[str, int], mine: Positions
) -> None:
    """Add the positions at which a reader's index crosses boundaries of its producer."""
    for stored, read in zip(producer.store, index, strict=True):
        if len(stored.terms) == 1 and stored.terms[0].is_affine:
            t = stored.terms[0]
            for p in itertools.islice(sorted(theirs[t.axis]), _POSITIONS):
                _add_crossings(read, t.coef * p + stored.const, extents, mine)


def _add_crossings(index: Index, edge: int, extents: Mapping[str, int], mine: Positions) -> None:
    """Add the positions of each axis at which ``index`` passes ``edge`` while the other axes are at either end."""
    for t in index.terms:
        rest = Index(tuple(u for u in index.terms if u is not t), index.const).range(extents)
        for other in set(rest):
            # The first and last period of a remainder represent all; their beginnings are boundaries already.
            at = -((other - edge) // abs(t.coef)) * (1 if t.coef > 0 else -1) if t.coef else 0
            mine[t.axis] |= {at * t.div, (at + 1) * t.div}
            if t.mod:
                whole_periods = (extents[t.axis] - 1) // (t.div * t.mod) * t.div * t.mod
                mine[t.axis] |= {whole_periods + at * t.div, whole_periods + (at + 1) * t.div}


def _sample_multiples(period: int, extent: int, rng: np.random.Generator) -> set[int]:
    """Return multiples of ``period`` inside an axis: all of them, or the first, the last and some in between."""
    count = (extent - 1) // period
    few = _POSITIONS // 4
    if count <= few:
        chosen: Iterable[int] = range(1, count + 1)
    else:
        some = rng.integers(1, count + 1, few // 2).tolist()
        chosen = {*range(1, few // 4 + 1), *range(count - few // 4 + 1, count + 1), *some}
    return {period * k for k in chosen}


def _tile_boundaries(sizes: Iterable[int], extent: int, rng: np.random.Generator) -> set[int]:
    """Return tile boundaries for ``sizes``: the first, the last, a random one, and the one of a shifted last tile."""
    # Templates shrink tiles to nearly equal sizes in whole vectors: 56 by 48 becomes two tiles of 32.
    out: set[int] = set()
    for size in {min(s, extent) for s in sizes} - {extent}:
        even = -(-extent // -(-extent // size))
        for tile in {size, even, *(-(-even // lanes) * lanes for lanes in _LANES)}:
            last = (extent - 1) // tile
            out |= {tile, last * tile, int(rng.integers(0, last + 1)) * tile, extent - tile}
    return out


def _expand_positions(positions: set[int], extent: int, rng: np.random.Generator) -> np.ndarray:
    """Return the elements on both sides of every position, and the ends of the axis for vectors of any width."""
    kept = {0, 1, extent // 2, extent - 2, extent - 1}
    for lanes in _LANES:
        kept |= {extent // lanes * lanes - 1, extent // lanes * lanes, lanes - 1, lanes}
    more = np.array(sorted(({p - 1 for p in positions} | positions) - kept), np.int64)
    more = more[(more >= 0) & (more < extent)]
    if len(more) > _POSITIONS:
        more = rng.choice(more, _POSITIONS, replace=False)
    ends = np.array(sorted(p for p in kept if 0 <= p < extent), np.int64)
    return np.concatenate([more, ends])


def _points_covering_positions(
    s: Stage, at: Mapping[str, np.ndarray], count: int, scattered: int, rng: np.random.Generator
) -> np.ndarray:
    """Return up to ``count`` points of a stage's output at the axes' positions, ``scattered`` random ones included."""
    axes = s.spatial_axes
    if not axes or not s.store:
        return np.zeros((1, len(s.output.shape)), np.int64)
    corners = np.array(list(itertools.islice(itertools.product(*({0, a.extent - 1} for a in axes)), 64)), np.int64)
    length = max(len(at[a.name]) for a in axes)
    rounds = max(1, (count - scattered - len(corners)) // length)
    covers = []
    for _ in range(min(rounds, 8)):
        # Each column permutes its positions independently.
        columns = [np.resize(rng.permutation(at[a.name]), length) for a in axes]
        covers.append(np.stack(columns, axis=1))
    cover = np.concatenate(covers)
    cover = cover[: max(0, count - scattered - len(corners))]
    left = max(scattered, count - len(corners) - len(cover))
    free = np.stack([rng.integers(0, a.extent, left) for a in axes], axis=1)
    env = dict(zip((a.name for a in axes), np.concatenate([corners, cover, free]).T, strict=True))
    rows = len(corners) + len(cover) + left
    points = np.stack([np.broadcast_to(np.asarray(i(env)), (rows,)) for i in s.store], axis=1)
    return np.unique(points, axis=0)


def _stage_points_per_output(expr: TensorExpr, s: Stage) -> int:
    """Return the number of stage points needed for one output element."""
    return max(1, math.ceil(sum(t.points for t in expr.stages) / max(1, s.output.elements)))
