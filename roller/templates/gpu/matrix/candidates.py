"""Candidate programs for a matrix unit: aligned with its fragments, grown by data reuse, with stages chosen by price.

The anchor must sum products of two tensors in a fragment's operand dtype, with the fragment's accumulator: matrix
products of all layouts, batched or not, and convolutions as implicit GEMM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.expr import Call, Cast, Load, TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.data_reuse_score import reuse_score, traffic_and_footprint
from roller.templates.common.growth_trace import GrowthTrace
from roller.templates.common.library_kernel_limits import POLICIES
from roller.templates.common.options import ConstructOptions
from roller.templates.common.padding_limit import allowed_padding_mask
from roller.templates.common.scale_up import best_children, unique_rows
from roller.templates.gpu.common.matrix_operand_copies import copies_both_operands_asynchronously, operand_copies
from roller.templates.gpu.common.occupancy import scratchpad_bytes
from roller.templates.gpu.common.thread_limits import fills_whole_teus
from roller.templates.gpu.matrix.price import PHASES
from roller.templates.gpu.tiled.candidates import with_split_reductions
from roller.templates.gpu.tiled.pipeline_and_order_variants import operands_exceed_shared_cache
from roller.tile.geometry import Floats, Geometry, Ints, product_of_columns
from roller.tile.memory_strides import nonadjacent_share
from roller.tile.structures import structure_of
from roller.tile.warp_group_tiles import CHUNK_BYTES

#: Numbers of fragments along m and n in one group's tile.
_ACROSS = (1, 2, 3, 4, 6, 8)
#: Maximum number of fragments that a group's tiles take along an axis, relative to the number that the axis needs.
_OVERHANG = 1.1
#: Maximum number of thread groups per block; more would only share loads that the shared cache serves anyway.
_GROUPS = 16
#: Numbers of fragments along k per reduction step.
_STEPS = (1, 2, 4, 8)
#: Numbers of copies of staged tiles to consider if copying overlaps the arithmetic, and if it goes through registers.
STAGES, REGISTER_STAGES = (1, 2, 3, 4, 5), (1, 2)
#: Maximum share of neighbours along an axis that are not contiguous in memory for rows to count as running along it.
_BROKEN = 0.5
#: Maximum waste of a choice of axes to follow, relative to the best choice.
_WORSE = 1.5
#: Maximum time of a choice of axes whose programs are varied, relative to the best choice.
_SLOWER = 1.3
#: Number of choices of fragment and axes to follow, of programs of each to price, and of programs for which to choose
#: stages and raster.
_FORMS, _PRICED, _VARIED = 3, 96, 12
#: Number of the fastest stage counts with which each program is kept.
_PLACES = 2
#: Dtypes of operands rounded for multiplication: none.
_AS_THEY_ARE: Mapping[str, str] = {}
#: Number of choices to follow for instructions that read the scratchpad themselves; these differ only in n.
_GROUP_FORMS = 2


@dataclass(frozen=True)
class MatrixForm:
    """An expression as a matrix product: the fragment, and the positions of its m, n and k axes."""

    fragment: Fragment
    axes: tuple[int, int, int]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Extents of the fragment along :attr:`axes`."""
        return self.fragment.m, self.fragment.n, self.fragment.k

    def waste_factor(self, geometry: Geometry) -> float:
        """Return the ratio of computed to useful products; it exceeds 1 if fragments overhang axes."""
        total = 1.0
        for a, s in zip(self.axes, self.sizes, strict=True):
            extent = int(geometry.extents[a])
            total *= -(-extent // s) * s / extent
        return total

    def sort_key(self, geometry: Geometry) -> tuple[Any, ...]:
        """Return the key that sorts forms, the most promising first."""
        # Forms with little waste come first; an operand whose memory runs along neither m (n) nor k counts like twice
        # the products. Then come forms in which a thread's results are neighbours in the output, and then larger
        # fragments, which reread operands less often.
        apart = 0
        for access in geometry.loads:
            own = [(geometry.names[a], int(geometry.extents[a])) for a in self.axes if access.uses[a]]
            apart += min(nonadjacent_share(access.index, access.tensor.shape, *axis) for axis in own) > _BROKEN
        stored_along = bool(geometry.order) and geometry.order[-1] == self.axes[1]
        larger = tuple(-s for s in (self.fragment.n, self.fragment.k, self.fragment.m))
        return self.waste_factor(geometry) * 2.0**apart, not stored_along, self.axes, larger


def matrix_forms(
    geometry: Geometry, spec: DeviceSpec, rounded: Mapping[str, str] = _AS_THEY_ARE
) -> tuple[MatrixForm, ...]:
    """Return the forms in which a matrix unit of the device computes an expression, the least padded form first."""
    expr = geometry.expr
    loads = _product_loads(expr)
    if loads is None or not spec.fragments or not structure_of(geometry).reuses or not expr.allow_padding:
        return ()
    dtypes = {rounded.get(t, t) for t in (expr.tensors[x.tensor].dtype for x in loads)}
    usable = [f for f in spec.fragments if dtypes == {f.operand} and expr.anchor.acc_dtype == f.accumulator]
    found = []
    for f in usable:
        if f.threads % spec.teu.lanes:
            continue
        if f"{f.rate}.{f.operand}" not in spec.compute.ops_per_cycle_per_unit:
            continue
        found += [MatrixForm(f, axes) for axes in _axis_choices(geometry, loads)]
    return tuple(sorted(found, key=lambda form: form.sort_key(geometry)))


def _product_loads(expr: TensorExpr) -> tuple[Load, Load] | None:
    """Return the two loads whose products the anchor sums, or ``None`` for other expressions."""
    # Padding must be zero; otherwise, a fragment's values beyond the tensors would be added.
    anchor = expr.anchor
    if anchor.combiner != "sum" or not isinstance(anchor.body, Call) or anchor.body.fn != "mul":
        return None
    values = [x.arg if isinstance(x, Cast) and x.dtype == anchor.acc_dtype else x for x in anchor.body.args]
    loads = [x for x in values if isinstance(x, Load) and not (x.guard and x.outside != 0.0)]
    inputs = {t.name for t in expr.inputs}
    if len(values) != 2 or len(loads) != 2 or {x.tensor for x in loads} - inputs or loads[0].tensor == loads[1].tensor:
        return None
    return loads[0], loads[1]


def _axis_choices(geometry: Geometry, loads: tuple[Load, Load]) -> list[tuple[int, int, int]]:
    """Return the choices of axes: m belongs to one operand, n to the other, and k to both, in both assignments."""
    uses = [next(a.uses for a in geometry.loads if a.tensor.name == x.tensor) for x in loads]
    reduced = np.flatnonzero(~geometry.spatial & uses[0] & uses[1])
    found = []
    for one, other in (uses, uses[::-1]):
        ms, ns = np.flatnonzero(geometry.spatial & one & ~other), np.flatnonzero(geometry.spatial & other & ~one)
        found += [(int(m), int(n), int(k)) for m in ms for n in ns for k in reduced]
    return found


def matrix_candidates(geometries: Sequence[Geometry], spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return batches of programs for the matrix unit, one batch per choice of axes, stages and raster."""
    tried: list[tuple[float, TileBatch]] = []
    policy = POLICIES[options.policy]
    rounded = _AS_THEY_ARE if policy is None else dict(policy.rounded)
    offered = spec.constructed if policy is None else spec
    for geometry in geometries if options.matrix_units else ():
        for form in _forms_worth_growing(matrix_forms(geometry, offered, rounded), geometry):
            batch = _promising_blocks(geometry, spec, form, options)
            if len(batch):
                tried.append(_least_time_and_fastest_programs(batch, spec, options))
    least = min((seconds for seconds, _ in tried), default=0.0)
    return [
        b
        for s, batch in tried
        if len(batch) and s <= _SLOWER * least
        for b in _pipelined_variants(batch, spec, options)
    ]


def _forms_worth_growing(forms: Sequence[MatrixForm], geometry: Geometry) -> tuple[MatrixForm, ...]:
    """Return the forms worth growing: of two forms that differ only by swapping m and n, the better one."""
    best: dict[tuple[Fragment, frozenset[int], int], MatrixForm] = {}
    for f in forms:
        best.setdefault((f.fragment, frozenset(f.axes[:2]), f.axes[2]), f)
    kept: list[MatrixForm] = []
    for alone in (True, False):  # warp groups compete with warps
        kept += [f for f in best.values() if f.fragment.reads_scratchpad != alone][: _FORMS if alone else _GROUP_FORMS]
    least = min((f.sort_key(geometry)[0] for f in kept), default=0.0)
    return tuple(f for f in kept if f.sort_key(geometry)[0] <= _WORSE * least)


def _promising_blocks(geometry: Geometry, spec: DeviceSpec, form: MatrixForm, options: ConstructOptions) -> TileBatch:
    """Return the most promising blocks of a form with one stage, by a bound on arithmetic and shared cache."""
    states = grow_matrix_blocks(geometry, spec, form, options)
    a = len(geometry.names)
    k, fragment_k = form.axes[2], form.fragment.k
    most = -(-int(geometry.extents[k]) // fragment_k)
    steps = sorted({min(s, most) for s in _STEPS})
    register = np.repeat(states[:, :a], len(steps), axis=0)
    block = register * np.repeat(states[:, a:], len(steps), axis=0)
    block[:, k] = np.tile(steps, len(states)) * fragment_k
    batch = _batch_of_tiles(geometry, form, register, block)
    if len(batch) and form.fragment.reads_scratchpad:  # swizzled tiles are copied in whole chunks or by elements
        batch = batch.take(np.logical_and.reduce([c.nbytes == CHUNK_BYTES for c in operand_copies(batch)]))
        register, block = batch.register, batch.block
    keep = (scratchpad_bytes(batch) <= spec.layer("shared").budget_bytes) & allowed_padding_mask(
        geometry, block, options
    )
    policy = POLICIES[options.policy]
    if policy is not None:
        sides, extents = block[:, form.axes[:2]], geometry.extents[list(form.axes[:2])]
        # An axis that is shorter than every library tile is padded: its single tile is a fragment's side.
        short = (sides < min(policy.unit_sides)) & (sides >= extents)
        keep &= (np.isin(sides, policy.unit_sides) | short).all(axis=1)
    batch = batch.take(keep)
    if len(batch) <= _PRICED:
        return batch
    moved_s = traffic_and_footprint(geometry, batch.block)[0] / spec.layer("l2").bandwidth_bytes_per_s
    bound = np.maximum(PHASES.arithmetic(batch, spec), moved_s)
    return batch.take(np.sort(np.argsort(bound, kind="stable")[:_PRICED]))


def _batch_of_tiles(geometry: Geometry, form: MatrixForm, register: Ints, block: Ints) -> TileBatch:
    names = tuple(geometry.names[a] for a in form.axes)
    ones = np.ones(len(block), np.int64)
    return TileBatch(
        geometry, "matrix", register, block, ones, geometry.load_names, fragment=form.fragment, matrix_axes=names
    )


def _thread_group_tiles(geometry: Geometry, form: MatrixForm) -> Ints:
    """Return the tiles of one group of threads, shape ``(N, axes)``: whole fragments along m and n, and one along k."""
    m, n, k = form.axes
    counts = [-(-int(geometry.extents[a]) // s) for a, s in zip(form.axes, form.sizes, strict=True)]
    choices = [[c for c in _ACROSS if c <= count and -(-count // c) * c <= _OVERHANG * count] for count in counts[:2]]
    tiles = np.ones((len(choices[0]) * len(choices[1]), len(geometry.names)), np.int64)
    tiles[:, m] = np.repeat(choices[0], len(choices[1])) * form.fragment.m
    tiles[:, n] = np.tile(choices[1], len(choices[0])) * form.fragment.n
    tiles[:, k] = form.fragment.k
    return tiles


def grow_matrix_blocks(
    geometry: Geometry, spec: DeviceSpec, form: MatrixForm, options: ConstructOptions, seen: GrowthTrace | None = None
) -> Ints:
    """Return blocks grown by groups along the m and n axes, as states ``[register tile | groups]``."""
    register = _thread_group_tiles(geometry, form)
    register = register[fills_whole_teus(_batch_of_tiles(geometry, form, register, register), spec)]
    a = len(geometry.names)
    most = min(_GROUPS, (spec.limits.threads_per_block or 0) // form.fragment.threads)
    axes = np.array(form.axes[:2])  # blocks step over all other axes
    states = np.concatenate([register, np.ones_like(register)], axis=1)
    visited = [states]
    for _ in range(most.bit_length() - 1):
        useful = -(-geometry.extents // states[:, :a])
        table = np.repeat(states[None], len(axes), axis=0)
        grows = np.empty(table.shape[:2], bool)
        for n, axis in enumerate(axes):
            now = states[:, a + axis]
            table[n, :, a + axis] = np.minimum(2 * now, np.maximum(useful[:, axis], now))
            grows[n] = table[n, :, a + axis] > now
        both = np.concatenate([states[None], table])
        traffic, footprint = (
            x.reshape(both.shape[:2])
            for x in traffic_and_footprint(geometry, (both[..., :a] * both[..., a:]).reshape(-1, a))
        )
        score = reuse_score((traffic[0], footprint[0]), (traffic[1:], footprint[1:]))
        if seen is not None:
            seen.note(states, table, score, grows)
        chosen = best_children(table, score, grows, 2)
        chosen = unique_rows(chosen[product_of_columns(chosen, a + axes) <= most])
        if not len(chosen):
            break
        states = chosen
        visited.append(states)
    return unique_rows(np.concatenate(visited if options.shrink else visited[-1:]))


def _pipeline_stage_counts(batch: TileBatch, spec: DeviceSpec, options: ConstructOptions) -> tuple[int, ...]:
    """Return the numbers of stages to consider: copies through registers hold only one step."""
    ring = STAGES if copies_both_operands_asynchronously(batch, spec).any() else REGISTER_STAGES
    return ring if options.pipelining else ring[:1]


def _least_time_and_fastest_programs(
    batch: TileBatch, spec: DeviceSpec, options: ConstructOptions
) -> tuple[float, TileBatch]:
    """Return the smallest time with a medium number of stages, and the fastest programs, including split reductions."""
    ring = _pipeline_stage_counts(batch, spec, options)
    parts = [batch, *(with_split_reductions(batch, spec) if options.split_k else [])]
    whole = replace(
        batch,
        register=np.concatenate([p.register for p in parts]),
        block=np.concatenate([p.block for p in parts]),
        split_k=np.concatenate([p.split_k for p in parts]),
    )
    seconds = PHASES.price(replace(whole, stages=ring[len(ring) // 2]), spec)["seconds"]
    return float(seconds.min()), whole.take(_rows_of_least_times(seconds, _VARIED))


def _pipelined_variants(batch: TileBatch, spec: DeviceSpec, options: ConstructOptions) -> list[TileBatch]:
    """Return each program with its fastest numbers of stages and, for each of them, the faster order of blocks."""
    ring = _pipeline_stage_counts(batch, spec, options)
    tried = [replace(batch, stages=1), *([batch.with_stages_and_rasters(ring[1:])] if len(ring) > 1 else [])]
    terms = [PHASES.price(b, spec) for b in tried]
    seconds, per_unit = (
        np.concatenate([t[n] for t in terms]).reshape(len(ring), -1) for n in ("seconds", "blocks_per_unit")
    )
    seconds[len(REGISTER_STAGES) :, ~copies_both_operands_asynchronously(batch, spec)] = np.inf
    rank = np.argsort(np.argsort(seconds, axis=0, kind="stable"), axis=0, kind="stable")
    kept = (rank < _PLACES) & np.isfinite(seconds)
    raster = np.ones(seconds.shape, np.int64)
    if options.pipelining and operands_exceed_shared_cache(batch, spec):
        raster, seconds = _faster_block_orders(batch, ring, kept, (seconds, per_unit), spec)
    found = []
    for n, several in ((ring[:1], False), (ring[1:], True)):
        which, row = np.nonzero(kept & (np.isin(ring, n)[:, None]))
        if len(row):
            stages = np.array(ring)[which] if several else 1
            b = replace(batch.take(row), stages=stages, raster=raster[which, row])
            found.append(b.priced(spec, seconds[which, row]))
    return found


def _faster_block_orders(
    batch: TileBatch, ring: Sequence[int], kept: np.ndarray, plain: tuple[Floats, Floats], spec: DeviceSpec
) -> tuple[Ints, Floats]:
    """Return, per number of stages and program, the faster order of blocks (the plain one if equal) and the time."""
    seconds, per_unit = (x.copy() for x in plain)
    raster = np.ones(seconds.shape, np.int64)
    # Blocks that together cover a square piece of the output load the least; only powers of two are tried.
    several = (batch.counts[:, batch.geometry.spatial] > 1).sum(axis=1) > 1  # otherwise there is only one order
    orders = kept & (kept & several & (batch.blocks > spec.units)).any(axis=1)[:, None]
    for pipelined in (False, True):
        which, row = np.nonzero(orders & ((np.array(ring) > 1) == pipelined)[:, None])
        if not len(row):
            continue
        together = np.array([spec.units * np.median(per_unit[n][kept[n]]) for n in which])
        square = 1 << np.rint(np.log2(together) / 2).astype(np.int64)
        stages = np.array(ring)[which] if pipelined else 1
        times = PHASES.price(replace(batch.take(row), stages=stages, raster=square), spec)["seconds"]
        faster = times < seconds[which, row]
        raster[which, row] = np.where(faster, square, 1)
        seconds[which, row] = np.minimum(times, seconds[which, row])
    return raster, seconds


def _rows_of_least_times(seconds: Floats, count: int) -> np.ndarray:
    """Return the rows with the ``count`` smallest finite times, in row order."""
    order = np.argsort(seconds, kind="stable")[:count]
    return np.asarray(np.sort(order[np.isfinite(seconds[order])]))
