"""Predicted times of symbolic programs at given sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicProgram
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.templates import price_with_templates


def predicted(programs: Sequence[SymbolicProgram], sizes: Sizes, spec: DeviceSpec) -> np.ndarray:
    """Return predicted seconds at the given sizes, shape ``(programs,)``; infinite if unsupported."""
    out = np.full(len(programs), np.inf)
    rows = [n for n, p in enumerate(programs) if p.takes(sizes)]
    shared: dict[TensorExpr, TensorExpr] = {}  # programs of one expression are priced together
    several = [programs[n].at(sizes) for n in rows]
    several = [replace(p, expr=shared.setdefault(p.expr, p.expr)) for p in several]
    if several:
        out[rows] = [e.seconds for e in price_with_templates.estimate_programs(several, spec)]
    return out
