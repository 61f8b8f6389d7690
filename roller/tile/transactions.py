"""Traffic in whole transactions: rows of a data tile, their pitch and their offsets.

A row of ``b`` bytes whose start is a multiple of ``g`` bytes (``g`` a power of two up to the
transaction of ``L`` bytes) touches on average ``(ceil(b / g) + L / g - 1) / (L / g)`` transactions over the
``L / g`` possible offsets; with ``g == L`` that is ``ceil(b / L)``.
"""

from __future__ import annotations

import numpy as np

from roller.tile.geometry import Access, Floats, Ints

#: Tile positions and rows along one dimension up to which rows are counted one by one.
_COUNTED_ROWS = 1 << 13


def row_alignment_bytes(access: Access, tiles: Ints, transaction_bytes: int) -> Ints:
    """Return the largest power of two (up to a transaction) that every row of every tile starts at."""
    bits = np.full(len(tiles), transaction_bytes, np.int64)
    size = access.tensor.itemsize_bytes
    if access.gather:
        # Gathered rows start wherever the fused axis wraps: only single elements are certain.
        return np.full(len(tiles), size, np.int64)
    shape = access.tensor.shape
    pitch = size
    last = len(shape) - 1
    whole = np.ones(len(tiles), bool)  # dimensions behind this one are covered
    for d in range(last, -1, -1):
        if access.constants[d]:
            bits |= int(abs(access.constants[d])) * pitch
        for a in np.flatnonzero(access.coefficients[d]):
            moves = tiles[:, a] < access.axis_extents[a]
            bits |= moves * (tiles[:, a] * (abs(int(access.coefficients[d, a])) * pitch))
        extent = np.minimum(access.extent(d, tiles), shape[d])
        if d < last:
            bits |= np.where(whole | (extent == 1), 0, int(access.lattice[d]) * pitch)
        whole = whole & (extent == shape[d])
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


def counted_bytes(access: Access, tile: Ints, transaction_bytes: int) -> float | None:
    """Return the bytes all tiles of a launch load in whole transactions, every row at the offset it really has.

    ``None`` where rows are not counted one by one: gathered tiles, diagonals, and more than a few ten thousand
    different rows; :func:`tile_transaction_bytes` then says what is expected.
    """
    key = ("counted", transaction_bytes, tile[access.uses].tobytes())
    if key not in access._memo:
        access._memo[key] = _count(access, tile, transaction_bytes)
    once: float | None = access._memo[key]
    counts = -(-access.axis_extents // tile)
    again = np.where(access.uses | ~access.reloads, 1, counts).astype(np.float64).prod()
    return None if once is None else float(again * once)


def _count(access: Access, tile: Ints, transaction_bytes: int) -> float | None:
    """Return the bytes of every data tile once."""
    shape, size = access.tensor.shape, access.tensor.itemsize_bytes
    if access.gather or not shape or any(len(dims) > 1 for dims, _ in access.groups):
        return None
    axes = {dims[0]: a for dims, a in access.groups}
    counts = -(-access.axis_extents // tile)
    if any(int(np.prod(counts[list(a)])) > _COUNTED_ROWS for a in axes.values()):
        return None
    pieces = [access.pieces(d, axes[d], tile) for d in range(len(shape))]
    pitch = [size * int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
    lead = len(shape) - 1  # the run starts at this dimension: those behind it are covered whole
    while lead > 0 and access.lattice[lead - 1] == 1 and (pieces[lead][1] == shape[lead]).all():
        lead -= 1
    offsets = np.zeros(transaction_bytes // size)  # rows by where they start in a transaction, in elements
    offsets[0] = 1.0
    for d in range(lead):
        first, number = pieces[d]
        if number.sum() > _COUNTED_ROWS:
            return None
        steps = np.arange(int(number.max(initial=0)), dtype=np.int64) * int(access.lattice[d])
        inside = np.arange(len(steps))[None, :] < number[:, None]
        starts = (first[:, None] + steps[None, :])[inside] * pitch[d] // size % len(offsets)
        moved = np.bincount(starts, minlength=len(offsets))
        offsets = sum(n * np.roll(offsets, k) for k, n in enumerate(moved) if n) + np.zeros(len(offsets))
    first, number = pieces[lead]
    length = ((number - 1) * int(access.lattice[lead]) + 1) * pitch[lead]
    starts = first * pitch[lead] % transaction_bytes
    span = int(length.max(initial=0)) + 1
    kinds, times = np.unique(starts * span + np.where(number > 0, length, 0), return_counts=True)
    starts, length = kinds[:, None] // span, kinds[:, None] % span
    begin = (starts + size * np.arange(len(offsets))[None, :]) % transaction_bytes
    touched = np.where(length > 0, (begin + length - 1) // transaction_bytes + 1, 0)
    return float(transaction_bytes * (touched * offsets[None, :] * times[:, None]).sum())
