"""Neighbours of a program: programs that differ by one aligned step of a tile, or in vectors, staging or splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.construction.constructor import Candidate, make_candidates, program_from_row, spec_of_device_share
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import batch_of
from roller.templates import price_with_templates
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.templates.common.tile_neighbours import NeighbourContext
from roller.templates.registry import template_writing
from roller.tile.program import RProgram
from roller.tile.winograd_batched_product import ELEMENT, product_of


def neighbour_programs(
    program: RProgram, expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions
) -> tuple[Candidate, ...]:
    """Return the programs one step away from ``program`` that fit the device, best estimate first.

    >>> import roller
    >>> expr, spec = roller.ops.matmul(256, 256, 256), roller.load_spec("cpu-avx512")
    >>> best = roller.construct(expr, spec, top_k=1)[0].program
    >>> found = neighbour_programs(best, expr, spec, roller.ConstructOptions())
    >>> len(found) > 10, best in [c.program for c in found]
    (True, False)
    """
    target = spec_of_device_share(spec, options)
    product = product_of(program)
    batch = batch_of([program if product is None else product.inner(program)]).without_vectors()
    place, template = NeighbourContext.of(batch, target, options), template_writing(target.kind, batch)
    batches = [b for b in (*place.tiles(), *template.neighbours(place)) if len(b)]
    allowed = [allowed_padding_mask(b.geometry, b.block, options) & template.limits(b, target) for b in batches]
    kept = [(b, int(n)) for b, keep in zip(batches, allowed, strict=True) for n in np.flatnonzero(keep)]
    rows = [program_from_row(b, n, target) for b, n in kept]
    if product is not None:
        rows = [product.outer(p, program.expr, program.structure) for p in rows if p.block_tile[ELEMENT] == 1]
    found = {str(p): p for p in rows}
    found.pop(str(replace(program, relaxed=())), None)
    programs = list(found.values())
    priced = zip(programs, price_with_templates.estimate_programs(programs, target), strict=True)
    fitting = sorted((e.seconds, str(p), p, e) for p, e in priced if np.isfinite(e.seconds))
    return make_candidates([(p, e) for _, _, p, e in fitting], expr, spec, options)
