"""Prefetches panels of constants while earlier panels are used; the panels leave a core's caches between calls.

The hardware prefetcher restarts at every panel, and the first tile that reads it would need its bytes at the rate of
the micro-kernel. Therefore each tile that reads one panel prefetches its part of the next panel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roller.te.emit_tvm_expressions import Expr
from roller.templates.cpu.emit.tir_loop_constructors import (
    LINE_BYTES,
    Buffer,
    Stmt,
    prefetch_element,
    sequence_of_statements,
)

#: Size (bytes) of a constant above which its panels leave a core's caches while a model reads its other constants.
FAR_BYTES = 1 << 16

#: Function that emits the prefetches at a step of a reduction.
Hint = Callable[[Mapping[str, Any]], Stmt]


def emit_line_prefetches(
    buffer: Buffer, start: tuple[Expr, ...], part: tuple[Expr, int], row: int, item_bytes: int
) -> Stmt:
    """Return hints for one part of a panel."""
    step, turns = part
    size = -(-row // turns)
    return sequence_of_statements(
        *(prefetch_element(buffer, *start, step * size + x) for x in range(0, size, LINE_BYTES // item_bytes))
    )
