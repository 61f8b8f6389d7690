"""Which numbers of a device decide: predicted time per percent of each, what to enlarge, what could be smaller."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from roller.arguments import expression_of, options_of, target_of
from roller.construction.constructor import construct_candidates
from roller.construction.options import ConstructOptions
from roller.errors import NoCandidateError, RollerError, SpecError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.sensitivity import FieldStep, elasticity, field_steps, log_prices
from roller.tile.geometry import Floats
from roller.validation import flag

#: Units of what a device has more or less of; times, exponents and sizes of a transaction are something else.
_THROUGHPUT = ("bytes/s", "operations/cycle/unit", "Hz", "units")
_CAPACITY = ("bytes", "registers", "threads", "blocks", "banks", "pages", "misses")
_GRAINS = ("transaction_bytes", "fetch_bytes", "line_bytes", "page_bytes", "bank_width_bytes", "allocation_unit")
#: What a component is made smaller by, and what that may cost, to be named as one that could be reduced.
REDUCED, COST = 0.2, 0.01
#: Percent per percent below which a field decides nothing.
NOTHING = 0.005


@dataclass(frozen=True)
class Effect:
    """What one field does.

    Parameters
    ----------
    field, value, unit
        Dotted path, effective value, unit.
    percent
        Change of predicted time in percent where the field is one percent larger; the mean over operators.
    per_operator
        The same for every operator.
    """

    field: str
    value: float
    unit: str
    percent: float
    per_operator: tuple[float, ...]


@dataclass(frozen=True)
class Sensitivity:
    """How predicted times follow a device's numbers.

    Parameters
    ----------
    device
        Name of the spec.
    operators
        Names of the expressions, in the order given.
    seconds
        Predicted for each.
    reconstructed
        Whether every changed device got programs of its own.
    effects
        Fields that matter, the strongest first.
    enlarge
        The field whose enlargement (reduction, of a time) saves most, or ``None``.
    reducible
        ``((field, change), ...)``: components that could be :data:`REDUCED` smaller for a relative ``change`` of the
        time (geometric mean) of at most :data:`COST`; the cheapest first.
    """

    device: str
    operators: tuple[str, ...]
    seconds: tuple[float, ...]
    reconstructed: bool
    effects: tuple[Effect, ...]
    enlarge: Effect | None
    reducible: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "device": self.device,
            "operators": list(self.operators),
            "predicted_s": list(self.seconds),
            "reconstructed": self.reconstructed,
            "effects": [
                {"field": e.field, "value": e.value, "unit": e.unit, "percent_per_percent": e.percent,
                 "per_operator": list(e.per_operator)}
                for e in self.effects
            ],
            "enlarge": None if self.enlarge is None else self.enlarge.field,
            "reducible": [{"field": f, "reduced": REDUCED, "change": c} for f, c in self.reducible],
        }  # fmt: skip


def sensitivity(
    expr: Any,
    device: str | DeviceSpec,
    *,
    reconstruct: bool = False,
    options: ConstructOptions | None = None,
) -> Sensitivity:
    """Return how the predicted time follows each number of a device.

    Parameters
    ----------
    expr
        A TensorExpr, TE tensors or a PrimFunc; or a sequence of TensorExpr, whose geometric mean counts.
    device
        As for :func:`roller.construct`.
    reconstruct
        Construct anew for every changed device; else the best program stays as it is: what its machine would do with
        the same kernel.
    options
        As for :func:`roller.construct`.

    Returns
    -------
    Sensitivity

    Raises
    ------
    NoCandidateError
        Where an expression has no program for the device.

    Examples
    --------
    >>> import roller
    >>> found = roller.sensitivity(roller.ops.elementwise("relu", (1 << 24,)), "v100")
    >>> found.enlarge.field, round(found.enlarge.percent, 1)
    ('memory_layers.global.bandwidth_bytes_per_s', -1.0)
    """
    several = isinstance(expr, Sequence) and len(expr) > 0 and all(isinstance(e, TensorExpr) for e in expr)
    expressions = [expression_of(e) for e in (expr if several else [expr])]
    reconstruct = flag(reconstruct, "reconstruct")
    spec, chosen = target_of(device)[0], options_of(options, 1)
    programs = [construct_candidates(e, spec, chosen)[0].program for e in expressions]
    price: Callable[[DeviceSpec], Floats] = partial(log_prices, programs)
    if reconstruct:
        price = partial(_reconstructed, expressions, options=chosen)
    base = price(spec)
    effects = []
    for step in field_steps(spec):
        found = elasticity(step, price, base)
        if np.abs(found).max(initial=0.0) >= NOTHING:
            shares = tuple(float(e) for e in found)
            effects.append(Effect(step.field, step.value, step.quantity.unit, float(found.mean()), shares))
    effects.sort(key=lambda e: (-abs(e.percent), e.field))
    return Sensitivity(
        spec.name,
        tuple(e.name for e in expressions),
        tuple(float(s) for s in np.exp(base)),
        reconstruct,
        tuple(effects),
        next((e for e in effects if _can_be_better(e)), None),
        _reducible(spec, price, base, reconstruct),
    )


def _reconstructed(expressions: Sequence[TensorExpr], spec: DeviceSpec, options: ConstructOptions) -> Floats:
    """Return ``ln`` of the predicted seconds of the best programs of a device."""
    found = []
    for e in expressions:
        try:
            found.append(math.log(construct_candidates(e, spec, options)[0].estimate.seconds))
        except NoCandidateError:
            found.append(math.inf)
    return np.array(found)


def _is_resource(field: str, unit: str, capacities: bool) -> bool:
    return not field.endswith(_GRAINS) and unit in (_THROUGHPUT + _CAPACITY if capacities else _THROUGHPUT)


def _can_be_better(effect: Effect) -> bool:
    """Whether a device could have more of it (or less, of a time) and gain by that."""
    if effect.unit == "s":
        return effect.percent > NOTHING
    return _is_resource(effect.field, effect.unit, True) and effect.percent < -NOTHING


def _reducible(
    spec: DeviceSpec, price: Callable[[DeviceSpec], Floats], base: Floats, capacities: bool
) -> tuple[tuple[str, float], ...]:
    """Return the components that could be smaller at hardly any cost, and that cost.

    Capacities only where programs are constructed anew: what a fixed program needs of them, it has.
    """
    found = []
    for step in field_steps(spec):
        if not _is_resource(step.field, step.quantity.unit, capacities):
            continue
        change = _change(spec, step, price, base)
        if change is not None and change <= COST:
            found.append((step.field, change))
    return tuple(sorted(found, key=lambda f: (f[1], f[0])))


def _change(spec: DeviceSpec, step: FieldStep, price: Callable[[DeviceSpec], Floats], base: Floats) -> float | None:
    """Return the relative change of the mean time with the field reduced; ``None`` where it cannot be."""
    smaller = step.value * (1 - REDUCED)
    value = math.floor(smaller) if step.quantity.integer else smaller
    try:
        change = float((price(spec.with_overrides({step.field: value})) - base).mean())
    except (SpecError, RollerError):
        return None
    return math.expm1(change) if math.isfinite(change) else None
