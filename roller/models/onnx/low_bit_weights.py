"""Constant 4-bit weights of products, in the form that kernels read: two numbers per byte."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Largest number of rows of a product whose weights stay in 4 bits: each row computes with every number again, and the
#: more rows share a weight, the less its memory matters.
MOST_ROWS = 16


@dataclass(frozen=True)
class LowBitWeights:
    """Weights of ``K`` rows and ``N`` columns, in blocks along the rows.

    Parameters
    ----------
    packed
        Bytes, shape ``(K / block, block / 2, N)``: the low four bits are row ``2 j`` of a block, the high
        ones the next row.
    scales
        Factor of each block and column, shape ``(K / block, N)``.
    zeros
        Number that stands for 0 of each block and column, shape ``(K / block, N)``, bytes; ``None`` for 8.
    """

    packed: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None


def pack_low_bit_rows(numbers: np.ndarray, block: int) -> np.ndarray:
    """Return numbers from 0 to 15, shape ``(K, N)``, as in :attr:`LowBitWeights.packed`.

    Examples
    --------
    >>> pack_low_bit_rows(np.array([[1, 2], [3, 4]], np.uint8), 2).tolist()
    [[[49, 66]]]
    """
    pairs = numbers.astype(np.uint8).reshape(-1, block // 2, 2, numbers.shape[1])
    return np.ascontiguousarray(pairs[:, :, 0] | (pairs[:, :, 1] << 4))


def is_packable(rows: int, block: int) -> bool:
    """Return whether kernels can read weights of this many rows in such blocks from bytes."""
    return block >= 2 and block % 2 == 0 and rows % block == 0
