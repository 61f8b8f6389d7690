"""Sensitivity of predicted times to a device's values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roller.compile_arguments import parse_expression, resolve_options, spec_and_local_device
from roller.construction.constructor import construct_candidates
from roller.errors import NoCandidateError, counted
from roller.explanation.spec_change_effects import (
    FieldChange,
    FieldEffect,
    Pricer,
    effects,
    fixed_program_pricer,
    is_more_better,
    reconstructing_pricer,
)
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.display import one_line_repr
from roller_runtime.core.validation import validate_flag

#: Maximum increase of the time, in percent, for a component to count as reducible.
COST = 1.0
#: Minimum relative reduction for a component to count as reducible.
_REDUCED = 0.2


@dataclass(frozen=True)
class SpareCapacity:
    """Component that could be smaller: its field, the smaller value and the resulting times."""

    field: str
    change: FieldChange


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity of predicted times to a device's values."""

    device: str  #: Name of the spec
    operators: tuple[str, ...]  #: Names of the expressions, in the given order
    seconds: tuple[float, ...]  #: Predicted time of each expression in seconds
    reconstructed: bool  #: Whether programs were reconstructed for each changed device
    effects: tuple[
        FieldEffect, ...
    ]  #: Effects of fields that have one, strongest first, with the times for other values
    #: Field whose enlargement (for a time, reduction) saves most relative to its size (:attr:`FieldEffect.best`), or
    #: ``None``.
    enlarge: FieldEffect | None
    #: Components that could be at least a fifth smaller while the time grows by at most :data:`COST` percent, cheapest
    #: first.
    reducible: tuple[SpareCapacity, ...]

    def __repr__(self) -> str:
        most = " ".join(f"{e.field} {e.percent:+.2g} %" for e in self.effects[:3])
        return one_line_repr(
            "Sensitivity", f"{self.device}: {most} per percent", counted(len(self.operators), "operator")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "device": self.device,
            "operators": list(self.operators),
            "predicted_s": list(self.seconds),
            "reconstructed": self.reconstructed,
            "effects": [_effect_to_dict(e) for e in self.effects],
            "enlarge": None if self.enlarge is None else self.enlarge.field,
            "enlarge_to": None if self.enlarge is None or self.enlarge.best is None else self.enlarge.best.value,
            "reducible": [
                {"field": x.field, "value": x.change.value, "percent": x.change.percent} for x in self.reducible
            ],
        }


def _effect_to_dict(effect: FieldEffect) -> dict[str, Any]:
    changes = [{"value": c.value, "predicted_s": list(c.seconds), "percent": c.percent} for c in effect.changes]
    return {"field": effect.field, "value": effect.value, "unit": effect.unit, "assumed": effect.assumed,
            "changes": changes, "percent_per_percent": effect.percent,
            "per_operator": list(effect.per_operator)}  # fmt: skip


def sensitivity(
    expr: Any,
    device: str | DeviceSpec,
    *,
    reconstruct: bool | None = None,
    options: ConstructOptions | None = None,
) -> Sensitivity:
    """Return how the predicted time changes with other values of a device, field by field.

    Parameters
    ----------
    expr
        A TensorExpr, TE tensors or a PrimFunc; or a sequence of TensorExpr, whose times are combined by their geometric
        mean.
    device
        See :func:`roller.construct`.
    reconstruct
        Whether to reconstruct programs for each changed device, as :func:`roller.construct` would. If not, the best
        program is priced unchanged, as :func:`roller.predict` prices a program given by its name. The default is True
        for one expression, which takes seconds, and False for several.
    options
        See :func:`roller.construct`.

    Returns
    -------
    Sensitivity

    Raises
    ------
    NoCandidateError
        If an expression has no program for the device.

    Examples
    --------
    >>> import roller
    >>> found = roller.sensitivity(roller.ops.elementwise("relu", (1 << 24,)), "v100")
    >>> found.enlarge.field, round(found.enlarge.percent, 1)
    ('memory_layers.global.bandwidth_bytes_per_s', -1.0)
    """
    several = isinstance(expr, Sequence) and len(expr) > 0 and all(isinstance(e, TensorExpr) for e in expr)
    spec, chosen = spec_and_local_device(device)[0], resolve_options(options, None)
    expressions = [chosen.meant(parse_expression(e)) for e in (expr if several else [expr])]
    anew = len(expressions) == 1 if reconstruct is None else validate_flag(reconstruct, "reconstruct")
    if anew:
        price = reconstructing_pricer(expressions, chosen)
    else:
        price = fixed_program_pricer([construct_candidates(e, spec, chosen)[0].program for e in expressions])
    return sensitivity_of_pricer(spec, tuple(e.name for e in expressions), price, anew=anew)


def sensitivity_of_pricer(
    spec: DeviceSpec, names: tuple[str, ...], price: Pricer, *, anew: bool, fields: Sequence[str] | None = None
) -> Sensitivity:
    """Return the sensitivity to a device's values of the times that ``price`` computes."""
    found = list(effects(spec, price, fields))
    before = found[0].seconds if found else price(spec)
    if not all(map(math.isfinite, before)):
        raise NoCandidateError(f"{names[before.index(math.inf)]}: no program fits {spec.name}.")
    deciding = sorted((e for e in found if e.decides), key=lambda e: (-e.weight, e.field))
    best = max((e for e in deciding if e.best), key=lambda e: e.rate(e.best) if e.best else 0.0, default=None)
    return Sensitivity(spec.name, names, before, anew, tuple(deciding), best, _find_spare_capacities(found, anew))


def _find_spare_capacities(found: Sequence[FieldEffect], capacities: bool) -> tuple[SpareCapacity, ...]:
    # Without reconstruction, capacities are not reducible: the fixed program uses what it has.
    spares = []
    for e in found:
        if is_more_better(e.field, e.unit, capacities):
            smaller = [c for c in e.changes if c.value <= 1.001 * (1 - _REDUCED) * e.value + 0.5 and c.percent <= COST]
            spares += [SpareCapacity(e.field, c) for c in smaller[:1] if c.value < e.value]
    return tuple(sorted(spares, key=lambda x: (x.change.percent, x.field)))
