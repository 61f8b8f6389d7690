"""Memory during a profile's step, and its largest holders, as columns for its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class _ProfileWithMemory(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def memory_curve(self) -> Sequence[Any]: ...


def memory_columns(profile: _ProfileWithMemory, number_of: Callable[[str], int]) -> dict[str, Any] | None:
    """Return columns of memory over the step; ``None`` if unknown. ``number_of`` maps a text to its index."""
    points = profile.memory_curve
    if not points:
        return None
    kinds = dict.fromkeys(kind for point in points for kind in point.kinds)
    return {
        "unit": "s" if profile.source == "recorded" else "operator",
        "at": np.array([p.at for p in points], np.float64),
        "allocated_bytes": np.array([p.allocated_bytes for p in points], np.float64),
        "reserved_bytes": np.array([p.reserved_bytes for p in points], np.float64),
        "kinds": {kind: np.array([p.kinds.get(kind, 0) for p in points], np.float64) for kind in kinds},
        "holders": _holder_columns(points, number_of),
    }


def _holder_columns(points: Sequence[Any], number_of: Callable[[str], int]) -> dict[str, Any] | None:
    """Return one list of the holders at all points, and each point's end index in it; ``None`` without holders."""
    held = [pair for point in points for pair in point.holders.items()]
    if not held:
        return None
    return {
        "end": np.cumsum([len(point.holders) for point in points]).astype(np.uint32),
        "name": np.array([number_of(name) for name, _ in held], np.uint32),
        "bytes": np.array([size for _, size in held], np.float64),
    }
