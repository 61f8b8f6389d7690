"""Checks the inputs that a caller declares to be in the shared cache."""

from __future__ import annotations

from collections.abc import Sequence

from roller.errors import TileError, did_you_mean, shown
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec


def check_cached_inputs(expr: TensorExpr, spec: DeviceSpec, names: Sequence[str]) -> tuple[str, ...]:
    """Return ``names`` as a tuple; raise an error for a name that is no input, and for any name unless on a GPU."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TileError(f"warm: expected a sequence of names of inputs, got {shown(names)}. Write for example ('A',).")
    known = [t.name for t in expr.inputs]
    for n in names:
        if n not in known:
            hint = (did_you_mean(n, known) if isinstance(n, str) else "") or "."
            raise TileError(f"warm: expected inputs of {expr.name} {known}, got {shown(n)}{hint}")
    if names and not spec.traits.blocks:
        raise TileError(f"warm: expected a GPU, got {spec.name}. Leave it out: prices of a CPU say where data lie.")
    return tuple(names)
