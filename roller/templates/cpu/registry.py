"""The templates for CPUs, in the order in which their programs are constructed, and the functions that use the list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.forms import canonical_forms
from roller.templates.common.options import ConstructOptions
from roller.templates.common.template import Template, template_for_programs
from roller.templates.cpu.common.task_scheduling_costs import Parts, Terms
from roller.templates.cpu.decisions import decisions_for_device
from roller.templates.cpu.dots import price as dots
from roller.templates.cpu.dots.candidates import dot_product_candidates
from roller.templates.cpu.matrix import price as matrix
from roller.templates.cpu.matrix.candidates import matrix_candidates
from roller.templates.cpu.rows import price as rows
from roller.templates.cpu.rows.candidates import row_candidates
from roller.templates.cpu.streaming import price as streaming
from roller.templates.cpu.streaming.candidates import store_kind_neighbours as stores
from roller.templates.cpu.streaming.candidates import stream_candidates
from roller.templates.cpu.tiled import price as tiled
from roller.templates.cpu.tiled.candidates import tiled_candidates
from roller.templates.cpu.tiled.neighbours import neighbouring_programs
from roller.templates.cpu.tiled.split_reduction_candidates import split_reductions_if_allowed
from roller.templates.cpu.winograd import price as winograd
from roller.templates.cpu.winograd.winograd_choice import joined_winograd_programs, winograd_programs
from roller.tile.geometry import Floats, Geometry
from roller.tile.program import RProgram

_HERE = "roller.templates.cpu"


#: All templates, in the order of their programs.
TEMPLATES = (
    Template(
        "tiled", lambda p: p.traits.reuses and p.fragment is None and not p.sums_along_vectors, tiled.price,
        f"{_HERE}.tiled.emit_split:emit_tiled_or_split", tiled_candidates, vary=split_reductions_if_allowed,
        neighbours=neighbouring_programs, decide=decisions_for_device,
        extents_of_calls=True,
    ),
    Template(
        "dots", lambda p: p.traits.reuses and p.fragment is None and p.sums_along_vectors, dots.price,
        f"{_HERE}.tiled.emit_split:emit_dot_products_or_split", dot_product_candidates,
        vary=split_reductions_if_allowed, neighbours=neighbouring_programs, decide=decisions_for_device,
        extents_of_calls=True,
    ),
    Template(
        "matrix", lambda p: p.fragment is not None, matrix.price,
        f"{_HERE}.matrix.emit_amx_micro_kernel:emit_matrix_nests", matrix_candidates, decide=decisions_for_device,
    ),
    Template(
        "rows", lambda p: p.traits.spreads_reductions, rows.price, f"{_HERE}.rows.emit:emit_rows_nests", row_candidates,
        neighbours=stores, decide=decisions_for_device,
    ),
    Template(
        "streaming", lambda p: not p.traits.reduces, streaming.price, f"{_HERE}.streaming.emit:emit_streaming_nests",
        stream_candidates, neighbours=stores, decide=decisions_for_device,
    ),
    Template(
        "winograd", lambda p: p.traits.output_side > 0, winograd.price, f"{_HERE}.winograd.emit:emit_winograd_nests",
        whole=joined_winograd_programs, neighbours=stores,
    ),
)  # fmt: skip


def pool(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the batches of one form, including Winograd batches, each limited to a share of ``options.pool``."""
    found = [(t, b) for t in TEMPLATES if t.pool for b in t.pool(geometry, spec, options)]
    batches = [*(b for _, b in found), *(v for t, b in found if t.vary for v in t.vary(b, spec, options))]
    kept, share = [], max(1, options.pool // len(batches))
    for b in (*batches, *winograd_programs(geometry, spec, options)):
        waste = (-geometry.extents % b.block) / geometry.extents
        ok = (waste <= options.epsilon).all(axis=1) if geometry.expr.allow_padding else (waste == 0).all(axis=1)
        if options.epsilon < 1.0 or not geometry.expr.allow_padding:
            b = b.take(np.flatnonzero(ok))
        if len(b) > share:
            b = b.take(np.linspace(0, len(b) - 1, share).astype(np.int64))
        kept.append(b)
    return kept


def programs_of(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> Iterator[TileBatch]:
    """Yield the batches of each template in order; templates that need all forms at once come last."""
    for form in canonical_forms(expr, options):
        yield from pool(Geometry.of(form), spec, options)
    for template in TEMPLATES:
        yield from template.whole(expr, spec, options) if template.whole else ()


def price(batch: TileBatch, spec: DeviceSpec, details: list[Parts] | None = None) -> Terms:
    """Price a batch with its template: return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    # The intermediate values are appended to ``details``, for explanations (:mod:`roller.templates.cpu.price_terms`).
    template = template_for_programs(TEMPLATES, batch)
    parts: Parts = {"spec": spec, "batch": batch, "way": template.name}
    terms = parts["terms"] = template.price(batch, spec, parts)
    if details is not None:
        details.append(parts)
    return terms


def price_programs(
    batch: TileBatch, programs: Sequence[RProgram], spec: DeviceSpec, details: list[Parts] | None = None
) -> Terms:
    """Price the programs of a batch, which have no fields beyond those of the batch."""
    del programs
    return price(batch, spec, details)


def lower_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats | None:
    """Return ``None``: no bound of a CPU program is cheaper to compute than its price."""
    del batch, spec
    return None
