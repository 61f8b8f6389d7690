"""Copies of operands for a matrix unit: elements copied at once, and registers that hold data in transit.

Rows of a staged tile run along one axis (:mod:`roller.tile.matrix_operands`); elements are copied as vectors if that
axis also runs along the tensor's rows and the vectors are aligned in every block. Copies of four bytes and more are
asynchronous if the device supports it; the data of other copies is fetched one step ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roller.expr import Load
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.staged_copy_counts import StagedCopy
from roller.tile.geometry import Access, Floats, Ints, product_of_columns
from roller.tile.matrix_operands import Operand, make_operands
from roller.tile.transactions import tile_transaction_bytes
from roller.tile.vector_access_widths import may_copy_asynchronously

#: Number of registers for a gathered round's address and conditions, from machine code of 7x7 convolutions (sm_70,
#: sm_80; NVRTC 12.9).
GATHERED_REGISTERS = 0.75
#: Number of elements that a tile reads, including the surrounding rows that windows reach, relative to the tile alone.
_HALO = 1.5


@dataclass(frozen=True)
class OperandCopy:
    """How one operand of a batch is copied."""

    operand: Operand
    access: Access
    copy: StagedCopy

    @property
    def width(self) -> Ints:
        """Number of elements per copy, shape ``(N,)``."""
        return self.copy.width

    @property
    def rounds(self) -> Ints:
        """Number of copies per thread, shape ``(N,)``."""
        return self.copy.rounds

    @property
    def nbytes(self) -> Ints:
        """Number of bytes per copy, shape ``(N,)``."""
        return self.width * self.access.tensor.itemsize_bytes

    def is_async(self, spec: DeviceSpec) -> np.ndarray:
        """Return the mask of programs whose copies are asynchronous, shape ``(N,)``."""
        return np.asarray(bool(spec.execution.async_copy_bytes) & may_copy_asynchronously(self.nbytes))


def operand_copies(batch: TileBatch) -> tuple[OperandCopy, OperandCopy]:
    """Return how operands A and B of a ``"matrix"`` batch are copied."""
    if "operand_copies" not in batch._memo:
        g = batch.geometry
        tile = dict(zip(g.names, (int(x) for x in batch.block[0]), strict=True))
        found = make_operands(g.expr.anchor, g.expr.tensors, batch.matrix_axes, tile)
        loads = {(a.tensor.name, a.index): a for a in g.loads}
        accesses = [loads[x.load.tensor, x.load.index] for x in found]
        copies = [
            OperandCopy(x, a, StagedCopy.of(a, batch, x.layout.axes)) for a, x in zip(accesses, found, strict=True)
        ]
        batch._memo["operand_copies"] = copies[0], copies[1]
    both: tuple[OperandCopy, OperandCopy] = batch._memo["operand_copies"]
    return both


def _is_guarded_along(load: Load, axis: str) -> bool:
    return any(axis in b.index.axes for b in load.guard)


def fetched_element_registers(batch: TileBatch, spec: DeviceSpec) -> Ints:
    """Return the number of registers per thread for elements in transit to the scratchpad, shape ``(N,)``."""
    total = np.zeros(len(batch), np.int64)
    for copy in operand_copies(batch):
        total += np.where(copy.is_async(spec), 0, copy.rounds * np.maximum(1, copy.nbytes // 4))
    return total


def gather_address_registers(batch: TileBatch, spec: DeviceSpec) -> Ints:
    """Return the number of registers per thread for addresses that the compiler keeps across steps, shape ``(N,)``."""
    # Rounds of a copy through registers differ by a constant, unless rows of the tile are gathered: in that case, each
    # round has its own address and conditions, which stay the same in all steps if rows move along a spatial axis.
    total = np.zeros(len(batch), np.int64)
    for copy in operand_copies(batch):
        across, load = copy.operand.across, copy.operand.load
        kept = across == copy.operand.axis and (
            _is_guarded_along(load, across)
            or any(t.axis == across and not t.is_affine for i in load.index for t in i.terms)
        )
        if kept:
            words = np.ceil(GATHERED_REGISTERS * copy.rounds).astype(np.int64)
            total += np.where(copy.is_async(spec), 0, words)
    return total


def guarded_copies_per_step(batch: TileBatch) -> Ints:
    """Return the vectors per step that a thread copies conditionally because tiles overhang axes, shape ``(N,)``."""
    g, total = batch.geometry, np.zeros(len(batch), np.int64)
    overhangs = g.extents % batch.block != 0
    for copy in operand_copies(batch):
        total += np.where(overhangs[:, list(copy.access.used_axes)].any(axis=1), copy.rounds, 0)
    return total


def l2_bytes_with_cached_windows(batch: TileBatch, spec: DeviceSpec, resident: Floats) -> dict[int, Floats]:
    """Return the L2 bytes of operands whose windows stay in a unit's L1 cache, keyed by position in ``loads``."""
    # Steps over the reduction axes inside the k axis take one point at a time and read the same transactions again. A
    # tile over whole windows loads each transaction only once if the tiles of all resident blocks fit in this cache
    # next to the scratchpad. Copies that bypass registers also bypass the cache. An entry is infinite if nothing stays
    # in it.
    g, f = batch.geometry, batch.fragment
    k = g.names.index(batch.matrix_axes[2])
    inner = [a for a in range(k + 1, len(g.names)) if not g.spatial[a] and g.extents[a] > 1]
    if not inner or f is None or f.reads_scratchpad:
        return {}
    whole = batch.block.copy()
    whole[:, inner] = g.extents[inner]
    launches = product_of_columns(g.counts(whole), range(len(g.names)))
    kept, staged = {}, np.zeros(len(batch))
    for copy in operand_copies(batch):
        a = copy.access
        tile = batch.block if a.gather else whole
        moved = tile_transaction_bytes(a, tile, spec.layer("l2").transaction_bytes)[0] * (_HALO if a.gather else 1.0)
        kept[g.loads.index(a)] = np.where(copy.is_async(spec), np.inf, moved)
        staged += product_of_columns(batch.block, a.used_axes) * (a.tensor.itemsize_bytes * batch.stages)
    together = sum((np.where(np.isfinite(m), m, 0.0) for m in kept.values()), staged)
    fits = together * np.maximum(resident, 1.0) <= spec.layer("shared").capacity_bytes
    return {n: np.where(fits, moved * launches, np.inf) for n, moved in kept.items()}


def copies_both_operands_asynchronously(batch: TileBatch, spec: DeviceSpec) -> np.ndarray:
    """Return the mask of programs that copy both operands asynchronously, shape ``(N,)``."""
    one, other = operand_copies(batch)
    return np.asarray(one.is_async(spec) & other.is_async(spec))
