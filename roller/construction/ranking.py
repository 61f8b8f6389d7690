"""Finds the best programs of several batches: lays out rows in order of ascending price until no other row can win.

Prices of rows ignore storage padding and bank conflicts, which are known only after layout and can only add time.
Laying out one row takes as long as pricing hundreds. The search stops when the next price exceeds the price of the best
laid-out program.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from roller.core.matrix_instruction_fragment import Fragment
from roller.hardware import DeviceSpec
from roller.perf.estimate import Estimate
from roller.perf.tile_batch import TileBatch
from roller.templates import price_with_templates
from roller.tile.program import RProgram

#: A row of a batch: its price (seconds), the batch, and its position in the batch.
Row = tuple[float, TileBatch, int]
Ranked = list[tuple[RProgram, Estimate]]
#: Key of matrix-unit programs whose predicted and measured times are similar: the instruction family, and the numbers
#: of rows and columns in a block's tile.
Family: TypeAlias = tuple[str, int, int]

#: Number of extra programs to lay out at once.
_SPARE = 2
#: Minimum number of rows to lay out: padding reduces the number of resident blocks, which sometimes fits waves better.
_LEAST = 8
#: Maximum number of rows to lay out in search of a better program.
_MOST = 128
#: Maximum number of rows per round of that search: pricing several takes little longer than pricing one.
_TOGETHER = 16
#: Relative difference below which times count as equal.
_SAME = 1e-3
#: Number of requested candidates from which on the result includes one of every competitive structure.
_FAMILY_COUNT = 4
#: Largest predicted time, relative to the best program's, at which a different structure may still be faster.
_DOUBTED = 2.0
#: Number of rows to examine per kept row if neighbouring rows share a micro-kernel.
_PER_KERNEL_ROWS = 8


def best_programs(
    batches: Sequence[TileBatch], spec: DeviceSpec, count: int, lay_out: Callable[[TileBatch, int], RProgram]
) -> Ranked:
    """Return the ``count`` best programs of all batches with their estimates, best first."""
    # The model may misjudge a whole family of programs, which a measurement can correct: from _FAMILY_COUNT programs
    # on, the best one of every structure and of every matrix tile is included, up to _DOUBTED times the best time.
    wanted = max(2 * count, _LEAST) + _SPARE
    tiles = count >= _FAMILY_COUNT and any(b.fragment is not None for b in batches)
    if tiles or (count > 1 and any(b.panel is not None for b in batches)):
        wanted *= _PER_KERNEL_ROWS
    search = _LayoutSearch(spec, count, lay_out)
    while True:
        pool = _cheapest_rows(batches, spec, wanted, count, search.limit_s)
        search.run(_order_rows_across_kernels(pool, count))
        known_s = pool[wanted - 1][0] if len(pool) >= wanted else float("inf")
        if not search.wants_rows_above(known_s) or wanted >= max((len(b) for b in batches), default=0):
            return search.best()
        wanted *= 8


def _cheapest_rows(batches: Sequence[TileBatch], spec: DeviceSpec, wanted: int, count: int, most_s: float) -> list[Row]:
    """Return about ``wanted`` rows in order of price, none above ``most_s`` except the best row of a new structure."""
    pool: list[Row] = []
    # Rows that another batch already beats need no pricing, so rows that are already priced come first.
    for b in sorted(batches, key=lambda b: b.stored_seconds(spec) is None):
        limit_s = min(most_s, pool[wanted - 1][0]) if len(pool) >= wanted else most_s
        new = count >= _FAMILY_COUNT and not any(p.structure == b.structure for _, p, _ in pool)
        pool += [(s, b, row) for s, row in price_with_templates.best_rows(b, spec, wanted, limit_s, always=new)]
        pool.sort(key=lambda entry: entry[0])
    return pool


def _order_rows_across_kernels(pool: list[Row], count: int) -> list[Row]:
    """Return the rows reordered: first up to ``sqrt(count)`` (rounded up) rows per micro-kernel, then the others."""
    if count >= _FAMILY_COUNT and any(b.fragment is not None for _, b, _ in pool):
        return _order_best_of_each_tile_first(pool)
    # Programs that differ only in the number of micro-kernels per task have almost equal predicted and measured times.
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


def _order_best_of_each_tile_first(pool: list[Row]) -> list[Row]:
    """Return the rows reordered: first the best row of every competitive matrix tile, then all others."""
    tiles: set[Family] = set()
    first: list[Row] = []
    later: list[Row] = []
    for entry in pool:
        seconds, batch, row = entry
        f = batch.fragment
        tile = None if f is None else _family_key(f, batch.geometry.names, batch.matrix_axes, batch.block[row])
        new = tile is not None and tile not in tiles and seconds <= _DOUBTED * pool[0][0]
        (first if new else later).append(entry)
        tiles |= set() if tile is None else {tile}
    return first + later


def _family_key(fragment: Fragment, names: Sequence[str], axes: Sequence[str], block: Sequence[int]) -> Family:
    m, n = (int(block[names.index(a)]) for a in axes[:2])
    return fragment.family, m, n


@dataclass
class _LayoutSearch:
    """State of the search: laid-out programs, and the choice of the next rows."""

    spec: DeviceSpec
    count: int
    lay_out: Callable[[TileBatch, int], RProgram]
    tried: set[tuple[int, int]] = field(default_factory=set)
    found: Ranked = field(default_factory=list)

    @property
    def limit_s(self) -> float:
        """Price above which no row is requested: the best program's time, infinite until there are enough programs."""
        return self.found[0][1].seconds if len(self.found) >= self.count else float("inf")

    def wants_rows_above(self, known_s: float) -> bool:
        """Return whether the search needs rows beyond those with prices up to ``known_s``."""
        better = known_s < self.limit_s * (1 - _SAME) and len(self.tried) < _MOST
        return len(self.found) < self.count or better

    def run(self, rows: Sequence[Row]) -> None:
        """Lay out rows in order of ascending price until there are enough programs and no cheaper row is left."""
        while True:
            left = [row for row in rows if (id(row[1]), row[2]) not in self.tried]
            least = max(self.count + _SPARE, _LEAST) - len(self.tried)
            if len(self.found) < self.count or least > 0:
                chosen = left[: max(least, self.count - len(self.found) + _SPARE)]
            elif len(self.tried) < _MOST:
                cheaper = [row for row in left if row[0] < self.limit_s * (1 - _SAME)]
                chosen = cheaper[:_TOGETHER] or self._rows_of_missing_structures(left)
            else:
                chosen = []
            if not chosen:
                return
            self._lay_out_rows(chosen)

    def _rows_of_missing_structures(self, rows: Sequence[Row]) -> list[Row]:
        """Return the cheapest competitive row of every structure without a program."""
        if self.count < _FAMILY_COUNT:
            return []
        known = {p.structure for p, _ in self.found}
        firsts: dict[str, Row] = {}
        for row in rows:
            if row[1].structure not in known and row[0] <= _DOUBTED * self.limit_s:
                firsts.setdefault(row[1].structure, row)
        return list(firsts.values())

    def _lay_out_rows(self, rows: Sequence[Row]) -> None:
        known = {str(p) for p, _ in self.found}
        laid = {str(p): p for p in (self.lay_out(batch, i) for _, batch, i in rows)}  # rows may coincide
        programs = [p for text, p in laid.items() if text not in known]
        estimates = price_with_templates.estimate_programs(programs, self.spec)
        self.tried |= {(id(batch), i) for _, batch, i in rows}
        if not programs:
            return
        self.found += [(p, e) for p, e in zip(programs, estimates, strict=True) if math.isfinite(e.seconds)]
        self.found.sort(key=lambda r: (r[1].seconds, str(r[0])))

    def best(self) -> Ranked:
        """Return the best programs, including the best program of every competitive structure and matrix tile."""
        if self.count < _FAMILY_COUNT or len(self.found) <= self.count:
            return self.found[: self.count]
        near = [n for n, (_, e) in enumerate(self.found) if e.seconds <= _DOUBTED * self.limit_s]
        first = {self.found[n][0].structure: n for n in reversed(near)}
        kept = sorted(first.values())[: self.count]
        kept += [n for n in self._positions_of_best_per_tile(near) if n not in kept][: self.count - len(kept)]
        others = [n for n in range(len(self.found)) if n not in kept]
        return [self.found[n] for n in sorted([*kept, *others[: self.count - len(kept)]])]

    def _positions_of_best_per_tile(self, near: Sequence[int]) -> list[int]:
        best: dict[Family, int] = {}
        for n in near:
            p = self.found[n][0]
            if p.fragment is not None:
                block = [p.block_tile[a] for a in p.axis_names]
                best.setdefault(_family_key(p.fragment, p.axis_names, p.matrix_axes, block), n)
        return list(best.values())
