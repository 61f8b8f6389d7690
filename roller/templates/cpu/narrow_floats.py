"""Floats of fewer than 32 bits on a CPU, which computes them in float32: where an operand is converted.

Panels and boxes hold what is computed with, so that it is converted once. What stays stored is converted by every load
of a micro-kernel: cheap in vectors, dear for a broadcast element.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from roller.core.dtypes import DTYPE_BYTES, DTYPES
from roller.tile.geometry import Access

#: Bytes from which a constant leaves a core's caches between calls, and uses of each of its elements up to which its
#: bytes cost more than a conversion of every vector.
_FAR_BYTES, _FEW_USES = 1 << 16, 8


def is_converted(access: Access) -> bool:
    """Whether elements are of a dtype that is computed in another: floats of fewer than 32 bits."""
    return DTYPES[access.tensor.dtype].is_narrow


def computed_itemsize_bytes(access: Access) -> int:
    """Return the bytes of an element as it is computed with."""
    return DTYPE_BYTES["float32"] if is_converted(access) else access.tensor.itemsize_bytes


def rows_are_converted(access: Access, v: int | None, constants: Collection[str]) -> bool:
    """Whether an operand is one of broadcast elements whose rows, in a box, are converted in vectors."""
    return rows_are_copied(access, constants) and is_converted(access) and (v is None or not access.uses[v])


def rows_are_copied(access: Access, constants: Collection[str]) -> bool:
    """Whether a box of an operand is made of whole rows, so that vectors of them can be converted on the way."""
    plain = not (access.gather or access.bounds or access.tensor.name in constants)
    return plain and bool((access.coefficients >= 0).all())


def panel_stays_stored(access: Access, v: int | None, constants: Collection[str]) -> bool:
    """Whether a panel of 16-bit floats holds them as they are stored: of a large constant that a call uses a few times.

    It comes from beyond the core's caches: fewer bytes are worth a conversion of every vector. Parameters are those of
    :func:`rows_are_converted`.
    """
    row = DTYPES[access.tensor.dtype]
    if not row.is_narrow or row.is_byte_float or v is None or not access.uses[v]:
        return False
    large = access.tensor.name in constants and access.tensor.nbytes >= _FAR_BYTES
    return large and int(np.where(access.touched | ~access.spatial, 1, access.axis_extents).prod()) <= _FEW_USES
