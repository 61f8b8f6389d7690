"""Falls back to kernels without the matrix unit if its instructions are priced but not emitted."""

from __future__ import annotations

import warnings

from roller.errors import RollerWarning
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.unit_notes import takes


def compiled_spec(expression: TensorExpr, spec: DeviceSpec) -> DeviceSpec:
    """Return the device with only emitted instructions, and warn if predictions use others.

    >>> import roller
    >>> spec = roller.load_spec("v100")
    >>> compiled_spec(roller.ops.matmul(64, 64, 64), spec) is spec
    True
    """
    emitted = spec.emitted
    missed = [f for f in spec.constructed.fragments if not f.emitted and takes(f, expression)]
    if missed and not any(takes(f, expression) for f in emitted.fragments):
        warnings.warn(
            f"{expression.name} on {spec.name}: {missed[0].name} and its like are priced, no template emits them yet: "
            "compiled without the matrix unit.",
            RollerWarning,
            stacklevel=4,
        )
    return emitted
