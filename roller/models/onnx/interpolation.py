"""Interpolation along one axis in NumPy: source positions, weight matrices and their bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from roller.models.onnx.lowering_registry import Unsupported


@dataclass(frozen=True)
class AxisSampling:
    """A mapping from target positions to source positions along one axis.

    Parameters
    ----------
    source, target
        Number of elements along the axis before and after resizing.
    scale
        Number of target positions per source position: a ratio of sizes, or :func:`simplest_fraction` of a factor.
    mode
        Coordinate transformation mode of ONNX.
    roi
        Start and end of the region of interest, as fractions of the axis (``tf_crop_and_resize``).
    """

    source: int
    target: int
    scale: Fraction | float
    mode: str
    roi: tuple[Fraction, Fraction] = (Fraction(0), Fraction(1))

    def source_positions(self) -> np.ndarray:
        """Return the source position of each target element, float64, shape ``(target,)``."""
        places, unit = self.exact_source_positions_and_unit()
        return np.asarray(places / unit, np.float64)

    def exact_source_positions_and_unit(self) -> tuple[np.ndarray, int]:
        """Return the exact source positions in multiples of ``1 / unit``, shape ``(target,)``, and ``unit``."""
        # The last bit can decide which neighbour is nearest: ``4.5 * 20 / 6 - 0.5`` is 14.5, but 14.499999 with the
        # float32 nearest to ``6 / 20``.
        slope, first = self._step_and_first()
        unit = math.lcm(slope.denominator, first.denominator)
        step, begin = int(slope * unit), int(first * unit)
        small = abs(step) * self.target + abs(begin) < 1 << 52
        return np.arange(self.target).astype(np.int64 if small else object) * step + begin, unit

    def _step_and_first(self) -> tuple[Fraction, Fraction]:
        """Return the step between source positions and the first source position."""
        half, scale, n = Fraction(1, 2), Fraction(self.scale), self.source
        step = 1 / scale
        if self.mode == "half_pixel" or (self.mode == "pytorch_half_pixel" and self.target > 1):
            return step, half * step - half
        if self.mode == "pytorch_half_pixel":
            return Fraction(0), Fraction(0)
        if self.mode == "half_pixel_symmetric":
            return step, Fraction(n, 2) * (1 - self.target / (scale * n)) + half * step - half
        if self.mode == "align_corners":  # uses the integer target length, even if the factor implies a fraction
            return Fraction(n - 1, max(self.target - 1, 1)), Fraction(0)
        if self.mode == "asymmetric":
            return step, Fraction(0)
        if self.mode == "tf_half_pixel_for_nn":
            return step, half * step
        if self.mode == "tf_crop_and_resize":
            begin, end = self.roi
            if self.target == 1:
                return Fraction(0), half * (begin + end) * (n - 1)
            return (end - begin) * (n - 1) / (self.target - 1), begin * (n - 1)
        raise Unsupported(f"Resize with coordinate_transformation_mode='{self.mode}' is none that ONNX defines")

    def extrapolated_mask(self) -> np.ndarray:
        """Return a mask of the target positions that take the extrapolation value, shape ``(target,)``."""
        if self.mode != "tf_crop_and_resize":
            return np.zeros(self.target, bool)
        places, unit = self.exact_source_positions_and_unit()
        return np.asarray((places < 0) | (places > (self.source - 1) * unit), bool)


def resize_scales_and_shape(
    shape: Sequence[int], sizes: Sequence[int], axes: Sequence[int], policy: str
) -> tuple[list[Fraction], tuple[int, ...]]:
    """Return the scale of each axis in ``axes`` and the result shape of a Resize to ``sizes`` under ``policy``.

    Examples
    --------
    If 3 x 5 elements must not grow beyond 7 x 8, both sides grow by a factor of 8/5:

    >>> resize_scales_and_shape((3, 5), (7, 8), (0, 1), "not_larger")
    ([Fraction(8, 5), Fraction(8, 5)], (5, 8))
    """
    factors, made = [Fraction(n, shape[d]) for n, d in zip(sizes, axes, strict=True)], list(shape)
    if policy == "stretch":
        wanted = list(sizes)
    elif policy in ("not_larger", "not_smaller"):
        factors = [min(factors) if policy == "not_larger" else max(factors)] * len(axes)
        wanted = [math.floor(f * shape[d] + Fraction(1, 2)) for f, d in zip(factors, axes, strict=True)]
    else:
        raise Unsupported(f"Resize keep_aspect_ratio_policy='{policy}' is none that ONNX defines")
    for d, n in zip(axes, wanted, strict=True):
        made[d] = n
    return factors, tuple(made)


def simplest_fraction(value: float) -> Fraction:
    """Return the fraction with the smallest denominator that rounds to the same float32 as ``value``.

    Examples
    --------
    >>> simplest_fraction(0.6), simplest_fraction(np.float32(1 / 3)), simplest_fraction(-2.0)
    (Fraction(3, 5), Fraction(1, 3), Fraction(-2, 1))
    """
    # Models store factors and regions as float32, but the fraction before that rounding is intended.
    held = np.float32(value)
    if not np.isfinite(held):
        raise Unsupported(f"Resize by {value}, which is no number")
    if held < 0:
        return -simplest_fraction(-float(held))
    exact = Fraction(float(held))
    if exact.denominator == 1:
        return exact
    low, high = ((exact + Fraction(float(np.nextafter(held, np.float32(to))))) / 2 for to in (0, np.inf))
    return _simplest_fraction_between(low, high)


def _simplest_fraction_between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction with the smallest denominator strictly between two non-negative ones."""
    whole = low.numerator // low.denominator
    if whole + 1 < high:
        return Fraction(whole + 1)
    if low == whole:  # the next are whole + 1/2, whole + 1/3 ...
        return whole + Fraction(1, int(1 / (high - whole)) + 1)
    return whole + 1 / _simplest_fraction_between(1 / (high - whole), 1 / (low - whole))


def nearest_positions(sampling: AxisSampling, rounding: str) -> np.ndarray:
    """Return the nearest source position of each target, shape ``(target,)``; ``rounding`` is ONNX's nearest_mode."""
    x, unit = sampling.exact_source_positions_and_unit()
    if rounding == "simple":  # before version 11: down where an axis grows, up where it shrinks
        rounding = "ceil" if sampling.scale < 1 else "floor"
    rounds: dict[str, Callable[[], np.ndarray]] = {
        "round_prefer_floor": lambda: -((unit - 2 * x) // (2 * unit)),
        "round_prefer_ceil": lambda: (2 * x + unit) // (2 * unit),
        "floor": lambda: x // unit,
        "ceil": lambda: -(-x // unit),
    }
    if rounding not in rounds:
        raise Unsupported(f"Resize with nearest_mode='{rounding}' is none that ONNX defines")
    return np.asarray(np.clip(rounds[rounding](), 0, sampling.source - 1), np.int64)


def _linear_kernel(distance: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(0.0, 1.0 - np.abs(distance)))


def _cubic_kernel(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return Keys' cubic kernel with coefficient ``a``."""

    def kernel(distance: np.ndarray) -> np.ndarray:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return kernel


def interpolation_matrix(
    sampling: AxisSampling, kind: str, *, cubic_a: float = -0.75, antialias: bool = False, exclude_outside: bool = False
) -> np.ndarray:
    """Return the weight of each source position for each target position, float64, shape ``(target, source)``."""
    kernel, reach = (_linear_kernel, 1) if kind == "linear" else (_cubic_kernel(cubic_a), 2)
    stretch = min(1.0, float(sampling.scale)) if antialias else 1.0
    x = sampling.source_positions()
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


#: Largest step of a band, in source positions per period of the target.
_STEPS = 8


@dataclass(frozen=True)
class WeightBand:
    """The non-zero weights of an interpolation matrix, at positions that an access map can express.

    Target ``y`` is the sum over ``k`` of ``table[y, k]`` times the source at ``step * (y // period) + offset + k``;
    positions outside the source have zero weight. ``table`` is float64, shape ``(target, taps)``.
    """

    step: int
    period: int
    offset: int
    table: np.ndarray


def narrowest_band(table: np.ndarray) -> WeightBand | None:
    """Return the narrowest band with all weights; ``None`` if there is none or it is wider than half the source.

    Examples
    --------
    If rows are interpolated at half steps, each new row lies at an old row or between two:

    >>> found = narrowest_band(np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 1, 0]]))
    >>> found.step, found.period, found.offset, found.table.tolist()
    (1, 2, 0, [[1.0, 0.0], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [1.0, 0.0]])
    """
    target, source = table.shape
    # Access maps cannot multiply before dividing, so a ratio ``period / step`` costs up to ``step - 1`` extra taps.
    # Among bands of equal width, the smallest step and period are chosen.
    held, y = table != 0, np.arange(target)
    some = held.any(axis=1)  # a target outside the region of interest has no weights
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
    return WeightBand(step, period, offset, narrow)
