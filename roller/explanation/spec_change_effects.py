"""Effects of changed device values on predicted times, computed by finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from roller.construction.check_user_named_programs import check_program
from roller.construction.constructor import construct_candidates
from roller.construction.parse_program_names import estimate_named_program
from roller.errors import NoCandidateError, TileError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.hardware.checks import Quantity
from roller.perf.sensitivity import finite_difference_steps, slope_of_each_column
from roller.templates.common.options import ConstructOptions
from roller.tile.program import RProgram

#: Factors for changing real numbers, and for changing counts (units, misses), which have stepwise effects.
FACTORS, COUNT_FACTORS = (0.8, 1.25), (0.8, 0.9, 1.1, 1.25)
#: Change of a time, in percent, below which it is ignored.
NOTHING = 0.1

#: Units of resources; times, exponents and transaction sizes are not resources.
_THROUGHPUT = ("bytes/s", "operations/cycle/unit", "Hz", "units")
_CAPACITY = ("bytes", "registers", "threads", "blocks", "banks", "pages", "misses")
_GRAINS = ("transaction_bytes", "fetch_bytes", "line_bytes", "page_bytes", "bank_width_bytes", "allocation_unit")

#: Function that returns the predicted time, in seconds, of each operator on a device; infinite if no program fits.
Pricer = Callable[[DeviceSpec], tuple[float, ...]]


@dataclass(frozen=True)
class FieldChange:
    """A different value of a field, and the resulting predicted times."""

    value: float
    seconds: tuple[float, ...]  #: Predicted time per operator; infinite if no program fits
    percent: float  #: Change of the time (geometric mean over operators) in percent; infinite if one does not fit


@dataclass(frozen=True)
class FieldEffect:
    """Effect of one field on predicted times."""

    #: Dotted path, effective value and unit of the field.
    field: str
    value: float
    unit: str
    seconds: tuple[float, ...]  #: Predicted time per operator on the unchanged device
    changes: tuple[FieldChange, ...]  #: Other values in ascending order
    assumed: bool = False  #: Whether the value is assumed rather than measured or taken from a data sheet

    @cached_property
    def per_operator(self) -> tuple[float, ...]:
        """Mean change of each operator's time in percent, per percent of the field, over the values that fit."""
        points = [(self.value, self.seconds), *((c.value, c.seconds) for c in self.changes)]
        return tuple(
            slope_of_each_column((math.log(v), [math.log(s) for s in seconds]) for v, seconds in points).tolist()
        )

    @cached_property
    def percent(self) -> float:
        """Mean of :attr:`per_operator`."""
        return sum(self.per_operator) / len(self.per_operator)

    @property
    def decides(self) -> bool:
        """Whether any other value changes the time by at least :data:`NOTHING` percent."""
        return any(abs(c.percent) >= NOTHING for c in self.changes)

    @property
    def weight(self) -> float:
        """Largest :meth:`rate` of a change that fits the device."""
        return max((self.rate(c) for c in self.changes if math.isfinite(c.percent)), default=0.0)

    @property
    def best(self) -> FieldChange | None:
        """Change (more of a resource, or less of a time) with the largest gain for its size; ``None`` if none gains."""
        if self.unit == "s":
            better = [c for c in self.changes if c.value < self.value]
        elif is_more_better(self.field, self.unit, capacities=True):
            better = [c for c in self.changes if c.value > self.value]
        else:
            return None
        gaining = [c for c in better if c.percent <= -NOTHING]
        return max(gaining, key=self.rate, default=None)

    def beside(self, larger: bool) -> FieldChange | None:
        """Return a side's change to show: :attr:`best`, else the nearest with an effect, the nearest, or ``None``."""
        side = [c for c in self.changes if (c.value > self.value) == larger]
        if self.best in side:  # show the recommended change
            return self.best
        side = side if larger else side[::-1]
        return next((c for c in side if abs(c.percent) >= NOTHING), side[0] if side else None)

    def rate(self, change: FieldChange) -> float:
        """Return the absolute change in the time's logarithm divided by the change in the field's logarithm."""
        return abs(math.log1p(change.percent / 100) / math.log(change.value / self.value))


def effects(spec: DeviceSpec, price: Pricer, fields: Sequence[str] | None = None) -> Iterator[FieldEffect]:
    """Yield the effect of each numeric field (or of ``fields``) that the model may read, in the order of the YAML."""
    seconds = price(spec)
    for step in finite_difference_steps(spec, values_to_try):
        if fields is None or step.field in fields:
            changes = tuple(relative_field_change(other, price(changed), seconds) for other, changed in step.sides)
            assumed = spec.sources.get(step.field) == "assumed"
            yield FieldEffect(step.field, step.value, step.quantity.unit, seconds, changes, assumed)


def relative_field_change(value: float, after: tuple[float, ...], before: tuple[float, ...]) -> FieldChange:
    """Return the change from the times ``before`` to the times ``after``, which belong to the field's new ``value``."""
    if not all(map(math.isfinite, after)):
        return FieldChange(value, after, math.inf)
    if after == before:
        return FieldChange(value, after, 0.0)
    ratios = [math.log(a / b) for a, b in zip(after, before, strict=True)]
    return FieldChange(value, after, 100 * math.expm1(sum(ratios) / len(ratios)))


def values_to_try(value: float, quantity: Quantity) -> tuple[float, ...]:
    """Return the other values to try for a field, in ascending order, rounded as they are printed.

    >>> values_to_try(80, Quantity("units", 1, 1000, integer=True))
    (64, 72, 88, 100)
    >>> values_to_try(1.38e9, Quantity("Hz", 1, 1e12))
    (1104000000.0, 1725000000.0)
    """
    if quantity.integer:
        return tuple(sorted({max(1, round(int(value) * f)) for f in COUNT_FACTORS} - {int(value)}))
    return tuple(float(f"{value * f:.4g}") for f in FACTORS)


def shortest_number_text(value: float) -> str:
    """Return the shortest text from which ``--set`` reads exactly this value.

    >>> (shortest_number_text(660800000000.0), shortest_number_text(88), shortest_number_text(2**40),
    ...  shortest_number_text(0.8), shortest_number_text(1 / 3))
    ('6.608e+11', '88', '1099511627776', '0.8', '0.3333333333333333')
    """
    short = f"{value:.4g}"
    if float(short) == value:
        return short
    return str(int(value)) if value == int(value) else repr(float(value))


def is_more_better(field: str, unit: str, capacities: bool) -> bool:
    """Return whether more of a field is better: a rate or a number of units, or, with ``capacities``, a capacity."""
    return not field.endswith(_GRAINS) and unit in (_THROUGHPUT + _CAPACITY if capacities else _THROUGHPUT)


def fixed_program_pricer(programs: Sequence[RProgram]) -> Pricer:
    """Return a pricer for fixed programs; it prices as ``predict --program NAME --set FIELD=VALUE`` does."""
    return lambda spec: tuple(_program_seconds(p, spec) for p in programs)


def _program_seconds(program: RProgram, spec: DeviceSpec) -> float:
    try:
        check_program(program, spec)
        return estimate_named_program(program, spec).seconds
    except TileError:
        return math.inf


def reconstructing_pricer(expressions: Sequence[TensorExpr], options: ConstructOptions) -> Pricer:
    """Return a pricer that constructs programs anew; it prices as ``construct --set FIELD=VALUE`` does."""

    def price(spec: DeviceSpec) -> tuple[float, ...]:
        return tuple(_fastest_constructed_seconds(e, spec, options) for e in expressions)

    return price


def _fastest_constructed_seconds(expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions) -> float:
    try:
        return construct_candidates(expr, spec, options)[0].estimate.seconds
    except NoCandidateError:
        return math.inf
