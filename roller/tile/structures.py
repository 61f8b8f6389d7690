"""The kernel structures as a table of traits, on which other modules base their decisions."""

from __future__ import annotations

from dataclasses import dataclass

from roller.errors import TileError, did_you_mean
from roller.tile.geometry import Geometry
from roller.tile.sliding_windows import slide_of


@dataclass(frozen=True)
class Structure:
    """Traits of all programs of one structure.

    Parameters
    ----------
    reuses
        Whether blocks (GPU) or tasks (CPU) take the reduction in steps and share operands within a step. Operand tiles
        are then staged in several slots, and the reduction may be split.
    reduces
        Whether the anchor has a reduction.
    spreads_reductions
        Whether threads (GPU) or lanes (CPU) are spread over reductions too and combine their results at the end.
    slides_windows
        Whether a thread processes all windows of its outputs in straight-line code.
    on_matrix_unit
        Whether a fragment computes the products.
    output_side
        Side length (elements) of the output tiles of Winograd's algorithm, else 0. On a GPU, a program's tiles belong
        to the product of the transformed operands.
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
#: All structures by name, in the order in which messages list them.
STRUCTURES = {s.name: s for s in (TILED, MATRIX, WINDOW, ROWS, STREAMING, *WINOGRAD)}


def structure_of(geometry: Geometry) -> Structure:
    """Return the structure of an expression on any device, from properties of the expression alone."""
    # No reduction: streaming. One reduction with reused operands (a load lacks a spatial axis, or windows slide or lie
    # in strips) and at most an epilogue in place: tiled. All others: rows.
    expr = geometry.expr
    if expr.anchor.combiner is None:
        return STREAMING
    alone = len(expr.stages) == 1 or expr.epilogue is not None
    wide = geometry.spatial & (geometry.extents > 1)
    reuse = any(not a.uses[wide].all() for a in geometry.loads) or bool(geometry.window_axes.any())
    reuse = reuse or slide_of(expr.anchor) is not None  # adjacent windows share nothing, yet strips process them
    return TILED if alone and reuse else ROWS


def structure_named(name: str) -> Structure:
    """Return the structure with the given name; raise an error if there is none.

    Examples
    --------
    >>> structure_named("matrix").on_matrix_unit
    True
    """
    if name not in STRUCTURES:
        hint = did_you_mean(name, STRUCTURES) or "."
        raise TileError(f"program: '{name}' is no structure{hint} Use one of {tuple(STRUCTURES)}.")
    return STRUCTURES[name]
