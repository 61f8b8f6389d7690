"""Falls back to kernels without the matrix unit if its instructions are priced but not emitted."""

from __future__ import annotations

import warnings

from roller.errors import RollerWarning
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf.matrix_unit_notes import fragment_supports


def spec_with_emitted_instructions(expression: TensorExpr, spec: DeviceSpec) -> DeviceSpec:
    """Return ``spec`` with only emitted instructions; warn if the matrix unit supports ``expression`` only with others.

    >>> import roller
    >>> spec = roller.load_spec("v100")
    >>> spec_with_emitted_instructions(roller.ops.matmul(64, 64, 64), spec) is spec
    True
    """
    emitted = spec.emitted
    missed = [f for f in spec.constructed.fragments if not f.emitted and fragment_supports(f, expression)]
    if missed and not any(fragment_supports(f, expression) for f in emitted.fragments):
        warnings.warn(
            f"{expression.name} on {spec.name}: {missed[0].name} and its like are priced, no template emits them yet: "
            "compiled without the matrix unit.",
            RollerWarning,
            stacklevel=4,
        )
    return emitted
