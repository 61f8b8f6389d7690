"""Programs whose anchor runs on the matrix unit: tiles of whole passes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.expr.scalar import Call, Cast, Load
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.bsp.common.tile_growth import TileGrain, grow_programs, growable_program_mask
from roller.templates.common.options import ConstructOptions
from roller.tile.geometry import Geometry


def matrix_candidates(geometry: Geometry, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return the programs of one form for each matrix instruction that can compute it."""
    usable = spec.fragments if options.matrix_units and geometry.expr.allow_padding else ()
    grains = (grain for f in usable for grain in matrix_unit_grains(geometry, f))
    return [b for grain in grains for b in grow_programs(geometry, grain, spec, options)]


def matrix_candidate_mask(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of the programs of a batch that construction offers."""
    del spec
    f, names = batch.fragment, batch.geometry.names
    assert f is not None  # the template matches no others
    taken = dict(zip(batch.matrix_axes, (f.m, f.n, f.k), strict=True))
    return growable_program_mask(batch, np.array([taken.get(n, 1) for n in names], np.int64))


def matrix_unit_grains(g: Geometry, f: Fragment) -> Iterator[TileGrain]:
    """Yield the grains of a matrix instruction: axis m belongs to one operand, n to the other, and k to both."""
    anchor = g.expr.anchor
    if anchor.combiner != "sum" or not isinstance(anchor.body, Call) or anchor.body.fn != "mul":
        return
    values = [x.arg if isinstance(x, Cast) and x.dtype == anchor.acc_dtype else x for x in anchor.body.args]
    dtypes = {g.expr.tensors[x.tensor].dtype for x in values if isinstance(x, Load) and not (x.guard and x.outside)}
    if len(g.loads) != 2 or dtypes != {f.operand} or anchor.acc_dtype != f.accumulator:
        return
    one, other = (a.uses for a in g.loads)
    for mine, rest in ((one, other), (other, one)):
        ms, ns = np.flatnonzero(g.spatial & mine & ~rest), np.flatnonzero(g.spatial & rest & ~mine)
        ks = np.flatnonzero(~g.spatial & one & other)
        if not (len(ms) and len(ns) and len(ks)):
            continue
        m, n, k = (int(max(axes, key=lambda a: g.extents[a])) for axes in (ms, ns, ks))
        step = np.ones(len(g.names), np.int64)
        step[[m, n, k]] = f.m, f.n, f.k
        yield TileGrain(step, n, f, (g.names[m], g.names[n], g.names[k]))
