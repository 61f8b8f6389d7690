"""Which of construction's conditions a program does not meet: what kept the generator from it."""

from __future__ import annotations

import numpy as np

from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.common.options import ConstructOptions
from roller.templates.common.scale_up import REGISTER_EXTENT, aligned_extents
from roller.templates.cpu import lane_count
from roller.templates.cpu.common import candidate_axes_and_task_shapes
from roller.templates.cpu.dots.candidates import dot_product_batch
from roller.templates.cpu.registry import pool as cpu_programs
from roller.templates.cpu.tiled import candidates as cpu_candidates
from roller.templates.gpu.registry import programs_of_form as gpu_programs
from roller.templates.gpu.tiled import candidates as gpu_candidates
from roller.tile.geometry import Geometry, Ints
from roller.tile.program import RProgram

#: What is said of a program that construction prices too: its storage padding, or its place among equals, decided.
IN_POOL = "none: it is in the pool"


def excluding_rules(program: RProgram, spec: DeviceSpec, options: ConstructOptions) -> tuple[str, ...]:
    """Return the conditions of the generator that a program does not meet, in the order the generator asks them.

    Later conditions follow from earlier ones (what is not seeded is not grown), so the first that fails is named, with
    the rules of alignment before all.
    """
    geometry = Geometry.of(program.expr)
    register, block = (np.array(program.tiles[n][1], np.int64) for n in (0, -1))
    find = _gpu if spec.kind == "gpu" else _cpu
    return find(program, geometry, register, block, spec, options) or (IN_POOL,)


def _known(rows: Ints, *parts: Ints) -> bool:
    """Whether one of the rows is the parts side by side."""
    return bool((rows == np.concatenate(parts)).all(axis=1).any())


def _gpu(
    program: RProgram, g: Geometry, register: Ints, block: Ints, spec: DeviceSpec, options: ConstructOptions
) -> tuple[str, ...]:
    misaligned = ("alignment: execution unit",) if program.threads_per_block % spec.teu.lanes else ()
    if program.structure != "tiled":
        pools = gpu_programs(g, spec, options)
        same = any(_known(np.concatenate([b.register, b.block], axis=1), register, block) for b in pools)
        return misaligned or (() if same else (f"sizes of {program.structure} tiles",))
    offered = zip(register[g.spatial], g.extents[g.spatial], strict=True)
    if not all(int(r) in aligned_extents(int(e), REGISTER_EXTENT) for r, e in offered):
        return (*misaligned, f"register tile: sizes (powers of two, divisors, at most {REGISTER_EXTENT})")
    registers = gpu_candidates.grow_register_tiles(g, spec)
    if not _known(registers, register):
        return (*misaligned, "register tile: the best of each size by products per operand")
    threads = np.where(g.spatial, block // register, 1)
    visited = gpu_candidates.blocks(g, spec, registers, options)
    if misaligned:
        return misaligned
    if not _known(visited, register, threads):
        return ("block: seeds and growth order (reuse score, best branches)",)
    steps = gpu_candidates.reduction_steps_by_register_tile(g, registers)
    table = steps[tuple(int(x) for x in np.where(g.spatial, 1, register))]
    if not _known(table, np.where(g.spatial, 1, block)):
        return ("reduction step: sizes",)
    count = -(-options.pool // max(len(t) for t in steps.values()))
    kept = gpu_candidates.states_with_least_bounds(g, spec, visited, steps, count)
    return () if _known(kept, register, threads) else ("pool: most promising blocks",)


def _cpu(
    program: RProgram, g: Geometry, register: Ints, block: Ints, spec: DeviceSpec, options: ConstructOptions
) -> tuple[str, ...]:
    v = g.names.index(program.vector_axis or g.names[-1])
    lanes = lane_count(spec, 4)
    vectors, pools = int(register[v]) // lanes, cpu_programs(g, spec, options)
    if any(_same(b, program, register, block, v) for b in pools):
        return ()
    if program.structure in ("rows", "streaming"):
        known = vectors in candidate_axes_and_task_shapes.candidate_vector_counts(g, v, lanes)
        return (f"{program.structure}: {'tasks' if known else 'vectors'} per {'core' if known else 'register tile'}",)
    others = candidate_axes_and_task_shapes.candidate_row_axes(g, v)
    if not g.spatial[v]:
        batch = dot_product_batch(g, spec, v, others, lambda r: [np.ones_like(r)])
        return ("dots: outputs, chains and chunks" if not _known(batch.register, register) else "dots: tasks",)
    rows = [a for a in np.flatnonzero(g.spatial) if a != v and register[a] > 1]
    if not set(rows) <= set(others):
        return ("micro-kernel: rows along an axis that shares no operand",)
    usable = spec.limits.usable_vector_registers or 1
    if vectors not in cpu_candidates.VECTORS:
        return ("micro-kernel: numbers of vectors",)
    if tuple(register[others].tolist()) not in cpu_candidates.candidate_kernel_rows(
        g, others, max(1, usable // vectors)
    ):
        return ("micro-kernel: numbers of rows",)
    found = cpu_candidates.promising_register_tiles(g, spec, program.constants)
    if v not in found or not _known(found[v], register):
        return ("micro-kernel: the best few as one task",)
    pieces = [np.where(g.spatial, 1, g.extents), *cpu_candidates.candidate_reduction_chunks(g, spec)]
    if not _known(np.stack(pieces), np.where(g.spatial, 1, block)):
        return ("reduction: sizes of pieces",)
    return ("tasks: sizes",)


def _same(batch: TileBatch, program: RProgram, register: Ints, block: Ints, v: int) -> bool:
    """Whether a batch of the pool holds the program."""
    alike = (batch.structure, batch.staged, batch.vector_axis) == (program.structure, program.staged, v)
    here = (batch.register == register).all(axis=1) & (batch.block == block).all(axis=1)
    return alike and bool((here & (batch.split_k == program.split_k)).any())
