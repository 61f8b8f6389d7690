"""Limit on the padding of block tiles."""

from __future__ import annotations

import numpy as np

from roller.templates.common.options import ConstructOptions
from roller.tile.geometry import Geometry, Ints


def allowed_padding_mask(geometry: Geometry, block: Ints, options: ConstructOptions) -> np.ndarray:
    """Return the mask of blocks whose padding is at most ``epsilon``, or zero if the expression forbids padding."""
    if options.epsilon >= 1.0 and geometry.expr.allow_padding:
        return np.ones(len(block), bool)
    waste = (-geometry.extents % block) / geometry.extents
    limit = options.epsilon if geometry.expr.allow_padding else 0.0
    return np.asarray((waste <= limit).all(axis=1))
