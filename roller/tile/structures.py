"""The structures of kernels, as data: what programs of each are like, for whoever decides by it."""

from __future__ import annotations

from dataclasses import dataclass

from roller.errors import TileError, did_you_mean
from roller.tile.geometry import Geometry
from roller.tile.windows import slide_of


@dataclass(frozen=True)
class Structure:
    """What the programs of one structure have in common.

    Parameters
    ----------
    name
        What programs, batches and names of programs call it.
    reuses
        Its blocks (GPU) or tasks (CPU) take the reduction in steps and share operands within one: tiles of these are
        staged, in several slots, and the reduction may be split.
    reduces
        Its anchor has a reduction.
    spreads_reductions
        Threads (GPU) or lanes (CPU) lie along reductions too, and meet at the end.
    slides_windows
        A thread walks the windows of its outputs whole, in straight-line code.
    on_matrix_unit
        A fragment computes its products.
    output_side
        Side of the output tiles of Winograd's algorithm (elements), 0 elsewhere. On a GPU its tiles are those of the
        product of the transformed ones.
    """

    name: str
    reuses: bool = False
    reduces: bool = True
    spreads_reductions: bool = False
    slides_windows: bool = False
    on_matrix_unit: bool = False
    output_side: int = 0

    def __str__(self) -> str:
        return self.name


TILED = Structure("tiled", reuses=True)
MATRIX = Structure("matrix", reuses=True, on_matrix_unit=True)
WINDOW = Structure("window", slides_windows=True)
ROWS = Structure("rows", spreads_reductions=True)
STREAMING = Structure("streaming", reduces=False)
WINOGRAD = (Structure("winograd2", output_side=2), Structure("winograd4", output_side=4))
#: By name, in the order in which they are told.
STRUCTURES = {s.name: s for s in (TILED, MATRIX, WINDOW, ROWS, STREAMING, *WINOGRAD)}


def structure_of(geometry: Geometry) -> Structure:
    """Return the structure that any device has for an expression, by properties of the expression.

    No reduction: ``streaming``. One reduction whose operands are reused (a load lacks a spatial axis, or a
    window slides or can be walked), at most an epilogue in place: ``tiled``. Everything else: ``rows``.
    """
    expr = geometry.expr
    if expr.anchor.combiner is None:
        return STREAMING
    alone = len(expr.stages) == 1 or expr.epilogue is not None
    wide = geometry.spatial & (geometry.extents > 1)
    reuse = any(not a.uses[wide].all() for a in geometry.loads) or bool(geometry.window_axes.any())
    reuse = reuse or slide_of(expr.anchor) is not None  # windows side by side share nothing, and yet strips walk them
    return TILED if alone and reuse else ROWS


def structure_named(name: str) -> Structure:
    """Return a structure by its name.

    Examples
    --------
    >>> structure_named("matrix").on_matrix_unit
    True
    """
    if name not in STRUCTURES:
        hint = did_you_mean(name, STRUCTURES) or "."
        raise TileError(f"program: '{name}' is no structure{hint} Use one of {tuple(STRUCTURES)}.")
    return STRUCTURES[name]
