"""Templates for bulk-synchronous devices, in the order in which their programs are constructed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.bsp.common.price import Parts, Terms
from roller.templates.bsp.common.tile_and_superstep_counts import count_tiles_and_supersteps
from roller.templates.bsp.matrix import price as matrix
from roller.templates.bsp.matrix.candidates import matrix_candidate_mask, matrix_candidates
from roller.templates.bsp.vector import price as vector
from roller.templates.bsp.vector.candidates import vector_candidate_mask, vector_candidates
from roller.templates.common.forms import canonical_forms
from roller.templates.common.options import ConstructOptions
from roller.templates.common.template import Template, template_for_programs
from roller.tile.geometry import Floats, Geometry
from roller.tile.program import RProgram

#: Emitter of all kernels: one codelet of plain loops per stage.
_CODELETS = "roller.templates.bsp.emit.codelets:write_codelets"

TEMPLATES = (
    Template("matrix", lambda p: p.fragment is not None, matrix.price, _CODELETS, matrix_candidates,
             decide=count_tiles_and_supersteps, limits=matrix_candidate_mask),
    Template("vector", lambda p: p.fragment is None and not p.traits.slides_windows and not p.traits.output_side,
             vector.price, _CODELETS, vector_candidates, decide=count_tiles_and_supersteps,
             limits=vector_candidate_mask),
)  # fmt: skip


def programs_of(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> Iterator[TileBatch]:
    """Yield the batches of each template, in the order of ``TEMPLATES``."""
    geometries = [Geometry.of(form) for form in canonical_forms(expr, options)]
    # Fused axes that an index splits again touch scattered positions: their boxes hold more than is read.
    plain = [g for g in geometries if not any(a.gather for a in g.loads)] or geometries
    for geometry in plain:
        for template in TEMPLATES:
            yield from template.pool(geometry, spec, options) if template.pool else ()


def price(batch: TileBatch, spec: DeviceSpec, details: list[Parts] | None = None) -> Terms:
    """Price a batch with its template; return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    return template_for_programs(TEMPLATES, batch).price(batch, spec, details)


def price_programs(
    batch: TileBatch, programs: Sequence[RProgram], spec: DeviceSpec, details: list[Parts] | None = None
) -> Terms:
    """Price the programs of a batch; their price depends only on the batch."""
    del programs
    return price(batch, spec, details)


def lower_bound_s(batch: TileBatch, spec: DeviceSpec) -> Floats | None:
    """Return ``None``: no bound is cheaper to compute than the price."""
    del batch, spec
    return None
