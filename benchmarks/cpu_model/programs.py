"""Random CPU programs of an expression, aligned and unaligned: what the model must order without having chosen it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from roller.construction.constructor import program_from_row
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.estimate import Estimate
from roller.perf.tile_batch import TileBatch
from roller.templates import price_with_templates
from roller.templates.common.forms import canonical_forms
from roller.templates.common.options import ConstructOptions
from roller.templates.cpu import lane_count
from roller.templates.cpu.common.candidate_axes_and_task_shapes import candidate_vector_axes
from roller.templates.cpu.dots.candidates import dot_product_axes
from roller.templates.cpu.tiled.candidates import packed_input_choices
from roller.tile.geometry import Geometry, Ints
from roller.tile.program import RProgram
from roller.tile.structures import Structure, structure_of

#: A program predicted so many times slower than the fastest one sampled is left out: it would take minutes, and tells
#: no more than one that is ten times slower.
TOO_SLOW = 40.0
#: Programs sampled for each one kept.
_SAMPLED_PER_KEPT = 6
#: Share of tiled programs with lanes along a reduction axis, where there is one; with the reduction cut into pieces.
_DOTS, _CHUNKED = 0.15, 0.25


@dataclass(frozen=True)
class Sample:
    """A random program, its prediction, and whether its tiles are aligned (whole vectors, whole divisors)."""

    program: RProgram
    estimate: Estimate
    aligned: bool


def random_programs(expr: TensorExpr, spec: DeviceSpec, count: int, seed: int) -> list[Sample]:
    """Return ``count`` distinct random programs of ``expr``, half of them aligned.

    Forms, vector axes, packing, register tiles, tasks, pieces of the reduction and kinds of stores are drawn
    independently of what construction would choose; sizes are drawn evenly on a logarithmic scale. The model has a
    say only in what cannot run (registers) and in what is hopeless (:data:`TOO_SLOW`).
    """
    rng = np.random.default_rng(seed)
    forms = [Geometry.of(f) for f in canonical_forms(expr, ConstructOptions())]
    drawn: dict[str, Sample] = {}
    for aligned, batch in _batches(forms, spec, rng, count * _SAMPLED_PER_KEPT):
        estimate = price_with_templates.estimate_programs([program := program_from_row(batch, 0, spec)], spec)[0]
        if math.isfinite(estimate.seconds):
            drawn.setdefault(str(program), Sample(program, estimate, aligned))
    best = min(s.estimate.seconds for s in drawn.values())
    usable = [s for s in drawn.values() if s.estimate.seconds <= TOO_SLOW * best]
    halves = [[s for s in usable if s.aligned][: count // 2], [s for s in usable if not s.aligned]]
    return [*halves[0], *halves[1][: count - len(halves[0])]]


def _batches(
    forms: list[Geometry], spec: DeviceSpec, rng: np.random.Generator, count: int
) -> Iterator[tuple[bool, TileBatch]]:
    for n in range(count):
        g = forms[int(rng.integers(len(forms)))]
        aligned = n % 2 == 0
        yield aligned, _random_batch(g, spec, rng, aligned)


def _random_batch(g: Geometry, spec: DeviceSpec, rng: np.random.Generator, aligned: bool) -> TileBatch:
    """Return one random program as a batch of one."""
    structure = structure_of(g)
    v = int(rng.choice(candidate_vector_axes(g, structure)))
    dots = dot_product_axes(g, spec) if structure.reuses else []
    if dots and rng.random() < _DOTS:
        v = int(rng.choice(dots))
    register = _register(g, spec, rng, v, aligned, structure)
    tiles = -(-g.extents // np.minimum(register, g.extents))
    per_task = np.array([_size(rng, int(n), aligned) for n in tiles])
    whole = -(-g.extents // register) * register
    block = np.where(g.spatial, register * per_task, whole)
    if structure.reuses:
        block = _chunked(g, rng, block, register)
    staged: tuple[str, ...] = ()
    if structure.reuses and g.spatial[v]:
        choices = packed_input_choices(g, v)
        staged = choices[int(rng.integers(len(choices)))]
    panel = np.where(g.spatial, register, block)
    rows = [x[None].astype(np.int64) for x in (register, block, panel)]
    batch = TileBatch(g, structure.name, rows[0], rows[1], np.ones(1, np.int64), staged, rows[2], v)
    return replace(batch, nontemporal=not structure.reduces and bool(rng.random() < 0.5))


def _register(
    g: Geometry, spec: DeviceSpec, rng: np.random.Generator, v: int, aligned: bool, structure: Structure
) -> Ints:
    """Return a random register tile: vectors along ``v``, rows over the spatial axes within the usable registers."""
    lanes = lane_count(spec, 4)
    usable = spec.limits.usable_vector_registers or 1
    register = np.ones(len(g.names), np.int64)
    most = max(1, min(4, -(-int(g.extents[v]) // lanes)))
    vectors = _size(rng, most, True)
    register[v] = vectors * lanes if aligned else int(rng.integers(1, vectors * lanes + 1))
    if not structure.reuses:
        return register
    left = usable // vectors
    for a in rng.permutation(np.flatnonzero(g.spatial)):
        if a != v and left > 1:
            register[a] = _size(rng, min(left, int(g.extents[a])), False)
            left //= int(register[a])
    return register


def _chunked(g: Geometry, rng: np.random.Generator, block: Ints, register: Ints) -> Ints:
    """Return the task with its reduction cut into pieces, sometimes, where one axis is deep."""
    deep = np.flatnonzero(~g.spatial & (g.extents > 64))
    if len(deep) != 1 or rng.random() > _CHUNKED:
        return block
    a = deep[0]
    step = int(register[a])
    pieces = _size(rng, max(1, int(g.extents[a]) // (32 * step)), False) * 32 * step
    return np.where(np.arange(len(block)) == a, np.minimum(pieces, block), block)


def _size(rng: np.random.Generator, most: int, aligned: bool) -> int:
    """Return a size from 1 to ``most``, even on a logarithmic scale; aligned ones are powers of two, or all."""
    if aligned:
        choices = sorted({*(1 << i for i in range(most.bit_length()) if 1 << i <= most), most})
        return int(rng.choice(choices))
    return min(most, int(math.exp(rng.uniform(0.0, math.log(most + 1)))))
