"""Alignment rules: one function each, in one list. A program either meets a rule or names it in ``relaxed``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from roller.tile.fragments import conflicts, program_operands
from roller.tile.geometry import Geometry
from roller.tile.layout import lane_reads
from roller.tile.program import RProgram
from roller.tile.transactions import row_alignment_bytes
from roller.tile.winograd_products import products_program

if TYPE_CHECKING:  # the spec is only read here; importing it would bring YAML to machines that only run kernels
    from roller.hardware import DeviceSpec

#: ``rule(program, spec, epsilon) -> bool``; the key is the name used in ``RProgram.relaxed``.
Rule: TypeAlias = "Callable[[RProgram, DeviceSpec, float], bool]"


def execution_unit(program: RProgram, spec: DeviceSpec, epsilon: float) -> bool:
    """Rule 1: the threads of a block fill whole TEUs; on a CPU the vectorised axis is a multiple of the lanes.

    Tiles of a matrix unit are multiples of its fragment.
    """
    if program.fragment is not None:
        f, tile = program.fragment, program.tile("register")
        sizes = zip(program.matrix_axes, (f.m, f.n, f.k), strict=True)
        return program.threads_per_block % spec.teu.lanes == 0 and all(tile[a] % size == 0 for a, size in sizes)
    if program.kind == "gpu":
        return program.threads_per_block % spec.teu.lanes == 0
    if program.vector_axis is None:
        return False
    return program.tile("register")[program.vector_axis] % program.vector_elements == 0


def transaction(program: RProgram, spec: DeviceSpec, epsilon: float) -> bool:
    """Rule 2: rows of loaded tiles start at, and are multiples of, whole transactions, or span the dimension."""
    block = tuple(program.block_tile.values())
    size = spec.memory_layers[-1].transaction_bytes
    known = program.expr._memo.setdefault("transactions", {})
    if (block, size) not in known:  # programs that share a block tile share the answer
        known[block, size] = _whole_transactions(Geometry.of(program.expr), block, size)
    return bool(known[block, size])


def _whole_transactions(geometry: Geometry, block: tuple[int, ...], size: int) -> bool:
    """Whether every data tile of a block tile consists of whole transactions of ``size`` bytes."""
    tile = np.array([block], np.int64)
    for access in geometry.loads:
        if not access.coefficients.shape[0]:
            continue
        # Of windows that reach a whole dimension from several blocks, each sees but a part.
        several = (-(-geometry.extents // tile[0]) > 1) & (access.coefficients != 0)
        if (several.any(axis=1) & (access.extents(tile)[0] >= np.array(access.tensor.shape))).any():
            return False
        rows, run = access.runs(tile)
        spans = not access.gather and bool(access.extents(tile)[0, -1] >= access.tensor.shape[-1])
        whole = int(run[0]) * access.tensor.itemsize_bytes % size == 0
        aligned = int(rows[0]) == 1 or int(row_alignment_bytes(access, tile, size)[0]) >= size
        if not (aligned and (whole or spans)):
            return False
    return True


def memory_bank(program: RProgram, spec: DeviceSpec, epsilon: float) -> bool:
    """Rule 3: no bank serves two words for one read of a staged tile by one TEU (enumerated)."""
    if program.kind != "gpu" or not program.staged or program.structure == "rows":
        return True
    shared = spec.layer("shared")
    padding = dict(program.storage_padding)
    banks, width = shared.banks or spec.teu.lanes, shared.bank_width_bytes or 4
    if program.fragment is not None and program.fragment.reads_scratchpad:
        return True  # swizzled: see roller.tile.warp_groups
    if program.fragment is not None:
        read = ((x, program.fragment, padding.get(x.tensor.name, 0), banks, width) for x in program_operands(program))
        return all(conflicts(*r) == 1 for r in read)
    reads = lane_reads(program, spec.teu.lanes)
    return all(r.degree(padding.get(t, 0), banks, width) == 1 for t, r in reads.items())


def tensor_shape(program: RProgram, spec: DeviceSpec, epsilon: float) -> bool:
    """Rule 4: padded waste ``((S - N % S) % S) / N`` of every axis is at most ``epsilon``."""
    return all(-a.extent % program.block_tile[a.name] / a.extent <= epsilon for a in program.axes)


RULES: dict[str, Rule] = {
    "execution_unit": execution_unit,
    "transaction": transaction,
    "bank": memory_bank,
    "shape": tensor_shape,
}


def broken_rules(program: RProgram, spec: DeviceSpec, epsilon: float = 1.0) -> tuple[str, ...]:
    """Return the names of the rules a program does not meet; a GPU's Winograd programs are asked for their product."""
    program = products_program(program) or program
    return tuple(name for name, rule in RULES.items() if not rule(program, spec, epsilon))
