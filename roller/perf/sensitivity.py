"""Elasticities of predicted times with respect to each parameter of a device, for fixed programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.hardware.checks import Quantity
from roller.hardware.spec import settable_fields
from roller.tile.geometry import Floats

#: Relative step of a continuous field.
STEP = 0.01

Pricer = Callable[[DeviceSpec], Floats]


@dataclass(frozen=True)
class FieldStep:
    """A field of a device, and the specs that differ from the device's only in this field.

    Parameters
    ----------
    field
        Dotted path.
    value
        Value in the device's spec.
    quantity
        Unit and range of the field.
    sides
        ``((changed value, spec), ...)``; a side that contradicts other fields is missing.
    """

    field: str
    value: float
    quantity: Quantity
    sides: tuple[tuple[float, DeviceSpec], ...]


def values_one_step_away(value: float, quantity: Quantity) -> tuple[float, ...]:
    """Return the values one relative :data:`STEP` below and above ``value``; for integers, at least 1 away from it."""
    if not quantity.integer:
        return value / (1 + STEP), value * (1 + STEP)
    step = max(1, round(STEP * int(value)))
    return int(value) - step, int(value) + step


def finite_difference_steps(
    spec: DeviceSpec, values: Callable[[float, Quantity], Sequence[float]] = values_one_step_away
) -> Iterator[FieldStep]:
    """Yield the step of every numeric device field that the model may read."""
    known = settable_fields(spec)
    for field in spec.values():
        if not field.startswith("accuracy."):
            step = finite_difference_step(spec, field, known[field], values)
            if step is not None:
                yield step


def finite_difference_step(
    spec: DeviceSpec, field: str, quantity: Quantity,
    values: Callable[[float, Quantity], Sequence[float]] = values_one_step_away,
) -> FieldStep | None:  # fmt: skip
    """Return the step of a field, or ``None`` if neither changed value is valid."""
    # Bytes and powers of two step to half and double: values in between do not occur, and a small step would change the
    # result only for programs at the limit.
    value = spec.values()[field]
    whole = int(value) if quantity.integer else 0
    halves = quantity.integer and (whole & (whole - 1) == 0 or quantity.unit == "bytes")
    sides = []
    for other in ((whole // 2, whole * 2) if halves else values(value, quantity)) if value else ():
        if other > 0:
            try:
                sides.append((other, spec.with_overrides({field: other})))
            except (SpecError, ValueError):  # out of range, or in conflict with another field (budget above capacity)
                continue
    return FieldStep(field, value, quantity, tuple(sides)) if sides else None


def elasticity(step: FieldStep, price: Pricer, base: Floats) -> Floats:
    """Return, for each program, the change in the logarithm of its seconds per change in the logarithm of the field."""
    return slope_of_each_column(
        [(0.0, base), *((math.log(other / step.value), price(spec)) for other, spec in step.sides)]
    )


def slope_of_each_column(points: Iterable[tuple[float, Floats | Sequence[float]]]) -> Floats:
    """Return the slope between the first and the last finite value of each column, or 0 if they coincide."""
    ordered = sorted(points, key=lambda p: p[0])
    x, y = np.array([p[0] for p in ordered]), np.stack([p[1] for p in ordered])
    fits = np.isfinite(y)
    low, high = fits.argmax(axis=0), len(x) - 1 - fits[::-1].argmax(axis=0)
    rows = np.arange(y.shape[1])
    width = x[high] - x[low]
    rise = np.where(fits.any(axis=0) & (width > 0), y[high, rows] - y[low, rows], 0.0)
    return np.asarray(rise / np.where(width > 0, width, 1.0))
