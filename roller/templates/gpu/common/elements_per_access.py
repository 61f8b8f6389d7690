"""Number of elements that one access moves, given the vectors chosen for a program."""

from __future__ import annotations

import numpy as np

from roller.tile.geometry import Access, Geometry, Ints
from roller.tile.vector_access_widths import access_elements_of_chunk, chunk_or_single_elements


def elements_per_access(access: Access, geometry: Geometry, vectors: Ints, *, whole: bool = False) -> Ints:
    """Return the elements per access, shape ``(N,)``, for ``vectors`` elements per axis, shape ``(N, axes)``."""
    # These are the rules of :mod:`roller.tile.vector_access_widths`, which templates apply to one program: chunks end
    # where their
    # axis ends and are accessed in the widest aligned pieces or, if ``whole``, as whole vectors or element by element.
    width, rule = np.ones(len(vectors), np.int64), chunk_or_single_elements if whole else access_elements_of_chunk
    for axis, (name, extent) in enumerate(zip(geometry.names, geometry.extents.tolist(), strict=True)):
        chunks = np.gcd(vectors[:, axis], extent)
        for chunk in sorted(set(chunks.ravel().tolist())):
            if chunk > 1:
                width[chunks == chunk] = rule(access.index, access.tensor, name, extent, chunk)
    return width
