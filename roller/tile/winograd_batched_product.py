"""Winograd's algorithm on GPUs: the batched matrix product between the transform kernels.

Filters and images are transformed into workspaces ``U`` and ``V``; one matrix product per element of the transformed
tile computes ``M``, which is transformed back. A GPU program of a ``winograd`` structure is a tiling of that product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from roller.expr import REDUCTION, Axis, Call, Index, Load, Stage, Tensor, TensorExpr, axis_index
from roller.targets import KINDS
from roller.tile.program import RProgram
from roller.tile.structures import structure_named
from roller.tile.winograd import WINDOW, WindowProduct, window_product

#: Number of elements per vector (16 bytes). Workspace rows are whole vectors, so the last filter or tile is repeated.
ROW_ELEMENTS = 4
#: Number of threads per block of the transform kernels; each thread transforms one tile of one channel or filter.
THREADS = 256
#: Axes of the product: element of the transformed tile, filter, output tile, channel.
ELEMENT, FILTER, TILE, CHANNEL = "e", "f", "t", "c"


@dataclass(frozen=True)
class WinogradProduct:
    """The batched matrix product that computes a window product, for one size of output tiles.

    Parameters
    ----------
    form
        Operands and axes of the window product.
    m
        Number of outputs per tile along rows and columns.
    units
        ``(axis, output tiles or images along it)``: batch axes in the image's order, then rows and columns.
    axes
        Axes of the window product, in order.
    expr
        The product ``M[e, f, t] = sum_c U[e, c, f] * V[e, c, t]``. ``V`` is ``[e, t, c]`` if the image's channels are
        contiguous, and ``M`` is ``[e, t, f]`` if the output's filters are contiguous. ``U`` and ``V`` have the names of
        the tensors from which they are computed, so that fields of a program apply to both.
    """

    form: WindowProduct
    m: int
    units: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]
    expr: TensorExpr

    @property
    def tiles(self) -> int:
        """Number of output tiles in all images; rows of the workspaces may hold a few more."""
        return math.prod(n for _, n in self.units)

    @property
    def elements(self) -> int:
        """Number of elements in a transformed tile."""
        return (self.m + WINDOW - 1) ** 2

    @property
    def channels_last(self) -> bool:
        """Whether adjacent elements of ``V`` are channels."""
        return self.form.image.index[-1].is_axis(self.form.channel)

    @property
    def filters_last(self) -> bool:
        """Whether adjacent elements of ``M`` are filters."""
        return self.expr.anchor.store[-1].is_axis(FILTER)

    @property
    def columns(self) -> str:
        """Axis of the window product that represents a run of output tiles."""
        return self.form.slides[1][0]

    def to_window_extents(self, tile: Sequence[Any], one: Any) -> list[Any]:
        """Convert a tile's extents (numbers or arrays) from the product's axes to the window product's axes."""
        # Output tiles are numbered across images, rows and columns, and a block takes a run of them. The program
        # states the run along the columns axis in elements (``m`` per output tile), with one row of tiles of one image.
        own = dict(zip((a.name for a in self.expr.axes), tile, strict=True))
        windows = {k for _, k, _ in self.form.slides}
        named = {self.form.filter: own[FILTER], self.form.channel: own[CHANNEL]}
        named[self.columns] = self.m * own[TILE]
        named[self.form.slides[0][0]] = self.m * one
        return [WINDOW * one if a in windows else named.get(a, one) for a in self.axes]

    def to_product_extents(self, tile: Sequence[Any], one: Any) -> list[Any]:
        """Convert a tile's extents (numbers or arrays) from the window product's axes to the product's axes."""
        own = dict(zip(self.axes, tile, strict=True))
        named = {FILTER: own[self.form.filter], CHANNEL: own[self.form.channel], ELEMENT: one}
        named[TILE] = own[self.columns] // self.m
        return [named[a.name] for a in self.expr.axes]

    def outer(self, program: RProgram, expr: TensorExpr, structure: str) -> RProgram:
        """Return a tiled program of the product as a program of ``expr``, the window product."""
        tiles = tuple((x, tuple(self.to_window_extents(t, 1))) for x, t in program.tiles)
        names = {FILTER: self.form.filter, TILE: self.columns, CHANNEL: self.form.channel}
        vector = None if program.vector_axis is None else names[program.vector_axis]
        return replace(program, expr=expr, structure=structure, tiles=tiles, vector_axis=vector)

    def inner(self, program: RProgram) -> RProgram:
        """Return the tiled program of the product for a program of the window product."""
        tiles = tuple((x, tuple(self.to_product_extents(t, 1))) for x, t in program.tiles)
        names = {self.form.filter: FILTER, self.columns: TILE, self.form.channel: CHANNEL}
        vector = None if program.vector_axis is None else names[program.vector_axis]
        return replace(program, expr=self.expr, structure="tiled", tiles=tiles, vector_axis=vector)


def batched_product(expr: TensorExpr, structure: str) -> WinogradProduct | None:
    """Return the batched matrix product for an expression (memoized on the expression), or ``None`` if there is none.

    Examples
    --------
    >>> from roller import ops
    >>> found = batched_product(ops.conv2d(2, 8, 9, 9, 5, 3, 3, padding=1), "winograd4")
    >>> found.tiles, str(found.expr)
    (18, 'winograd4_products[e=36 f=8 t=20 c=8] float32')
    """
    key = f"products/{structure}"
    if key not in expr._memo:
        expr._memo[key] = _build_product(expr, structure)
    found: WinogradProduct | None = expr._memo[key]
    return found


def tiled_product_of_program(program: RProgram) -> RProgram | None:
    """Return the tiled product of a GPU program of a ``winograd`` structure, or ``None`` for other programs."""
    found = product_of(program)
    return None if found is None else found.inner(program)


def product_of(program: RProgram) -> WinogradProduct | None:
    """Return the product that a GPU program of a ``winograd`` structure tiles, or ``None`` for other programs."""
    if not KINDS[program.kind].blocks or not program.traits.output_side:
        return None
    return batched_product(program.expr, program.structure)


def _build_product(expr: TensorExpr, structure: str) -> WinogradProduct | None:
    form = window_product(expr)
    if form is None or form.converted:
        return None
    m, extents = structure_named(structure).output_side, expr.anchor.extents
    moving = {t.axis: d for d, i in enumerate(form.image.index) for t in i.terms}
    units = [(b, extents[b]) for b in sorted(form.batch, key=lambda b: moving[b])]
    units += [(a, -(-extents[a] // m)) for a, _, _ in form.slides]
    tiles = math.prod(n for _, n in units)
    sizes = {
        ELEMENT: (m + WINDOW - 1) ** 2,
        FILTER: -(-extents[form.filter] // ROW_ELEMENTS) * ROW_ELEMENTS,
        TILE: -(-tiles // ROW_ELEMENTS) * ROW_ELEMENTS,
        CHANNEL: extents[form.channel],
    }
    image = (ELEMENT, TILE, CHANNEL) if form.image.index[-1].is_axis(form.channel) else (ELEMENT, CHANNEL, TILE)
    out = (ELEMENT, TILE, FILTER) if expr.anchor.store[-1].is_axis(form.filter) else (ELEMENT, FILTER, TILE)
    weights = (ELEMENT, CHANNEL, FILTER)

    def tensor(name: str, axes: tuple[str, ...]) -> Tensor:
        return Tensor(name, tuple(sizes[a] for a in axes), "float32")

    def load(name: str, axes: tuple[str, ...]) -> Load:
        return Load(name, tuple(_axis_as_index(a) for a in axes))

    inputs = (tensor(form.filters.tensor, weights), tensor(form.image.tensor, image))
    body = Call("mul", (load(form.filters.tensor, weights), load(form.image.tensor, image)))
    axes = (*(Axis(a, sizes[a]) for a in out), Axis(CHANNEL, sizes[CHANNEL], REDUCTION))
    stage = Stage(tensor(expr.anchor.name, out), axes, tuple(_axis_as_index(a) for a in out), body, "sum", "float32")
    product = TensorExpr(f"{structure}_products", inputs, (stage,), (stage.name,))
    return WinogradProduct(form, m, tuple(units), tuple(a.name for a in expr.axes), product)


def _axis_as_index(name: str) -> Index:
    return axis_index(name)
