"""Interpolation along one axis, as positions, a matrix of weights or its band: what Resize needs to know, in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.onnx.lowering import Unsupported


@dataclass(frozen=True)
class Sampling:
    """How the positions of one axis relate to those of its source.

    Parameters
    ----------
    source, target
        Elements of the axis before and after.
    scale
        Positions of the target per position of the source.
    mode
        Coordinate transformation of ONNX.
    roi
        First and last position taken, as parts of the axis (``tf_crop_and_resize``).
    """

    source: int
    target: int
    scale: float
    mode: str
    roi: tuple[float, float] = (0.0, 1.0)

    def coordinates(self) -> np.ndarray:
        """Return the place in the source of every position of the target, float64 ``(target,)``.

        It is computed in float32, as ONNX Runtime and the package's reference do: which neighbour is the nearest one
        hangs on its last bit (``1.5 / 0.6 - 0.5`` is 2 for them).
        """
        return np.asarray(self._coordinates(), np.float64)

    def _coordinates(self) -> Any:
        x, scale = np.arange(self.target, dtype=np.float32), np.float32(self.scale)
        n, length = np.float32(self.source), np.float32(self.scale) * np.float32(self.source)
        if self.mode == "half_pixel":
            return (x + 0.5) / scale - 0.5
        if self.mode == "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if self.target > 1 else np.zeros_like(x)
        if self.mode == "half_pixel_symmetric":
            offset = n / 2 * (1 - self.target / length)
            return offset + (x + 0.5) / scale - 0.5
        if self.mode == "align_corners":
            return x * (n - 1) / (length - 1) if length != 1 else np.zeros_like(x)
        if self.mode == "asymmetric":
            return x / scale
        if self.mode == "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        if self.mode == "tf_crop_and_resize":
            begin, end = np.float32(self.roi[0]), np.float32(self.roi[1])
            if self.target == 1:
                return np.full(1, 0.5 * (begin + end) * (n - 1))
            return begin * (n - 1) + x * (end - begin) * (n - 1) / np.float32(self.target - 1)
        raise Unsupported(f"Resize with coordinate_transformation_mode='{self.mode}' is none that ONNX defines")

    def outside(self) -> np.ndarray:
        """Return which positions of the target take the extrapolation value."""
        x = self.coordinates()
        return (x < 0) | (x > self.source - 1) if self.mode == "tf_crop_and_resize" else np.zeros(len(x), bool)


def nearest(sampling: Sampling, rounding: str) -> np.ndarray:
    """Return the position each element of the target takes, ``(target,)``; ``rounding`` is ONNX's nearest_mode.

    ``simple`` is what there was before: down where an axis grows, up where it shrinks.
    """
    x = sampling.coordinates()
    if rounding == "simple":
        rounding = "ceil" if sampling.scale < 1 else "floor"
    rounds: dict[str, Callable[[], np.ndarray]] = {
        "round_prefer_floor": lambda: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda: np.floor(x + 0.5),
        "floor": lambda: np.floor(x),
        "ceil": lambda: np.ceil(x),
    }
    if rounding not in rounds:
        raise Unsupported(f"Resize with nearest_mode='{rounding}' is none that ONNX defines")
    return np.asarray(np.clip(rounds[rounding](), 0, sampling.source - 1), np.int64)


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(0.0, 1.0 - np.abs(distance)))


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return Keys' cubic kernel of ``a``."""

    def kernel(distance: np.ndarray) -> np.ndarray:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return kernel


def weights(
    sampling: Sampling, kind: str, *, cubic_a: float = -0.75, antialias: bool = False, exclude_outside: bool = False
) -> np.ndarray:
    """Return the weight of every source position in every target position, float64 ``(target, source)``.

    Parameters
    ----------
    sampling
        The axis.
    kind
        ``"linear"`` or ``"cubic"``.
    cubic_a
        Coefficient of the cubic kernel.
    antialias
        Stretch the kernel where the axis shrinks.
    exclude_outside
        Leave out positions beyond the border instead of repeating the border.
    """
    kernel, reach = (_linear, 1) if kind == "linear" else (_cubic(cubic_a), 2)
    stretch = min(1.0, sampling.scale) if antialias else 1.0
    x = sampling.coordinates()
    taps = int(np.ceil(reach / stretch))
    places = np.floor(x)[:, None].astype(np.int64) + np.arange(-taps, taps + 1)[None, :]
    amount = kernel((places - x[:, None]) * stretch)
    if exclude_outside:
        amount = np.where((places < 0) | (places >= sampling.source), 0.0, amount)
    if exclude_outside or antialias:
        amount = amount / amount.sum(axis=1, keepdims=True)
    table = np.zeros((sampling.target, sampling.source))
    rows = np.broadcast_to(np.arange(sampling.target)[:, None], places.shape)
    np.add.at(table, (rows, np.clip(places, 0, sampling.source - 1)), amount)
    return table


#: Largest step of a band: a period of the target over as many positions of the source has weights of its own.
_STEPS = 8


@dataclass(frozen=True)
class Band:
    """The weights of a matrix that are not zero: few per target, from a position on that an access map can say.

    Target ``y`` takes ``table[y, k]`` times source ``step * (y // period) + offset + k``; positions outside of the
    source have no weight.

    Parameters
    ----------
    step, period, offset
        Of the first position of each target.
    table
        Weights, float64 ``(target, taps)``.
    """

    step: int
    period: int
    offset: int
    table: np.ndarray


def band(table: np.ndarray) -> Band | None:
    """Return the narrowest band that holds all weights; ``None`` where it is not at most half as wide as the source.

    Parameters
    ----------
    table
        Weight of every source position in every target position, ``(target, source)``.

    Notes
    -----
    An access map has no multiplication before a division, so that a ratio ``period / step`` costs up to ``step - 1``
    taps beyond those of the kernel. Of bands of one width that of the smallest step and period is taken.

    Examples
    --------
    Rows of a picture that grows from 3 to 5 lie between two rows of it:

    >>> found = band(np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 1, 0]]))
    >>> found.step, found.period, found.offset, found.table.tolist()
    (1, 2, 0, [[1.0, 0.0], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [1.0, 0.0]])
    """
    target, source = table.shape
    held, y = table != 0, np.arange(target)
    some = held.any(axis=1)  # outside of a region a target has no weight at all
    if not some.any():
        return None
    first, last = held.argmax(axis=1)[some], source - 1 - held[:, ::-1].argmax(axis=1)[some]
    found: tuple[int, int, int, int] | None = None
    for step in range(1, _STEPS + 1):
        near = step * target / source
        for period in {max(1, int(near) + d) for d in (-1, 0, 1)}:
            begin = step * (y[some] // period)
            offset = int((first - begin).min())
            taps = int((last - begin).max()) - offset + 1
            found = min(found or (taps, step, period, offset), (taps, step, period, offset))
    assert found is not None
    taps, step, period, offset = found
    if 2 * taps > source:
        return None
    places = step * (y // period)[:, None] + offset + np.arange(taps)
    inside = (places >= 0) & (places < source)
    narrow = np.where(inside, table[y[:, None], np.clip(places, 0, source - 1)], 0.0)
    return Band(step, period, offset, narrow)
