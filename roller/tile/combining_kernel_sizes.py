"""Sizes for a split reduction's second kernel, which combines the partial results."""

from __future__ import annotations

#: Maximum number of parts for which one thread loads all parts of a result at once and adds them.
UNROLLED_PARTS = 32
#: Number of threads per block if results have more parts; also the maximum number of adjacent results per block.
COMBINING_THREADS = 256
#: Number of parts that a thread loads before its first addition.
_LOADED = 16
#: Number of threads in a warp, which exchange values by shuffles.
_WARP = 32


def threads_per_combined_result(parts: int, results: int) -> int:
    """Return the number of threads that combine the parts of each of a block's ``results`` adjacent results.

    Examples
    --------
    >>> threads_per_combined_result(1024, 8)
    32
    >>> threads_per_combined_result(48, 256)
    1
    """
    return min(COMBINING_THREADS // results, max(_WARP // results, 1 << (parts - 1).bit_length()))


def parts_loaded_at_once(parts: int, lanes: int) -> int:
    """Return the number of parts that each of ``lanes`` threads loads at once.

    Examples
    --------
    >>> parts_loaded_at_once(1024, 32)
    16
    >>> parts_loaded_at_once(48, 32)
    2
    """
    return min(_LOADED, -(-parts // lanes))
