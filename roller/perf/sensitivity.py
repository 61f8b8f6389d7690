"""How predicted times follow the numbers of a device: elasticities of fixed programs, field by field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.hardware.checks import Quantity
from roller.hardware.spec import settable
from roller.tile.geometry import Floats

#: Relative step of a field that can have any value.
STEP = 0.01

Pricer = Callable[[DeviceSpec], Floats]


@dataclass(frozen=True)
class FieldStep:
    """A field of a device, and the device with the field a step smaller and a step larger.

    Parameters
    ----------
    field
        Dotted path.
    value
        What the device has.
    quantity
        Unit and range.
    sides
        ``((ln(changed / value), spec), ...)``: one or two; a side that contradicts other fields is missing.
    """

    field: str
    value: float
    quantity: Quantity
    sides: tuple[tuple[float, DeviceSpec], ...]


def field_steps(spec: DeviceSpec) -> Iterator[FieldStep]:
    """Yield every numeric field of a device the model may read, with the devices beside it.

    A field of any value goes :data:`STEP` to either side, a whole number by at least one. Bytes and powers of two go
    to their half and their double: they come in nothing between, and a program that just fits says nothing.
    """
    known = settable(spec)
    for field in spec.values():
        if not field.startswith("accuracy."):
            step = field_step(spec, field, known[field])
            if step is not None:
                yield step


def field_step(spec: DeviceSpec, field: str, quantity: Quantity) -> FieldStep | None:
    """Return the devices beside one that differ in a field; ``None`` where there are none."""
    value = spec.values()[field]
    if not value:
        return None
    sides = tuple(_side(spec, field, value, other) for other in _beside(value, quantity))
    found = tuple(s for s in sides if s is not None)
    return FieldStep(field, value, quantity, found) if found else None


def _beside(value: float, quantity: Quantity) -> tuple[float, float]:
    if not quantity.integer:
        return value / (1 + STEP), value * (1 + STEP)
    whole = int(value)
    if whole & (whole - 1) == 0 or quantity.unit == "bytes":
        return whole // 2, whole * 2
    step = max(1, round(STEP * whole))
    return whole - step, whole + step


def _side(spec: DeviceSpec, field: str, value: float, other: float) -> tuple[float, DeviceSpec] | None:
    try:
        return math.log(other / value), spec.with_overrides({field: other})
    except (SpecError, ValueError):  # out of range, or against another field: a budget above its capacity
        return None


def elasticity(step: FieldStep, price: Pricer, base: Floats) -> Floats:
    """Return the change of ``ln`` seconds per change of ``ln`` field, per program."""
    points = sorted([(0.0, base), *((x, price(spec)) for x, spec in step.sides)], key=lambda p: p[0])
    x = np.array([p[0] for p in points])
    y = np.stack([p[1] for p in points])
    fits = np.isfinite(y)
    low, high = fits.argmax(axis=0), len(x) - 1 - fits[::-1].argmax(axis=0)
    rows = np.arange(y.shape[1])
    width = x[high] - x[low]
    rise = np.where(fits.any(axis=0) & (width > 0), y[high, rows] - y[low, rows], 0.0)
    return np.asarray(rise / np.where(width > 0, width, 1.0))
