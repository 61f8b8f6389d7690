"""The choice of Winograd for a CPU convolution: its programs compete with direct programs, and the price decides.

They are candidates if ``options.winograd`` is set and a form of the expression is a window product (float32, 3x3,
stride 1) with enough channels, and if each vector of channels lies within one block of channels. Ranking takes the
faster prediction.
"""

from __future__ import annotations

from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.forms import joined_channel_forms
from roller.templates.common.options import ConstructOptions
from roller.templates.cpu.common.lanes_and_cache_room import lane_count
from roller.templates.cpu.winograd.candidates import winograd_candidates
from roller.tile.geometry import Geometry
from roller.tile.winograd import LEAST_CHANNELS, WindowProduct, window_product


def winograd_programs(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the Winograd programs of one form; the list is empty if the form does not suit the algorithm."""
    form = window_product_if_suitable(geometry, spec) if options.winograd else None
    return [] if form is None else winograd_candidates(geometry, spec, form)


def joined_winograd_programs(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the Winograd programs of the forms in which blocks of channels are joined into one axis."""
    return [b for f in joined_channel_forms(expr, options) for b in winograd_programs(Geometry.of(f), spec, options)]


def window_product_if_suitable(geometry: Geometry, spec: DeviceSpec) -> WindowProduct | None:
    """Return the window product of a form that suits the algorithm, else ``None``."""
    form = window_product(geometry.expr)
    if form is None or geometry.expr.anchor.extents[form.channel] < LEAST_CHANNELS:
        return None
    return form if _vectors_stay_in_block(geometry, form, spec) else None


def _vectors_stay_in_block(geometry: Geometry, form: WindowProduct, spec: DeviceSpec) -> bool:
    """Return whether each vector of channels or filters, at a multiple of its lanes, lies within one block."""
    expr = geometry.expr
    indices = [*form.image.index, *expr.anchor.store, *(i for s in expr.stages for ld in s.loads for i in ld.index)]
    edges = {n for i in indices for t in i.terms if not t.is_affine for n in (t.div, t.div * t.mod) if n > 1}
    return all(edge % lane_count(spec, 4) == 0 for edge in edges)
