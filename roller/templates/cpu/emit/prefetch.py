"""Panels of constants that left a core's caches since the last call are fetched while those before them are computed.

Every panel begins where the processor's own prefetching starts anew, and the first tile that reads it would need its
bytes as fast as the micro-kernel multiplies. So the tiles that read one panel fetch the next one, each its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roller.te.emit import Expr
from roller.templates.cpu.emit.nest import LINE_BYTES, Buffer, Stmt, prefetch, seq

#: Bytes from which the panels of a constant do not stay in a core's caches while a model reads its other constants.
FAR_BYTES = 1 << 16

#: Fetches, at a step of a reduction, what comes later.
Hint = Callable[[Mapping[str, Any]], Stmt]


def prefetch_lines(buffer: Buffer, start: tuple[Expr, ...], part: tuple[Expr, int], row: int, item_bytes: int) -> Stmt:
    """Return hints for one part of a panel."""
    step, turns = part
    size = -(-row // turns)
    return seq(*(prefetch(buffer, *start, step * size + x) for x in range(0, size, LINE_BYTES // item_bytes)))
