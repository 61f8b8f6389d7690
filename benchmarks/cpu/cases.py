"""What is measured: the 119 operators, Sokoban's 18, square matmuls."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer

import roller
from benchmarks.common import Row, operators
from benchmarks.tables import read_table

#: Batches tried for a row of the 119, and the time the best peer may take (seconds).
BATCHES, PEER_LIMIT_S = (1, 2, 4, 8), 0.2
SOKOBAN_BATCH = 8
#: Square matmuls: powers of two, multiples of no vector width between them, primes.
SQUARES = (64, 96, 127, 128, 192, 255, 256, 384, 509, 512, 768, 1000, 1024, 1531, 1536, 2047, 2048)

#: Class a row is judged in, by its operator.
CLASSES = {
    "matmul": "matmul", "conv2d": "conv", "depthwise_conv2d": "depthwise", "pooling": "pooling",
    "elementwise": "element-wise", "reduce": "reduction",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One row of a set; ``batches`` are those to choose from (``None``: the row as it is)."""

    set: str
    row: Row
    batches: tuple[int | None, ...]

    @property
    def id(self) -> str:
        """Name of the row; unique over all sets."""
        return str(self.row["id"])

    @property
    def kind(self) -> str:
        """Class the row is judged in."""
        return CLASSES[self.row["op"]]

    def expression(self, batch: int | None) -> roller.TensorExpr:
        """Return the operator at a batch."""
        return roller.ops.from_spec(self.row, batch=batch)


def weights(row: Row, inputs: int) -> range:
    """Return which of a row's inputs are weights: all after the first, but none of an element-wise operator.

    Examples
    --------
    >>> list(weights({"op": "matmul"}, 2)), list(weights({"op": "elementwise"}, 2))
    ([1], [])
    """
    return range(1, inputs) if row["op"] != "elementwise" else range(0)


def suite() -> list[Case]:
    """Return all cases, set by set."""
    extra = read_table("extra_operators.yaml")["operators"]
    squares = [{"id": f"S{n}", "op": "matmul", "dtype": "float32", "M": n, "N": n, "K": n, "flops": 2 * n**3}
               for n in SQUARES]  # fmt: skip
    return [
        *(Case("roller119", row, BATCHES) for row in operators()),
        *(Case("sokoban", row, (SOKOBAN_BATCH,)) for row in extra if row.get("set") == "sokoban"),
        *(Case("square", row, (None,)) for row in squares),
    ]


def beside() -> list[Case]:
    """Return the cases that are measured where a pattern names them or their set, and belong to no suite."""
    rows = read_table("extra_operators.yaml")["beside"]
    return [Case(row["set"], row, (None,)) for row in rows]


def select(cases: Sequence[Case], pattern: str, quick: bool) -> list[Case]:
    """Return the cases whose id or set matches one of the comma-separated patterns; with ``quick`` one per class.

    A case of a set beside the suite is not meant by ``*``.

    Raises
    ------
    typer.BadParameter
        Where nothing matches.
    """
    patterns = [p.strip() for p in pattern.split(",")]
    named = {c.id for c in suite()}
    found = [
        c
        for c in cases
        if any(fnmatch.fnmatchcase(n, p) for n in (c.id, c.set) for p in patterns if p != "*" or c.id in named)
    ]
    if not found:
        raise typer.BadParameter(
            f"--filter: expected ids like 'M0', patterns or sets {sorted({c.set for c in cases})}, nothing matches "
            f"'{pattern}'."
        )
    return one_per_class(found) if quick else found


def one_per_class(cases: Sequence[Case]) -> list[Case]:
    """Return the operator of median work of every class, at the first of its batches."""
    out = []
    for kind in dict.fromkeys(c.kind for c in cases):
        rows = sorted((c for c in cases if c.kind == kind), key=lambda c: (c.row["flops"], c.id))
        chosen = rows[len(rows) // 2]
        out.append(Case(chosen.set, chosen.row, chosen.batches[:1]))
    return out


def largest_batch(
    batches: Sequence[int | None], best_peer_s: Callable[[int | None], float], limit_s: float = PEER_LIMIT_S
) -> int | None:
    """Return the largest batch that keeps the best peer under the limit; the smallest where none does.

    ``best_peer_s`` runs the peers, so as few batches as possible are tried: the time at the first one says where
    to look.

    Examples
    --------
    >>> largest_batch((1, 2, 4, 8), lambda batch: 0.03 * batch)
    4
    """
    if len(batches) == 1:
        return batches[0]
    once = best_peer_s(batches[0])
    fits = [n for n, b in enumerate(batches) if once * (b or 1) / (batches[0] or 1) < limit_s]
    n = max(fits, default=0)
    while n + 1 < len(batches) and best_peer_s(batches[n + 1]) < limit_s:  # better than linear
        n += 1
    while n > 0 and best_peer_s(batches[n]) >= limit_s:
        n -= 1
    return batches[n]
