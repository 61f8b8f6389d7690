"""Alignment rules, one function each; a program fulfils each rule or names it in ``relaxed``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from roller.tile.geometry import Geometry, Ints
from roller.tile.matrix_operands import bank_conflict_degree, program_operands
from roller.tile.program import RProgram
from roller.tile.staged_tile_layout import lane_reads
from roller.tile.transactions import row_alignment_bytes
from roller.tile.winograd_batched_product import tiled_product_of_program

if TYPE_CHECKING:  # the spec is only read here; importing it would bring YAML to machines that only run kernels
    from roller.hardware import DeviceSpec

#: ``rule(program, spec, epsilon) -> bool``; its key in :data:`RULES` is its name in ``RProgram.relaxed``.
Rule: TypeAlias = "Callable[[RProgram, DeviceSpec, float], bool]"


def fills_execution_units(program: RProgram, spec: DeviceSpec, epsilon: float) -> bool:
    """Return whether rule 1 holds: blocks fill whole TEUs, a CPU's vectors fill lanes, and tiles fill fragments."""
    if program.fragment is not None:
        f, tile = program.fragment, program.tile("register")
        sizes = zip(program.matrix_axes, (f.m, f.n, f.k), strict=True)
        whole = not spec.traits.blocks or program.threads_per_block % spec.teu.lanes == 0
        return whole and all(tile[a] % size == 0 for a, size in sizes)
    if spec.traits.blocks:
        return program.threads_per_block % spec.teu.lanes == 0
    if program.vector_axis is None:
        return False
    return program.tile("register")[program.vector_axis] % program.vector_elements == 0


def fills_transactions(program: RProgram, spec: DeviceSpec, epsilon: float) -> bool:
    """Return whether rule 2 holds: loaded rows start at transactions and fill them, or span the dimension."""
    block = tuple(program.block_tile.values())
    size = spec.home.transaction_bytes
    known = program.expr._memo.setdefault("transactions", {})
    if (block, size) not in known:  # the result depends only on the block tile
        known[block, size] = bool(
            whole_transactions_mask(Geometry.of(program.expr), np.array([block], np.int64), size)[0]
        )
    return bool(known[block, size])


def precompute_fills_transactions(programs: Sequence[RProgram], spec: DeviceSpec) -> None:
    """Compute and store the results of :func:`fills_transactions` for all programs of each expression at once."""
    size, found = spec.home.transaction_bytes, [tiled_product_of_program(p) or p for p in programs]
    for expr in {id(p.expr): p.expr for p in found}.values():
        blocks = list(dict.fromkeys(tuple(p.block_tile.values()) for p in found if p.expr is expr))
        answers = whole_transactions_mask(Geometry.of(expr), np.array(blocks, np.int64), size)
        known = expr._memo.setdefault("transactions", {})
        known.update({(b, size): bool(x) for b, x in zip(blocks, answers, strict=True)})


def whole_transactions_mask(geometry: Geometry, tiles: Ints, size: int) -> np.ndarray:
    """Return the mask of block tiles whose data tiles are whole transactions of ``size`` bytes, shape ``(N,)``."""
    good = np.ones(len(tiles), bool)
    for access in geometry.loads:
        if not access.coefficients.shape[0]:
            continue
        # If several blocks have windows over the whole dimension, each block reads only a part of it.
        several = (-(-geometry.extents // tiles) > 1).astype(np.int64) @ (access.coefficients != 0).T > 0
        extents = access.extents(tiles)
        good &= ~(several & (extents >= np.array(access.tensor.shape))).any(axis=1)
        rows, run = access.runs(tiles)
        spans = (not access.gather) & (extents[:, -1] >= access.tensor.shape[-1])
        whole = run * access.tensor.itemsize_bytes % size == 0
        good &= ((rows == 1) | (row_alignment_bytes(access, tiles, size) >= size)) & (whole | spans)
    return good


def avoids_bank_conflicts(program: RProgram, spec: DeviceSpec, epsilon: float) -> bool:
    """Return whether rule 3 holds, by enumeration: no bank serves two words in one TEU's read of a staged tile."""
    if not spec.traits.scratchpad or not program.staged or program.traits.spreads_reductions:
        return True
    shared = spec.layer(spec.traits.scratchpad)
    padding = dict(program.storage_padding)
    banks, width = shared.banks or spec.teu.lanes, shared.bank_width_bytes or 4
    if program.fragment is not None and program.fragment.reads_scratchpad:
        return True  # swizzled: see roller.tile.warp_group_tiles
    if program.fragment is not None:
        read = ((x, program.fragment, padding.get(x.tensor.name, 0), banks, width) for x in program_operands(program))
        return all(bank_conflict_degree(*r) == 1 for r in read)
    reads = lane_reads(program, spec.teu.lanes)
    return all(r.worst_conflict_degree(padding.get(t, 0), banks, width) == 1 for t, r in reads.items())


def limits_padding_waste(program: RProgram, spec: DeviceSpec, epsilon: float) -> bool:
    """Return whether rule 4 holds: for tile S of axis N, waste ``((S - N % S) % S) / N`` is at most ``epsilon``."""
    return all(-a.extent % program.block_tile[a.name] / a.extent <= epsilon for a in program.axes)


RULES: dict[str, Rule] = {
    "execution_unit": fills_execution_units,
    "transaction": fills_transactions,
    "bank": avoids_bank_conflicts,
    "shape": limits_padding_waste,
}


def broken_rules(program: RProgram, spec: DeviceSpec, epsilon: float = 1.0) -> tuple[str, ...]:
    """Return the names of the rules that a program (for Winograd on a GPU, its product) violates."""
    program = tiled_product_of_program(program) or program
    return tuple(name for name, rule in RULES.items() if not rule(program, spec, epsilon))
