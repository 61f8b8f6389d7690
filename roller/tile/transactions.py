"""Memory traffic in whole transactions, computed from the number, pitch and offsets of a data tile's rows.

A row of ``b`` bytes that starts at a multiple of ``g`` bytes (a power of two up to the transaction of ``L`` bytes)
takes on average ``(ceil(b / g) + L / g - 1) / (L / g)`` transactions over the ``L / g`` possible offsets.
"""

from __future__ import annotations

import math

import numpy as np

from roller.tile.geometry import Access, Floats, Ints

#: Maximum number of tile positions or rows along one dimension for which rows are counted one by one.
_COUNTED_ROWS = 1 << 13


def row_alignment_bytes(access: Access, tiles: Ints, transaction_bytes: int) -> Ints:
    """Return the largest power of two (up to a transaction) to which every row of every tile is aligned."""
    bits = np.full(len(tiles), transaction_bytes, np.int64)
    size = access.tensor.itemsize_bytes
    if access.gather:
        # Gathered rows start wherever the fused axis wraps, so only the alignment of single elements is certain.
        return np.full(len(tiles), size, np.int64)
    last = len(access.tensor.shape) - 1
    whole: np.ndarray | None = None  # where the faster dimensions are covered whole
    for d, n, constant, gap, moved in _row_start_steps(access):
        bits |= constant
        for a, most, step in moved:
            bits |= (tiles[:, a] < most) * (tiles[:, a] * step)
        if d == 0 and d == last:
            break
        extent = access.extent(d, tiles)
        if whole is not None:
            bits |= ~(whole | (extent == 1)) * gap
        covered = extent >= n
        whole = covered if whole is None else whole & covered
    return bits & -bits


def _row_start_steps(access: Access) -> tuple[tuple[int, int, int, int, tuple[tuple[int, int, int], ...]], ...]:
    """Return, for each dimension from the last to the first, the steps (bytes) that change the start of rows."""
    # Each entry holds the dimension, its size, its constant, a step along it, and ``(axis, extent, step)`` for the axes
    # that index it.
    if "pitches" not in access._memo:
        found, pitch = [], access.tensor.itemsize_bytes
        for d in range(len(access.tensor.shape) - 1, -1, -1):
            moved = tuple(
                (int(a), int(access.axis_extents[a]), abs(int(access.coefficients[d, a])) * pitch)
                for a in np.flatnonzero(access.coefficients[d])
            )
            size, constant = access.tensor.shape[d], abs(int(access.constants[d])) * pitch
            found.append((d, size, constant, int(access.lattice[d]) * pitch, moved))
            pitch *= size
        access._memo["pitches"] = tuple(found)
    known: tuple[tuple[int, int, int, int, tuple[tuple[int, int, int], ...]], ...] = access._memo["pitches"]
    return known


def transactions_per_row(row_bytes: Ints, alignment_bytes: Ints, transaction_bytes: int) -> Floats:
    """Return the expected number of transactions for one row (formula in the module's docstring)."""
    slots = transaction_bytes // alignment_bytes
    return (-(-row_bytes // alignment_bytes) + slots - 1) / slots


def tile_transaction_bytes(access: Access, tiles: Ints, transaction_bytes: int) -> tuple[Floats, Ints]:
    """Return the number of bytes moved in whole transactions per data tile, and the alignment of the tile's rows."""
    rows, run = access.runs(tiles)
    alignment = np.minimum(row_alignment_bytes(access, tiles, transaction_bytes), transaction_bytes)
    per_row = transactions_per_row(run * access.tensor.itemsize_bytes, alignment, transaction_bytes)
    return rows * per_row * transaction_bytes, alignment


def touched_bytes(access: Access, transaction_bytes: int) -> float:
    """Return the number of bytes in all transactions that the access touches; strides may skip rows."""
    whole = access.axis_extents[None, :]
    moved, _ = tile_transaction_bytes(access, whole, transaction_bytes)
    if access.gather:
        return float(access.tensor.nbytes)
    return float(min(moved[0], -(-access.tensor.nbytes // transaction_bytes) * transaction_bytes))


def counted_transaction_bytes(access: Access, tiles: Ints, transaction_bytes: int) -> Floats:
    """Return how many bytes all tiles of a launch load in whole transactions, shape ``(N,)``; NaN if not counted."""
    # Every row counts at its actual offset. The result is NaN if rows are not counted one by one: for gathered tiles,
    # for diagonals, and if there are too many tile positions or rows; :func:`tile_transaction_bytes` then gives the
    # expected number.
    axes = _axes_by_dimension(access)
    if axes is None:
        return np.full(len(tiles), np.nan)
    used, which = np.unique(np.where(access.uses, tiles, 1), axis=0, return_inverse=True)
    counts = -(-access.axis_extents // tiles)
    again = np.where(access.uses | ~access.reloads, 1, counts).astype(np.float64).prod(axis=1)
    known: dict[tuple[int, ...], float] = access._memo.setdefault(("counted", transaction_bytes), {})
    rows = list(map(tuple, used.tolist()))
    new = [n for n, row in enumerate(rows) if row not in known]
    if new:
        found = _bytes_of_distinct_tiles(access, axes, used[new], transaction_bytes)
        known.update(zip((rows[n] for n in new), found.tolist(), strict=True))
    return np.asarray(again * np.array([known[row] for row in rows])[which.reshape(-1)])


def _axes_by_dimension(access: Access) -> dict[int, tuple[int, ...]] | None:
    """Return the axes that index each dimension, or ``None`` if rows are not counted one by one."""
    if access.gather or not access.tensor.shape or any(len(dims) > 1 for dims, _ in access.groups):
        return None
    return {dims[0]: a for dims, a in access.groups}


def _bytes_of_distinct_tiles(
    access: Access, axes: dict[int, tuple[int, ...]], tiles: Ints, transaction_bytes: int
) -> Floats:
    """Return the bytes in whole transactions over all distinct tile positions, shape ``(N,)``, as exact sums."""
    counts, slots = -(-access.axis_extents // tiles), transaction_bytes // access.tensor.itemsize_bytes
    known = np.ones(len(tiles), bool)
    for a in axes.values():
        known &= counts[:, list(a)].prod(axis=1) <= _COUNTED_ROWS
    found, few = np.full(len(tiles), np.nan), np.flatnonzero(known)  # others have too many positions to visit
    if not len(few):
        return found
    leads = _first_run_dims(access, axes, tiles[few])
    for lead in sorted(set(leads.tolist())):  # np.unique loads numpy.ma
        rows = few[leads == lead]
        found[rows] = transaction_bytes * _count_transactions_of_runs(access, axes, tiles[rows], lead, slots)
    return found


def _count_transactions_of_runs(
    access: Access, axes: dict[int, tuple[int, ...]], tiles: Ints, lead: int, slots: int
) -> Floats:
    """Return the number of transactions for all runs, which start at dimension ``lead``, shape ``(N,)``, or NaN."""
    offsets = np.zeros((len(tiles), slots))  # number of rows by their offset in a transaction, in elements
    offsets[:, 0] = 1.0
    rolled = (np.arange(slots)[:, None] - np.arange(slots)[None, :]) % slots
    for d in range(lead):
        distinct, which = _distinct_tiles(tiles, axes[d])
        moved = np.stack([_count_rows_by_offset(access, d, axes[d], tile, slots) for tile in distinct])
        if slots == 1:
            offsets = offsets * moved[which]
            continue
        circulant = moved[:, rolled]  # convolutions over the offsets, as matrices
        for n in range(len(distinct)):
            mine = which == n
            offsets[mine] = offsets[mine] @ circulant[n].T
    distinct, which = _distinct_tiles(tiles, axes[lead])
    touched = np.stack([_count_transactions_by_offset(access, lead, axes[lead], tile, slots) for tile in distinct])
    return np.asarray((touched[which] * offsets).sum(axis=1))


def _distinct_tiles(tiles: Ints, axes: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return tiles with distinct extents along ``axes``, and each given tile's index among them, shape ``(N,)``."""
    _, first, which = np.unique(tiles[:, list(axes)], axis=0, return_index=True, return_inverse=True)
    return tiles[first], which.reshape(-1)


def _first_run_dims(access: Access, axes: dict[int, tuple[int, ...]], tiles: Ints) -> Ints:
    """Return the dimension at which each tile's runs start; all faster ones are covered whole, shape ``(N,)``."""
    last = len(access.tensor.shape) - 1
    leads, going = np.full(len(tiles), last, np.int64), np.ones(len(tiles), bool)
    for d in range(last, 0, -1):
        if access.lattice[d - 1] != 1:
            break
        distinct, which = _distinct_tiles(tiles, axes[d])
        going = going & np.array([_tiles_cover_dim(access, d, axes[d], tile) for tile in distinct])[which]
        leads[going] = d - 1
    return leads


def _tiles_cover_dim(access: Access, d: int, axes: tuple[int, ...], tile: Ints) -> bool:
    """Return whether every tile covers the whole dimension."""
    key = ("whole", d, *tile[list(axes)].tolist())
    if key not in access._memo:
        access._memo[key] = bool((access.pieces(d, axes, tile)[1] == access.tensor.shape[d]).all())
    return bool(access._memo[key])


def _dimension_stride(access: Access, d: int) -> int:
    """Return the distance (elements) between neighbours along a dimension."""
    return math.prod(access.tensor.shape[d + 1 :])


def _count_rows_by_offset(access: Access, d: int, axes: tuple[int, ...], tile: Ints, slots: int) -> Floats:
    """Count all tiles' rows along a dimension by offset in a transaction, shape ``(slots,)``; NaN if too many."""
    key = ("offsets", d, slots, *tile[list(axes)].tolist())
    if key not in access._memo:
        first, number = access.pieces(d, axes, tile)
        if number.sum() > _COUNTED_ROWS:
            access._memo[key] = np.full(slots, np.nan)
            return np.asarray(access._memo[key])
        steps = np.arange(int(number.max(initial=0)), dtype=np.int64) * int(access.lattice[d])
        inside = np.arange(len(steps))[None, :] < number[:, None]
        starts = (first[:, None] + steps[None, :])[inside] * _dimension_stride(access, d) % slots
        access._memo[key] = np.bincount(starts, minlength=slots).astype(np.float64)
    moved: Floats = access._memo[key]
    return moved


def _count_transactions_by_offset(access: Access, d: int, axes: tuple[int, ...], tile: Ints, slots: int) -> Floats:
    """Return the number of transactions for a dimension's runs by their rows' offset (elements), shape ``(slots,)``."""
    key = ("touched", d, slots, *tile[list(axes)].tolist())
    if key not in access._memo:
        first, number = access.pieces(d, axes, tile)
        length = ((number - 1) * int(access.lattice[d]) + 1) * _dimension_stride(access, d)
        starts = first * _dimension_stride(access, d) % slots
        span = int(length.max(initial=0)) + 1
        kinds, times = np.unique(starts * span + np.where(number > 0, length, 0), return_counts=True)
        starts, length = kinds[:, None] // span, kinds[:, None] % span
        begin = (starts + np.arange(slots)[None, :]) % slots
        touched = np.where(length > 0, (begin + length - 1) // slots + 1, 0)
        access._memo[key] = times.astype(np.float64) @ touched
    found: Floats = access._memo[key]
    return found
