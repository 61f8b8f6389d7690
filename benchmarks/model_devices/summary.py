"""Errors and ranks of predictions by device and family, and whether the limits hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.common import Verdict
from benchmarks.model_devices.cases import LIBRARY
from benchmarks.model_devices.pricing import Priced

#: Largest mean absolute error by family (issue 17, "Must hold"), and of devices for which it is another one.
LIMITS = {
    "linear": 0.10, "bmm": 0.10, "bf16 m>=512": 0.12, "bf16 m<512": 0.15, "element-wise": 0.05,
    "element-wise, library": 0.05, "softmax, library": 0.15, "layer norm, library": 0.15,
}  # fmt: skip
DEVICE_LIMITS = {
    (device, "element-wise" + whose): 0.10 for device in ("t4", "p100-pcie-16gb") for whose in ("", LIBRARY)
}
#: Times between which ranks of matrix products are judged (seconds), and their least rank correlation.
RANKED_S, LEAST_RANK = (30e-6, 300e-6), 0.98
#: Devices whose ratio of times per shape is judged, and its largest mean absolute error.
SPEED_UP, SPEED_UP_LIMIT = ("a100-sxm-80gb", "h100-sxm"), 0.15


def limit_of(device: str, family: str) -> float | None:
    """Return the largest mean absolute error of a family on a device; ``None``: nothing is demanded of it."""
    return DEVICE_LIMITS.get((device, family), LIMITS.get(family))


@dataclass(frozen=True)
class Errors:
    """Errors of predicted against measured values: mean, median and worst absolute one, median ratio, ranks."""

    count: int
    mean: float
    median: float
    worst: float
    bias: float
    rank: float

    @classmethod
    def of(cls, predicted: Sequence[float], measured: Sequence[float]) -> Errors:
        """Return the errors of at least one prediction."""
        ratio = np.asarray(predicted) / np.asarray(measured)
        off = np.abs(ratio - 1.0)
        rank = spearman(np.asarray(predicted), np.asarray(measured))
        return cls(len(off), float(off.mean()), float(np.median(off)), float(off.max()), float(np.median(ratio)), rank)


@dataclass(frozen=True)
class Line:
    """One line of the table: the model's errors, the roofline's beside them, and the limit of the mean one."""

    device: str
    family: str
    model: Errors
    roofline: Errors
    limit: float | None

    @property
    def verdict(self) -> Verdict:
        """Whether the limit holds."""
        name, mean = f"{self.family}, {self.device}", self.model.mean
        return Verdict(name, f"{self.limit:.0%}" if self.limit else "-", f"{mean:.1%}",
                       None if self.limit is None else mean <= self.limit)  # fmt: skip


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the rank correlation of two samples, equal values sharing their mean rank; nan where one is constant.

    Examples
    --------
    >>> round(spearman(np.array([1.0, 2.0, 2.0]), np.array([1.0, 3.0, 2.0])), 3)
    0.866
    """
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[which])


def _errors(found: Sequence[Priced], predicted: Callable[[Priced], float]) -> Errors:
    return Errors.of([predicted(p) for p in found], [p.case.measured_s for p in found])


def _model(p: Priced) -> float:
    return p.predicted_s


def _roofline(p: Priced) -> float:
    return p.roofline_s


def lines(found: Sequence[Priced]) -> Iterator[Line]:
    """Yield a line per family and device, in the order in which they first occur."""
    for key in dict.fromkeys((p.case.family, p.case.device) for p in found):
        mine = [p for p in found if (p.case.family, p.case.device) == key]
        yield Line(key[1], key[0], _errors(mine, _model), _errors(mine, _roofline), limit_of(key[1], key[0]))
    yield from _speed_up(found)


def _speed_up(found: Sequence[Priced]) -> Iterator[Line]:
    """Yield the errors of the ratio of times of the same product on two devices."""
    one, other = (
        {p.case.shape: p for p in found if p.case.device == d and p.case.family.startswith("bf16")} for d in SPEED_UP
    )
    both = [(one[s], other[s]) for s in one if s in other]
    if both:
        measured = [a.case.measured_s / b.case.measured_s for a, b in both]
        model, roof = ([f(a) / f(b) for a, b in both] for f in (_model, _roofline))
        yield Line(" -> ".join(SPEED_UP), "bf16 speed-up", Errors.of(model, measured), Errors.of(roof, measured),
                   SPEED_UP_LIMIT)  # fmt: skip


def rank_verdicts(found: Sequence[Priced]) -> Iterator[Verdict]:
    """Yield the rank correlations of the matrix products of medium time, per device."""
    low, high = RANKED_S
    for device in dict.fromkeys(p.case.device for p in found):
        mine = [
            p for p in found
            if p.case.device == device and p.case.family.startswith("bf16") and low <= p.case.measured_s <= high
        ]  # fmt: skip
        if mine:
            rank, roof = _errors(mine, _model).rank, _errors(mine, _roofline).rank
            name = f"bf16 Spearman, {low * 1e6:.0f} to {high * 1e6:.0f} us, {device}"
            value = f"{rank:.3f} (roofline {roof:.3f}, {len(mine)} products)"
            yield Verdict(name, f">= {LEAST_RANK:g}", value, rank >= LEAST_RANK)
