"""Loops over what a block's threads walk beyond their own tile: whole steps unguarded, the rest of an axis apart.

The last tile of an axis that it does not divide is a body of its own, in which all but one chunk of a thread are
certain to lie inside: only that one is guarded, and the steps before it have no predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roller.codegen.gpu.mapping import AxisMap, Registers
from roller.codegen.gpu.nest import Expr, Stmt, loop, loops, num, seq, when
from roller.te.compat import tirx


@dataclass(frozen=True)
class Tile:
    """One tile of every axis: where it starts, and on which axes it is the one the axis ends in."""

    base: dict[str, Expr]
    tails: frozenset[str]


@dataclass(frozen=True)
class Part:
    """A block's share of the steps of one axis: part ``index`` of ``count``."""

    index: Expr
    count: int


def sweep(maps: Sequence[AxisMap], body: Callable[[Tile], Stmt], part: Part | None = None) -> Stmt:
    """Return loops over all tiles of ``maps``; ``part`` restricts the axis of most steps to a block's share."""
    shared = max(maps, key=lambda m: m.steps).name if part is not None else None

    def at(depth: int, tile: Tile) -> Stmt:
        if depth == len(maps):
            return body(tile)
        m = maps[depth]
        whole = m.extent // m.tile
        share = -(-m.steps // part.count) if part is not None and m.name == shared else 0
        first = part.index * share if share and part is not None else num(0)
        found: list[Stmt] = []
        if whole:
            count = tirx.max(tirx.min(num(share), num(whole) - first), num(0)) if share else whole
            found.append(loop(
                f"step_{depth}", count,
                lambda n: at(depth + 1, Tile({**tile.base, m.name: (first + n) * m.tile}, tile.tails)),
            ))  # fmt: skip
        if m.padded:
            last = at(depth + 1, Tile({**tile.base, m.name: num(whole * m.tile)}, tile.tails | {m.name}))
            mine = [part.index.equal(num(whole // share))] if share and part is not None else []
            found.append(when(mine, last))
        return seq(found)

    return at(0, Tile({}, frozenset()))


def points(
    maps: Sequence[AxisMap],
    tails: frozenset[str],
    inside: Callable[[str, Expr], Expr],
    body: Callable[[Registers], Stmt],
    *,
    vector: str | None = None,
) -> Stmt:
    """Return unrolled loops over the register tile of ``maps``, without the chunks that lie beyond an axis.

    ``inside(axis, chunk)`` is the condition of a chunk that may. ``vector`` names an axis whose chunks are not looped
    into.
    """
    fixed = {m.name: num(0) for m in maps}

    def offsets(chunk: dict[str, Expr], guarded: Sequence[str]) -> Stmt:
        names = [(f"v_{m.name}", m.vector) for m in maps if m.vector > 1 and m.name != vector]

        def point(env: Mapping[str, Expr]) -> Stmt:
            mine = {m.name: env[f"v_{m.name}"] for m in maps if f"v_{m.name}" in env}
            return body(Registers(chunk, {**fixed, **mine}))

        return when([inside(a, chunk[a]) for a in guarded], loops(names, point, unroll=True))

    def at(depth: int, chunk: dict[str, Expr], guarded: tuple[str, ...]) -> Stmt:
        if depth == len(maps):
            return offsets(chunk, guarded)
        m = maps[depth]

        def span(first: int, count: int, check: tuple[str, ...]) -> Stmt:
            def one(c: Expr) -> Stmt:
                return at(depth + 1, {**chunk, m.name: c + first if first else c}, (*guarded, *check))

            return loop(f"r_{m.name}", count, one, unroll=True)

        if m.name not in tails:
            return span(0, m.chunks, ())
        whole, rest = divmod(m.extent % m.tile, m.threads * m.vector)
        found = [span(0, whole, ())] if whole else []
        return seq([*found, *([span(whole, 1, (m.name,))] if rest else [])])

    return at(0, {}, ())
