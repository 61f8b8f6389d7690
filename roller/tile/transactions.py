"""Traffic in whole transactions: rows of a data tile, their pitch and their offsets.

A row of ``b`` bytes whose start is a multiple of ``g`` bytes (``g`` a power of two up to the
transaction of ``L`` bytes) touches on average ``(ceil(b / g) + L / g - 1) / (L / g)`` transactions over the
``L / g`` possible offsets; with ``g == L`` that is ``ceil(b / L)``.
"""

from __future__ import annotations

import numpy as np

from roller.tile.geometry import Access, Floats, Ints


def row_alignment_bytes(access: Access, tiles: Ints, transaction_bytes: int) -> Ints:
    """Return the largest power of two (up to a transaction) that every row of every tile starts at."""
    bits = np.full(len(tiles), transaction_bytes, np.int64)
    size = access.tensor.itemsize_bytes
    if access.gather:
        # Gathered rows start wherever the fused axis wraps: only single elements are certain.
        return np.full(len(tiles), size, np.int64)
    shape = access.tensor.shape
    pitch = size
    extents = np.minimum(access.extents(tiles), np.array(shape, np.int64))
    last = len(shape) - 1
    for d in range(last, -1, -1):
        if access.constants[d]:
            bits |= int(abs(access.constants[d])) * pitch
        for a in np.flatnonzero(access.coefficients[d]):
            moves = tiles[:, a] < access.axis_extents[a]
            bits |= np.where(moves, tiles[:, a] * (abs(int(access.coefficients[d, a])) * pitch), 0)
        if d < last:
            whole = np.ones(len(tiles), bool) if last == d else (extents[:, d + 1 :] == np.array(shape[d + 1 :])).all(1)
            bits |= np.where(whole | (extents[:, d] == 1), 0, int(access.lattice[d]) * pitch)
        pitch *= shape[d]
    return bits & -bits


def transactions_per_row(row_bytes: Ints, alignment_bytes: Ints, transaction_bytes: int) -> Floats:
    """Return the expected transactions of one row (formula in the module's docstring)."""
    slots = transaction_bytes // alignment_bytes
    return (-(-row_bytes // alignment_bytes) + slots - 1) / slots


def tile_transaction_bytes(access: Access, tiles: Ints, transaction_bytes: int) -> tuple[Floats, Ints]:
    """Return bytes moved in whole transactions for one data tile, and the alignment of its rows."""
    rows, run = access.runs(tiles)
    alignment = np.minimum(row_alignment_bytes(access, tiles, transaction_bytes), transaction_bytes)
    per_row = transactions_per_row(run * access.tensor.itemsize_bytes, alignment, transaction_bytes)
    return rows * per_row * transaction_bytes, alignment


def touched_bytes(access: Access, transaction_bytes: int) -> float:
    """Return bytes of the tensor in transactions that are touched at all (strided rows may be skipped)."""
    whole = access.axis_extents[None, :]
    moved, _ = tile_transaction_bytes(access, whole, transaction_bytes)
    if access.gather:
        return float(access.tensor.nbytes)
    return float(min(moved[0], -(-access.tensor.nbytes // transaction_bytes) * transaction_bytes))
