"""Conversion of narrow floats on a CPU, which computes with them in float32.

Panels and boxes hold float32, so an operand is converted once. Data in their stored dtype are converted by every load
of a micro-kernel, which is cheap for vectors and expensive for broadcast elements.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from roller.tile.geometry import Access
from roller_runtime.core.dtypes import DTYPE_BYTES, DTYPES

#: Minimum size (bytes) of a constant that leaves a core's caches between calls, and the maximum number of uses of
#: each element for which its bytes cost more than a conversion of every vector.
_FAR_BYTES, _FEW_USES = 1 << 16, 8


def is_computed_in_float32(access: Access) -> bool:
    """Return whether elements are narrow floats, which are computed in float32."""
    return DTYPES[access.tensor.dtype].is_narrow


def computed_itemsize_bytes(access: Access) -> int:
    """Return the number of bytes per element in the dtype of computation."""
    return DTYPE_BYTES["float32"] if is_computed_in_float32(access) else access.tensor.itemsize_bytes


def rows_are_converted(access: Access, v: int | None, constants: Collection[str]) -> bool:
    """Return whether an operand's elements are broadcast and its rows, in a box, are converted as vectors."""
    return rows_are_copied(access, constants) and is_computed_in_float32(access) and (v is None or not access.uses[v])


def rows_are_copied(access: Access, constants: Collection[str]) -> bool:
    """Return whether a box of an operand consists of whole rows, whose vectors can be converted while copying."""
    plain = not (access.gather or access.bounds or access.tensor.name in constants)
    return plain and bool((access.coefficients >= 0).all())


def panel_stays_stored(access: Access, v: int | None, constants: Collection[str]) -> bool:
    """Return whether a panel keeps 16-bit floats as stored: a large constant that a call uses a few times."""
    # Such a constant comes from beyond the core's caches, so fewer bytes are worth a conversion of every vector.
    row = DTYPES[access.tensor.dtype]
    if not row.is_narrow or row.is_byte_float or v is None or not access.uses[v]:
        return False
    large = access.tensor.name in constants and access.tensor.nbytes >= _FAR_BYTES
    return (
        large and int(np.where(access.touched_axis_mask | ~access.spatial, 1, access.axis_extents).prod()) <= _FEW_USES
    )
