"""How a matrix kernel stores its results, for both the price and the kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from roller.core.matrix_instruction_fragment import Fragment
from roller.templates.gpu.common.stored_results import StoredResults
from roller.tile.access import VECTOR_BYTES
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Number of neighbouring results that a lane holds along n, and the minimum bytes that it stores directly: four lanes
#: then fill a sector.
PAIR, DIRECT_BYTES = 2, 8
#: Number of lanes in a warp group's row that exchange pairs, and of neighbouring results that each lane holds
#: afterwards.
QUAD, COLUMNS = 4, 8


@dataclass(frozen=True)
class MatrixStore:
    """How results are stored, ``width`` at once: ``direct`` from accumulators, ``exchanged`` by lanes, or staged."""

    width: int
    direct: bool = False
    exchanged: bool = False

    @classmethod
    def of(cls, fragment: Fragment, results: StoredResults, axis: str, extent: int, columns: int) -> MatrixStore:
        """Return how to store the results of a group of threads with ``columns`` along the n axis."""
        size = DTYPE_BYTES[results.tensor.dtype]
        is_wide = PAIR * size >= DIRECT_BYTES
        if fragment.reads_scratchpad:
            most = results.widest_aligned_vector_elements(axis, extent, COLUMNS)
            exchanged = most == COLUMNS and not is_wide and fragment.n % (QUAD * COLUMNS) == 0
            return cls(COLUMNS if exchanged else min(most, PAIR), not exchanged, exchanged)
        if (
            fragment.has_defined_lanes
            and is_wide
            and results.widest_aligned_vector_elements(axis, extent, PAIR) == PAIR
        ):
            return cls(PAIR, direct=True)
        return cls(
            min(
                results.widest_aligned_vector_elements(axis, extent, VECTOR_BYTES // size),
                math.gcd(columns, VECTOR_BYTES),
            )
        )
