"""Loops of a block's threads: without guards over the whole steps of an axis, and separately over the remainder.

If the tile does not divide an axis, the last tile has a separate loop body, in which only one chunk per thread needs a
guard; the steps before it have no predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from roller.te.compat import tirx
from roller.templates.gpu.emit.axis_map import AxisMap, RegisterPoint
from roller.templates.gpu.emit.tir_statements import (
    Expr,
    Stmt,
    VaryingCount,
    if_all,
    int32_literal,
    loop,
    nested_loops,
    sequence_of,
)


@dataclass(frozen=True)
class RowTile:
    """One tile along each axis: its start, the axes that end in the tile, and the axes that start with slack."""

    base: dict[str, Expr]
    tails: frozenset[str]
    heads: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BlockShare:
    """A block's share of the steps of one axis: part ``index`` of ``count``."""

    index: Expr
    count: int


def loops_over_tiles(maps: Sequence[AxisMap], body: Callable[[RowTile], Stmt], part: BlockShare | None = None) -> Stmt:
    """Return loops over all tiles of ``maps``; ``part`` restricts the axis with the most steps to a block's share."""
    shared = max(maps, key=lambda m: m.steps).name if part is not None else None

    def at(depth: int, tile: RowTile) -> Stmt:
        if depth == len(maps):
            return body(tile)
        m = maps[depth]
        whole, head = m.certain_positions // m.tile, frozenset({m.name} if m.slack else ())
        share = -(-m.steps // part.count) if part is not None and m.name == shared else 0
        first = part.index * share if share and part is not None else int32_literal(0)
        found: list[Stmt] = []
        if whole and head:  # a first tile with slack has a separate body
            begin = at(depth + 1, RowTile({**tile.base, m.name: int32_literal(0)}, tile.tails, tile.heads | head))
            found.append(if_all([first.equal(0)] if share else [], begin))
        skipped = 1 if found else 0
        if whole > skipped or m.differs:
            left = tirx.min(int32_literal(share), int32_literal(whole) - first)
            start = tirx.max(first, int32_literal(1)) if share and skipped else first + skipped if skipped else first
            all_steps = VaryingCount.of(max(0, whole - skipped), m.differs)
            count = tirx.max(left - (start - first) if skipped else left, int32_literal(0)) if share else all_steps
            found.append(loop(
                f"step_{depth}", count,
                lambda n: at(depth + 1, replace(tile, base={**tile.base, m.name: (start + n) * m.tile})),
            ))  # fmt: skip
        if m.padded:
            heads = tile.heads if whole else tile.heads | head
            last = at(
                depth + 1, RowTile({**tile.base, m.name: int32_literal(whole * m.tile)}, tile.tails | {m.name}, heads)
            )
            mine = [part.index.equal(int32_literal(whole // share))] if share and part is not None else []
            found.append(if_all(mine, last))
        return sequence_of(found)

    return at(0, RowTile({}, frozenset()))


def register_point_loops(
    maps: Sequence[AxisMap],
    tile: RowTile,
    inside: Callable[[str, Expr], Expr],
    body: Callable[[RegisterPoint], Stmt],
    *,
    vector: str | None = None,
) -> Stmt:
    """Return unrolled loops over the register tile of ``maps``, without chunks that lie beyond an axis."""
    # ``inside(axis, chunk)`` is the guard of a chunk; ``vector`` names an axis whose chunks are not looped into.
    fixed = {m.name: int32_literal(0) for m in maps}
    slack = frozenset(m.name for m in maps if m.slack)

    def offsets(chunk: dict[str, Expr], guarded: Sequence[str]) -> Stmt:
        names = [(f"v_{m.name}", m.vector) for m in maps if m.vector > 1 and m.name != vector]

        def point(env: Mapping[str, Expr]) -> Stmt:
            mine = {m.name: env[f"v_{m.name}"] for m in maps if f"v_{m.name}" in env}
            return body(RegisterPoint(chunk, {**fixed, **mine}, slack.intersection(guarded)))

        return if_all([inside(a, chunk[a]) for a in guarded], nested_loops(names, point, unroll=True))

    def at(depth: int, chunk: dict[str, Expr], guarded: tuple[str, ...]) -> Stmt:
        if depth == len(maps):
            return offsets(chunk, guarded)
        m = maps[depth]

        def span(first: int, count: int, check: tuple[str, ...]) -> Stmt:
            def one(c: Expr) -> Stmt:
                return at(depth + 1, {**chunk, m.name: c + first if first else c}, (*guarded, *check))

            return loop(f"r_{m.name}", count, one, unroll=True)

        return sequence_of(
            [span(first, count, (m.name,) if edge else ()) for first, count, edge in _chunk_spans(m, tile)]
        )

    return at(0, {}, ())


def _chunk_spans(m: AxisMap, tile: RowTile) -> list[tuple[int, int, bool]]:
    """Return a thread's chunks of one axis as ``(first, count, whether they may lie outside it)``."""
    whole = end = m.chunks
    if m.name in tile.tails and m.differs:  # any chunk may lie outside
        return [(0, end, True)]
    if m.name in tile.tails:
        start, row = m.certain_positions // m.tile * m.tile, m.threads * m.vector
        whole, end = (m.certain_positions - start) // row, -(-(m.extent - start) // row)
    head = 1 if m.name in tile.heads else 0
    found = [(0, head, True), (head, whole - head, False), (max(head, whole), end - max(head, whole), True)]
    return [(first, count, edge) for first, count, edge in found if count > 0]
