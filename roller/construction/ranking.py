"""The best programs of several batches: rows in order of price, laid out until none that is left can be the best.

A batch is priced as if no layout cost anything. Storage padding, and the bank conflicts it leaves, are known only of a
program that is laid out, which takes as long as pricing hundreds of rows; they slow it down, or push its tiles out of
the scratchpad. So rows are laid out from the cheapest on, until the next one's price is above what the best program
costs as laid out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from roller.core.fragment import Fragment
from roller.hardware import DeviceSpec
from roller.perf.batch import TileBatch
from roller.perf.estimate import Estimate
from roller.templates import pricing
from roller.tile.program import RProgram

#: A row of a batch: its price (seconds), the batch, and its position there.
Row = tuple[float, TileBatch, int]
Ranked = list[tuple[RProgram, Estimate]]
#: What programs of a matrix unit have in common that are predicted, and run, alike: instruction family, and the rows
#: and columns of a block's tile.
Family: TypeAlias = tuple[str, int, int]

#: Programs beyond those wanted that are laid out at once.
_SPARE = 2
#: Rows laid out at least: padding takes blocks off a unit, and now and then the waves that are left end better.
_LEAST = 8
#: Rows laid out in search of a better program at most.
_MOST = 128
#: Rows laid out together at most in that search: pricing several takes little longer than pricing one.
_TOGETHER = 16
#: Share of a time below which a difference is none.
_SAME = 1e-3
#: Candidates from which on every structure that may be the fastest has one among them.
_FAMILY_COUNT = 4
#: How much slower than the best one a program of another structure may be predicted, and still be the faster one.
_DOUBTED = 2.0
#: Rows that are looked at for one that is kept, where several of one micro-kernel stand together.
_PER_KERNEL_ROWS = 8


def best_programs(
    batches: Sequence[TileBatch], spec: DeviceSpec, count: int, lay_out: Callable[[TileBatch, int], RProgram]
) -> Ranked:
    """Return the ``count`` best programs of all batches with their estimates, best first.

    How fast the first one is does not depend on ``count``, but where padding happens to make a program faster than its
    price, and more than :data:`_LEAST` rows are cheaper. The model may misjudge a whole family of programs (another
    algorithm), and then a measurement can still put it right: from :data:`_FAMILY_COUNT` programs on, the best one of
    every structure is among them, if it is predicted to take at most :data:`_DOUBTED` times as long as the best of all.
    So is, of a matrix unit's programs, the best one of every tile of a block (:data:`Family`), the cheapest first,
    before others that differ from it in stages, reduction steps or the share of a TEU alone.
    """
    wanted = max(2 * count, _LEAST) + _SPARE
    tiles = count >= _FAMILY_COUNT and any(b.fragment is not None for b in batches)
    if tiles or (count > 1 and any(b.panel is not None for b in batches)):
        wanted *= _PER_KERNEL_ROWS
    search = _Search(spec, count, lay_out)
    while True:
        pool = _cheapest(batches, spec, wanted, count, search.limit_s)
        search.run(_spread(pool, count))
        known_s = pool[wanted - 1][0] if len(pool) >= wanted else float("inf")
        if not search.wants_rows_above(known_s) or wanted >= max((len(b) for b in batches), default=0):
            return search.best()
        wanted *= 8


def _cheapest(batches: Sequence[TileBatch], spec: DeviceSpec, wanted: int, count: int, most_s: float) -> list[Row]:
    """Return the ``wanted`` cheapest rows of all batches in order, and behind them some more; none above ``most_s``.

    The cheapest row of every structure is among them where all structures are compared, whatever it costs.
    """
    pool: list[Row] = []
    # What another batch already beats needs no pricing, so that those priced already come first.
    for b in sorted(batches, key=lambda b: b.known_seconds(spec) is None):
        limit_s = min(most_s, pool[wanted - 1][0]) if len(pool) >= wanted else most_s
        new = count >= _FAMILY_COUNT and not any(p.structure == b.structure for _, p, _ in pool)
        pool += [(s, b, row) for s, row in pricing.best_rows(b, spec, wanted, limit_s, always=new)]
        pool.sort(key=lambda entry: entry[0])
    return pool


def _spread(pool: list[Row], count: int) -> list[Row]:
    """Return the rows with at most ``sqrt(count)`` of every micro-kernel first, the others behind them.

    Programs that differ only in how many micro-kernels one task runs are predicted, and run, almost alike: ten of them
    are one guess, not ten. So are programs of a matrix unit with the same tile of a block: of those one comes first,
    where it may be the fastest. Where there is neither (no panels, no fragment) the order stays.
    """
    if count >= _FAMILY_COUNT and any(b.fragment is not None for _, b, _ in pool):
        return _tiles_first(pool)
    share = math.isqrt(count - 1) + 1
    taken: Counter[tuple[int, bytes]] = Counter()
    first: list[Row] = []
    later: list[Row] = []
    for entry in pool:
        _, batch, row = entry
        kernel = (id(batch), batch.register[row].tobytes())
        taken[kernel] += 1
        (first if batch.panel is None or taken[kernel] <= share else later).append(entry)
    return first + later


def _tiles_first(pool: list[Row]) -> list[Row]:
    """Return the rows with the best of every tile of a matrix unit that may be the fastest first, then all others."""
    tiles: set[Family] = set()
    first: list[Row] = []
    later: list[Row] = []
    for entry in pool:
        seconds, batch, row = entry
        f = batch.fragment
        tile = None if f is None else _family(f, batch.geometry.names, batch.matrix_axes, batch.block[row])
        new = tile is not None and tile not in tiles and seconds <= _DOUBTED * pool[0][0]
        (first if new else later).append(entry)
        tiles |= set() if tile is None else {tile}
    return first + later


def _family(fragment: Fragment, names: Sequence[str], axes: Sequence[str], block: Sequence[int]) -> Family:
    m, n = (int(block[names.index(a)]) for a in axes[:2])
    return fragment.family, m, n


@dataclass
class _Search:
    """The programs laid out so far, and which rows are worth laying out next."""

    spec: DeviceSpec
    count: int
    lay_out: Callable[[TileBatch, int], RProgram]
    tried: set[tuple[int, int]] = field(default_factory=set)
    found: Ranked = field(default_factory=list)

    @property
    def limit_s(self) -> float:
        """Seconds from which on no row is asked for: those of the best program, once there are enough."""
        return self.found[0][1].seconds if len(self.found) >= self.count else float("inf")

    def wants_rows_above(self, known_s: float) -> bool:
        """Whether rows that cost more than ``known_s`` may be among the best."""
        better = known_s < self.limit_s * (1 - _SAME) and len(self.tried) < _MOST
        return len(self.found) < self.count or better

    def run(self, rows: Sequence[Row]) -> None:
        """Lay out rows, the most promising first, until there are enough programs and none is cheaper than the best."""
        while True:
            left = [row for row in rows if (id(row[1]), row[2]) not in self.tried]
            least = max(self.count + _SPARE, _LEAST) - len(self.tried)
            if len(self.found) < self.count or least > 0:
                chosen = left[: max(least, self.count - len(self.found) + _SPARE)]
            elif len(self.tried) < _MOST:
                cheaper = [row for row in left if row[0] < self.limit_s * (1 - _SAME)]
                chosen = cheaper[:_TOGETHER] or self._of_missing_structures(left)
            else:
                chosen = []
            if not chosen:
                return
            self._lay_out(chosen)

    def _of_missing_structures(self, rows: Sequence[Row]) -> list[Row]:
        """Return the cheapest row of every structure that no program has, where it may be the fastest one."""
        if self.count < _FAMILY_COUNT:
            return []
        known = {p.structure for p, _ in self.found}
        firsts: dict[str, Row] = {}
        for row in rows:
            if row[1].structure not in known and row[0] <= _DOUBTED * self.limit_s:
                firsts.setdefault(row[1].structure, row)
        return list(firsts.values())

    def _lay_out(self, rows: Sequence[Row]) -> None:
        known = {str(p) for p, _ in self.found}
        laid = {str(p): p for p in (self.lay_out(batch, i) for _, batch, i in rows)}  # variants may meet in one program
        programs = [p for text, p in laid.items() if text not in known]
        estimates = pricing.estimate_programs(programs, self.spec)
        self.tried |= {(id(batch), i) for _, batch, i in rows}
        if not programs:
            return
        self.found += [(p, e) for p, e in zip(programs, estimates, strict=True) if math.isfinite(e.seconds)]
        self.found.sort(key=lambda r: (r[1].seconds, str(r[0])))

    def best(self) -> Ranked:
        """Return the best programs; the best one of every structure and tile that may be the fastest comes first."""
        if self.count < _FAMILY_COUNT or len(self.found) <= self.count:
            return self.found[: self.count]
        near = [n for n, (_, e) in enumerate(self.found) if e.seconds <= _DOUBTED * self.limit_s]
        first = {self.found[n][0].structure: n for n in reversed(near)}
        kept = sorted(first.values())[: self.count]
        kept += [n for n in self._tiles(near) if n not in kept][: self.count - len(kept)]
        others = [n for n in range(len(self.found)) if n not in kept]
        return [self.found[n] for n in sorted([*kept, *others[: self.count - len(kept)]])]

    def _tiles(self, near: Sequence[int]) -> list[int]:
        """Return the best programs of a matrix unit for every tile of a block, in order."""
        best: dict[Family, int] = {}
        for n in near:
            p = self.found[n][0]
            if p.fragment is not None:
                block = [p.block_tile[a] for a in p.axis_names]
                best.setdefault(_family(p.fragment, p.axis_names, p.matrix_axes, block), n)
        return list(best.values())
