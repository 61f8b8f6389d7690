"""Properties of an operand's index: whether staging copies a box, and whether elements form contiguous words."""

from __future__ import annotations

import numpy as np

from roller.core.matrix_instruction_fragment import Fragment
from roller.expr import stride_between_neighbours, strided_run_along
from roller.tile.geometry import Access


def is_staged_as_box(access: Access) -> bool:
    """Return whether staging copies a box of the tensor (forward strides or windows) instead of gathering a panel."""
    if "box" not in access._memo:
        forward = (access.coefficients[:, access.spatial] >= 0).all()  # otherwise its start is known only at run time
        inside = all(b.index in access.index for b in access.guard)
        access._memo["box"] = bool(forward) and inside and not access.gather and _has_window_or_stride(access)
    return bool(access._memo["box"])


def _has_window_or_stride(access: Access) -> bool:
    """Return whether any dimension is windowed or strided, so that a box has fewer elements than a gather."""
    rows = access.coefficients
    alone = np.count_nonzero(rows, axis=1) == 1
    return any(access.shared) or bool((alone[:, None] & (rows != 0) & (rows != 1)).any())


def is_read_once(access: Access, v: int | None) -> bool:
    """Return whether micro-kernels read every element once, with lanes along ``v`` adjacent or equal in memory."""
    if access.axis_extents[access.spatial & ~access.uses].prod() > 1 or access.guard or _has_window_or_stride(access):
        return False
    return v is None or stride_between_neighbours(access.index, access.tensor.shape, access.axis_names[v]) in (0, 1)


def words_are_contiguous(access: Access, axis: int, elements: int) -> bool:
    """Return whether each aligned group of ``elements`` along ``axis`` is contiguous in memory and complete."""
    # Guards on other axes are not considered.
    extent, name = int(access.axis_extents[axis]), access.axis_names[axis]
    if extent % elements or any(name in b.index.axes for b in access.guard):
        return False
    run = strided_run_along(access.index, access.tensor.shape, name, extent)
    return run is not None and run.step == 1 and run.length % elements == 0


def words_are_readable(access: Access, axis: int, fragment: Fragment) -> bool:
    """Return whether words along ``axis`` are contiguous where a micro-kernel reads them: in memory or in a box."""
    # In a box of widened rows, words may start at any position. The last word may extend past its axis: a row has a few
    # more elements, and the values packed for these lanes are zero.
    if words_are_contiguous(access, axis, fragment.depth(int(access.axis_extents[axis]))):
        return True
    along = access.coefficients[:, axis]
    return fragment.widens_operands and is_staged_as_box(access) and int(along[-1]) == 1 and not along[:-1].any()
