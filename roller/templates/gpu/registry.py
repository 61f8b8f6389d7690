"""Templates for GPUs, in the order in which their programs are constructed, and the functions that dispatch to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.forms import canonical_forms, forms_for_matrix_units
from roller.templates.common.library_kernel_limits import POLICIES, LibraryPolicy
from roller.templates.common.options import ConstructOptions
from roller.templates.common.template import Template, template_for_programs
from roller.templates.gpu.common.matrix_operand_copies import OperandCopy, operand_copies
from roller.templates.gpu.common.price import Parts, Terms
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.common.thread_limits import fills_whole_teus
from roller.templates.gpu.common.window_thread_walks import window_walk
from roller.templates.gpu.library_programs import (
    library_product_programs,
    restrict_options_to_library,
    restrict_to_library,
)
from roller.templates.gpu.matrix.candidates import matrix_candidates
from roller.templates.gpu.matrix.neighbours import matrix_neighbours as rings
from roller.templates.gpu.matrix.price import PHASES as MATRIX
from roller.templates.gpu.rows.candidates import row_candidates
from roller.templates.gpu.rows.price import PHASES as ROWS
from roller.templates.gpu.streaming.candidates import stream_candidates
from roller.templates.gpu.streaming.price import PHASES as STREAMING
from roller.templates.gpu.tiled.candidates import plain_tiled_candidates
from roller.templates.gpu.tiled.neighbours import tiled_neighbours
from roller.templates.gpu.tiled.pipeline_and_order_variants import variants_if_pipelining
from roller.templates.gpu.tiled.price import PHASES as TILED
from roller.templates.gpu.window.candidates import window_candidate_mask, window_candidates
from roller.templates.gpu.window.price import PHASES as WINDOW
from roller.templates.gpu.winograd import price as winograd
from roller.templates.gpu.winograd.candidates import winograd_candidates
from roller.tile.geometry import Floats, Geometry
from roller.tile.program import RProgram

_HERE = "roller.templates.gpu"


def _operand_copies_of_batch(batch: TileBatch, spec: DeviceSpec) -> tuple[OperandCopy, OperandCopy]:
    del spec
    return operand_copies(batch)


def _winograd_programs(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    forms = map(Geometry.of, canonical_forms(expr, options))
    return [b for geometry in forms for b in winograd_candidates(geometry, spec, options)]


def _matrix_programs(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the programs for matrix units, including those of warp groups, which the same search finds."""
    forms = [Geometry.of(form) for form in forms_for_matrix_units(expr, spec, options)]
    return matrix_candidates(forms, spec, options) if forms else []


TEMPLATES = (
    Template(
        "window", lambda p: p.traits.slides_windows, WINDOW.price, f"{_HERE}.window.emit:kernels", window_candidates,
        decide=lambda batch, spec: window_walk(batch), bound=WINDOW.bound, arithmetic=WINDOW.arithmetic,
        limits=window_candidate_mask,
    ),
    Template(
        "tiled", lambda p: p.traits.reuses and p.fragment is None, TILED.price, f"{_HERE}.tiled.emit:kernels",
        plain_tiled_candidates,
        vary=variants_if_pipelining, neighbours=tiled_neighbours, bound=TILED.bound, arithmetic=TILED.arithmetic,
        limits=fills_whole_teus,
    ),
    Template(
        "rows", lambda p: p.traits.spreads_reductions, ROWS.price, f"{_HERE}.rows.emit_kernels:kernels", row_candidates,
        bound=ROWS.bound, arithmetic=ROWS.arithmetic, limits=fills_whole_teus,
    ),
    Template(
        "streaming", lambda p: not p.traits.reduces, STREAMING.price, f"{_HERE}.streaming.emit:kernels",
        stream_candidates,
        bound=STREAMING.bound, arithmetic=STREAMING.arithmetic, limits=fills_whole_teus,
    ),
    Template(
        "winograd", lambda p: p.traits.output_side > 0, winograd.price, f"{_HERE}.winograd.emit:kernels",
        whole=_winograd_programs, bound=TILED.bound, arithmetic=TILED.arithmetic, limits=fills_whole_teus,
    ),
    Template(
        "warp_group", lambda p: p.fragment is not None and p.fragment.reads_scratchpad, MATRIX.price,
        f"{_HERE}.warp_group.emit:kernels", bound=MATRIX.bound, arithmetic=MATRIX.arithmetic,
        decide=_operand_copies_of_batch,
        neighbours=rings, limits=fills_whole_teus,
    ),
    Template(
        "matrix", lambda p: p.fragment is not None, MATRIX.price, f"{_HERE}.matrix.emit:kernels",
        whole=_matrix_programs, bound=MATRIX.bound, arithmetic=MATRIX.arithmetic, decide=_operand_copies_of_batch,
        neighbours=rings, limits=fills_whole_teus,
    ),
)  # fmt: skip


def programs_of_form(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the batches of the templates that take one form at a time, before variants are added."""
    return [b for t in TEMPLATES if t.pool for b in t.pool(geometry, spec, options)]


def programs_of(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> Iterator[TileBatch]:
    """Yield the batches of each template, in template order; batches for all forms at once come last."""
    policy = POLICIES[options.policy]
    if policy is None:
        yield from _constructed_programs(expr, spec, options)
    else:
        yield from _library_programs(expr, spec, restrict_options_to_library(options, policy), policy)


def _library_programs(
    expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions, policy: LibraryPolicy
) -> list[TileBatch]:
    """Return the policy's programs of the first kind that exists: Winograd's algorithm, matrix unit, SIMT, others."""
    found = _winograd_programs(expr, spec, options) or _matrix_programs(expr, spec, options)
    found = found or [
        b for f in canonical_forms(expr, options) for b in library_product_programs(Geometry.of(f), spec, policy)
    ]
    return found or restrict_to_library(_constructed_programs(expr, spec, options), spec, policy)


def _constructed_programs(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> Iterator[TileBatch]:
    for geometry in map(Geometry.of, canonical_forms(expr, options)):
        found = [(t, b) for t in TEMPLATES if t.pool for b in t.pool(geometry, spec, options)]
        yield from (b for _, b in found)
        yield from (v for t, b in found if t.vary for v in t.vary(b, spec, options))
    for template in TEMPLATES:
        yield from template.whole(expr, spec, options) if template.whole else ()


def price(
    batch: TileBatch, spec: DeviceSpec, laid: SharedMemoryLayout | None = None, details: list[Parts] | None = None
) -> Terms:
    """Price a batch with its template; see :func:`roller.templates.gpu.common.price.price`."""
    return template_for_programs(TEMPLATES, batch).price(batch, spec, laid, details)


def price_programs(
    batch: TileBatch, programs: Sequence[RProgram], spec: DeviceSpec, details: list[Parts] | None = None
) -> Terms:
    """Price the programs of a batch with their scratchpad layouts."""
    return price(batch, spec, SharedMemoryLayout.of(batch, programs, spec), details)


def lower_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return a lower bound on the seconds of each program, shape ``(N,)``; zero if the template has none."""
    bound = template_for_programs(TEMPLATES, batch).bound
    return np.zeros(len(batch)) if bound is None else bound(batch, spec)


def arithmetic_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats:
    """Return the time, in seconds, of each program's arithmetic alone, shape ``(N,)``; zero if it is unknown."""
    arithmetic = template_for_programs(TEMPLATES, batch).arithmetic
    return np.zeros(len(batch)) if arithmetic is None else arithmetic(batch, spec)
