"""How the parts of a split reduction are combined: the second kernel, as code generation and the model see it."""

from __future__ import annotations

#: Parts up to which one thread adds those of a result, all loaded at once.
UNROLLED_PARTS = 32
#: Threads of a block that share results with more parts: at most so many results lie beside each other in it.
COMBINING_THREADS = 256
#: Parts a thread loads before it adds the first of them.
_LOADED = 16
#: Threads that shuffle with each other.
_WARP = 32


def combining_lanes(parts: int, results: int) -> int:
    """Return how many threads share the parts of one of ``results`` results that lie beside each other in a block.

    Examples
    --------
    >>> combining_lanes(1024, 8)
    32
    >>> combining_lanes(48, 256)
    1
    """
    return min(COMBINING_THREADS // results, max(_WARP // results, 1 << (parts - 1).bit_length()))


def parts_loaded(parts: int, lanes: int) -> int:
    """Return how many parts each of ``lanes`` threads loads at once.

    Examples
    --------
    >>> parts_loaded(1024, 32)
    16
    >>> parts_loaded(48, 32)
    2
    """
    return min(_LOADED, -(-parts // lanes))
