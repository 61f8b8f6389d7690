"""Why no tile is larger: enlarges each axis of each layer by one step and names the capacity or term against it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roller import perf
from roller.construction.constructor import program_from_row
from roller.explanation.exceeded_budget import exceeded_budget
from roller.explanation.price_comparison import dominant_differences
from roller.hardware import DeviceSpec
from roller.perf import Term
from roller.perf.tile_batch import TileBatch
from roller.templates import price_with_templates
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.tile.geometry import Geometry, Ints
from roller.tile.program import RProgram
from roller.tile.winograd_batched_product import ELEMENT, WinogradProduct, product_of


@dataclass(frozen=True)
class EnlargementStop:
    """Why one axis of a layer's tile, or one mechanism, is not larger."""

    #: The enlarged axis; a mechanism (``"stages"``, ``"split_k"``) has an empty layer.
    layer: str
    axis: str
    #: Current and next value; equal if there is no next one.
    now: int
    larger: int
    why: str  #: ``"covered"`` (the tile spans the axis), ``"capacity"``, ``"padding"`` or ``"price"``
    detail: str  #: The exceeded capacity, or the decisive term
    #: Predicted time in seconds with the larger value, and its change in percent; ``None`` if it was not priced.
    seconds: float | None = None
    percent: float | None = None
    program: str | None = None  #: Name of the larger program, or ``None``

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return dict(vars(self))


def stops(program: RProgram, spec: DeviceSpec, options: ConstructOptions, term: Term) -> tuple[EnlargementStop, ...]:
    """Return why each axis and mechanism of a program, whose predicted time is ``term``, is not one step larger."""
    return tuple(_stop_of_enlargement(program, spec, options, term, step) for step in _enlargements(program, spec))


@dataclass(frozen=True)
class _Enlargement:
    layer: str
    axis: str
    now: int
    larger: int
    batch: TileBatch | None
    product: WinogradProduct | None = None


def _stop_of_enlargement(
    program: RProgram, spec: DeviceSpec, options: ConstructOptions, term: Term, step: _Enlargement
) -> EnlargementStop:
    if step.batch is None:
        return EnlargementStop(step.layer, step.axis, step.now, step.larger, "covered", "all of the axis")
    if not allowed_padding_mask(step.batch.geometry, step.batch.block, options).all():
        return EnlargementStop(step.layer, step.axis, step.now, step.larger, "padding", "more padding than is allowed")
    larger = program_from_row(step.batch, 0, spec)
    if step.product is not None:
        larger = step.product.outer(larger, program.expr, program.structure)
    reason = exceeded_budget(larger, spec)
    if reason is not None:
        return EnlargementStop(step.layer, step.axis, step.now, step.larger, "capacity", reason)
    estimate, other = price_with_templates.estimate_with_terms(larger, spec)
    road = dominant_differences(other, term)
    percent = 100 * (estimate.seconds / term.value - 1)
    of = (step.layer, step.axis, step.now, step.larger)
    return EnlargementStop(*of, "price", road[-1].name, estimate.seconds, percent, str(larger))


def _enlargements(program: RProgram, spec: DeviceSpec) -> Iterator[_Enlargement]:
    product = product_of(program)
    inner = program if product is None else product.inner(program)
    batch = perf.batch_of([inner]).without_vectors()
    g, layers = batch.geometry, inner.layers
    for a, axis in enumerate(g.names):
        if product is not None and axis == ELEMENT:
            continue
        # Workers that take one vector at a time have no tile to enlarge.
        fixed = not spec.traits.blocks and batch.panel is None
        if not fixed and (spec.traits.blocks or not program.traits.output_side):
            yield from _enlarge_register_tile(batch, a, axis, layers[0], spec, product)
    for a, axis in enumerate(g.names):
        if product is None or axis != ELEMENT:
            yield from _enlarge_block(batch, a, axis, layers[-1], product)
    if spec.traits.blocks and inner.traits.reuses:
        stages, parts = inner.stages, inner.split_k
        more = stages + 1
        yield _Enlargement("", "stages", stages, more, replace(batch, stages=more), product)
        if parts * 2 <= math.prod(inner.reduction_steps.values()):
            yield _Enlargement("", "split_k", parts, 2 * parts, replace(batch, split_k=batch.split_k * 2), product)


def _enlarge_register_tile(
    batch: TileBatch, a: int, axis: str, layer: str, spec: DeviceSpec, product: WinogradProduct | None
) -> Iterator[_Enlargement]:
    """Yield the program with an axis of the register tile doubled and the same number of register tiles per block."""
    g, register, block = batch.geometry, batch.register[0], batch.block[0]
    moves = g.spatial[a] or batch.traits.spreads_reductions or a == batch.vector_axis
    if not moves or batch.traits.slides_windows or (batch.fragment is not None and axis not in batch.matrix_axes[:2]):
        return
    now = int(register[a])
    if now >= g.extents[a]:
        yield _Enlargement(layer, axis, now, now, None)
        return
    larger = register.copy()
    larger[a] = 2 * now
    most = -(-g.extents // larger)
    counts = np.minimum(block // register, most)
    if batch.panel is not None and not batch.traits.reuses:
        counts = np.where(g.spatial, counts, most)
    yield _Enlargement(layer, axis, now, 2 * now, _batch_with_tiles(batch, larger, larger * counts), product)


def _enlarge_block(
    batch: TileBatch, a: int, axis: str, layer: str, product: WinogradProduct | None
) -> Iterator[_Enlargement]:
    """Yield the program with an axis of the block doubled: in register tiles, or in points of a reduction step."""
    g, register, block = batch.geometry, batch.register[0], batch.block[0]
    if not g.spatial[a] and (batch.traits.slides_windows or (batch.panel is not None and not batch.traits.reuses)):
        return
    if batch.fragment is not None and axis not in batch.matrix_axes:
        return
    now = int(block[a])
    if now >= g.extents[a]:
        yield _Enlargement(layer, axis, now, now, None)
        return
    larger = block.copy()
    larger[a] = min(2 * now // int(register[a]), -(-int(g.extents[a]) // int(register[a]))) * int(register[a])
    yield _Enlargement(layer, axis, now, int(larger[a]), _batch_with_tiles(batch, register, larger), product)


def _batch_with_tiles(batch: TileBatch, register: Ints, block: Ints) -> TileBatch:
    g: Geometry = batch.geometry
    panel = None if batch.panel is None else np.where(g.spatial, register, block)[None]
    steps = np.where(g.spatial, 1, -(-g.extents // block)).prod()
    split = np.minimum(batch.split_k, max(1, int(steps)))
    return replace(batch, register=register[None], block=block[None], panel=panel, split_k=split)
